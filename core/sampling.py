"""How a token is chosen from logits, as the client asked."""

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The sampling contract of one request; every choice of it shares these.

    Order of application (the backend's sampler): logprobs are read from the raw logits; then, in
    float32, allowed/banned tokens (a grammar's mask), min_tokens, logit_bias, the three penalties, and greedy
    (temperature 0) or temperature, min-p, top-k, top-p and one draw.
    """

    temperature: float = 1.0
    """0 is greedy; ties go to the lowest token id."""
    top_k: int = 0
    """0 keeps every token."""
    top_p: float = 1.0
    """Keeps the smallest set of tokens whose probability reaches top_p, the crossing token included."""
    min_p: float = 0.0
    """Drops tokens less likely than min_p times the likeliest."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens in the prompt or the output."""
    frequency_penalty: float = 0.0
    """Subtracted once per occurrence in the output."""
    presence_penalty: float = 0.0
    """Subtracted once if the token is in the output."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token id, added logit), sorted by token id."""
    stop_token_ids: tuple[int, ...] = ()
    """End the choice; the stop token itself is counted and not shown. Includes EOS unless ignore_eos."""
    max_tokens: int = 16
    """Output tokens at most, per choice; at least 1."""
    min_tokens: int = 0
    """stop_token_ids cannot be drawn before this many output tokens, unless a grammar leaves nothing else."""
    logprobs: int | None = None
    """How many alternatives to report per token; 0 reports the chosen token only, None nothing."""

    @property
    def needs_history(self) -> bool:
        """Whether the sampler must see earlier tokens."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0
