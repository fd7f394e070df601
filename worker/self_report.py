"""What a worker says of itself: who it is, where, and how loaded."""

import os

from core.membership import Member, MemberKind
from core.request import Role
from engine.engine import Engine
from proto import router_pb2, worker_pb2
from rpc.clock import now_us, wall_us
from rpc.convert import model_to_wire
from worker.instance import Hosted
from worker.plain_worker import PlainWorker
from worker.reports import Load, report_to_wire


class SelfReport:
    """Counts when asked; keeps only the number of its reports and the address it is reached at."""

    def __init__(
        self, role: Role, kind: MemberKind, hosted: Hosted, engine: Engine, plain: PlainWorker
    ) -> None:
        self.address = ""
        """Known once the server listens."""
        self.model = model_to_wire(hosted.key.model)
        self._role = role
        self._kind = kind
        self._hosted = hosted
        self._engine = engine
        self._plain = plain
        self._reports = 0

    def load(self) -> Load:
        return Load(
            blocks=self._engine.counts(),
            running=self._engine.running,
            waiting=self._plain.waiting,
            transferring=self._plain.transferring,
            queued_prefill_us=self._plain.queued_prefill_us(),
            service_us=self._engine.service_us,
            draining=self._plain.draining,
            wall_time=self._engine.wall_time(now_us()),
            computed=self._engine.computed,
            preemptions=self._engine.preemptions,
            swaps=self._engine.swaps,
            host_blocks_used=self._engine.host_slots_used,
            unused_slots=self._engine.unused_slots,
            drafted=self._engine.drafted,
            accepted=self._engine.accepted,
        )

    def next_report(self) -> router_pb2.LoadReport:
        """With the reservations that came and ended since the last of these."""
        placed, ended = self._plain.take_reservations(now_us())
        self._reports += 1
        return report_to_wire(self.load(), self._reports, self.model, placed, ended)

    def plain_report(self) -> router_pb2.LoadReport:
        """The load alone, for who begins to listen or only looks."""
        self._reports += 1
        return report_to_wire(self.load(), self._reports, self.model)

    def snapshot(self, broken_law: str) -> worker_pb2.WorkerSnapshot:
        return worker_pb2.WorkerSnapshot(
            hello=self.hello(), loads=[self.plain_report()], age_us=0, broken_law=broken_law
        )

    def hello(self) -> router_pb2.WorkerHello:
        key = self._hosted.key
        return router_pb2.WorkerHello(
            worker=key.worker,
            incarnation=key.incarnation,
            role=self._role.value,
            address=self.address,
            pid=os.getpid(),
            instances=[self._hosted.to_wire()],
        )

    def member(self) -> Member:
        key = self._hosted.key
        return Member(
            kind=self._kind,
            id=key.worker,
            address=self.address,
            incarnation=key.incarnation,
            started_us=wall_us(),
            pid=os.getpid(),
            models=(key.model,),
        )
