"""A model on the native CPU kernels: what a step's plan becomes there."""

import ctypes
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import numpy as np
import torch

from engine.footprint import Footprint
from engine.grammar_masks import NO_MASKS, GrammarMasks, StepMasks, no_vocabulary
from engine.kernels import build
from engine.kernels.binding import KINDS, PHASES, Batch, open_library
from engine.kernels.loading import load_model, shape_of
from engine.kernels.support import unsupported
from engine.models.config import ModelConfig
from engine.native_passes import SAMPLES_MAX, TOKENS_MAX, Draw, Piece, passes_of
from engine.plan import KvLayout, Row, Sampled, SampleSpec, StepPlan, StepResult
from engine.sampler import sample


class NativeBackend:
    """Backend on engine/kernels; bit-exact for any batch, chunking, paging and thread count."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        dtype: str,
        block_size: int,
        blocks: int,
        threads: int,
        host_slots: int = 0,
        masks: GrammarMasks | None = None,
        progress: build.Progress = build.say,
    ) -> None:
        """Packs weights (Hugging Face names, any dtype) and takes all memory.

        Raises ValueError for a shape the kernels do not support, OSError if they cannot be built,
        MemoryError if the pools do not fit.
        """
        if reason := build.unavailable(dtype):
            raise OSError(reason)
        if reason := unsupported(config, block_size):
            raise ValueError(reason)
        if blocks < 1 or threads < 1:
            raise ValueError(f"blocks, threads: {blocks}, {threads} must be at least 1")
        self.layout = KvLayout(config.layers, config.kv_heads, config.head_dim, dtype, block_size, blocks)
        self.grammars = masks or GrammarMasks(no_vocabulary)
        self._config = config
        self._library = open_library(progress)
        shape = shape_of(config, block_size, blocks, TOKENS_MAX, SAMPLES_MAX)
        self._model = self._library.baton_create(ctypes.byref(shape), KINDS[dtype], threads)
        if not self._model:
            raise MemoryError(f"the native backend's pools do not fit (blocks = {blocks})")
        load_model(self._library, self._model, config, weights, dtype)
        self._block_bytes = self._sizes()[1] // blocks
        # Written once, so that the memory is ours from the start.
        self._host = torch.empty((host_slots, self._block_bytes), dtype=torch.uint8).fill_(0)
        self._logits = torch.zeros((SAMPLES_MAX, config.vocab_size), dtype=torch.float32)
        self._argmax = array("i", [0] * SAMPLES_MAX)

    def execute(self, plan: StepPlan) -> StepResult:
        """Swap, zero, copy, compute, sample. Raises ValueError for a token or block that does not exist."""
        started_ns = time.perf_counter_ns()
        self._check(plan)
        masks = self.grammars.begin(plan.rows)
        self._swap(plan)
        for block in plan.zero_blocks:
            self._library.baton_zero_block(self._model, block)
        for source, destination in plan.copy_blocks:
            self._library.baton_copy_block(self._model, source, destination)
        sampled: list[tuple[Sampled, ...]] = [()] * len(plan.rows)
        for pieces in passes_of(plan.rows):
            self._run(pieces, sampled, masks)
        elapsed_us = (time.perf_counter_ns() - started_ns) // 1000
        return StepResult(plan.step, tuple(sampled), elapsed_us, tuple(masks().failures.items()))

    def score(self, row: Row) -> torch.Tensor:
        """Logits [len(row.tokens), vocab_size] float32 after each token; writes its KV as a step does."""
        self._check(StepPlan(0, (), (), (row,)))
        parts = []
        for first in range(0, len(row.tokens), SAMPLES_MAX):
            piece = Piece(0, row, first, min(len(row.tokens), first + SAMPLES_MAX))
            count = piece.last - first
            self._forward([piece], range(count), [True] * count)
            parts.append(self._logits[:count].clone())
        return torch.cat(parts)

    def read_kv(self, block_table: tuple[int, ...], start: int, stop: int) -> bytes:
        payload = bytearray((stop - start) * self.layout.bytes_per_token)
        wire = (ctypes.c_char * len(payload)).from_buffer(payload)
        table = self._table(block_table, start, stop)
        self._library.baton_read_kv(self._model, _address(table), start, stop, ctypes.addressof(wire))
        return bytes(payload)

    def write_kv(
        self, block_table: tuple[int, ...], start: int, stop: int, payload: bytes | memoryview
    ) -> None:
        expected = (stop - start) * self.layout.bytes_per_token
        view = memoryview(payload).cast("B")
        if len(view) != expected:
            raise ValueError(f"payload: {len(view)} bytes, tokens {start}..{stop} have {expected}")
        table = self._table(block_table, start, stop)
        if expected:
            wire = np.frombuffer(view, dtype=np.uint8)
            self._library.baton_write_kv(self._model, _address(table), start, stop, wire.ctypes.data)

    def set_threads(self, threads: int) -> None:
        """Between steps; changes no result."""
        self._library.baton_set_threads(self._model, threads)

    def footprint(self) -> Footprint:
        weights, kv, workspace, read = self._sizes()
        logits = self._logits.numel() * self._logits.element_size()
        return Footprint(weights, kv, self._host.numel(), workspace + logits, read)

    def take_phases(self) -> dict[str, int]:
        """Processor cycles of each phase of the forward, since last asked."""
        cycles = (ctypes.c_uint64 * len(PHASES))()
        self._library.baton_take_phases(self._model, cycles)
        return dict(zip(PHASES, (int(count) for count in cycles), strict=True))

    def close(self) -> None:
        """Gives all memory back; nothing may be called after it but close."""
        self.grammars.close()
        if self._model:
            self._library.baton_destroy(self._model)
            self._model = None
            self._host = self._host.new_empty(0)

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()

    def _sizes(self) -> tuple[int, int, int, int]:
        """Bytes of weights, KV pool and workspace; of the weights, those that a decode step reads."""
        sizes = (ctypes.c_uint64 * 4)()
        self._library.baton_sizes(self._model, sizes)
        return sizes[0], sizes[1], sizes[2], sizes[3]

    def _swap(self, plan: StepPlan) -> None:
        size, host = self._block_bytes, self._host.data_ptr()
        for block, slot in plan.swap_out:
            ctypes.memmove(host + slot * size, self._library.baton_block(self._model, block), size)
        for block, slot in plan.swap_in:
            ctypes.memmove(self._library.baton_block(self._model, block), host + slot * size, size)

    def _run(
        self, pieces: Sequence[Piece], sampled: list[tuple[Sampled, ...]], masks: Callable[[], StepMasks]
    ) -> None:
        """One pass: computes pieces, and draws where their rows ask for it."""
        draws: list[Draw] = []
        drawing_tokens: list[int] = []
        tokens = 0
        for piece in pieces:
            for draw in piece.draws:
                draws.append(draw)
                drawing_tokens.append(tokens + draw.point - piece.first)
            tokens += piece.last - piece.first
        greedy = [all(map(_is_greedy, draw.samples)) for draw in draws]
        self._forward(pieces, drawing_tokens, [not is_greedy for is_greedy in greedy])
        self._draw(draws, greedy, sampled, NO_MASKS if all(greedy) else masks())

    def _forward(
        self, pieces: Sequence[Piece], sample_tokens: Sequence[int], wants_logits: Sequence[bool]
    ) -> None:
        """Fills _argmax, and _logits where wanted, for each of sample_tokens (numbers within the pass)."""
        row_first, table_first = array("i", [0]), array("i", [0])
        for piece in pieces:
            row_first.append(row_first[-1] + piece.last - piece.first)
            table_first.append(table_first[-1] + len(piece.row.block_table))
        arrays = {
            "tokens": array(
                "i", chain.from_iterable(piece.row.tokens[piece.first : piece.last] for piece in pieces)
            ),
            "row_first": row_first,
            "row_start": array("i", [piece.row.start + piece.first for piece in pieces]),
            "table_first": table_first,
            "tables": array("i", chain.from_iterable(piece.row.block_table for piece in pieces)),
            "sample_tokens": array("i", sample_tokens),
            "wants_logits": array("i", wants_logits),
            "argmax": self._argmax,
        }
        addresses = {name: values.buffer_info()[0] for name, values in arrays.items()}
        batch = Batch(len(pieces), len(sample_tokens), logits=self._logits.data_ptr(), **addresses)
        self._library.baton_forward(self._model, ctypes.byref(batch))

    def _draw(
        self,
        draws: Sequence[Draw],
        greedy: Sequence[bool],
        sampled: list[tuple[Sampled, ...]],
        found: StepMasks,
    ) -> None:
        """Greedy choices took their token in the kernels; the sampler draws for all others at once.

        Where a row has drafts the sampler goes along with them, up to the first that it does not draw.
        """
        specs: list[SampleSpec] = []
        rows: list[int] = []
        masks: list[bytes | None] = []
        waiting: list[Draw] = []
        for position, (draw, is_greedy) in enumerate(zip(draws, greedy, strict=True)):
            if draw.row.drafts and not draw.comes_after(sampled[draw.index]):
                continue
            if is_greedy:
                token = self._argmax[position]
                sampled[draw.index] += tuple(Sampled(spec.choice, token) for spec in draw.samples)
            elif draw.row.drafts:
                sampled[draw.index] += tuple(sample(self._logits[[position]], draw.samples))
            elif draw.index not in found.failures:
                waiting.append(draw)
                masks.extend([found.masks.get(draw.index)] * len(draw.samples))
                specs.extend(draw.samples)
                rows.extend([position] * len(draw.samples))
        if not specs:
            return
        drawn = iter(sample(self._logits[rows], specs, masks))
        for draw in waiting:
            sampled[draw.index] = tuple(next(drawn) for _ in draw.samples)

    def _check(self, plan: StepPlan) -> None:
        """The kernels trust their input: a wrong number there would be a wrong address."""
        blocks, vocabulary, size = self.layout.blocks, self._config.vocab_size, self.layout.block_size
        for row in plan.rows:
            if not row.tokens or row.start < 0:
                raise ValueError(
                    f"rows: sequence {row.sequence} has {len(row.tokens)} tokens from {row.start}"
                )
            if min(row.tokens) < 0 or max(row.tokens) >= vocabulary:
                raise ValueError(f"tokens: sequence {row.sequence} has a token outside 0..{vocabulary - 1}")
            if len(row.block_table) * size < row.start + len(row.tokens):
                raise ValueError(f"block_table: sequence {row.sequence} has too few blocks for its tokens")
            if min(row.block_table) < 0 or max(row.block_table) >= blocks:
                raise ValueError(
                    f"block_table: sequence {row.sequence} names a block outside 0..{blocks - 1}"
                )
        for block in chain(plan.zero_blocks, chain.from_iterable(plan.copy_blocks)):
            if not 0 <= block < blocks:
                raise ValueError(f"zero_blocks, copy_blocks: {block} is outside 0..{blocks - 1}")
        slots = len(self._host)
        for block, slot in chain(plan.swap_out, plan.swap_in):
            if not (0 <= block < blocks and 0 <= slot < slots):
                raise ValueError(f"swap_out, swap_in: block {block} or host slot {slot} does not exist")

    def _table(self, block_table: tuple[int, ...], start: int, stop: int) -> "array[int]":
        size = self.layout.block_size
        if not 0 <= start <= stop <= len(block_table) * size:
            raise ValueError(
                f"start, stop: tokens {start}..{stop} are not in {len(block_table)} blocks of {size}"
            )
        if any(not 0 <= block < self.layout.blocks for block in block_table):
            raise ValueError(f"block_table: names a block outside 0..{self.layout.blocks - 1}")
        return array("i", block_table or (0,))


def _is_greedy(spec: SampleSpec) -> bool:
    """Whether the largest raw logit is the answer."""
    params = spec.params
    unforced = spec.output_count >= params.min_tokens or not params.stop_token_ids
    plain = params.temperature == 0.0 and params.logprobs is None and not params.logit_bias
    return plain and unforced and not params.needs_history and not spec.grammar


def _address(values: "array[int]") -> int:
    return values.buffer_info()[0]
