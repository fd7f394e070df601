"""Which token is drawn from a row of logits.

A row is treated alone, on one thread, so its token cannot depend on the rows beside it. The random
number is a function of (seed, choice, position): nothing to ship at a hand-off, nothing to lose in a
preemption.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from core.sampling import SamplingParams
from engine.plan import Sampled, SampleSpec

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]

DEPTHS = (4.0, 8.0)
"""Nats below the likeliest token that are sorted before trying more: a draw rarely needs the tail."""
WORD = (1 << 64) - 1


def sample(
    logits: torch.Tensor, specs: Sequence[SampleSpec], masks: Sequence[bytes | None] = ()
) -> list[Sampled]:
    """Draw one token per spec; logits is [len(specs), vocab_size] float32, row i for specs[i].

    `masks`, where given, holds one per spec: a bit per token id, lowest first, of those that may be drawn;
    ids beyond it may not. Order: log probabilities from the raw logits; then the mask, min_tokens,
    logit_bias, the three penalties; then the likeliest token (temperature 0; ties to the lowest id), or
    temperature, min_p, top_k, top_p and one draw.
    """
    if len(specs) != len(logits):
        raise ValueError(f"specs: {len(specs)} given for {len(logits)} rows of logits")
    if not specs:
        return []
    if not any(masks) and all(_is_plain_greedy(spec) for spec in specs):
        tokens = _greatest(logits)
        return [Sampled(spec.choice, token) for spec, token in zip(specs, tokens, strict=True)]
    rows = logits.detach().cpu().numpy()
    masks = masks or [None] * len(specs)
    return [_sample_row(row, spec, mask) for row, spec, mask in zip(rows, specs, masks, strict=True)]


def _greatest(logits: torch.Tensor) -> list[int]:
    """Both libraries answer the first of equal maxima, as promised to clients; numpy is faster on a CPU."""
    tokens: list[int] = (logits.numpy() if logits.device.type == "cpu" else logits).argmax(-1).tolist()
    return tokens


def uniform(seed: int, choice: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, fixed by its three arguments.

    Each argument is absorbed by one round of SplitMix64 (Steele, Lea and Flood, "Fast splittable
    pseudorandom number generators", 2014), used as a counter-based generator.
    """
    state = 0
    for word in (seed, choice, position):
        state = _mix((state ^ (word & WORD)) + 0x9E3779B97F4A7C15)
    return (state >> 11) / (1 << 53)


def _mix(word: int) -> int:
    word &= WORD
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & WORD
    return word ^ (word >> 31)


def _is_plain_greedy(spec: SampleSpec) -> bool:
    params = spec.params
    return (
        params.temperature == 0.0
        and params.logprobs is None
        and not params.logit_bias
        and not params.needs_history
        and not _bans_stops(spec)
    )


def _bans_stops(spec: SampleSpec) -> bool:
    return spec.output_count < spec.params.min_tokens and bool(spec.params.stop_token_ids)


def _sample_row(raw: Floats, spec: SampleSpec, mask: bytes | None) -> Sampled:
    logits = _adjusted(raw, spec, mask)
    if spec.params.temperature == 0.0:
        token = int(logits.argmax())
    else:
        token = _draw(logits, spec.params, uniform(spec.seed, spec.choice, spec.position))
    if spec.params.logprobs is None:
        return Sampled(spec.choice, token)
    return _with_logprobs(raw, spec, token)


def _with_logprobs(raw: Floats, spec: SampleSpec, token: int) -> Sampled:
    wide = raw.astype(np.float64)
    highest = wide.max()
    logprobs = wide - (highest + np.log(np.exp(wide - highest).sum()))
    likeliest = _likeliest(raw, spec.params.logprobs or 0)
    top = tuple((int(index), float(logprobs[index])) for index in likeliest)
    return Sampled(spec.choice, token, float(logprobs[token]), top)


def _adjusted(raw: Floats, spec: SampleSpec, mask: bytes | None) -> Floats:
    """The logits a token is chosen from, float32."""
    params = spec.params
    if not (mask or params.logit_bias or params.needs_history or _bans_stops(spec)):
        return raw
    logits = raw.copy() if mask is None else _masked(raw, mask)
    for token, bias in params.logit_bias:
        if 0 <= token < len(logits):
            logits[token] += np.float32(bias)
    if params.needs_history:
        _penalize(logits, spec)
    return _without_stops(logits, params) if _bans_stops(spec) else logits


