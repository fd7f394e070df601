"""L10 on the oracle: a token's bits depend on its own sequence and on nothing else."""

from functools import cache
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.plan import Row, Sampled
from engine.torch_backend import TorchBackend
from tests.reference.small_models import EVERYTHING, VOCABULARY, row, small_backend, step

DTYPES = ("float32", "bfloat16")
LENGTH = 150


@cache
def _backend(dtype: str, block_size: int, threads: int) -> TorchBackend:
    return small_backend(dtype=dtype, block_size=block_size, threads=threads)


def _tokens(seed: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCABULARY, (LENGTH,), generator=generator).tolist()


@cache
def _reference(dtype: str, seed: int) -> tuple[Sampled, ...]:
    """The draw after each token, fed one by one, alone, one thread, blocks of 16 in order."""
    backend = _backend(dtype, 16, 1)
    table = range(-(-LENGTH // 16))
    tokens = _tokens(seed)
    steps = (step(row(tokens[at : at + 1], at, table, EVERYTHING)) for at in range(LENGTH))
    return tuple(backend.execute(plan).sampled[0][0] for plan in steps)


def _blocks(block_size: int, order: int, owner: int) -> list[int]:
    """A shuffled third of the pool for each of three owners."""
    count = 1024 // block_size
    generator = torch.Generator().manual_seed(order)
    shuffled = torch.randperm(count, generator=generator).tolist()
    return shuffled[owner * (count // 3) : (owner + 1) * (count // 3)]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=25, deadline=None)
@given(
    block_size=st.sampled_from([8, 16, 64]),
    threads=st.sampled_from([1, 2]),
    order=st.integers(0, 1000),
    cuts=st.lists(st.integers(1, LENGTH - 1), max_size=4, unique=True),
    other=st.integers(0, 60),
    first=st.booleans(),
)
def test_company_and_cuts_change_nothing(
    dtype: str, block_size: int, threads: int, order: int, cuts: list[int], other: int, first: bool
) -> None:
    """Any chunk split, beside another sequence at any point of its own life, in any memory."""
    backend = _backend(dtype, block_size, threads)
    ours, theirs = _blocks(block_size, order, 0), _blocks(block_size, order, 1)
    tokens, company = _tokens(1), _tokens(2)
    edges = [0, *sorted(cuts), LENGTH]
    backend.execute(step(row(company[: other + 1], 0, theirs)))
    for turn, (start, stop) in enumerate(pairwise(edges)):
        at = other + 1 + turn
        rows: list[Row] = [
            row(tokens[start:stop], start, ours, EVERYTHING),
            row(company[at : at + 1], at, theirs, EVERYTHING),
        ]
        result = backend.execute(step(*(rows if first else rows[::-1]))).sampled
        (mine,), (their,) = result if first else result[::-1]
        assert mine == _reference(dtype, 1)[stop - 1]
        assert their == _reference(dtype, 2)[at]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=10, deadline=None)
@given(sent=st.integers(1, LENGTH - 1), sizes=st.permutations([8, 16, 64]), order=st.integers(0, 1000))
def test_a_hand_off_changes_nothing(dtype: str, sent: int, sizes: list[int], order: int) -> None:
    """KV computed in one engine, read, and written into an engine of another block size."""
    sender, receiver = _backend(dtype, sizes[0], 2), _backend(dtype, sizes[1], 1)
    source, target = _blocks(sizes[0], order, 0), _blocks(sizes[1], order + 1, 2)
    tokens = _tokens(1)
    sender.execute(step(row(tokens[:sent], 0, source)))
    half = sent // 2
    for start, stop in ((half, sent), (0, half)):
        receiver.write_kv(tuple(target), start, stop, sender.read_kv(tuple(source), start, stop))
    ((drawn,),) = receiver.execute(step(row(tokens[sent:], sent, target, EVERYTHING))).sampled
    assert drawn == _reference(dtype, 1)[-1]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_wide_batch_changes_nothing(dtype: str) -> None:
    """Forty sequences sharing one prefix's blocks, each with its own last block."""
    backend = _backend(dtype, 16, 2)
    tokens = _tokens(1)
    backend.execute(step(row(tokens[:96], 0, range(6))))
    rows = [row(tokens[96:112], 96, [*range(6), 6 + index], EVERYTHING) for index in range(40)]
    for (drawn,) in backend.execute(step(*rows)).sampled:
        assert drawn == _reference(dtype, 1)[111]


@pytest.mark.parametrize("dtype", DTYPES)
def test_other_torch_threads_change_nothing(dtype: str) -> None:
    """Whatever thread count the process has set, before and after the backend was made."""
    backend = _backend(dtype, 16, 1)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            ((drawn,),) = backend.execute(step(row(_tokens(1), 0, range(10), EVERYTHING))).sampled
            assert drawn == _reference(dtype, 1)[-1]
            assert torch.get_num_threads() == threads, "the caller's setting comes back"
    finally:
        torch.set_num_threads(before)


def test_a_changed_past_changes_the_answer() -> None:
    """The test of the tests: one different token 100 positions back is seen."""
    backend = _backend("float32", 16, 1)
    tokens = _tokens(1)
    changed = [*tokens[:50], (tokens[50] + 1) % VOCABULARY, *tokens[51:]]
    ((drawn,),) = backend.execute(step(row(changed, 0, range(10), EVERYTHING))).sampled
    assert drawn != _reference("float32", 1)[-1]
