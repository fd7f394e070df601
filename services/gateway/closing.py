"""What is given back when an attempt or a request is over."""

from core.outcomes import Outcome
from core.request import AttemptKey
from services.gateway.actions import Action, CancelAttempt, Settle
from services.gateway.live_request import LiveRequest, Phase
from services.gateway.worker_links import WorkerLinks


def close_attempt(
    live: LiveRequest, links: WorkerLinks, outcome: Outcome, *, final: bool, running: bool
) -> list[Action]:
    """Gives back what the current attempt holds at its worker (if it is `running`) and its router."""
    actions: list[Action] = []
    if live.phase is Phase.STARTED and running:
        actions += _cancel_attempt(live, links, outcome)
    if live.placement is not None:
        links.release(live.worker, live.spec.request)
        billed = (len(live.spec.prompt), live.output_tokens) if final else (0, 0)
        actions.append(Settle(live.router, live.key, outcome, *billed, final))
        live.unsettled = None if final else (live.router, live.attempt)
    live.placement, live.home, live.first_token_seen, live.started = None, None, False, ()
    return actions


def settle_finally(live: LiveRequest, outcome: Outcome) -> list[Action]:
    """The request ends after an attempt that was settled as one of several."""
    if live.unsettled is None:
        return []
    router, attempt = live.unsettled
    key = AttemptKey(live.spec.request, attempt)
    return [Settle(router, key, outcome, len(live.spec.prompt), live.output_tokens, True)]


def leave_router(live: LiveRequest, router: str) -> list[Action]:
    """The request is placed by another router than before: the old one need not hold its place."""
    if live.unsettled is None or live.unsettled[0] == router:
        return []
    old_router, attempt = live.unsettled
    return [Settle(old_router, AttemptKey(live.spec.request, attempt), Outcome.MOVED, 0, 0, True)]


def give_back(live: LiveRequest | None, router: str, key: AttemptKey) -> list[Action]:
    """A placement that nobody waits for is settled, unless it is the running one, told twice."""
    if live is None or live.router != router:
        return [Settle(router, key, Outcome.CANCELLED, 0, 0, True)]
    if live.placement is not None and live.attempt == key.attempt:
        return []
    # The tenant's concurrency stays with this router: it is being asked again.
    if live.placement is None:
        live.unsettled = (router, key.attempt)
    return [Settle(router, key, Outcome.CANCELLED, 0, 0, False)]


def _cancel_attempt(live: LiveRequest, links: WorkerLinks, outcome: Outcome) -> list[Action]:
    link = links.get(live.worker)
    if link is None:
        return []
    cancel = CancelAttempt(live.worker, live.key, outcome)
    if link.up:
        return [cancel]
    link.owed_cancels.append(cancel)
    return []
