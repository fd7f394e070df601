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
    """Ids of live requests, ours and the clients' own, each within its tenant."""

    def __init__(self) -> None:
        self._requests: dict[tuple[str, str], tuple[str, ...]] = {}

    def claim(self, tenant: str, names: tuple[str, ...], requests: tuple[str, ...]) -> str | None:
        """All of the names or none: the first that is taken, or None when all are had."""
        for name in names:
            if (tenant, name) in self._requests:
                return name
        for name in names:
            self._requests[tenant, name] = requests
        return None

    def release(self, tenant: str, names: tuple[str, ...]) -> None:
        for name in names:
            self._requests.pop((tenant, name), None)

    def find(self, tenant: str, name: str) -> tuple[str, ...]:
        """The live requests of this tenant by that name; empty: not found, whoever else may have it."""
        return self._requests.get((tenant, name), ())

    def __len__(self) -> int:
        return len(self._requests)
