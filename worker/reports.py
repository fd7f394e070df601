"""What a worker says of its load: counted when asked, never remembered."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.job import BlockCounts
from engine.millisecond_ledger import WallTime
from engine.step_times import ComputedSoFar
from proto import common_pb2, router_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One instance's load at one moment."""

    blocks: BlockCounts
    running: int
    waiting: int
    transferring: int
    queued_prefill_us: int
    service_us: Mapping[str, int]
    """GPU time per tenant since the process started."""
    draining: bool
    wall_time: WallTime
    computed: ComputedSoFar
    preemptions: int
    swaps: int
    host_blocks_used: int
    unused_slots: int
    """Token slots that sequences hold and have not computed."""
    drafted: int
    """Tokens computed on trial."""
    accepted: int
    """Of those, the ones that came true."""


def report_to_wire(
    load: Load,
    sequence: int,
    model: common_pb2.Model,
    acknowledged: Sequence[tuple[str, int]] = (),
    ended: Sequence[tuple[str, int]] = (),
) -> router_pb2.LoadReport:
    return router_pb2.LoadReport(
        sequence=sequence,
        model=model,
        blocks_free=load.blocks.free,
        blocks_cached=load.blocks.cached,
        blocks_held=load.blocks.held,
        blocks_in_flight=load.blocks.in_flight,
        running=load.running,
        waiting=load.waiting,
        transferring=load.transferring,
        queued_prefill_us=load.queued_prefill_us,
        acknowledged=[
            router_pb2.AcknowledgedReservation(router=router, reservation=number)
            for router, number in acknowledged
        ],
        service=[
            router_pb2.TenantService(tenant=tenant, service_us=service_us)
            for tenant, service_us in load.service_us.items()
        ],
        draining=load.draining,
        ended=[router_pb2.ReservationEnd(router=router, reservation=number) for router, number in ended],
        wall_time=_wall_time(load.wall_time),
        preemptions=load.preemptions,
        swaps=load.swaps,
        host_blocks_used=load.host_blocks_used,
        unused_slots=load.unused_slots,
        draft_tokens=load.drafted,
        accepted_draft_tokens=load.accepted,
    )


def _wall_time(time: WallTime) -> router_pb2.WallTime:
    return router_pb2.WallTime(
        wall_us=time.wall_us,
        transfer_stall_us=time.transfer_stall_us,
        idle_us=time.idle_us,
        tenants=[
            router_pb2.TenantTime(
                tenant=tenant.tenant,
                work_us=tenant.work_us,
                recompute_us=tenant.recompute_us,
                rejected_speculation_us=tenant.rejected_us,
                cancelled_us=tenant.cancelled_us,
            )
            for tenant in time.tenants
        ],
    )
