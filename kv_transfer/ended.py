"""Which transfers have ended, so that a late message can be told from a forged one, in bounded memory."""

from collections import OrderedDict
from typing import Generic, TypeVar

Key = TypeVar("Key")
Memory = TypeVar("Memory")


class Ended(Generic[Key, Memory]):
    """The newest `capacity` ended transfers. Forgetting one is harmless: its messages count as unknown."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"ended_max: {capacity}, must be at least 1")
        self._capacity = capacity
        self._memory: OrderedDict[Key, Memory] = OrderedDict()

    def add(self, key: Key, memory: Memory) -> None:
        self._memory[key] = memory
        self._memory.move_to_end(key)
        if len(self._memory) > self._capacity:
            self._memory.popitem(last=False)

    def get(self, key: Key) -> Memory | None:
        return self._memory.get(key)

    def __len__(self) -> int:
        return len(self._memory)

    def check(self) -> None:
        assert len(self._memory) <= self._capacity
