"""The instances that could do one job, side by side, so that thousands are compared at once."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.request import InstanceKey, ModelIdentity, Role
from router.messages import InstanceInfo

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

COLUMNS = (
    "slot", "usable", "report_us", "last_pick", "rank",
    "prefill_reported_us", "prefill_own_us", "short_own_us",
    "blocks_reported", "blocks_own", "sequences_reported", "sequences_own",
    "blocks_total", "block_size", "max_running", "max_positions",
    "base_us", "token_us", "context_us", "kv_bytes",
)  # fmt: skip
"""One row of a Pool per column name. *_reported: the last report and own reservations it does not count
yet; *_own: all own reservations."""


@dataclass(frozen=True, slots=True)
class PoolKey:
    """What two instances must share to stand in for each other."""

    model: ModelIdentity
    dtype: str
    role: Role


class Pool:
    """Columns of numbers, one entry per instance; entries are dense, their order is of no meaning.

    Each column is an array of shape [instances]. Nothing is decided here.
    """

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self.instances: list[InstanceKey] = []
        self._row_of: dict[InstanceKey, int] = {}
        self._table: Floats = np.zeros((len(COLUMNS), 16))

    def add(self, instance: InstanceKey, info: InstanceInfo, slot: int, rank: float) -> None:
        row = len(self.instances)
        if row == self._table.shape[1]:
            self._table = np.concatenate((self._table, np.zeros_like(self._table)), axis=1)
        self.instances.append(instance)
        self._row_of[instance] = row
        self._table[:, row] = 0.0
        self.write(
            instance,
            slot=slot,
            rank=rank,
            blocks_total=info.blocks_total,
            block_size=info.block_size,
            max_running=info.max_running,
            max_positions=info.max_positions,
            base_us=info.cost_base_ns / 1000,
            token_us=info.cost_token_ns / 1000,
            context_us=info.cost_context_ns / 1000,
            kv_bytes=info.kv_bytes_per_token,
        )

    def remove(self, instance: InstanceKey) -> None:
        row, last = self._row_of.pop(instance), len(self.instances) - 1
        moved = self.instances.pop()
        if row != last:
            self.instances[row] = moved
            self._row_of[moved] = row
            self._table[:, row] = self._table[:, last]

    def write(self, instance: InstanceKey, **values: float) -> None:
        row = self._row_of[instance]
        for column, value in values.items():
            self._table[_INDEX[column], row] = value

    def row(self, instance: InstanceKey) -> int | None:
        return self._row_of.get(instance)

    def column(self, name: str) -> Floats:
        """[instances], a view: read it, don't keep it."""
        return self._table[_INDEX[name], : len(self.instances)]

    def any_usable(self) -> bool:
        return bool(self.column("usable").any())

    def check(self) -> None:
        assert len(self._row_of) == len(self.instances)
        for instance, row in self._row_of.items():
            assert self.instances[row] == instance
        for name in COLUMNS:
            if name not in ("report_us", "last_pick"):
                assert (self.column(name) >= 0).all(), f"{name} is negative"


_INDEX = {name: index for index, name in enumerate(COLUMNS)}
