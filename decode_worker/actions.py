"""What a decode worker wants done."""

from dataclasses import dataclass

from core.request import AttemptKey, InstanceKey
from decode_worker.attempts import GatewayKey
from decode_worker.mailboxes import SendFrame
from engine.job import Job
from engine.plan import StepPlan
from kv_transfer.types import ChunkHeader, Peer, TransferKey


@dataclass(frozen=True, slots=True)
class SendAttached:
    """Answers a gateway's attach, before any frame."""

    gateway: GatewayKey
    unknown: tuple[AttemptKey, ...]


@dataclass(frozen=True, slots=True)
class AskPrefill:
    """Connect to the prefill worker if need be, and hand it the prompt."""

    instance: InstanceKey
    address: str
    transfer: TransferKey
    job: Job
    transfer_wanted: bool
    """False: one token is all that is wanted; nothing will be bound or sent."""
    deadline_remaining_us: int
    router: str
    reservation: int


@dataclass(frozen=True, slots=True)
class SendBound:
    peer: Peer
    transfer: TransferKey
    first_token: int
    """KV of the tokens before this one is here already."""
    lease_us: int


@dataclass(frozen=True, slots=True)
class SendAbort:
    peer: Peer
    transfer: TransferKey
    reason: str


@dataclass(frozen=True, slots=True)
class SendReceived:
    """The chunk was checked and is in place: flow control and progress."""

    peer: Peer
    transfer: TransferKey
    chunk: int


@dataclass(frozen=True, slots=True)
class ReceiveChunk:
    """Take this payload from the peer's lane into staging."""

    peer: Peer
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class DrainChunk:
    """Take this payload off the peer's lane and drop it; the lane keeps its order."""

    peer: Peer
    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class ScatterChunk:
    """Write the staged payload into these blocks, on the engine thread."""

    header: ChunkHeader
    block_table: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DiscardChunk:
    """The staged payload belongs to nobody any more."""

    header: ChunkHeader


@dataclass(frozen=True, slots=True)
class RunStep:
    plan: StepPlan


Action = (
    SendFrame
    | SendAttached
    | AskPrefill
    | SendBound
    | SendAbort
    | SendReceived
    | ReceiveChunk
    | DrainChunk
    | ScatterChunk
    | DiscardChunk
    | RunStep
)
