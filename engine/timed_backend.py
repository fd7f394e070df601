"""A backend without a model: it takes as long as the cost model says, and its answers prove its blocks."""

from enum import StrEnum

import numpy as np
import numpy.typing as npt

from core.cost_model import StepCost, attended
from engine.fake_kv import (
    CHAIN_START,
    FakeModel,
    Tables,
    Words,
    attend,
    chain_key,
    chain_keys,
    draw,
    value_of,
    values_of,
)
from engine.footprint import Footprint
from engine.plan import KvLayout, Row, Sampled, SampleSpec, StepPlan, StepResult

Indices = npt.NDArray[np.int64]


class Fault(StrEnum):
    """A mistake to plant; tests show that each changes the answer."""

    STALE_BLOCK = "stale_block"
    """A freshly acquired block keeps its old contents: neither zeroed nor written."""
    WRONG_BLOCK = "wrong_block"
    """Rows of two blocks or more read the first from where the second is."""
    MISSING_CHUNK = "missing_chunk"
    """What a transfer brings is not written."""
    SKIPPED_SWAP = "skipped_swap"
    """What was preempted comes back without its KV."""
    SKIPPED_COPY = "skipped_copy"
    """Copy-on-write gives a block, without its contents."""


def digest_layout(block_size: int, blocks: int) -> KvLayout:
    """16 bytes per token: a key and a value of 8."""
    return KvLayout(layers=1, kv_heads=1, head_dim=8, dtype="digest", block_size=block_size, blocks=blocks)


class TimedBackend:
    """Backend over fake KV (engine/fake_kv.py); execute returns at once, its driver may wait."""

    def __init__(
        self, cost: StepCost, layout: KvLayout, model: FakeModel | None = None, *, fault: Fault | None = None
    ) -> None:
        if layout.dtype != "digest" or layout.bytes_per_token != 16:
            raise ValueError(f"layout: {layout} is not digest_layout()")
        self.layout = layout
        self._cost = cost
        self._model = model or FakeModel()
        self._fault = fault
        self._tables = Tables()
        self._keys: Words = np.zeros((layout.blocks, layout.block_size), dtype=np.uint64)
        self._values: Words = np.zeros((layout.blocks, layout.block_size), dtype=np.uint64)
        self._host: dict[int, tuple[Words, Words]] = {}

    def execute(self, plan: StepPlan) -> StepResult:
        self._prepare(plan)
        for row in plan.rows:
            self._write_row(row, plan.zero_blocks)
        sampled = tuple(self._sample(row) if row.samples else () for row in plan.rows)
        context = sum(attended(row.start, row.start + len(row.tokens)) for row in plan.rows)
        return StepResult(plan.step, sampled, self._cost.step_us(plan.tokens, context))

    def read_kv(self, block_table: tuple[int, ...], start: int, stop: int) -> bytes:
        """[K/V, token] words of 8 bytes, little-endian: the canonical layout with one layer and head."""
        slots = self._slots(block_table, start, stop)
        both = np.stack((self._keys[slots], self._values[slots]))
        return both.astype("<u8").tobytes()

    def write_kv(
        self, block_table: tuple[int, ...], start: int, stop: int, payload: bytes | memoryview
    ) -> None:
        expected = (stop - start) * self.layout.bytes_per_token
        if len(payload) != expected:
            raise ValueError(f"payload: {len(payload)} bytes for tokens {start}..{stop}, must be {expected}")
        if self._fault is Fault.MISSING_CHUNK:
            return
        keys, values = np.frombuffer(payload, dtype="<u8").reshape(2, stop - start)
        slots = self._slots(block_table, start, stop)
        self._keys[slots], self._values[slots] = keys, values

    def footprint(self) -> Footprint:
        return Footprint(weights=0, kv=2 * self._keys.nbytes, host=0, workspace=0, weights_read_per_step=0)

    def close(self) -> None:
        """Nothing is held outside this object."""

    def _prepare(self, plan: StepPlan) -> None:
        self._swap(plan)
        if plan.zero_blocks and self._fault is not Fault.STALE_BLOCK:
            zero = list(plan.zero_blocks)
            self._keys[zero] = self._values[zero] = 0
        if self._fault is not Fault.SKIPPED_COPY:
            for source, destination in plan.copy_blocks:
                self._keys[destination], self._values[destination] = self._keys[source], self._values[source]

    def _swap(self, plan: StepPlan) -> None:
        for block, slot in plan.swap_out:
            self._host[slot] = (self._keys[block].copy(), self._values[block].copy())
        if self._fault is not Fault.SKIPPED_SWAP:
            for block, slot in plan.swap_in:
                self._keys[block], self._values[block] = self._host[slot]

    def _write_row(self, row: Row, fresh: tuple[int, ...]) -> None:
        table, start, stop = row.block_table, row.start, row.start + len(row.tokens)
        if self._fault is Fault.STALE_BLOCK and any(block in fresh for block in table):
            return
        previous = CHAIN_START if start == 0 else int(self._keys[self._slot(table, start - 1)])
        if len(row.tokens) == 1:
            slot = self._slot(table, start)
            key = chain_key(previous, row.tokens[0], start)
            self._keys[slot], self._values[slot] = key, value_of(key)
            return
        keys = chain_keys(previous, row.tokens, start, self._tables)
        slots = self._slots(table, start, stop)
        self._keys[slots], self._values[slots] = keys, values_of(keys)

    def _sample(self, row: Row) -> tuple[Sampled, ...]:
        return tuple(
            sampled
            for point in row.draw_points
            for sampled in self._draw(row, row.start + point + 1, row.samples_at(point))
        )

    def _draw(self, row: Row, count: int, specs: tuple[SampleSpec, ...]) -> tuple[Sampled, ...]:
        """Reads positions 0..count through the block table, as attention would."""
        table = np.array(row.block_table[: -(-count // self.layout.block_size)], dtype=np.int64)
        if self._fault is Fault.WRONG_BLOCK and len(table) > 1:
            table[0] = table[1]
        keys, values = self._keys[table].ravel()[:count], self._values[table].ravel()[:count]
        logits = attend(keys, values, self._tables)
        return tuple(draw(logits, spec, self._model) for spec in specs)

    def _slot(self, table: tuple[int, ...], position: int) -> tuple[int, int]:
        block, offset = divmod(position, self.layout.block_size)
        return table[block], offset

    def _slots(self, table: tuple[int, ...], start: int, stop: int) -> tuple[Indices, Indices]:
        """(block, offset) indices of positions start..stop."""
        positions = np.arange(start, stop, dtype=np.int64)
        blocks, offsets = positions // self.layout.block_size, positions % self.layout.block_size
        return np.array(table, dtype=np.int64)[blocks], offsets
