"""The gateway's shell: brings events to the plain object, and its actions to the fleet and to clients."""

import asyncio
import random
from collections import deque
from collections.abc import Callable

from core.ends import End
from core.outcomes import Outcome
from core.request import AttemptKey
from proto import decode_pb2, router_pb2
from proto.decode_pb2_grpc import DecodeStub
from proto.router_pb2_grpc import RouterStub
from rpc.channels import Channels
from rpc.clock import now_us
from rpc.convert import end_from_wire
from rpc.logs import Log
from rpc.streams import OutboundStream
from services.gateway import wire
from services.gateway.actions import (
    Action,
    CancelAttempt,
    Connect,
    Deliver,
    Disconnect,
    Ended,
    FirstTokenSeen,
    Settle,
    Start,
    Submit,
    Withdraw,
)
from services.gateway.gateway import Gateway
from services.gateway.mailbox import Answer
from services.gateway.metrics import GatewayMetrics
from services.gateway.requests import NewRequest

RouterStream = OutboundStream[router_pb2.RouteRequest, router_pb2.RouteResponse]
DecodeStream = OutboundStream[decode_pb2.GatewayMessage, decode_pb2.DecodeMessage]


class Driver:
    """One gateway's streams, timer and live answers. All methods run on the event loop and never wait."""

    def __init__(
        self,
        gateway: Gateway,
        *,
        gateway_id: str,
        incarnation: str,
        channels: Channels,
        metrics: GatewayMetrics,
        log: Log,
        seeds: random.Random,
    ) -> None:
        self.gateway = gateway
        self._id, self._incarnation = gateway_id, incarnation
        self._channels = channels
        self._metrics = metrics
        self._log = log
        self._random = seeds
        self._answers: dict[str, Answer] = {}
        self._routers: dict[str, tuple[str, RouterStream]] = {}
        self._workers: dict[str, tuple[str, DecodeStream]] = {}
        self._closing: dict[asyncio.Task[None], None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us: int | None = None

    # What clients do.

    def open(self, request: NewRequest, answer: Answer) -> None:
        self._answers[request.request] = answer
        now = now_us()
        self._metrics.opened(request, now)
        self._perform(self.gateway.open(request, now), now)

    def cancel(self, request: str, outcome: Outcome, message: str = "") -> None:
        """Idempotent."""
        if request not in self._answers:
            return
        now = now_us()
        self._perform(self.gateway.cancel(request, outcome, message, now), now)

    # Routers come and go.

    def add_router(self, router: str, address: str) -> None:
        known = self._routers.get(router)
        if known is not None and known[0] == address:
            return
        self.remove_router(router)
        channel = self._channels.get(address)
        stream: RouterStream = OutboundStream(
            lambda: RouterStub(channel).Route(),
            on_up=lambda: self._router_up(router),
            on_message=lambda message: self._from_router(router, message),
            on_down=lambda why: self._router_down(router, why),
            random=self._random,
        )
        self._routers[router] = (address, stream)
        stream.start()

    def remove_router(self, router: str) -> None:
        known = self._routers.pop(router, None)
        if known is not None:
            self._close(known[1], known[0])

    @property
    def routers_up(self) -> int:
        return sum(stream.is_up for _, stream in self._routers.values())

    def _router_up(self, router: str) -> None:
        now = now_us()
        stream = self._routers[router][1]
        live = self.gateway.live_attempts(router)
        stream.send(wire.hello_to_wire(self._id, self._incarnation, live, now))
        self._log.info("router_up", router=router, live=len(live))
        self._perform(self.gateway.router_up(router, now), now)

    def _router_down(self, router: str, why: End) -> None:
        now = now_us()
        self._log.info("router_down", router=router, outcome=why.outcome, message=why.message)
        self._perform(self.gateway.router_down(router, now), now)

    def _from_router(self, router: str, message: router_pb2.RouteResponse) -> None:
        now = now_us()
        kind = message.WhichOneof("message")
        if kind == "placed":
            placed = message.placed
            key = AttemptKey(placed.request, placed.attempt)
            self._metrics.placed(placed.queued_us)
            placement = wire.placement_from_wire(placed)
            self._perform(self.gateway.placed(router, key, placement, now), now)
        elif kind == "refused":
            refused = message.refused
            key = AttemptKey(refused.request, refused.attempt)
            self._perform(self.gateway.refused(router, key, end_from_wire(refused.end), now), now)

    # Decode workers.

    def _connect(self, worker: str, address: str) -> None:
        channel = self._channels.get(address)
        stream: DecodeStream = OutboundStream(
            lambda: DecodeStub(channel).Serve(),
            on_up=lambda: self._worker_up(worker),
            on_message=lambda message: self._from_worker(worker, message),
            on_down=lambda why: self._worker_down(worker, stream, why),
            on_refused=lambda why: self._worker_refused(worker, stream, why),
            random=self._random,
        )
        self._workers[worker] = (address, stream)
        stream.start()

    def _disconnect(self, worker: str) -> None:
        known = self._workers.pop(worker, None)
        if known is not None:
            self._close(known[1], known[0])

    def _is_current(self, worker: str, stream: DecodeStream) -> bool:
        known = self._workers.get(worker)
        return known is not None and known[1] is stream

    def _worker_up(self, worker: str) -> None:
        known = self._workers.get(worker)
        if known is not None:
            resume = self.gateway.resume_list(worker)
            known[1].send(wire.attach_to_wire(self._id, self._incarnation, resume))

    def _worker_down(self, worker: str, stream: DecodeStream, why: End) -> None:
        if self._is_current(worker, stream):
            now = now_us()
            self._log.info("worker_down", worker=worker, outcome=why.outcome, message=why.message)
            self._perform(self.gateway.decode_down(worker, now), now)

    def _worker_refused(self, worker: str, stream: DecodeStream, why: End) -> None:
        # Nobody listens on its port: its process is gone, and waiting for it to come back is in vain.
        if self._is_current(worker, stream) and "connection refused" in why.message.lower():
            now = now_us()
            self._log.info("worker_gone", worker=worker, message=why.message)
            self._perform(self.gateway.decode_gone(worker, now), now)

    def _from_worker(self, worker: str, message: decode_pb2.DecodeMessage) -> None:
        now = now_us()
        if message.HasField("frame"):
            frame = message.frame
            runs = tuple(map(wire.run_from_wire, frame.runs))
            ends = tuple(map(wire.attempt_end_from_wire, frame.ends)) if frame.ends else ()
            self._perform(self.gateway.frame(worker, runs, ends, now), now)
        elif message.HasField("attached"):
            attached = message.attached
            unknown = wire.unknown_from_wire(attached)
            self._perform(self.gateway.decode_up(worker, attached.incarnation, unknown, now), now)

    # Actions.

    def _perform(self, actions: list[Action], now: int) -> None:
        """Does all of them; what the text side answers is told after the batch it came from."""
        waiting = deque(actions)
        told: deque[Callable[[], list[Action]]] = deque()
        while waiting or told:
            if not waiting:
                waiting.extend(told.popleft()())
                continue
            action = waiting.popleft()
            match action:
                case Deliver():
                    self._deliver(action, told, now)
                case Submit() | FirstTokenSeen() | Settle() | Withdraw():
                    self._to_router(action, now)
                case Start() | CancelAttempt():
                    self._to_worker(action, now)
                case Ended():
                    self._end(action, now)
                case Connect():
                    self._connect(action.worker, action.address)
                case Disconnect():
                    self._disconnect(action.worker)
        self._set_timer(now)

    def _deliver(self, deliver: Deliver, told: deque[Callable[[], list[Action]]], now: int) -> None:
        answer = self._answers[deliver.request]
        self._metrics.tokens(deliver, now)
        done = answer.deliver(deliver)
        if answer.slow:
            told.append(
                lambda: self.gateway.cancel(
                    deliver.request, Outcome.SLOW_CLIENT, "the client does not read its answer", now
                )
            )
        if done is not None:
            count, reason = done
            told.append(
                lambda: self.gateway.choice_ended(deliver.request, deliver.choice, count, reason, now)
            )

    def _to_router(self, action: Submit | FirstTokenSeen | Settle | Withdraw, now: int) -> None:
        # A router that is away learns from the next hello what is over.
        if (known := self._routers.get(action.router)) is not None:
            known[1].send(wire.to_router(action, now))

    def _to_worker(self, action: Start | CancelAttempt, now: int) -> None:
        # What a broken stream swallows, the worker names as unknown when it comes back.
        if (known := self._workers.get(action.worker)) is not None:
            known[1].send(wire.to_worker(action, now))
        if isinstance(action, Start) and action.key.request in self._answers:
            self._answers[action.key.request].start()

    def _end(self, ended: Ended, now: int) -> None:
        answer = self._answers.pop(ended.request)
        self._metrics.ended(ended, now)
        answer.end(ended)
        if self.gateway.in_flight == 0:
            self.gateway.check()

    # Time.

    def _set_timer(self, now: int) -> None:
        due_us = self.gateway.next_deadline_us
        if due_us == self._timer_us:
            return
        # An earlier wake-up than needed only looks and sets the timer again.
        if self._timer_us is not None and due_us is not None and self._timer_us <= due_us:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_us = due_us
        if due_us is not None:
            delay_s = max(0.0, (due_us - now) / 1e6)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_us = None, None
        now = now_us()
        self._perform(self.gateway.tick(now), now)

    # The end.

    def _close(self, stream: "RouterStream | DecodeStream", address: str) -> None:
        async def close() -> None:
            await stream.close()
            used = [known[0] for known in (*self._routers.values(), *self._workers.values())]
            if address not in used:
                await self._channels.drop(address)

        task = asyncio.get_running_loop().create_task(close())
        self._closing[task] = None
        task.add_done_callback(lambda done: self._closing.pop(done, None))

    async def close(self) -> None:
        """Ends all streams, after what is queued for routers has left."""
        if self._timer is not None:
            self._timer.cancel()
        streams: list[RouterStream | DecodeStream] = [stream for _, stream in self._routers.values()]
        streams += [stream for _, stream in self._workers.values()]
        self._routers.clear()
        self._workers.clear()
        await asyncio.gather(*(stream.close(flush_s=1.0) for stream in streams))
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._channels.close()
