"""Which engine instance a worker process hosts: its model, its pool and its declared cost."""

import os
from concurrent.futures import wait
from dataclasses import dataclass, replace
from pathlib import Path

from core.cost_model import StepCost
from core.prefix_hashes import HASH_UNIT
from core.request import InstanceKey, ModelIdentity
from engine.config import ITL_TARGET_US, EngineConfig
from engine.plan import Backend, Row, StepPlan
from proto import router_pb2
from rpc.convert import model_to_wire
from rpc.errors import ServiceError
from worker.config import WorkerConfig
from worker.memory_budget import MemoryBudget, resident_bytes

PROBE_TOKENS = 64
PROBE_DEPTH = 960
PROBES = 5
"""Of which the fastest counts: a machine that starts a whole fleet is busy."""
SWAP_PROBE_BLOCKS = 16
ITL_TARGET_STEPS = 2.5


@dataclass(frozen=True, slots=True)
class Hosted:
    """One loaded engine instance."""

    key: InstanceKey
    backend: Backend
    engine: EngineConfig
    cost: StepCost
    folder: Path | None
    """None for a timed backend without a model."""
    dtype: str
    programs_bytes: int
    """Resident before the model was loaded."""

    def memory_budget(self, lane_bytes: int) -> MemoryBudget:
        return MemoryBudget(self.programs_bytes, self.backend.footprint(), lane_bytes)

    def to_wire(self) -> router_pb2.InstanceInfo:
        layout = self.backend.layout
        return router_pb2.InstanceInfo(
            model=model_to_wire(self.key.model),
            dtype=self.dtype,
            block_size=layout.block_size,
            blocks_total=layout.blocks,
            max_positions=self.engine.max_positions,
            max_running=self.engine.max_running,
            cost_base_ns=self.cost.base_ns,
            cost_token_ns=self.cost.token_ns,
            cost_context_ns=self.cost.context_ns,
            kv_bytes_per_token=layout.bytes_per_token,
            hash_unit=HASH_UNIT,
        )


def host(config: WorkerConfig, worker: str, incarnation: str) -> Hosted:
    """Load what the configuration names. Raises ServiceError, one line, for what cannot be served."""
    if config.backend == "timed":
        return _timed(config, worker, incarnation)
    return _model(config, worker, incarnation)


def _model(config: WorkerConfig, worker: str, incarnation: str) -> Hosted:
    from engine.backends import default_blocks, open_backend  # torch takes seconds to import
    from engine.grammar_masks import GrammarMasks
    from engine.models.checkpoint import load_config
    from engine.models.errors import ModelError
    from engine.models.store import resolve
    from engine.torch_backend import EngineMemoryError
    from text.grammar_vocabulary import open_grammar_vocabulary

    threads = config.threads or len(os.sched_getaffinity(0))
    try:
        model = resolve(config.model)
        shape = load_config(model.path)
        masks = GrammarMasks(lambda: open_grammar_vocabulary(model.path))
        vocabulary = masks.warm()
        wait([vocabulary])  # it may be unusable: then each grammar fails, and says why
        programs_bytes = resident_bytes()
        size = config.block_size
        blocks = config.kv_blocks or default_blocks(
            shape, dtype=config.dtype, device=config.device, block_size=size
        )
        backend = open_backend(
            model.path,
            dtype=config.dtype,
            device=config.device,
            block_size=size,
            blocks=blocks,
            threads=threads,
            host_slots=_host_slots(config, blocks),
            masks=masks,
        )
    except (ModelError, EngineMemoryError, ValueError) as error:
        raise ServiceError(str(error)) from None
    identity = ModelIdentity(config.served_name or model.name, model.revision)
    engine = _engine(config, blocks, shape.max_position_embeddings, grammars=True)
    cost = _measure(backend, engine)
    if config.itl_target_ms is None:
        engine = with_itl_target(engine, cost)
    engine = _with_swap_time(backend, engine)
    key = InstanceKey(worker, incarnation, identity)
    return Hosted(key, backend, engine, cost, model.path, config.dtype, programs_bytes)


