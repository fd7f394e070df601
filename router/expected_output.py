"""How many tokens a request will probably produce, learned from those that ended."""

from collections import OrderedDict

from core.request import ModelIdentity

LEARNING_RATE = 0.1
MARGIN = 1.25
"""Reserving a little more than the mean is cheaper than preempting."""


class ExpectedOutput:
    """A moving mean of output tokens per (tenant, model); never knows the request's own true length."""

    def __init__(self, default_tokens: int, tokens_max: int, tenants_max: int) -> None:
        self._default, self._max, self._tenants_max = default_tokens, tokens_max, tenants_max
        self._means: OrderedDict[tuple[str, str], float] = OrderedDict()

    def learn(self, tenant: str, model: ModelIdentity, output_tokens: int) -> None:
        key = (tenant, model.name)
        mean = self._means.get(key, float(self._default))
        self._means[key] = mean + LEARNING_RATE * (output_tokens - mean)
        self._means.move_to_end(key)
        if len(self._means) > self._tenants_max:
            self._means.popitem(last=False)

    def tokens(self, tenant: str, model: ModelIdentity, remaining_max: int) -> int:
        """Expected output of one choice, at least 1, at most what is still allowed."""
        mean = self._means.get((tenant, model.name), float(self._default))
        return max(1, min(remaining_max, self._max, round(MARGIN * mean)))
