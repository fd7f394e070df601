"""What always holds of a gateway's live requests and streams."""

from collections.abc import Mapping

from services.gateway.live_request import LiveRequest, Phase
from services.gateway.worker_links import WorkerLinks


def check_live(lives: Mapping[str, LiveRequest], links: WorkerLinks, deadlines: int) -> None:
    """Asserts the laws: every wait has a deadline, and requests and streams know each other."""
    for request, live in lives.items():
        on_worker = live.phase in (Phase.PLACED, Phase.STARTED)
        assert on_worker == (live.placement is not None)
        assert any(choice.finish is None for choice in live.choices), f"{request} is done and still live"
        assert all(len(choice.output) <= live.spec.params.max_tokens for choice in live.choices)
        link = links.get(live.worker) if on_worker else None
        assert not on_worker or (link is not None and request in link.requests)
    for link in links:
        for request in link.requests:
            assert request in lives and lives[request].worker == link.worker
    waiting = sum(live.phase is Phase.WAITING for live in lives.values())
    waits = len(lives) + waiting + sum(not link.up for link in links)
    assert deadlines == waits, f"{waits} waits have {deadlines} deadlines"
