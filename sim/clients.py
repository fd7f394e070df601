"""What the clients asked for, what they were given, and whether that was right."""

from dataclasses import dataclass, field

from core.ends import End
from core.outcomes import FinishReason, Outcome
from engine.fake_kv import FakeModel, expected_tokens
from services.gateway.actions import Deliver, Ended
from services.gateway.requests import NewRequest


@dataclass(slots=True)
class Asked:
    """One request as its client sees it."""

    spec: NewRequest
    gateway: str
    asked_us: int
    stop_after: int = 0
    """A stop string that every choice completes with this many tokens; 0: none."""
    outputs: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, FinishReason] = field(default_factory=dict)
    first_token_us: int | None = None
    ended: Ended | None = None
    ended_us: int | None = None
    abandoned: bool = False
    """Its gateway died, and its connection with it."""

    @property
    def request(self) -> str:
        return self.spec.request

    @property
    def over(self) -> bool:
        return self.ended is not None or self.abandoned

    @property
    def end(self) -> End | None:
        return None if self.ended is None else self.ended.end

    @property
    def outcome(self) -> Outcome | None:
        return None if self.ended is None else self.ended.end.outcome

    @property
    def tokens(self) -> int:
        return sum(len(output) for output in self.outputs.values())


class Clients:
    """Every request ever asked. What arrives wrong is an AssertionError at once (L3, L5, L10)."""

    def __init__(self, model: FakeModel) -> None:
        self._model = model
        self.asked: dict[str, Asked] = {}
        self.live: dict[str, Asked] = {}

    def ask(self, asked: Asked) -> None:
        assert asked.request not in self.asked, f"{asked.request} is asked twice"
        asked.outputs = {index: [] for index in range(asked.spec.choices)}
        self.asked[asked.request] = self.live[asked.request] = asked

    def delivered(self, deliver: Deliver, now_us: int) -> tuple[str, int, int, FinishReason] | None:
        """Takes tokens in; answers with what the text side says of the choice, if it says something."""
        asked = self.asked[deliver.request]
        assert not asked.over, f"{deliver.request}: tokens after the end"
        output = asked.outputs[deliver.choice]
        if asked.stop_after and deliver.choice in asked.finishes:
            return None  # the text side has ended it, and the gateway is about to hear of it
        assert deliver.first_index == len(output), f"{deliver.request}: a gap or a duplicate"
        if asked.first_token_us is None:
            asked.first_token_us = now_us
        output.extend(deliver.tokens)
        assert deliver.choice not in asked.finishes, f"{deliver.request}: tokens after the finish"
        if asked.stop_after and len(output) >= asked.stop_after:
            del output[asked.stop_after :]
            asked.finishes[deliver.choice] = FinishReason.STOP
            return deliver.request, deliver.choice, asked.stop_after, FinishReason.STOP
        if deliver.finish is None:
            return None
        asked.finishes[deliver.choice] = deliver.finish
        if not asked.spec.stop_strings:
            return None
        return deliver.request, deliver.choice, len(output), deliver.finish

    def ended(self, ended: Ended, now_us: int) -> None:
        asked = self.asked[ended.request]
        assert not asked.over, f"{ended.request} ends twice"
        asked.ended, asked.ended_us = ended, now_us
        del self.live[ended.request]
        self.verify(asked)

    def gateway_died(self, gateway: str) -> None:
        for asked in list(self.live.values()):
            if asked.gateway == gateway:
                asked.abandoned = True
                del self.live[asked.request]
                self.verify(asked)

    def verify(self, asked: Asked) -> None:
        """Every token so far is the right one, and a completed answer is whole."""
        for choice, output in asked.outputs.items():
            expected = self.expected(asked, choice)
            assert output == expected[: len(output)], f"{asked.request} choice {choice}: wrong tokens"
            if asked.outcome is Outcome.COMPLETED:
                whole = expected[: asked.stop_after] if asked.stop_after else expected
                assert output == whole, (
                    f"{asked.request} choice {choice}: {len(output)} of {len(whole)} tokens"
                )
        if asked.ended is not None:
            assert asked.ended.output_tokens == asked.tokens, f"{asked.request}: billed tokens"

    def expected(self, asked: Asked, choice: int) -> list[int]:
        """The right answer of one choice."""
        spec = asked.spec
        return expected_tokens(
            spec.prompt, spec.params, spec.seed, choice, spec.params.max_tokens, model=self._model
        )

    def outcomes(self) -> dict[Outcome, int]:
        counts: dict[Outcome, int] = {}
        for asked in self.asked.values():
            if asked.outcome is not None:
                counts[asked.outcome] = counts.get(asked.outcome, 0) + 1
        return counts