def _timed(config: WorkerConfig, worker: str, incarnation: str) -> Hosted:
    from engine.timed_backend import TimedBackend, digest_layout

    programs_bytes = resident_bytes()
    cost = StepCost(config.timed_step_us * 1_000, config.timed_token_us * 1_000, 0)
    # Its tokens stand for no text that a grammar could speak of.
    engine = _engine(config, config.kv_blocks or 4_096, 8_192, grammars=False)
    backend = TimedBackend(cost, digest_layout(engine.block_size, engine.blocks))
    identity = ModelIdentity(config.served_name or config.model, "timed")
    key = InstanceKey(worker, incarnation, identity)
    return Hosted(key, backend, engine, cost, None, "digest", programs_bytes)


def _engine(config: WorkerConfig, blocks: int, max_positions: int, *, grammars: bool) -> EngineConfig:
    return EngineConfig(
        blocks=blocks,
        block_size=config.block_size,
        max_running=config.max_running,
        max_step_tokens=config.max_step_tokens,
        itl_target_us=ITL_TARGET_US if config.itl_target_ms is None else config.itl_target_ms * 1_000,
        prefill_burst_us=config.prefill_burst_ms * 1_000,
        swap_blocks=_host_slots(config, blocks),
        speculation=config.speculation,
        max_positions=max_positions,
        grammars=grammars,
    )


def with_itl_target(engine: EngineConfig, cost: StepCost) -> EngineConfig:
    """The same with a target that leaves prefill its share of each step, however slow the model.

    Steps of decode rows alone that take the target, or nearly, leave prompts little but their least share:
    with 1.2 billion parameters on two cores they take over 40 ms, and 50 halved the tokens per second.
    """
    step_us = (cost.base_ns + cost.token_ns) / 1000
    return replace(engine, itl_target_us=max(engine.itl_target_us, round(ITL_TARGET_STEPS * step_us)))


def _host_slots(config: WorkerConfig, blocks: int) -> int:
    return blocks * config.host_kv_percent // 100


def _measure(backend: Backend, engine: EngineConfig) -> StepCost:
    """The declared cost: a one-token step, a chunk of PROBE_TOKENS and one deep in a prompt.

    Probes write to block contents that no sequence owns; every block is zeroed again when acquired.
    """
    capacity = engine.positions_max
    chunk = min(PROBE_TOKENS, capacity)
    depth = min(PROBE_DEPTH, capacity - chunk)
    one_us, many_us = _probe(backend, engine, 1, 0), _probe(backend, engine, chunk, 0)
    deep_us = _probe(backend, engine, chunk, depth)
    token_ns = max(1, (many_us - one_us) * 1_000 // max(1, chunk - 1))
    # Too little to measure where the pool is small; a few per cent of a token's cost is usual.
    context_ns = (deep_us - many_us) * 1_000 // (chunk * depth) if depth else 0
    return StepCost(
        base_ns=max(1, one_us * 1_000 - token_ns),
        token_ns=token_ns,
        context_ns=max(context_ns, token_ns // 5_000),
    )


def _probe(backend: Backend, engine: EngineConfig, tokens: int, start: int) -> int:
    """Microseconds of a step of one row, the fastest of PROBES."""
    table = tuple(range(engine.blocks_for(start + tokens)))
    plan = StepPlan(0, (), (), (Row(0, tuple(range(tokens)), start, table),))
    return min(backend.execute(plan).elapsed_us for _ in range(PROBES))


def _with_swap_time(backend: Backend, engine: EngineConfig) -> EngineConfig:
    """What copying a block to the host and back takes here, rounded up."""
    count = min(SWAP_PROBE_BLOCKS, engine.blocks, engine.swap_blocks)
    if not count:
        return engine
    pairs = tuple((block, block) for block in range(count))
    plan = StepPlan(0, (), (), (), swap_out=pairs, swap_in=pairs)
    elapsed_us = min(backend.execute(plan).elapsed_us for _ in range(PROBES))
    return replace(engine, swap_block_us=-(-elapsed_us // (2 * count)))
