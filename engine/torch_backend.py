"""How a step runs in plain torch, on CPU or CUDA: the oracle for every faster backend."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.footprint import Footprint
from engine.grammar_masks import GrammarMasks, StepMasks, no_vocabulary
from engine.models.config import ModelConfig
from engine.models.llama import Llama, Pass
from engine.models.paged_attention import Span
from engine.models.tiling import CPU_TILING, CUDA_TILING, Workers, one_thread_inside
from engine.models.weights import DTYPES
from engine.plan import KvLayout, Row, Sampled, StepPlan, StepResult
from engine.sampler import sample

PASS_TOKENS_MAX = 512
"""Tokens of a step computed at once; a larger step runs as several passes, with the same bits."""
MEMORY_RESERVE_BYTES = 256 << 20
"""Left free beside the pool: activations, logits and the interpreter."""


class EngineMemoryError(Exception):
    """The asked KV blocks do not fit the free memory; one line with both sizes."""


class TorchBackend:
    """A model and its KV pool. On CPU a token's bits depend on nothing but its own sequence."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        dtype: str,
        device: str,
        block_size: int,
        blocks: int,
        threads: int,
        host_slots: int = 0,
        masks: GrammarMasks | None = None,
    ) -> None:
        self.grammars = masks or GrammarMasks(no_vocabulary)
        self.layout = KvLayout(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=dtype,
            block_size=block_size,
            blocks=blocks,
        )
        self._device = torch.device(device)
        is_cpu = self._device.type == "cpu"
        self._workers = Workers(threads if is_cpu else 1)
        with one_thread_inside():
            placed = {name: tensor.to(self._device, DTYPES[dtype]) for name, tensor in weights.items()}
            self._weights_bytes = sum(map(_bytes, placed.values()))
            refuse_if_too_large(self.layout, self._device, host_slots if is_cpu else 0)
            self._pool = _allocate(self.layout, self._device)
            self._host = _allocate_host(self.layout, host_slots, self._device)
            self._model = Llama(
                config,
                placed,
                tiling=CPU_TILING if is_cpu else CUDA_TILING,
                workers=self._workers,
                positions=min(config.max_position_embeddings, blocks * block_size),
            )

    def execute(self, plan: StepPlan) -> StepResult:
        """Swap, zero, copy, compute, sample."""
        started_ns = time.perf_counter_ns()
        with one_thread_inside():
            masks = self.grammars.begin(plan.rows)
            self._prepare(plan)
            logits = [self._model.forward(part, self._pool) for part in self._passes(plan.rows)]
            found = masks()
            sampled = self._sample(plan.rows, torch.cat(logits), found) if logits else ()
        elapsed_us = (time.perf_counter_ns() - started_ns) // 1000
        return StepResult(plan.step, sampled, elapsed_us, tuple(found.failures.items()))

    def read_kv(self, block_table: tuple[int, ...], start: int, stop: int) -> bytes:
        """The KV of tokens start..stop, [layer, K/V, token, kv_head, head_dim], in the model's dtype."""
        with one_thread_inside():
            slots = self._slots(block_table, start, stop).to(self._device)
            tokens = self._pool.index_select(3, slots).transpose(2, 3).contiguous().cpu()
        return tokens.view(torch.uint8).numpy().tobytes()

    def write_kv(
        self, block_table: tuple[int, ...], start: int, stop: int, payload: bytes | memoryview
    ) -> None:
        """Put a payload of read_kv into these blocks; ValueError if its length is not that of the tokens."""
        expected = (stop - start) * self.layout.bytes_per_token
        if len(payload) != expected:
            raise ValueError(
                f"payload: {len(payload)} bytes given for tokens {start}..{stop}, must be {expected}"
            )
        if not expected:
            return
        layout = self.layout
        shape = (layout.layers, 2, stop - start, layout.kv_heads, layout.head_dim)
        tokens = torch.frombuffer(bytearray(payload), dtype=DTYPES[layout.dtype]).view(shape)
        with one_thread_inside():
            slots = self._slots(block_table, start, stop).to(self._device)
            self._pool.index_copy_(3, slots, tokens.transpose(2, 3).to(self._device))

    def footprint(self) -> Footprint:
        """The workspace is no pool of its own here, but what was seen to be free beside the others."""
        pools = _bytes(self._pool), _bytes(self._host)
        return Footprint(self._weights_bytes, *pools, MEMORY_RESERVE_BYTES, self._weights_bytes)

    def close(self) -> None:
        """End the threads and let go of the pool; the backend cannot be used afterwards."""
        self._workers.close()
        self.grammars.close()
        self._pool = self._pool.new_empty(0)
        self._host = self._host.new_empty(0)

    def _prepare(self, plan: StepPlan) -> None:
        layout = self.layout
        blocks = self._pool.view(layout.layers, 2, layout.kv_heads, layout.blocks, -1)
        # The host's copies are waited for: the next step may give their slots to others.
        for block, slot in plan.swap_out:
            self._host[slot].copy_(blocks[:, :, :, block])
        for block, slot in plan.swap_in:
            blocks[:, :, :, block].copy_(self._host[slot])
        for block in plan.zero_blocks:
            blocks[:, :, :, block].zero_()
        for source, destination in plan.copy_blocks:
            blocks[:, :, :, destination].copy_(blocks[:, :, :, source])

    def _passes(self, rows: Sequence[Row]) -> Iterator[Pass]:
        for pieces in _cut(rows):
            yield self._pass(pieces)

    def _pass(self, pieces: Sequence["_Piece"]) -> Pass:
        spans: list[Span] = []
        tokens: list[int] = []
        positions: list[torch.Tensor] = []
        slots: list[torch.Tensor] = []
        wanted: list[int] = []
        for piece in pieces:
            row, start = piece.row, piece.row.start + piece.first
            reach = self._slots(row.block_table, 0, start + piece.count)
            spans.append(Span(len(tokens), start, piece.count, reach))
            tokens.extend(row.tokens[piece.first : piece.first + piece.count])
            positions.append(torch.arange(start, start + piece.count))
            slots.append(reach[start:])
            for point in row.draw_points:
                if piece.first <= point < piece.first + piece.count:
                    wanted.append(len(tokens) - piece.count + point - piece.first)
        return Pass(torch.tensor(tokens), torch.cat(positions), torch.cat(slots), tuple(spans), tuple(wanted))

    def _slots(self, block_table: tuple[int, ...], start: int, stop: int) -> torch.Tensor:
        """[stop - start] int64: the pool slot of each position."""
        size = self.layout.block_size
        positions = torch.arange(start, stop)
        return torch.tensor(block_table, dtype=torch.int64)[positions // size] * size + positions % size

    def _sample(
        self, rows: Sequence[Row], logits: torch.Tensor, found: StepMasks
    ) -> tuple[tuple[Sampled, ...], ...]:
        """One row of logits serves every choice of its sequence; drafts have one each."""
        points = [
            (number, row.samples_at(point)) for number, row in enumerate(rows) for point in row.draw_points
        ]
        drawing = [
            (index, number, spec)
            for index, (number, samples) in enumerate(points)
            if number not in found.failures
            for spec in samples
        ]
        owners = torch.tensor([index for index, _, _ in drawing], dtype=torch.int64)
        masks = [found.masks.get(number) for _, number, _ in drawing]
        drawn = iter(sample(logits[owners], [spec for _, _, spec in drawing], masks))
        return tuple(
            tuple(next(drawn) for _ in row.samples) if number not in found.failures else ()
            for number, row in enumerate(rows)
        )


@dataclass(frozen=True, slots=True)
class _Piece:
    """The part of a row that one pass computes."""

    row: Row
    first: int
    count: int


def _cut(rows: Sequence[Row]) -> Iterator[list[_Piece]]:
    """Passes of at most PASS_TOKENS_MAX tokens, in the order of rows."""
    pieces: list[_Piece] = []
    room = PASS_TOKENS_MAX
    for row in rows:
        first = 0
        while first < len(row.tokens):
            count = min(room, len(row.tokens) - first)
            pieces.append(_Piece(row, first, count))
            first, room = first + count, room - count
            if room == 0:
                yield pieces
                pieces, room = [], PASS_TOKENS_MAX
    if pieces:
        yield pieces


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _allocate(layout: KvLayout, device: torch.device) -> torch.Tensor:
    """[layers, 2, kv_heads, slots, head_dim], written once so that the memory is ours from the start."""
    slots = layout.blocks * layout.block_size
    shape = (layout.layers, 2, layout.kv_heads, slots, layout.head_dim)
    return torch.empty(shape, dtype=DTYPES[layout.dtype], device=device).fill_(0)


def _allocate_host(layout: KvLayout, slots: int, device: torch.device) -> torch.Tensor:
    """[slots, layers, 2, kv_heads, block_size * head_dim], pinned beside a GPU, written once."""
    shape = (slots, layout.layers, 2, layout.kv_heads, layout.block_size * layout.head_dim)
    is_pinned = device.type == "cuda" and slots > 0
    return torch.empty(shape, dtype=DTYPES[layout.dtype], pin_memory=is_pinned).fill_(0)


def refuse_if_too_large(layout: KvLayout, device: torch.device, beside: int = 0) -> None:
    """Raise EngineMemoryError when the pool and a working reserve exceed the free memory of device.

    `beside`: more blocks of the same memory, such as a host pool's.
    """
    needed = (layout.blocks + beside) * layout.block_size * layout.bytes_per_token
    free = free_bytes(device)
    if needed + MEMORY_RESERVE_BYTES > free:
        raise EngineMemoryError(
            f"kv_blocks: {layout.blocks} blocks of {layout.block_size} tokens need {needed >> 20} MiB, "
            f"{max(0, free - MEMORY_RESERVE_BYTES) >> 20} MiB are free on {device}"
        )


def free_bytes(device: torch.device) -> int:
    """Memory that can be allocated now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise EngineMemoryError("/proc/meminfo: has no line MemAvailable")
