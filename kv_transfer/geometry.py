"""How a prompt's KV is cut into chunks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Geometry:
    """One transfer's chunks: equal ones from first_token on, the last one shorter."""

    first_token: int
    tokens: int
    chunk_tokens: int
    bytes_per_token: int

    @property
    def chunks(self) -> int:
        return -(-(self.tokens - self.first_token) // self.chunk_tokens)

    def range(self, chunk: int) -> tuple[int, int]:
        """Prompt tokens (start, stop) of a chunk."""
        start = self.first_token + chunk * self.chunk_tokens
        return start, min(start + self.chunk_tokens, self.tokens)

    def bytes(self, chunk: int) -> int:
        """Length of a chunk's payload."""
        start, stop = self.range(chunk)
        return (stop - start) * self.bytes_per_token


@dataclass(frozen=True, slots=True)
class OutgoingConfig:
    bytes_per_token: int
    """Of the wire layout."""
    chunk_tokens: int = 256
    """Of a prompt that is sent while later chunks compute."""
    whole_prompt_tokens: int = 512
    """Up to here one chunk carries everything: overlap costs a short prompt more than it hides."""
    chunk_bytes_max: int = 32 << 20
    """What a receiver's staging is sure to take; cuts smaller chunks than the tokens above would."""
    credit_chunks: int = 4
    """Chunks of one transfer packed, on the lane or unacknowledged at once."""
    credit_bytes_peer: int = 96 << 20
    """The same in bytes, over all transfers to one peer: bounds the packed copies in memory."""
    ended_max: int = 4096
    """Ended transfers remembered."""

    def __post_init__(self) -> None:
        for field in ("bytes_per_token", "chunk_tokens", "credit_chunks"):
            if (value := getattr(self, field)) < 1:
                raise ValueError(f"{field}: {value}, must be at least 1")
        if self.whole_prompt_tokens < 0:
            raise ValueError(f"whole_prompt_tokens: {self.whole_prompt_tokens}, must not be negative")
        if self.chunk_bytes_max < self.bytes_per_token:
            raise ValueError(
                f"chunk_bytes_max: {self.chunk_bytes_max}, one token takes {self.bytes_per_token}"
            )
        if self.credit_bytes_peer < self.chunk_bytes_max:
            raise ValueError(
                f"credit_bytes_peer: {self.credit_bytes_peer}, must fit one chunk of {self.chunk_bytes_max}"
            )


def plan(config: OutgoingConfig, first_token: int, tokens: int) -> Geometry:
    """Whole-prompt for short ones, chunk-wise beyond, and no chunk above the byte bound."""
    missing = tokens - first_token
    wanted = missing if missing <= config.whole_prompt_tokens else config.chunk_tokens
    fits = config.chunk_bytes_max // config.bytes_per_token
    return Geometry(first_token, tokens, max(1, min(wanted, fits)), config.bytes_per_token)
