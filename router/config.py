"""What a router process is told at its start."""

from dataclasses import dataclass, field

from core.addresses import advertise_problem
from router.policy import RouterPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    """All of it, checked."""

    id: str
    """Stable and unique in the fleet; part of every reservation that workers acknowledge."""
    address: str = "127.0.0.1:0"
    """host:port to listen on; port 0 picks a free one."""
    advertise_host: str = ""
    """Where others reach this process; empty: the host of `address`."""
    redis_url: str = ""
    """Where the fleet is announced and tenants' limits are shared; empty: limits are this router's own."""
    record: str = ""
    """Folder for a recording of every event; empty: none."""
    metrics_port: int | None = None
    """Port of the metrics page on the same host, 0 a free one; None: no page."""
    drain_grace_us: int = 5_000_000
    """After SIGTERM, how long answers may still be given to what is queued."""
    check_laws: bool = False
    """Assert the laws after every event, not only when idle."""
    policy: RouterPolicy = field(default_factory=RouterPolicy)

    def __post_init__(self) -> None:
        if not self.id:
            raise ValueError("router: id must not be empty")
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdigit() or int(port) > 65535:
            raise ValueError(f"router: address must be host:port, is {self.address!r}")
        if problem := advertise_problem(host, self.advertise_host):
            raise ValueError(f"router: {problem}")
        if self.metrics_port is not None and not 0 <= self.metrics_port <= 65535:
            raise ValueError(f"router: metrics_port must be 0..65535, is {self.metrics_port}")
        if self.drain_grace_us < 0:
            raise ValueError(f"router: drain_grace_us must not be negative, is {self.drain_grace_us}")
