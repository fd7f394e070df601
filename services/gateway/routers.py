"""Which router a request is submitted to."""

from core.membership import home_router
from services.gateway.live_request import LiveRequest


class Routers:
    """The routers that can be reached now."""

    def __init__(self, splits: int) -> None:
        """`splits`: over how many homes one tenant's requests are spread."""
        self._splits = splits
        self._up: dict[str, None] = {}

    def add(self, router: str) -> None:
        self._up[router] = None

    def remove(self, router: str) -> None:
        """Idempotent."""
        self._up.pop(router, None)

    def __contains__(self, router: str) -> bool:
        return router in self._up

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._up)

    def home(self, live: LiveRequest) -> str | None:
        """The request's home, draining ones only where there is no other; None: there is none at all."""
        spec = live.spec
        able = [router for router in self._up if router not in live.avoid_routers]
        return home_router(
            able or list(self._up), spec.tenant.name, spec.model, spec.prefix_hashes[:8], self._splits
        )
