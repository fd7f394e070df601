"""Who owns each millisecond of a worker's wall time (L11)."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.accounts import Account, Part, split


@dataclass(frozen=True, slots=True)
class TenantTime:
    """One tenant's part of a worker's wall time, in microseconds since the worker's first event."""

    tenant: str
    """Empty: moving KV for nobody in particular."""
    work_us: int
    recompute_us: int
    rejected_us: int
    cancelled_us: int


@dataclass(frozen=True, slots=True)
class WallTime:
    """A worker's whole wall time; the parts add up to wall_us."""

    wall_us: int
    transfer_stall_us: int
    """No step could run, and somebody waited for KV to arrive or for blocks to come free."""
    idle_us: int
    """No step ran, and nobody waited for one."""
    tenants: tuple[TenantTime, ...]

    def total_us(self, account: Account) -> int:
        return sum(int(getattr(tenant, f"{account.value}_us")) for tenant in self.tenants)


class MillisecondLedger:
    """Time between two events goes to what was so in between: a step's rows, a stall, or nothing to do.

    A step's time is from its plan to its end as its driver says them, so that what a driver adds
    around the computation is owned too.
    """

    def __init__(self) -> None:
        self._first_us: int | None = None
        self._last_us = 0
        self._stall_us = 0
        self._idle_us = 0
        self._tenants: dict[str, dict[Account, int]] = {}

    def wait(self, now_us: int, *, is_stalled: bool) -> None:
        """No step ran from the last event until now."""
        passed_us = self._pass(now_us)
        if is_stalled:
            self._stall_us += passed_us
        else:
            self._idle_us += passed_us

    def step(self, now_us: int, parts: Sequence[Part]) -> None:
        """A step ran from the last event until now, made of these parts."""
        for account, tenant, amount_us in split(self._pass(now_us), parts):
            times = self._tenants.setdefault(tenant, dict.fromkeys(Account, 0))
            times[account] += amount_us

    def wall_time(self) -> WallTime:
        """As of the last event."""
        wall_us = 0 if self._first_us is None else self._last_us - self._first_us
        tenants = tuple(
            TenantTime(tenant, *(times[account] for account in Account))
            for tenant, times in self._tenants.items()
        )
        return WallTime(wall_us, self._stall_us, self._idle_us, tenants)

    def check(self) -> None:
        """To the microsecond, where the law allows a hundredth."""
        time = self.wall_time()
        owned_us = sum(time.total_us(account) for account in Account)
        assert owned_us + time.transfer_stall_us + time.idle_us == time.wall_us, time

    def _pass(self, now_us: int) -> int:
        if self._first_us is None:
            self._first_us = self._last_us = now_us
        passed_us = max(0, now_us - self._last_us)
        self._last_us += passed_us
        return passed_us
