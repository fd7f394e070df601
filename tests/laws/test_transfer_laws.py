"""Two transfer tables joined by a network that delays, doubles, drops, reorders, forges and breaks."""

from collections import Counter
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kv_transfer.actions import (
    Aborted,
    Acknowledge,
    Committed,
    Delivered,
    Discard,
    Drain,
    DropPacked,
    Failed,
    IncomingAction,
    OutgoingAction,
    Pack,
    Planned,
    Receive,
    ReleaseBlocks,
    Scatter,
    Send,
)
from kv_transfer.geometry import OutgoingConfig
from kv_transfer.incoming import Incoming, IncomingConfig
from kv_transfer.outgoing import Outgoing
from kv_transfer.reasons import EndReason
from kv_transfer.types import ChunkHeader, Peer, TransferKey

TOKEN_BYTES = 4
LEASE_US = 1_000
DEADLINE_US = 20_000
STRANGER = Peer("stranger", "1")
OUTGOING = OutgoingConfig(
    TOKEN_BYTES,
    chunk_tokens=3,
    whole_prompt_tokens=4,
    chunk_bytes_max=20,
    credit_chunks=2,
    credit_bytes_peer=40,
)

index = st.integers(0, 30)
tokens_drawn = st.integers(1, 14)
luck = st.integers(0, 7)
"""Trouble strikes at 7 only, or nothing would ever get far."""
Message = tuple[str, TransferKey, tuple[int, ...], ChunkHeader | None]


def checksum_of(header: ChunkHeader) -> int:
    return hash((header.transfer, header.epoch, header.start, header.stop)) & 0xFFFF


