"""Whether the torch backend keeps its contract beside the forward: memory, blocks, transfers, steps."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine import torch_backend
from engine.backends import default_blocks, open_backend
from engine.models.tiling import CPU_TILING, Workers, split_columns
from engine.plan import KvLayout, SampleSpec, StepPlan
from engine.torch_backend import EngineMemoryError, TorchBackend, refuse_if_too_large
from tests.reference.small_models import EVERYTHING, GREEDY, row, small_backend, small_config, step

TOKENS = torch.randint(0, 160, (100,), generator=torch.Generator().manual_seed(6)).tolist()
TABLE = tuple(range(7))


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return small_backend()


def test_one_tuple_of_draws_for_each_row(backend: TorchBackend) -> None:
    specs = tuple(SampleSpec(choice, GREEDY, seed=5, position=30, output_count=0) for choice in (0, 2))
    asking = row(TOKENS[:30], 0, TABLE)
    asking = type(asking)(asking.sequence, asking.tokens, 0, asking.block_table, specs)
    silent = row(TOKENS[:10], 0, range(8, 16))
    result = backend.execute(StepPlan(41, (), (), (silent, asking, silent)))
    assert result.step == 41 and result.elapsed_us > 0
    first, second, third = result.sampled
    assert first == third == ()
    assert [drawn.choice for drawn in second] == [0, 2]
    assert second[0].token == second[1].token


def test_an_empty_plan_and_a_silent_one(backend: TorchBackend) -> None:
    assert backend.execute(step()).sampled == ()
    assert backend.execute(step(row(TOKENS[:5], 0, TABLE))).sampled == ((),)


def test_a_large_step_runs_as_several_passes(backend: TorchBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        row(TOKENS[:size], 0, range(7 * index, 7 * index + 7), EVERYTHING)
        for index, size in enumerate((90, 7, 60))
    ]
    whole = backend.execute(step(*rows)).sampled
    monkeypatch.setattr(torch_backend, "PASS_TOKENS_MAX", 32)
    assert backend.execute(step(*rows)).sampled == whole


def test_zeroed_blocks_are_zero_and_copied_ones_equal(backend: TorchBackend) -> None:
    backend.execute(step(row(TOKENS, 0, TABLE)))
    kept = backend.read_kv(TABLE, 0, 100)
    backend.execute(step(zero=[20], copy=[(2, 21)]))
    assert not any(backend.read_kv((20,), 0, 16))
    assert backend.read_kv((21,), 0, 16) == backend.read_kv(TABLE, 32, 48)
    assert backend.read_kv(TABLE, 0, 100) == kept


def test_what_was_never_written_is_never_read(backend: TorchBackend) -> None:
    """Not-a-number in the unwritten slots of a sequence's own block must not reach its answer."""
    clean = backend.execute(step(row(TOKENS[:20], 0, (30, 31), EVERYTHING))).sampled
    poison = torch.full((3 * 2 * 12 * 2 * 16,), float("nan")).view(torch.uint8).numpy().tobytes()
    backend.write_kv((30, 31), 20, 32, poison)
    assert backend.execute(step(row(TOKENS[19:20], 19, (30, 31), EVERYTHING))).sampled == clean


def test_the_wire_layout_is_layer_kv_token_head_dim(backend: TorchBackend) -> None:
    backend.execute(step(row(TOKENS, 0, TABLE)))
    whole = torch.frombuffer(bytearray(backend.read_kv(TABLE, 0, 100)), dtype=torch.float32).view(
        3, 2, 100, 2, 16
    )
    part = torch.frombuffer(bytearray(backend.read_kv(TABLE, 30, 50)), dtype=torch.float32).view(
        3, 2, 20, 2, 16
    )
    assert part.equal(whole[:, :, 30:50])
    assert backend.read_kv(TABLE, 40, 40) == b""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_payload_fits_every_block_size(dtype: str) -> None:
    sender, receiver = small_backend(dtype=dtype), small_backend(dtype=dtype, block_size=64)
    sender.execute(step(row(TOKENS, 0, TABLE)))
    payload = sender.read_kv(TABLE, 3, 97)
    assert len(payload) == 94 * sender.layout.bytes_per_token
    receiver.write_kv((9, 4), 3, 97, memoryview(payload))
    assert receiver.read_kv((9, 4), 3, 97) == payload


def test_a_payload_of_another_length_is_refused(backend: TorchBackend) -> None:
    with pytest.raises(ValueError, match=r"payload: 7 bytes given for tokens 0\.\.2, must be 1536"):
        backend.write_kv((0,), 0, 2, bytes(7))


def test_blocks_that_do_not_fit_are_refused_in_one_line() -> None:
    layout = KvLayout(layers=32, kv_heads=8, head_dim=128, dtype="float32", block_size=16, blocks=10**7)
    with pytest.raises(
        EngineMemoryError, match=r"^kv_blocks: 10000000 blocks of 16 tokens need 40000000 MiB, \d+ MiB"
    ):
        refuse_if_too_large(layout, torch.device("cpu"))


def test_a_backend_that_cannot_fit_is_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_backend, "free_bytes", lambda device: 1 << 20)
    with pytest.raises(EngineMemoryError, match="0 MiB are free on cpu"):
        small_backend()


def test_default_blocks_are_bounded_by_tokens_and_by_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = small_config()
    assert default_blocks(config, dtype="float32", device="cpu", block_size=16) == 65536 // 16
    monkeypatch.setattr("engine.backends.free_bytes", lambda device: 8 * 768 * 1000)
    assert default_blocks(config, dtype="float32", device="cpu", block_size=16) == 1000 // 16
    assert default_blocks(config, dtype="bfloat16", device="cpu", block_size=16) == 2000 // 16
    monkeypatch.setattr("engine.backends.free_bytes", lambda device: 0)
    assert default_blocks(config, dtype="float32", device="cpu", block_size=16) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "device: tpu"),
        ({"blocks": 0}, "blocks: 0"),
        ({"block_size": 0}, "block_size: 0"),
        ({"threads": 0}, "threads: 0"),
    ],
)
def test_bad_arguments_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {
        "dtype": "float32",
        "device": "cpu",
        "block_size": 16,
        "blocks": 4,
        "threads": 1,
    }
    arguments.update(changes)
    with pytest.raises(ValueError, match=message):
        open_backend(tmp_path, **arguments)


@pytest.mark.parametrize("columns", [1, 15, 192, 512, 576, 1536, 49152, 50257])
def test_columns_are_split_once_each_and_aligned(columns: int) -> None:
    parts = split_columns(columns, CPU_TILING)
    assert [0, *[last for _, last in parts]] == [*[first for first, _ in parts], columns]
    assert all(first % 16 == 0 and 0 < last - first <= CPU_TILING.linear_columns for first, last in parts)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_workers_run_every_task_and_pass_errors_on(threads: int) -> None:
    workers = Workers(threads)
    done: list[int] = []
    workers.run([lambda number=number: done.append(number) for number in range(20)])  # type: ignore[misc]
    assert sorted(done) == list(range(20))

    def fail() -> None:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        workers.run([lambda: None, fail, lambda: None])
    workers.close()
