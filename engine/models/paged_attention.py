"""What each token sees of its past: attention over a paged KV pool, the same bits in any company.

Tokens of one sequence are grouped in units of attention_rows; units of any sequences are batched.
Softmax is two passes: the maximum over all keys (exact in any order), then sums over fixed tiles of
keys, first tile first. A tile that lies wholly after a row adds exact zeros to it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.models.tiling import Tiling


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one sequence in a pass."""

    first_row: int
    """Row of the first token among the pass's tokens."""
    start: int
    """Its position."""
    count: int
    slots: torch.Tensor
    """[start + count] int64: where each position's key and value lie in the pool."""


@dataclass(frozen=True, slots=True)
class UnitBatch:
    """Indices for one fixed-shape batch of units; the same for every layer."""

    rows: torch.Tensor
    """[units * attention_rows] int64: rows of the pass's tokens, padding repeated."""
    real: torch.Tensor
    """Indices into rows of those that are not padding."""
    entries: tuple[torch.Tensor, ...]
    """Per key tile [kv_heads * units * attention_keys] int64: rows of [kv_heads * slots, head_dim]."""
    hidden: tuple[torch.Tensor | None, ...]
    """Per key tile [1, units, attention_rows, 1, attention_keys] bool, True where a row may not look."""


def pool_entries(slots: torch.Tensor, kv_heads: int, slot_count: int) -> torch.Tensor:
    """[kv_heads * len(slots)]: the rows of slots in a pool seen as [kv_heads * slot_count, head_dim]."""
    return (torch.arange(kv_heads)[:, None] * slot_count + slots[None, :]).flatten()


def plan_units(
    spans: Sequence[Span], kv_heads: int, slot_count: int, tiling: Tiling, device: torch.device
) -> list[UnitBatch]:
    """Cut spans into units and units into batches, units of similar length together."""
    units = [
        (span, offset, min(tiling.attention_rows, span.count - offset))
        for span in spans
        for offset in range(0, span.count, tiling.attention_rows)
    ]
    units.sort(key=lambda unit: unit[0].start + unit[1])
    size = tiling.attention_units
    return [
        _unit_batch(units[at : at + size], kv_heads, slot_count, tiling, device)
        for at in range(0, len(units), size)
    ]


def _unit_batch(
    units: Sequence[tuple[Span, int, int]],
    kv_heads: int,
    slot_count: int,
    tiling: Tiling,
    device: torch.device,
) -> UnitBatch:
    padded = [*units, *[units[0]] * (tiling.attention_units - len(units))]
    within = torch.arange(tiling.attention_rows)
    offsets = [offset + within.clamp(max=count - 1) for _, offset, count in padded]
    rows = torch.stack([span.first_row + at for (span, _, _), at in zip(padded, offsets, strict=True)])
    positions = torch.stack([span.start + at for (span, _, _), at in zip(padded, offsets, strict=True)])
    real = [
        unit * tiling.attention_rows + row for unit, (_, _, count) in enumerate(units) for row in range(count)
    ]
    tiles = -(-int(positions.max() + 1) // tiling.attention_keys)
    keys = torch.arange(tiles * tiling.attention_keys)
    lasts = positions[:, -1].tolist()
    slots = torch.stack(
        [_reachable(span, last, keys) for (span, _, _), last in zip(padded, lasts, strict=True)]
    )
    hidden = keys[None, None, :] > positions[:, :, None]
    return UnitBatch(
        rows=rows.flatten().to(device),
        real=torch.tensor(real, device=device),
        entries=tuple(
            pool_entries(part.flatten(), kv_heads, slot_count).to(device)
            for part in torch.split(slots, tiling.attention_keys, dim=1)
        ),
        hidden=tuple(
            part[None, :, :, None, :].to(device) if bool(part.any()) else None
            for part in torch.split(hidden, tiling.attention_keys, dim=2)
        ),
    )


def _reachable(span: Span, last: int, keys: torch.Tensor) -> torch.Tensor:
    """Slots of keys, position 0's for those after last: memory never written is never read (0 x NaN)."""
    return span.slots[torch.where(keys <= last, keys, 0)]


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: UnitBatch,
    scale: float,
    tiling: Tiling,
) -> torch.Tensor:
    """Attention of one batch of units.

    query [tokens, heads, head_dim] float32; keys and values one layer of the pool, [kv_heads, slots,
    head_dim]. Returns [units * attention_rows, heads * head_dim] float32, in the order of batch.rows.
    """
    kv_heads, _, head_dim = keys.shape
    units, rows = tiling.attention_units, tiling.attention_rows
    group = query.shape[1] // kv_heads
    ranked = query.index_select(0, batch.rows).mul_(scale).view(units, rows, kv_heads, group, head_dim)
    ranked = ranked.permute(2, 0, 1, 3, 4).reshape(kv_heads * units, rows * group, head_dim)

    def gathered(pool: torch.Tensor, entries: torch.Tensor) -> torch.Tensor:
        picked = pool.view(-1, head_dim).index_select(0, entries).float()
        return picked.view(kv_heads * units, tiling.attention_keys, head_dim)

    scores = _scores(ranked, keys, batch, gathered, (kv_heads, units, rows, group))
    highest = scores[0].amax(dim=-1, keepdim=True)
    for tile in scores[1:]:
        highest = torch.maximum(highest, tile.amax(dim=-1, keepdim=True))
    total = torch.zeros_like(highest)
    mixed = torch.zeros_like(ranked)
    for tile, entries in zip(scores, batch.entries, strict=True):
        weights = tile.sub_(highest).exp_()
        total += weights.sum(dim=-1, keepdim=True)
        mixed += torch.bmm(weights, gathered(values, entries))
    mixed = mixed.div_(total).view(kv_heads, units, rows, group, head_dim)
    return mixed.permute(1, 2, 0, 3, 4).reshape(units * rows, kv_heads * group * head_dim)


def _scores(
    query: torch.Tensor,
    keys: torch.Tensor,
    batch: UnitBatch,
    gathered: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    shape: tuple[int, int, int, int],
) -> list[torch.Tensor]:
    """Per key tile [kv_heads * units, attention_rows * group, attention_keys]."""
    scores = []
    for entries, hidden in zip(batch.entries, batch.hidden, strict=True):
        tile = torch.bmm(query, gathered(keys, entries).transpose(1, 2))
        if hidden is not None:
            tile.view(*shape, -1).masked_fill_(hidden, float("-inf"))
        scores.append(tile)
    return scores