def _masked(raw: Floats, mask: bytes) -> Floats:
    logits = np.full_like(raw, -np.inf)
    known = min(len(raw), 8 * len(mask))
    allowed = np.unpackbits(np.frombuffer(mask, np.uint8), count=known, bitorder="little").view(np.bool_)
    np.copyto(logits[:known], raw[:known], where=allowed)
    return logits


def _without_stops(logits: Floats, params: SamplingParams) -> Floats:
    others = logits.copy()
    others[[token for token in params.stop_token_ids if 0 <= token < len(logits)]] = -np.inf
    # Where a grammar leaves nothing but the end, min_tokens gives way.
    return others if others.max() > -np.inf else logits


def _penalize(logits: Floats, spec: SampleSpec) -> None:
    """Repetition as in CTRL (arXiv:1909.05858, section 4.1), frequency and presence as in the OpenAI API."""
    params = spec.params
    seen = np.unique(np.asarray(spec.prompt_tokens + spec.output_tokens, dtype=np.int64))
    factor = np.float32(params.repetition_penalty)
    logits[seen] = np.where(logits[seen] > 0, logits[seen] / factor, logits[seen] * factor)
    output, counts = np.unique(np.asarray(spec.output_tokens, dtype=np.int64), return_counts=True)
    logits[output] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
    logits[output] -= np.float32(params.presence_penalty)


def _draw(logits: Floats, params: SamplingParams, number: float) -> int:
    """Inverse of the cumulative distribution over the kept tokens, likeliest first, ties by id."""
    highest = float(logits.max())
    kept = _count_kept(logits, highest, params)
    is_filtered = params.min_p > 0.0 or params.top_k > 0
    total = None if is_filtered else float(_weights(logits, highest, params).sum())
    for order in _prefixes(logits, highest, params, kept):
        is_complete = len(order) >= kept
        if total is None and not is_complete:
            continue
        weights = _weights(logits[order], highest, params)
        token = _draw_sorted(order, weights, params.top_p, number, total, is_complete)
        if token is not None:
            return token
    raise AssertionError("the last prefix holds every kept token")


def _weights(logits: Floats, highest: float, params: SamplingParams) -> Doubles:
    """Unnormalised probabilities; the likeliest token weighs 1."""
    with np.errstate(over="ignore"):  # a tiny temperature makes the unlikely impossible
        return np.exp((logits.astype(np.float64) - highest) / params.temperature)


def _count_kept(logits: Floats, highest: float, params: SamplingParams) -> int:
    """How many of the likeliest tokens min_p and top_k leave."""
    kept = len(logits)
    if params.min_p > 0.0:
        kept = int((logits >= highest + params.temperature * np.log(params.min_p)).sum())
    return min(kept, params.top_k) if params.top_k > 0 else kept


def _prefixes(logits: Floats, highest: float, params: SamplingParams, kept: int) -> Iterator[Ints]:
    """Ever longer beginnings of the kept tokens in order; the last one holds them all."""
    if params.top_k == 0:
        for depth in DEPTHS:
            candidates = np.flatnonzero(logits >= highest - depth * params.temperature)
            yield candidates[np.argsort(-logits[candidates], kind="stable")][:kept]
    yield _likeliest(logits, kept)


def _draw_sorted(
    order: Ints, weights: Doubles, top_p: float, number: float, total: float | None, is_complete: bool
) -> int | None:
    """None if the answer may lie beyond the tokens sorted so far; total None means their own sum."""
    cumulative = np.cumsum(weights)
    mass = float(cumulative[-1]) if total is None else total
    if top_p < 1.0:
        crossing = int(np.searchsorted(cumulative, top_p * mass))
        if crossing >= len(order) and not is_complete:
            return None
        mass = float(cumulative[min(crossing, len(order) - 1)])
    index = int(np.searchsorted(cumulative, number * mass, side="right"))
    if index < len(order):
        return int(order[index])
    # Rounding may put the number beyond the last sum; the last token that can be drawn takes it.
    return int(order[np.flatnonzero(weights)[-1]]) if is_complete else None


def _likeliest(logits: Floats, count: int) -> Ints:
    """Ids of the count greatest logits, greatest first, ties by id."""
    if count >= len(logits):
        return np.argsort(-logits, kind="stable")
    if count == 0:
        return np.empty(0, dtype=np.int64)
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    candidates = np.flatnonzero(logits >= least)
    return candidates[np.argsort(-logits[candidates], kind="stable")][:count]
