"""What KV and tokens are where there is no model: digests, each chained to all before it.

The key of position p is h(p) = A * h(p-1) + mix(token, p) modulo 2**64, a polynomial hash (Rabin and
Karp 1987) that can be computed for a whole chunk at once. The drawn token depends on every slot's key
and value, each weighted by its position, so that one stale, missing or exchanged slot changes it.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from core.sampling import SamplingParams
from engine.plan import Sampled, SampleSpec

Words = npt.NDArray[np.uint64]

MASK = (1 << 64) - 1
CHAIN_START = 0x243F6A8885A308D3
"""What the token at position 0 is chained to."""
_MULTIPLIER = 0x5851F42D4C957F2D
_INVERSE = pow(_MULTIPLIER, -1, 1 << 64)
_TOKEN_STEP = 0x9E3779B97F4A7C15
_POSITION_STEP = 0xD1B54A32D192ED03
_VALUE_STEP = 0x2545F4914F6CDD1D
_VALUE_MASK = 0xA4093822299F31D0


@dataclass(frozen=True, slots=True)
class FakeModel:
    """Which tokens the digests may turn into."""

    vocab_size: int = 32_000
    stop_token: int = 2
    stop_one_in: int = 0
    """A draw gives stop_token with one chance in this many, besides its ordinary chance; 0: not so."""


def mix(word: int) -> int:
    """64 bits in, 64 well-mixed bits out, one to one: the finalizer of splitmix64 (Steele et al. 2014)."""
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & MASK
    return word ^ (word >> 31)


def mix_words(words: Words) -> Words:
    """mix() of every word."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


class Tables:
    """Per-position constants, as long as anybody has needed yet."""

    def __init__(self) -> None:
        self._grow(1024)

    def weights(self, count: int) -> tuple[Words, Words]:
        """The weights of the keys and values at positions 0..count; odd, so none hides a bit."""
        self._reserve(count)
        return self._key_weights[:count], self._value_weights[:count]

    def powers(self, count: int) -> tuple[Words, Words]:
        """A**j and A**-j for j in 0..count."""
        self._reserve(count)
        return self._powers[:count], self._inverses[:count]

    def _reserve(self, count: int) -> None:
        if count > len(self._powers):
            self._grow(2 * count)

    def _grow(self, count: int) -> None:
        positions = np.arange(count, dtype=np.uint64)
        one = np.uint64(1)
        self._key_weights: Words = mix_words(positions * np.uint64(_POSITION_STEP) + one) | one
        self._value_weights: Words = mix_words(positions * np.uint64(_TOKEN_STEP) + one) | one
        self._powers, self._inverses = _powers(_MULTIPLIER, count), _powers(_INVERSE, count)


def _powers(base: int, count: int) -> Words:
    factors = np.full(count, base, dtype=np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def chain_keys(previous: int, tokens: tuple[int, ...], start: int, tables: Tables) -> Words:
    """The keys of tokens at positions start.., chained to the key before them."""
    count = len(tokens)
    positions = np.arange(start, start + count, dtype=np.uint64)
    steps = np.array(tokens, dtype=np.uint64) * np.uint64(_TOKEN_STEP)
    words = mix_words(steps + positions * np.uint64(_POSITION_STEP))
    powers, inverses = tables.powers(count)
    sums: Words = np.add.accumulate(words * inverses)
    return powers * (sums + np.uint64(previous * _MULTIPLIER & MASK))


def chain_key(previous: int, token: int, position: int) -> int:
    """chain_keys of one token, faster."""
    return (previous * _MULTIPLIER + mix((token * _TOKEN_STEP + position * _POSITION_STEP) & MASK)) & MASK


def value_of(key: int) -> int:
    """values_of one key."""
    return (key ^ _VALUE_MASK) * _VALUE_STEP & MASK


def values_of(keys: Words) -> Words:
    """The values that go with these keys."""
    return (keys ^ np.uint64(_VALUE_MASK)) * np.uint64(_VALUE_STEP)


def attend(keys: Words, values: Words, tables: Tables) -> int:
    """One word that depends on every slot and its position; what a model would make logits of."""
    key_weights, value_weights = tables.weights(len(keys))
    return (int(np.dot(keys, key_weights)) + int(np.dot(values, value_weights))) & MASK


def draw(attended: int, spec: SampleSpec, model: FakeModel) -> Sampled:
    """The token that follows. Greedy depends on the KV alone; else on seed, choice and position too.

    Of SamplingParams it heeds temperature (0 or not), stop_token_ids with min_tokens, and logprobs.
    """
    word = mix(attended)
    if spec.params.temperature > 0:
        word = mix(word ^ mix((spec.seed + spec.choice * 0x9E37 + (spec.position << 32)) & MASK))
    token = word % model.vocab_size
    if model.stop_one_in and (word >> 40) % model.stop_one_in == 0:
        token = model.stop_token
    if spec.output_count < spec.params.min_tokens:
        while token in spec.params.stop_token_ids:
            token = (token + 1) % model.vocab_size
    return _with_logprobs(token, word, spec, model)


def _with_logprobs(token: int, word: int, spec: SampleSpec, model: FakeModel) -> Sampled:
    wanted = spec.params.logprobs
    if wanted is None:
        return Sampled(spec.choice, token)
    logprob = -0.01 - (word >> 48) / 65536
    top = tuple(((token + rank) % model.vocab_size, logprob - rank) for rank in range(wanted))
    return Sampled(spec.choice, token, logprob, top)


def expected_tokens(
    prompt: tuple[int, ...],
    params: SamplingParams,
    seed: int,
    choice: int,
    count: int,
    *,
    output: tuple[int, ...] = (),
    model: FakeModel | None = None,
) -> list[int]:
    """The right answer, without blocks, batches or chunks: up to `count` tokens after prompt + output.

    Ends early with a token of stop_token_ids or at max_tokens, as a choice does.
    """
    tables, model, drawn = Tables(), model or FakeModel(), list(output)
    keys = chain_keys(CHAIN_START, prompt + output, 0, tables)
    while len(drawn) - len(output) < count and len(drawn) < params.max_tokens:
        position = len(prompt) + len(drawn)
        spec = SampleSpec(choice, params, seed, position, len(drawn))
        token = draw(attend(keys, values_of(keys), tables), spec, model).token
        drawn.append(token)
        if token in params.stop_token_ids:
            break
        keys = np.concatenate((keys, chain_keys(int(keys[-1]), (token,), position, tables)))
    return drawn[len(output) :]
