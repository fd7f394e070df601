"""Which of a transfer's tokens have been announced, and which are proven present."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from enum import IntEnum

from kv_transfer.reasons import EndReason
from kv_transfer.types import ChunkHeader


class ChunkState(IntEnum):
    """How far one incoming chunk has come; it only ever goes up."""

    ANNOUNCED = 0
    """Its payload is on the lane."""
    SCATTERING = 1
    """Its payload was good and is being written into blocks."""
    SCATTERED = 2


@dataclass(slots=True)
class Coverage:
    """Chunks over [first_token, tokens): in range, disjoint, each of the right length."""

    first_token: int
    tokens: int
    bytes_per_token: int
    total: int | None = None
    """Chunks of the whole transfer, once the sender has said so."""
    headers: dict[int, ChunkHeader] = field(default_factory=dict)
    states: dict[int, ChunkState] = field(default_factory=dict)
    scattering: int = 0
    scattered: int = 0
    scattered_tokens: int = 0
    _ranges: list[tuple[int, int]] = field(default_factory=list)

    def announce(self, header: ChunkHeader) -> EndReason | None:
        """Takes a new chunk in, or names what is wrong with it. The number must not be known yet."""
        assert header.chunk not in self.headers
        if self.total is not None and not 0 <= header.chunk < self.total:
            return EndReason.WRONG_TOTAL
        if header.chunk < 0 or not self.first_token <= header.start < header.stop <= self.tokens:
            return EndReason.WRONG_RANGE
        if header.bytes != (header.stop - header.start) * self.bytes_per_token:
            return EndReason.WRONG_LENGTH
        if self._overlaps(header.start, header.stop):
            return EndReason.WRONG_RANGE
        insort(self._ranges, (header.start, header.stop))
        self.headers[header.chunk] = header
        self.states[header.chunk] = ChunkState.ANNOUNCED
        return None

    def _overlaps(self, start: int, stop: int) -> bool:
        at = bisect_left(self._ranges, (start, stop))
        before = at > 0 and self._ranges[at - 1][1] > start
        after = at < len(self._ranges) and self._ranges[at][0] < stop
        return before or after

    def set_total(self, total: int) -> EndReason | None:
        """The sender's number of chunks; contradicting an earlier one, or a chunk, is an error."""
        if self.total not in (None, total) or not 0 <= total <= self.tokens - self.first_token:
            return EndReason.WRONG_TOTAL
        if any(chunk >= total for chunk in self.headers):
            return EndReason.WRONG_TOTAL
        self.total = total
        return None

    def begin_scatter(self, chunk: int) -> None:
        assert self.states[chunk] is ChunkState.ANNOUNCED
        self.states[chunk] = ChunkState.SCATTERING
        self.scattering += 1

    def end_scatter(self, chunk: int, *, written: bool) -> None:
        """`written` is False where the write failed: the tokens stay unproven for ever."""
        assert self.states[chunk] is ChunkState.SCATTERING
        self.scattering -= 1
        if written:
            header = self.headers[chunk]
            self.states[chunk] = ChunkState.SCATTERED
            self.scattered += 1
            self.scattered_tokens += header.stop - header.start
        else:
            del self.states[chunk]

    @property
    def on_lane(self) -> bool:
        """Whether a chunk was announced whose payload has not been seen."""
        return any(state is ChunkState.ANNOUNCED for state in self.states.values())

    @property
    def complete(self) -> bool:
        """Disjoint chunks in range whose lengths sum to the whole cover it exactly."""
        return (
            self.total == self.scattered == len(self.headers)
            and self.scattered_tokens == self.tokens - self.first_token
        )

    def check(self) -> None:
        states = list(self.states.values())
        done = [self.headers[chunk] for chunk, state in self.states.items() if state is ChunkState.SCATTERED]
        assert self.scattering == states.count(ChunkState.SCATTERING)
        assert self.scattered == len(done)
        assert self.scattered_tokens == sum(header.stop - header.start for header in done)
        edges = [edge for header in sorted(self.headers.values(), key=_start) for edge in _edges(header)]
        assert edges == sorted(edges), "chunks overlap"
        assert all(self.first_token <= edge <= self.tokens for edge in edges)
        if self.complete:
            assert sorted(self.headers) == list(range(len(self.headers)))
            assert edges[::2] == [self.first_token, *edges[1:-1:2]][: len(edges[::2])]


def _start(header: ChunkHeader) -> int:
    return header.start


def _edges(header: ChunkHeader) -> tuple[int, int]:
    return header.start, header.stop
