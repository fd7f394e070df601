"""Which requests hold a share of their tenant's limits here, over all their attempts."""

from dataclasses import dataclass

from capacity.leases import Acquired, Held, LeaseBook, Limits, Wanted
from capacity.quantities import Ask
from core.request import AttemptKey
from router.messages import Submission


@dataclass(slots=True)
class _Holder:
    attempts: int
    """Live attempts; 0 while a next one is awaited."""
    charged_tokens: int


class Permits:
    """A request's permit is taken with its first attempt and returned when no attempt is left.

    A rate is charged the most a request could use, so that it is never exceeded; what was not used
    is refunded at the end.
    """

    def __init__(self, leases: LeaseBook) -> None:
        self._leases = leases
        self._holders: dict[str, _Holder] = {}
        self._owed: dict[str, Submission] = {}
        """Re-announced requests: they run whatever the limits say, and are counted once those allow."""

    def acquire(self, submission: Submission, now_us: int) -> Acquired:
        """All limits at once, or none; idempotent by request."""
        return self._leases.acquire(
            submission.tenant, submission.key.request, _limits(submission), _tokens(submission), now_us
        )

    def join(self, submission: Submission) -> None:
        """An attempt lives, with its request's permit or while that is asked for."""
        holder = self._holders.setdefault(submission.key.request, _Holder(0, _tokens(submission)))
        holder.attempts += 1

    def adopt(self, submission: Submission, now_us: int) -> list[Ask]:
        """Of an attempt that runs already, from before this process began."""
        self._owed[submission.key.request] = submission
        return self.count_owed(now_us)

    def count_owed(self, now_us: int) -> list[Ask]:
        """Tries to count what runs uncounted."""
        asks: list[Ask] = []
        for request, submission in list(self._owed.items()):
            # Its tokens were charged before the restart.
            answer = self._leases.acquire(submission.tenant, request, _limits(submission), 0, now_us)
            if isinstance(answer, Held):
                del self._owed[request]
            elif isinstance(answer, Wanted):
                asks += answer.asks
        return asks

    def leave(self, key: AttemptKey, used_tokens: int | None, now_us: int) -> None:
        """An attempt ended and none follows it; with the last one the permit goes. None: all was used."""
        self._holders[key.request].attempts -= 1
        self.abandon(key.request, now_us, used_tokens)

    def pause(self, key: AttemptKey) -> None:
        """An attempt ended and another will follow."""
        self._holders[key.request].attempts -= 1

    def abandon(self, request: str, now_us: int, used_tokens: int | None = None) -> None:
        """No further attempt comes. Idempotent; without effect while an attempt lives."""
        holder = self._holders.get(request)
        if holder is None or holder.attempts:
            return
        del self._holders[request]
        self._owed.pop(request, None)
        self._leases.release(request, holder.charged_tokens if used_tokens is None else used_tokens, now_us)

    def check(self, live: list[AttemptKey]) -> None:
        counts: dict[str, int] = {}
        for key in live:
            counts[key.request] = counts.get(key.request, 0) + 1
        for request, holder in self._holders.items():
            assert holder.attempts == counts.get(request, 0), f"{request} holds a permit for no attempt"
        assert all(request in self._holders for request in counts)
        assert all(request in self._holders for request in self._owed)
        self._leases.check()


def _limits(submission: Submission) -> Limits:
    return Limits(submission.tenant_concurrency, submission.tenant_tokens_per_minute)


def _tokens(submission: Submission) -> int:
    return submission.prompt_tokens + submission.choices * submission.max_tokens
