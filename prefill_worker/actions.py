"""What a prefill worker is asked, and what it wants done."""

from dataclasses import dataclass

from core.ends import End
from core.outcomes import FinishReason
from engine.job import Job
from engine.plan import Sampled, StepPlan
from kv_transfer.types import ChunkHeader, Peer, TransferKey


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """A prompt, as its home hands it over."""

    transfer: TransferKey
    job: Job
    transfer_wanted: bool
    """False: one token is all that is wanted; nothing is bound or sent."""
    deadline_remaining_us: int
    router: str
    reservation: int


@dataclass(frozen=True, slots=True)
class Drawn:
    """The first token of one choice."""

    choice: int
    sampled: Sampled
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class AskBind:
    """This prompt is about to be computed: may its KV come?"""

    peer: Peer
    transfer: TransferKey


@dataclass(frozen=True, slots=True)
class SendFirst:
    """The prompt is computed; its first tokens do not wait for the KV."""

    peer: Peer
    transfer: TransferKey
    drawn: tuple[Drawn, ...]
    cached_tokens: int
    chunks: int
    compute_us: int


@dataclass(frozen=True, slots=True)
class PackChunk:
    """Copy the KV of tokens start..stop out of these blocks, on the engine thread."""

    peer: Peer
    transfer: TransferKey
    chunk: int
    start: int
    stop: int
    block_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SendChunk:
    """Announce the packed chunk on the control stream and put it on the peer's lane."""

    peer: Peer
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class DropChunk:
    """Nobody wants this packed copy any more."""

    peer: Peer
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class SendFailed:
    """This prompt will not be delivered."""

    peer: Peer
    transfer: TransferKey
    end: End


@dataclass(frozen=True, slots=True)
class RunStep:
    plan: StepPlan


Action = AskBind | SendFirst | PackChunk | SendChunk | DropChunk | SendFailed | RunStep
