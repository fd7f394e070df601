"""Which live requests an id means, to whom."""

PREFIXES = ("chatcmpl-", "cmpl-", "gen-")
"""What the ids we make begin with, by API."""
NAME_CHARACTERS_MAX = 128


def made_id(prefix: str, gateway: str, unique: str) -> str:
    """A request id that names the gateway that owns it; `unique` holds no dash."""
    return f"{prefix}{gateway}-{unique}"


def owner_of(request: str) -> str | None:
    """The gateway that a request id names; None for a client's own id."""
    for prefix in PREFIXES:
        if request.startswith(prefix):
            gateway, dash, _ = request.removeprefix(prefix).rpartition("-")
            return gateway if dash else None
    return None


def name_problem(name: str) -> str | None:
    """Why a client's own id cannot be used; None: it can."""
    if len(name) > NAME_CHARACTERS_MAX:
        return f"must have at most {NAME_CHARACTERS_MAX} characters"
    if not name.isascii() or not name.isprintable():
        return "must be printable ASCII"
    return None


class RequestNames:
    """Ids of live requests, ours and the clients' own, each within its tenant.

    A client's name may mean several calls: streams count their requests alike, and no gateway knows what
    another has live. A cancel by name ends every one of them.
    """

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], list[tuple[str, ...]]] = {}
        """The requests of each call of that name."""

    def taken(self, tenant: str, names: tuple[str, ...]) -> str | None:
        """The first that a live call here has; None: all are free."""
        return next((name for name in names if (tenant, name) in self._requests), None)

    def claim(self, tenant: str, names: tuple[str, ...], requests: tuple[str, ...]) -> None:
        for name in names:
            self._requests.setdefault((tenant, name), []).append(requests)

    def release(self, tenant: str, names: tuple[str, ...], requests: tuple[str, ...]) -> None:
        """Gives back what these requests claimed. Idempotent."""
        for name in names:
            calls = self._requests.get((tenant, name), [])
            if requests in calls:
                calls.remove(requests)
            if not calls:
                self._requests.pop((tenant, name), None)

    def find(self, tenant: str, name: str) -> tuple[str, ...]:
        """The live requests of this tenant by that name; empty: not found, whoever else may have it."""
        return tuple(request for call in self._requests.get((tenant, name), ()) for request in call)

    def __len__(self) -> int:
        return len(self._requests)
