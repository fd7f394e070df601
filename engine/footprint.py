"""Which memory a backend holds, all of it taken at its start."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes; on a GPU those of the device, but for `host`."""

    weights: int
    kv: int
    """The pool of blocks."""
    host: int
    """The slots for what is swapped out."""
    workspace: int
    """What steps compute in, logits included."""
    weights_read_per_step: int
    """Of the weights, what one decode step must read: all but the embedding table."""