class TransferNetwork(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now_us = 0
        self.numbers = 0
        self.incarnations = 0
        self.lane_epoch = 0
        self.fresh_home()
        self.fresh_sender()

    # ---- processes ----
    def fresh_home(self) -> None:
        self.incarnations += 1
        self.home = Peer("home", str(self.incarnations))
        self.incoming = Incoming(IncomingConfig(TOKEN_BYTES, ended_max=64))
        self.reserved: dict[TransferKey, int] = {}
        self.first_tokens: dict[TransferKey, int] = {}
        self.written: dict[TransferKey, Counter[int]] = {}
        self.home_ends: Counter[TransferKey] = Counter()
        self.aborted: list[TransferKey] = []
        self.home_released: Counter[TransferKey] = Counter()
        self.scatters: list[Scatter] = []
        self.clear_network()

    def fresh_sender(self) -> None:
        self.incarnations += 1
        self.sender = Peer("sender", str(self.incarnations))
        self.outgoing = Outgoing(replace(OUTGOING, ended_max=64))
        self.opened: dict[tuple[Peer, TransferKey], int] = {}
        self.computed: dict[tuple[Peer, TransferKey], int] = {}
        self.sender_ends: Counter[tuple[Peer, TransferKey]] = Counter()
        self.sender_released: Counter[tuple[Peer, TransferKey]] = Counter()
        self.packs: list[Pack] = []
        self.clear_network()

    def clear_network(self) -> None:
        self.to_home: list[tuple[int, Message]] = []
        self.to_sender: list[Message] = []
        self.lane: list[tuple[Peer, ChunkHeader, bool]] = []
        self.receives: list[tuple[ChunkHeader, bool]] = []

    # ---- the shells ----
    def at_home(self, actions: list[IncomingAction]) -> None:
        for action in actions:
            match action:
                case Receive(peer, header) | Drain(peer, header, _):
                    if peer == self.sender:
                        self.receives.append((header, isinstance(action, Drain)))
                case Scatter(key, _):
                    assert not self.home_released[key] and key in self.first_tokens
                    self.scatters.append(action)
                case Acknowledge(_, key, chunk):
                    self.to_sender.append(("acknowledge", key, (chunk,), None))
                case Committed(_, key):
                    self.expect_whole(key)
                    self.home_ends[key] += 1
                case Aborted(peer, key, _, tell_peer):
                    self.home_ends[key] += 1
                    self.aborted.append(key)
                    if tell_peer and peer == self.sender:
                        self.to_sender.append(("abort", key, (), None))
                case ReleaseBlocks(_, key):
                    assert key in self.first_tokens and key in self.aborted
                    assert all(scatter.key != key for scatter in self.scatters), "L2"
                    self.home_released[key] += 1
                case Discard():
                    pass

    def expect_whole(self, key: TransferKey) -> None:
        wanted = range(self.first_tokens[key], self.reserved[key])
        assert self.written.get(key, Counter()) == Counter(wanted), "L3"

    def at_sender(self, actions: list[OutgoingAction]) -> None:
        for action in actions:
            match action:
                case Planned(_, key, chunks):
                    self.to_home.append((0, ("total", key, (chunks,), None)))
                case Pack(peer, key, _, start, stop, size):
                    assert not self.sender_released[(peer, key)] and start < stop
                    assert stop <= self.computed[(peer, key)] and size == (stop - start) * TOKEN_BYTES
                    self.packs.append(action)
                case Send(peer, header):
                    self.lane.append((peer, header, True))
                    self.to_home.append((self.lane_epoch, ("announce", header.key, (), header)))
                case Delivered(peer, key):
                    self.sender_ends[(peer, key)] += 1
                case Failed(peer, key, _, tell_peer):
                    self.sender_ends[(peer, key)] += 1
                    if tell_peer and peer == self.home:
                        self.to_home.append((0, ("failed", key, (), None)))
                case ReleaseBlocks(peer, key):
                    assert all((pack.peer, pack.key) != (peer, key) for pack in self.packs), "L2"
                    self.sender_released[(peer, key)] += 1
                case DropPacked():
                    pass

    def hear_at_home(self, peer: Peer, epoch: int, message: Message) -> None:
        kind, key, numbers, header = message
        if kind == "total":
            self.at_home(self.incoming.total(peer, key, numbers[0], self.now_us))
        elif kind == "failed":
            self.at_home(self.incoming.peer_failed(peer, key, self.now_us))
        elif header is not None:
            before = len(self.receives)
            self.at_home(self.incoming.chunk_sent(peer, header, self.now_us))
            if epoch != self.lane_epoch and peer == self.sender:
                del self.receives[before:]
                self.at_home(self.incoming.lane_failed(peer, self.now_us))

    def hear_at_sender(self, peer: Peer, message: Message) -> None:
        kind, key, numbers, _ = message
        if kind == "start":
            self.opened.setdefault((peer, key), numbers[0])
            self.computed.setdefault((peer, key), 0)
            deadline_us = self.now_us + DEADLINE_US
            answer = self.outgoing.open(peer, key, numbers[0], LEASE_US, deadline_us, self.now_us)
        elif kind == "bound":
            answer = self.outgoing.bound(peer, key, numbers[0], LEASE_US, self.now_us)
        elif kind == "acknowledge":
            answer = self.outgoing.acknowledged(peer, key, numbers[0], self.now_us)
        else:
            answer = self.outgoing.peer_aborted(peer, key, self.now_us)
        self.at_sender(answer)

    # ---- what happens ----
    @rule(tokens=tokens_drawn, cached=tokens_drawn, warm=st.booleans(), computed=st.integers(0, 14))
    def start_well(self, tokens: int, cached: int, warm: bool, computed: int) -> None:
        """Up to the grant, as it mostly goes; what came before on the streams is heard first."""
        self.start(tokens, False)
        while self.to_sender:
            self.hear_sender(0)
        self.bind(0, cached, warm)
        while self.to_sender:
            self.hear_sender(0)
        self.compute(len(self.opened) - 1, computed)

    @rule(tokens=tokens_drawn, again=st.booleans())
    def start(self, tokens: int, again: bool) -> None:
        self.numbers += 1
        key = TransferKey(self.numbers // 2, self.numbers)
        self.reserved[key] = tokens
        deadline_us = self.now_us + DEADLINE_US
        for _ in range(1 + again):
            self.at_home(self.incoming.reserve(key, self.sender, tokens, LEASE_US, deadline_us, self.now_us))
        self.to_sender.append(("start", key, (tokens,), None))

    @rule(at=index, cached=tokens_drawn, warm=st.booleans())
    def bind(self, at: int, cached: int, warm: bool) -> None:
        if unbound := [key for key in self.reserved if key not in self.first_tokens]:
            key = unbound[at % len(unbound)]
            self.first_tokens[key] = first = min(cached, self.reserved[key]) if warm else 0
            self.to_sender.append(("bound", key, (first,), None))
            self.at_home(self.incoming.bind(key, first, self.now_us))
            self.at_home(self.incoming.bind(key, first, self.now_us))

    @rule(at=index, more=st.integers(1, 14))
    def compute(self, at: int, more: int) -> None:
        if self.opened:
            name = list(self.opened)[at % len(self.opened)]
            self.computed[name] = min(self.opened[name], self.computed[name] + more)
            self.at_sender(self.outgoing.computed(*name, self.computed[name], self.now_us))

    @rule(at=index, fails=st.sampled_from([False] * 9 + [True]))
    def pack(self, at: int, fails: bool) -> None:
        if self.packs:
            job = self.packs.pop(at % len(self.packs))
            header = ChunkHeader(
                job.key.transfer, job.key.epoch, job.chunk, job.start, job.stop, job.bytes, 0
            )
            header = replace(header, checksum=checksum_of(header))
            if fails:
                self.at_sender(self.outgoing.pack_failed(job.peer, job.key, job.chunk, self.now_us))
            else:
                self.at_sender(self.outgoing.packed(job.peer, header, self.now_us))
                self.at_sender(self.outgoing.packed(job.peer, header, self.now_us))

    @rule(ahead=st.sampled_from([0, 0, 0, 0, 1]))
    def hear_home(self, ahead: int) -> None:
        if self.to_home:
            self.hear_at_home(self.sender, *self.to_home.pop(min(ahead, len(self.to_home) - 1)))

    @rule(ahead=st.sampled_from([0, 0, 0, 0, 1]))
    def hear_sender(self, ahead: int) -> None:
        if self.to_sender:
            self.hear_at_sender(self.home, self.to_sender.pop(min(ahead, len(self.to_sender) - 1)))

    @rule(order=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=4, max_size=24))
    def get_on(self, order: list[tuple[int, int]]) -> None:
        """Both streams, the lane and the engines' jobs, at speeds of their own."""
        for what, at in order:
            [
                lambda at: self.hear_home(0),
                lambda at: self.hear_sender(0),
                lambda at: self.pack(at, False),
                lambda at: self.cross(),
                lambda at: self.scatter(at, False),
            ][what](at)

    @rule()
    def settle_down(self) -> None:
        """A spell of good luck, or long transfers would never be seen to succeed."""
        for at in range(40):
            self.compute(at, 14)
            self.hear_home(0)
            self.hear_sender(0)
            self.pack(0, False)
            self.cross()
            self.scatter(0, False)

    @rule()
    def cross(self) -> None:
        """One payload leaves the lane, if it was announced."""
        if not self.lane or not self.receives:
            return
        peer, header, good = self.lane[0]
        announced, drain = self.receives[0]
        if announced != header:
            return self.break_lane(True)
        del self.lane[0], self.receives[0]
        self.at_sender(self.outgoing.sent(peer, header.key, header.chunk, self.now_us))
        if not drain:
            before = len(self.scatters)
            self.at_home(self.incoming.chunk_arrived(self.sender, header, good, self.now_us))
            assert good or len(self.scatters) == before, "a damaged payload reached the blocks"

    @rule(at=index, fails=st.sampled_from([False] * 9 + [True]))
    def scatter(self, at: int, fails: bool) -> None:
        if self.scatters:
            key, header = (job := self.scatters.pop(at % len(self.scatters))).key, job.header
            assert key == header.key and header.checksum == checksum_of(header)
            if fails:
                return self.at_home(self.incoming.scatter_failed(key, header.chunk, self.now_us))
            self.written.setdefault(key, Counter()).update(range(header.start, header.stop))
            for _ in range(2):
                self.at_home(self.incoming.scattered(key, header.chunk, self.now_us))

    @rule(at=index, luck=luck)
    def corrupt(self, at: int, luck: int) -> None:
        if self.lane and luck >= 5:
            peer, header, _ = self.lane[at % len(self.lane)]
            self.lane[at % len(self.lane)] = (peer, header, False)

    @rule(at=index, times=st.integers(1, 2), here=st.booleans(), luck=luck)
    def give_up(self, at: int, times: int, here: bool, luck: int) -> None:
        for _ in range(times if luck >= 5 else 0):
            if here and self.reserved:
                busy = [scatter.key for scatter in self.scatters] or list(self.reserved)
                key = busy[at % len(busy)]
                self.at_home(self.incoming.abort(key, EndReason.CANCELLED, self.now_us))
            elif not here and self.opened:
                name = list(self.opened)[at % len(self.opened)]
                self.at_sender(self.outgoing.abort(*name, EndReason.CANCELLED, self.now_us))

    @rule(home_first=st.booleans(), luck=luck)
    def lane_breaks(self, home_first: bool, luck: int) -> None:
        if luck == 7:
            self.break_lane(home_first)

    def break_lane(self, home_first: bool) -> None:
        lost = list(self.lane)
        self.lane.clear()
        self.receives.clear()
        self.lane_epoch += 1
        if home_first:
            self.at_home(self.incoming.lane_failed(self.sender, self.now_us))
        for peer, header, _ in lost:
            self.at_sender(self.outgoing.send_failed(peer, header.key, header.chunk, self.now_us))
        self.at_sender(self.outgoing.lane_failed(self.home, self.now_us))
        if not home_first:
            self.at_home(self.incoming.lane_failed(self.sender, self.now_us))

    @rule(at=index, to=index, home=st.booleans(), luck=luck)
    def double(self, at: int, to: int, home: bool, luck: int) -> None:
        if luck < 4:
            return
        if home and self.to_home:
            self.to_home.insert(to % (len(self.to_home) + 1), self.to_home[at % len(self.to_home)])
        elif not home and self.to_sender:
            self.to_sender.insert(to % (len(self.to_sender) + 1), self.to_sender[at % len(self.to_sender)])

    @rule(at=index, home=st.booleans(), luck=luck)
    def drop(self, at: int, home: bool, luck: int) -> None:
        if luck < 7:
            return
        if home and self.to_home:
            self.to_home.pop(at % len(self.to_home))
        elif not home and self.to_sender:
            self.to_sender.pop(at % len(self.to_sender))

    @rule(
        at=index,
        kind=st.sampled_from(["announce", "arrive", "total", "failed", "bound", "acknowledge", "abort"]),
        wrong=st.sampled_from(["peer", "epoch", "transfer", "range", "bytes", "chunk", "checksum"]),
        number=st.integers(0, 15),
        luck=luck,
    )
    def forge(self, at: int, kind: str, wrong: str, number: int, luck: int) -> None:
        harmless = wrong in ("peer", "epoch", "transfer")
        if not self.reserved or (luck < 7 and not harmless):
            return
        key = list(self.reserved)[at % len(self.reserved)]
        if wrong in ("epoch", "transfer"):
            key = replace(key, **{wrong: 900 + number})
        start, stop = (number, number + 20) if wrong == "range" else (0, 1 + number % 3)
        size = (stop - start) * TOKEN_BYTES + (wrong == "bytes")
        header = ChunkHeader(key.transfer, key.epoch, number, start, stop, size, 0)
        home_before, sender_before = (len(self.incoming), len(self.outgoing))
        peers = (STRANGER, STRANGER) if wrong == "peer" else (self.sender, self.home)
        if kind == "arrive":
            self.at_home(self.incoming.chunk_arrived(peers[0], header, True, self.now_us))
        elif kind in ("announce", "total", "failed"):
            receives = list(self.receives)
            self.hear_at_home(peers[0], self.lane_epoch, (kind, key, (number,), header))
            if kind == "announce":
                self.receives = receives  # It has no payload; a real lane would break, as break_lane does.
                self.at_home(self.incoming.lane_failed(self.sender, self.now_us)) if not harmless else None
        elif harmless:  # The true home may say of its own transfers what it likes.
            self.hear_at_sender(peers[1], (kind, key, (number,), None))
        if harmless:
            assert (len(self.incoming), len(self.outgoing)) == (home_before, sender_before)

    @rule(luck=luck)
    def restart_sender(self, luck: int) -> None:
        if luck < 7:
            return
        old = self.sender
        self.fresh_sender()
        self.at_home(self.incoming.lost_peer(old, self.now_us))
        self.to_sender.clear()
        assert self.incoming.lost_peer(old, self.now_us) == []

    @rule(luck=luck)
    def restart_home(self, luck: int) -> None:
        if luck < 7:
            return
        old = self.home
        lost = [(peer, header) for peer, header, _ in self.lane]
        self.fresh_home()
        self.at_sender(self.outgoing.lost_peer(old, self.now_us))
        for peer, header in lost:
            self.at_sender(self.outgoing.send_failed(peer, header.key, header.chunk, self.now_us))

    @rule(step_us=st.sampled_from([1] * 5 + [100] * 5 + [LEASE_US - 1, LEASE_US, 3 * LEASE_US, DEADLINE_US]))
    def wait(self, step_us: int) -> None:
        self.now_us += step_us
        for _ in range(2):
            self.at_home(self.incoming.tick(self.now_us))
            self.at_sender(self.outgoing.tick(self.now_us))

    @rule()
    def heard(self) -> None:
        self.incoming.heard(self.sender, self.now_us)
        self.outgoing.heard(self.home, self.now_us)

    @invariant()
    def laws_hold(self) -> None:
        self.incoming.check()
        self.outgoing.check()
        assert all(count == 1 for count in self.home_ends.values()), "L5"
        assert all(count == 1 for count in self.sender_ends.values()), "L5"
        assert all(count <= 1 for count in self.home_released.values())
        assert all(count <= 1 for count in self.sender_released.values())

    def teardown(self) -> None:
        """With no message delivered ever again, local jobs finish, time passes, and everything is over."""
        while self.scatters:
            self.scatter(0, False)
        for peer, header, _ in self.lane:
            self.at_sender(self.outgoing.send_failed(peer, header.key, header.chunk, self.now_us))
        while self.packs:
            self.pack(0, True)
        waits = 0
        while deadlines := [
            at for at in (self.incoming.next_deadline_us, self.outgoing.next_deadline_us) if at is not None
        ]:
            waits += 1
            assert waits < 1_000 and min(deadlines) <= self.now_us + DEADLINE_US, "L4"
            self.now_us = max(self.now_us, min(deadlines))
            self.wait(0)
            while self.packs:
                self.pack(0, True)
        self.laws_hold()
        assert len(self.incoming) == len(self.outgoing) == 0
        assert sorted(self.home_ends) == sorted(self.reserved)
        assert sorted(self.sender_ends) == sorted(self.opened) == sorted(self.sender_released)
        assert sorted(self.home_released) == sorted(key for key in self.aborted if key in self.first_tokens)
        assert self.outgoing.bytes_in_flight(self.home) == 0


TestTransferNetwork = TransferNetwork.TestCase
TestTransferNetwork.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
