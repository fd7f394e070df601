"""One client call: its requests, its names and its mailbox, from claim to release."""

from dataclasses import dataclass, field
from types import TracebackType

from core.ends import End
from core.outcomes import FinishReason, Outcome
from services.gateway.actions import Ended
from services.gateway.choice_text import ChoiceText, Piece
from services.gateway.driver import Driver
from services.gateway.mailbox import Answer, Mailbox
from services.gateway.models import ServedModel
from services.gateway.refusal import Refusal
from services.gateway.request_names import RequestNames
from services.gateway.requests import NewRequest


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, over all its requests."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True)
class Generation:
    """A context manager: entering opens the requests, leaving ends what still runs."""

    id: str
    names: tuple[str, ...]
    """The id and, where given, the client's own."""
    model: ServedModel
    created_s: int
    requests: tuple[NewRequest, ...]
    stops: tuple[str, ...]
    continues: bool
    """The answer goes on after the prompt's text (completions)."""
    mailbox: Mailbox
    driver: Driver
    registry: RequestNames
    is_shared: bool = False
    """Another live request may have the client's name."""
    client_id_field: str = "x-request-id"
    """Where a client's own name comes from."""
    finishes: dict[int, FinishReason] = field(default_factory=dict)
    """By choice, over all requests."""
    usage: Usage = Usage()
    _open: int = 0

    @property
    def choices(self) -> int:
        return sum(request.choices for request in self.requests)

    @property
    def _ids(self) -> tuple[str, ...]:
        return tuple(request.request for request in self.requests)

    @property
    def done(self) -> bool:
        return self._open == 0

    def __enter__(self) -> "Generation":
        """Raises Refusal where the tenant has a live request of one of the names, and it is not shared."""
        tenant = self.requests[0].tenant.name
        taken = None if self.is_shared else self.registry.taken(tenant, self.names)
        if taken is not None:
            problem = f"the request id {taken!r} is live already"
            raise Refusal(End(Outcome.DUPLICATE_REQUEST, problem, self.client_id_field))
        self.registry.claim(tenant, self.names, self._ids)
        self._open = len(self.requests)
        for number, request in enumerate(self.requests):
            texts = [self._text(request, choice) for choice in range(request.choices)]
            self.driver.open(request, Answer(texts, self.mailbox, number, confirms=bool(self.stops)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.cancel(Outcome.CANCELLED, "the client is gone")
        self.registry.release(self.requests[0].tenant.name, self.names, self._ids)

    def cancel(self, outcome: Outcome, message: str = "") -> None:
        """Idempotent."""
        for request in self.requests:
            self.driver.cancel(request.request, outcome, message)

    def note(self, number: int, item: Piece | Ended) -> int:
        """Keeps what the end of the answer needs; answers the piece's choice over all requests."""
        if isinstance(item, Ended):
            self._open -= 1
            self.usage = Usage(
                self.usage.prompt_tokens + item.prompt_tokens,
                self.usage.output_tokens + item.output_tokens,
                self.usage.cached_tokens + item.cached_tokens,
            )
            return 0
        choice = number * self.requests[0].choices + item.choice
        if item.finish is not None:
            self.finishes[choice] = item.finish
        return choice

    def _text(self, request: NewRequest, choice: int) -> ChoiceText:
        return ChoiceText(
            self.model.tokenizer, choice, self.stops, request.params.stop_token_ids, continues=self.continues
        )
