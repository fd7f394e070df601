"""How large one engine is, and how much it may do at once."""

from dataclasses import dataclass

from core.prefix_hashes import HASH_UNIT

ITL_TARGET_US = 50_000
"""Of a model whose steps are short beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The bounds of one engine; ValueError names the field that is out of its range."""

    blocks: int
    """KV blocks of the pool."""
    block_size: int = HASH_UNIT
    """Tokens per block; a multiple or a divisor of HASH_UNIT."""
    max_running: int = 64
    """Sequences with compute in progress, those awaiting their KV included."""
    max_jobs: int = 4096
    """Jobs accepted at once; beyond it WORKER_FULL."""
    max_step_tokens: int = 512
    """Tokens fed per step."""
    itl_target_us: int = ITL_TARGET_US
    """Predicted time that steps may take on average while sequences decode. 0: no bound."""
    prefill_burst_us: int = 2_000_000
    """Prefill time that steps below the target save up, for short prompts to be computed whole and bursts of
    them soon. 0: chunks are cut to the target in every step, as those of long prompts always are."""
    long_prefill_us: int = 250_000
    """Predicted prefill time above which a prompt is long: short ones overtake it, even when it has begun."""
    long_partials_max: int = 2
    """Long prompts of a class computed in part at one time; the others wait without blocks."""
    swap_blocks: int = 0
    """Blocks of the host pool, for the KV of preempted sequences and evicted prefixes; 0: neither."""
    swap_block_us: int = 100
    """Declared time to copy one block to the host or back."""
    watermark_blocks: int = 1
    """Blocks an admission leaves free for those already running, so that they are not preempted at once."""
    max_positions: int = 8192
    """Prompt and output tokens together that the model can place."""
    prefix_cache: bool = True
    grammars: bool = False
    """The backend holds answers to a job's grammar; where it does not, jobs with one are refused."""
    speculation: int = 8
    """Tokens of a sequence computed on trial per step, at most, and only where they pay; 0: none."""
    prefix_hash_bits: int = 64
    """How much of a hash the prefix cache looks up by; less only to provoke collisions in tests."""

    def __post_init__(self) -> None:
        for name in (
            "blocks",
            "block_size",
            "max_running",
            "max_jobs",
            "max_step_tokens",
            "long_partials_max",
            "prefix_hash_bits",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least 1")
        if self.block_size % HASH_UNIT and HASH_UNIT % self.block_size:
            raise ValueError(
                f"block_size: {self.block_size} is neither a multiple nor a divisor of {HASH_UNIT}"
            )
        for name in (
            "watermark_blocks",
            "itl_target_us",
            "prefill_burst_us",
            "long_prefill_us",
            "swap_blocks",
            "swap_block_us",
            "speculation",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}: {getattr(self, name)} is negative")
        if self.max_positions < 2:
            raise ValueError(f"max_positions: {self.max_positions} must be at least 2")

    @property
    def positions_max(self) -> int:
        """Tokens at which a sequence ends: the model's positions, or all the pool could ever hold."""
        return min(self.max_positions, self.blocks * self.block_size)

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
