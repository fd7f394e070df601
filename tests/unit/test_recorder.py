"""A recording repeats an object's life, says where it differs, and survives being cut short."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
import pytest

from baton.replay import replay_files
from core.events import event, event_methods
from core.membership import Membership
from core.recorder import OBJECT, Recorded, class_path, frame, frames, recorded
from core.recording_file import RecordingFile
from core.replay import ReplayError, replay
from core.request import AttemptKey


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Give:
    key: AttemptKey
    amount: int


@dataclass(frozen=True, slots=True)
class Take:
    key: AttemptKey
    amount: int


class Counter:
    """Adds up what it is given."""

    def __init__(self, start: int, names: tuple[str, ...] = ()) -> None:
        self.total = start
        self.names = names
        self.mistaken = 0

    @event
    def add(
        self, what: Give | Take, colour: Colour, now_us: int, *, twice: bool = False
    ) -> list[Give | Take]:
        sign = 1 if isinstance(what, Give) else -1
        self.total += sign * what.amount * (2 if twice else 1) + self.mistaken
        return [Give(what.key, self.total)]

    @event
    def both(self, items: tuple[Give, ...], now_us: int) -> int:
        for item in items:
            self.add(item, Colour.RED, now_us)
        return self.total

    @event
    def fail(self, now_us: int) -> None:
        raise AssertionError("broken law")

    def read(self) -> int:
        return self.total


KEY = AttemptKey("r", 0)
REGISTRY = {class_path(Counter): Counter}


def life(written: list[bytes]) -> Counter:
    counter = recorded(Counter(5, ("a",)), "counter", written.append, (5, ("a",)))
    counter.add(Give(KEY, 3), Colour.RED, 10)
    counter.add(what=Take(KEY, 1), colour=Colour.RED, now_us=11, twice=True)
    assert counter.both((Give(KEY, 1), Give(KEY, 2)), 12) == 9
    with pytest.raises(AssertionError, match="broken law"):
        counter.fail(13)
    return counter


def test_a_life_is_repeated_exactly() -> None:
    written: list[bytes] = []
    counter = life(written)
    assert counter.read() == 9 and counter.total == 9
    found = replay(b"".join(written), REGISTRY)
    assert found.mismatches == ()
    assert found.objects == ("counter",) and found.bytes_unread == 0
    # An event that an object calls on itself is not written again.
    assert found.events == 4


def test_a_changed_decision_is_named_with_its_place() -> None:
    class Wrong(Counter):
        @event
        def both(self, items: tuple[Give, ...], now_us: int) -> int:
            return super().both(items, now_us) + 1

    written: list[bytes] = []
    life(written)
    (mismatch,) = replay(b"".join(written), {class_path(Counter): Wrong}).mismatches
    assert (mismatch.object_name, mismatch.record, mismatch.method) == ("counter", 6, "both")
    assert "amount=2" in mismatch.arguments and mismatch.returned == "10"
    assert "record 6: counter.both(" in str(mismatch)


def test_an_action_of_another_type_is_a_mismatch() -> None:
    class Wrong(Counter):
        @event
        def add(
            self, what: Give | Take, colour: Colour, now_us: int, *, twice: bool = False
        ) -> list[Give | Take]:
            return [
                Take(action.key, action.amount) for action in super().add(what, colour, now_us, twice=twice)
            ]

    written: list[bytes] = []
    life(written)
    found = replay(b"".join(written), {class_path(Counter): Wrong})
    assert [mismatch.method for mismatch in found.mismatches] == ["add", "add"]


def test_every_cut_of_a_file_replays_to_its_last_whole_record() -> None:
    written: list[bytes] = []
    life(written)
    data = b"".join(written)
    borders = [sum(map(len, written[:count])) for count in range(len(written) + 1)]
    for length in range(len(data)):
        whole = sum(border <= length for border in borders) - 1
        found = replay(data[:length], REGISTRY)
        assert found.mismatches == ()
        # The header, then each event after its shape: no two of this life's have the same.
        assert found.events == max(0, (whole - 1) // 2)
        assert found.bytes_unread == length - borders[whole]


def test_a_damaged_record_ends_the_reading() -> None:
    written: list[bytes] = []
    life(written)
    data = bytearray(b"".join(written))
    data[len(written[0]) + len(written[1]) + 10] ^= 1
    assert len(list(frames(bytes(data)))) == 2


def test_what_events_have_in_common_is_written_once() -> None:
    written: list[bytes] = []
    counter = recorded(Counter(0), "counter", written.append, (0,))
    for number in range(10):
        counter.add(Give(KEY, number), Colour.RED, number)
    assert len(written) == 1 + 1 + 10
    assert sum(b"Give" in frame for frame in written) == 1
    assert replay(b"".join(written), REGISTRY).events == 10


def test_a_list_is_recorded_as_it_was_handed_in() -> None:
    class Taker:
        @event
        def take(self, items: list[int], now_us: int) -> int:
            return items.pop()

    written: list[bytes] = []
    taker = recorded(Taker(), "taker", written.append)
    assert taker.take([1, 2, 3], 0) == 3
    found = replay(b"".join(written), {class_path(Taker): Taker})
    assert found.events == 1 and found.mismatches == ()


def test_assignment_and_reads_reach_the_object() -> None:
    counter = Counter(0)
    proxy = recorded(counter, "counter", lambda frame: None, (0,))
    proxy.total = 7
    assert counter.total == 7 and proxy.read() == 7
    with pytest.raises(AttributeError, match="nothing"):
        proxy.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_what_cannot_be_recorded_is_named() -> None:
    proxy = Recorded(Counter(0), "counter", lambda frame: None, (0,))
    with pytest.raises(TypeError, match=r"counter\.add: an argument cannot be recorded"):
        proxy.add(object(), Colour.RED, 1)


def test_an_unknown_class_and_an_unfitting_argument_are_errors() -> None:
    class Narrow:
        def __init__(self, start: str, names: tuple[str, ...]) -> None: ...

    written: list[bytes] = []
    life(written)
    with pytest.raises(ReplayError, match=r"no factory for .*Counter"):
        replay(b"".join(written), {})
    with pytest.raises(ReplayError, match=r"Counter\(start\)"):
        replay(b"".join(written), {class_path(Counter): Narrow})


OF_ANOTHER_VERSION: tuple[tuple[str, object], ...] = (
    ("an object without its class", (OBJECT, "counter", 3)),
    ("an event that names its method", (1, "counter", "add", ["int"], [1], b"12345678")),
    ("an unknown kind", (9, "counter", 0, [], b"12345678")),
    ("a map", {"kind": 0}),
    ("nothing", ()),
)


@pytest.mark.parametrize(
    "head", [head for _, head in OF_ANOTHER_VERSION], ids=[w for w, _ in OF_ANOTHER_VERSION]
)
def test_a_record_of_another_version_is_an_error(head: object) -> None:
    with pytest.raises(ReplayError, match=r"^record 0: not a record of this version$"):
        replay(frame(msgspec.msgpack.encode(head)), {class_path(Counter): Counter})


def test_an_object_that_cannot_be_made_any_more_is_an_error() -> None:
    def refuses(start: int, names: tuple[str, ...] = ()) -> Counter:
        raise ValueError("start: must be even")

    written: list[bytes] = []
    life(written)
    with pytest.raises(ReplayError, match=r"Counter: start: must be even"):
        replay(b"".join(written), {class_path(Counter): refuses})


def test_a_file_of_another_version_keeps_no_other_from_its_replay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(frame(msgspec.msgpack.encode(("counter", 1, "add"))))
    written: list[bytes] = []
    recorded(Membership(), "members", written.append).tick(7)
    new.write_bytes(b"".join(written))
    assert replay_files([old, new]) == 2
    said = capsys.readouterr()
    assert said.err == f"baton: error: {old}: record 0: not a record of this version\n"
    assert said.out == f"{new}: members: 1 events, all identical\n"


def test_overrides_stay_events() -> None:
    class Child(Counter):
        def fail(self, now_us: int) -> None:
            return None

    assert list(event_methods(Child)) == ["add", "both", "fail"]


def test_a_file_holds_what_was_written_before_its_close(tmp_path: Path) -> None:
    file = RecordingFile(tmp_path / "recording")
    counter = recorded(Counter(5), "counter", file.write, (5,))
    for number in range(2000):
        counter.add(Give(KEY, number), Colour.RED, number)
    file.close()
    found = replay((tmp_path / "recording").read_bytes(), REGISTRY)
    assert found.events == 2000 and found.mismatches == () and file.error is None


def test_a_disk_that_refuses_ends_the_recording_and_not_the_service(tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full on this system")
    file = RecordingFile(full)
    counter = recorded(Counter(5), "counter", file.write, (5,))
    file.flush()
    assert file.error is not None and "space" in file.error
    assert counter.both((Give(KEY, 1),), 1) == 6
    file.close()
