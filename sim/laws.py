"""What must hold of a whole fleet, whatever was done to it."""

from core.outcomes import Outcome
from sim.clients import Asked
from sim.decode_node import DecodeNode
from sim.fleet import Fleet
from sim.gateway_node import GatewayNode
from sim.node import Node
from sim.prefill_node import PrefillNode
from sim.router_node import RouterNode
from sim.worker_node import WorkerNode

SETTLE_US = 6_000_000
"""Longer than every grace a dead peer has."""


def check_every_object(fleet: Fleet) -> None:
    for node in fleet.nodes.values():
        if node.alive and not node.paused:
            node.plain.check()


def finish(fleet: Fleet, limit_us: int = 240_000_000) -> None:
    """Runs to the end of every request, lets it settle, and checks that nothing is left anywhere."""
    fleet.finish(limit_us)
    fleet.run_until(lambda: not any(node.paused for node in fleet.nodes.values() if node.alive), limit_us)
    fleet.run(SETTLE_US)
    check_idle(fleet)


def check_idle(fleet: Fleet) -> None:
    """L1 and L5 at rest: every block is free or cached, nothing is reserved, nobody waits."""
    check_every_object(fleet)
    assert not fleet.clients.live, f"without an end: {list(fleet.clients.live)}"
    for node in fleet.nodes.values():
        if node.alive:
            _check_rests(node)


def completed(*asked: Asked) -> None:
    """All of them, whole; Clients has compared every token by now."""
    for one in asked:
        assert one.outcome is Outcome.COMPLETED, f"{one.request}: {one.end}"


def _check_rests(node: Node) -> None:
    if isinstance(node, WorkerNode):
        _check_worker(node)
    elif isinstance(node, RouterNode):
        counts = node.plain.snapshot(node.now_us)
        assert (counts.in_flight, counts.queued) == (0, 0), f"{node.name} still counts {counts}"
        assert not counts.tenants_in_flight
    elif isinstance(node, GatewayNode):
        assert node.plain.in_flight == 0


def _check_worker(node: WorkerNode) -> None:
    counts, plain = node.engine.counts(), node.plain
    assert (plain.live, plain.waiting, plain.transferring) == (0, 0, 0), f"{node.name}: work is left"
    assert (counts.held, counts.in_flight) == (0, 0), f"{node.name} leaks: {counts}"
    assert counts.free + counts.cached == counts.total
    assert node.engine.running == node.engine.waiting == 0
    if isinstance(node, DecodeNode):
        assert node.staged_chunks == 0, f"{node.name} leaks staging"
    if isinstance(node, PrefillNode):
        assert node.packed_copies == 0, f"{node.name} leaks packed chunks"
