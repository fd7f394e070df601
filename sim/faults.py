"""What may befall a fleet, and when a random run of it does."""

from collections.abc import Callable
from random import Random
from typing import Any

from sim.fleet import Fleet
from sim.network import DELIVERED, LOST, Stream


def drain(fleet: Fleet, name: str, grace_us: int = 10_000_000) -> None:
    """SIGTERM: finishes what it has, exits, and is started again."""
    node = fleet.worker(name)
    if node.alive and not node.plain.draining:
        fleet.journal.note(fleet.loop.now_us, f"drain {node.incarnation}")
        node.enter(lambda: node.drain(grace_us))
        _start_when_gone(fleet, name)


def pause(fleet: Fleet, name: str, for_us: int) -> None:
    """SIGSTOP, and SIGCONT after a while."""
    node = fleet.nodes[name]
    if node.alive and not node.paused:
        fleet.journal.note(fleet.loop.now_us, f"pause {node.incarnation} for {for_us} us")
        node.pause()
        fleet.loop.after(for_us, node.resume)


def break_streams(fleet: Fleet, one: str, other: str) -> None:
    """Every stream between two processes."""
    fleet.journal.note(fleet.loop.now_us, f"break {one} {other}")
    for stream in fleet.network.between(one, other):
        stream.close("reset")


def break_all_streams(fleet: Fleet, name: str) -> None:
    fleet.journal.note(fleet.loop.now_us, f"break all of {name}")
    for stream in fleet.network.of(fleet.nodes[name]):
        stream.close("reset")


def cut(fleet: Fleet, one: str, other: str, for_us: int) -> None:
    """A partition between two processes, healed after a while."""
    fleet.journal.note(fleet.loop.now_us, f"cut {one} {other} for {for_us} us")
    fleet.network.cut(one, other)
    fleet.loop.after(for_us, lambda: fleet.network.heal(one, other))


def fail_lanes(fleet: Fleet) -> None:
    """Every lane breaks, with what is on it; both ends open a new epoch."""
    fleet.journal.note(fleet.loop.now_us, "fail lanes")
    for name in fleet.decodes:
        node = fleet.decode(name)
        for lane in node.lanes if node.alive else []:
            lane.fail("transport error")


def corrupt_chunks(fleet: Fleet, chunks: int = 1) -> None:
    fleet.journal.note(fleet.loop.now_us, f"corrupt {chunks} chunks")
    fleet.lane_speed.corrupt_chunks += chunks


def slow_lanes(fleet: Fleet, latency_us: int, for_us: int) -> None:
    before = fleet.config.lane_latency_us
    fleet.journal.note(fleet.loop.now_us, f"slow lanes: {latency_us} us for {for_us} us")
    fleet.lane_speed.latency_us = latency_us

    def restore() -> None:
        fleet.lane_speed.latency_us = before

    fleet.loop.after(for_us, restore)


def slow_engine(fleet: Fleet, name: str, factor: int, for_us: int) -> None:
    node = fleet.worker(name)
    fleet.journal.note(fleet.loop.now_us, f"slow {name} by {factor} for {for_us} us")
    node.thread.slowness = factor

    def restore() -> None:
        node.thread.slowness = 1

    fleet.loop.after(for_us, restore)


def lose_store(fleet: Fleet, for_us: int, *, memory: bool = False) -> None:
    """The capacity store cannot be asked for a while; `memory`: and has forgotten everything then."""
    fleet.journal.note(fleet.loop.now_us, f"lose store for {for_us} us")
    fleet.store.away = True

    def back() -> None:
        fleet.store.away = False
        if memory:
            fleet.store.forget()

    fleet.loop.after(for_us, back)


def double_messages(
    fleet: Fleet,
    for_us: int,
    late_us: int,
    which: Callable[[Stream, Any], bool] = lambda stream, message: True,
) -> None:
    """Each message comes again, so much later, behind what was sent after it."""
    fleet.journal.note(fleet.loop.now_us, f"double messages for {for_us} us, {late_us} us late")
    fleet.network.fate_of = lambda stream, message: late_us
    fleet.loop.after(for_us, lambda: _no_more(fleet))


def lose_message(fleet: Fleet, which: Callable[[Any], bool]) -> None:
    """The next such message is lost, and its stream breaks: in order or not at all."""

    def fate(stream: Stream, message: Any) -> int:
        if not which(message):
            return DELIVERED
        _no_more(fleet)
        fleet.journal.note(fleet.loop.now_us, f"lose {type(message).__name__}")
        return LOST

    fleet.network.fate_of = fate


def _no_more(fleet: Fleet) -> None:
    fleet.network.fate_of = None


def _start_when_gone(fleet: Fleet, name: str) -> None:
    def look() -> None:
        if fleet.nodes[name].alive:
            fleet.loop.after(50_000, look)
        else:
            fleet.start(name)

    fleet.loop.after(50_000, look)


def at_random(fleet: Fleet, random: Random, faults: int, span_us: int, *, gateways: bool = True) -> None:
    """So many faults of every kind, at random times within the span."""
    for _ in range(faults):
        at_us = fleet.loop.now_us + random.randrange(span_us)
        fleet.loop.at(at_us, _drawn(fleet, random, gateways))


def _drawn(fleet: Fleet, random: Random, gateways: bool) -> Callable[[], None]:
    worker = random.choice([*fleet.prefills, *fleet.decodes])
    anyone = random.choice([*fleet.prefills, *fleet.decodes, *fleet.routers])
    gateway, decode = random.choice(fleet.gateways), random.choice(fleet.decodes)
    prefill, router = random.choice(fleet.prefills), random.choice(fleet.routers)
    short_us, long_us = random.randrange(10_000, 400_000), random.randrange(400_000, 8_000_000)
    kinds: list[Callable[[], None]] = [
        lambda: fleet.restart(anyone, short_us),
        lambda: fleet.restart(worker, long_us),
        lambda: drain(fleet, worker, short_us),
        lambda: pause(fleet, anyone, short_us),
        lambda: pause(fleet, worker, long_us),
        lambda: break_streams(fleet, gateway, decode),
        lambda: break_streams(fleet, decode, prefill),
        lambda: break_streams(fleet, gateway, router),
        lambda: break_streams(fleet, worker, router),
        lambda: cut(fleet, decode, prefill, long_us),
        lambda: cut(fleet, gateway, decode, long_us),
        lambda: fail_lanes(fleet),
        lambda: corrupt_chunks(fleet),
        lambda: slow_lanes(fleet, 200_000, long_us),
        lambda: slow_engine(fleet, worker, 10, long_us),
        lambda: double_messages(fleet, long_us, short_us),
        lambda: lose_store(fleet, long_us, memory=short_us % 2 == 0),
    ]
    if gateways:
        kinds.append(lambda: fleet.restart(gateway, short_us))
    return random.choice(kinds)
