"""What a worker says of its memory at its start."""

from engine.footprint import Footprint
from tests.reference.small_models import small_backend
from worker.config import WorkerConfig
from worker.instance import host
from worker.memory_budget import MIB, MemoryBudget, resident_bytes


def test_the_line_has_every_part_and_their_sum() -> None:
    model = Footprint(300 * MIB, 200 * MIB, 50 * MIB, 25 * MIB, 299 * MIB)
    budget = MemoryBudget(100 * MIB, model, 96 * MIB)
    assert budget.total == 675 * MIB
    assert budget.shown() == {
        "programs_mib": 100.0,
        "weights_mib": 300.0,
        "kv_pool_mib": 200.0,
        "host_pool_mib": 50.0,
        "workspace_mib": 25.0,
        "total_mib": 675.0,
        "each_lane_mib": 96.0,
    }


def test_what_was_there_before_the_model_is_measured() -> None:
    hosted = host(WorkerConfig(backend="timed", model="fake"), "worker", "a")
    assert 10 * MIB < hosted.programs_bytes <= resident_bytes() + 10 * MIB


def test_a_backend_counts_what_it_holds() -> None:
    backend = small_backend()
    footprint = backend.footprint()
    layout = backend.layout
    assert footprint.kv == layout.blocks * layout.block_size * layout.bytes_per_token
    assert footprint.weights == footprint.weights_read_per_step > 0
    assert footprint.host == 0
    backend.close()
