"""What a simulated run did, so that two runs can be compared and one can be read."""

import hashlib

from core.recorder import digest

TEXT_MAX = 240


class Journal:
    """A digest over every event and its decisions, and their text where somebody wants to read it."""

    def __init__(self, *, keep_text: bool = False) -> None:
        self.events = 0
        self.lines: list[str] = []
        self._keep_text = keep_text
        self._hash = hashlib.blake2b(digest_size=8)

    def record(
        self, at_us: int, node: str, method: str, arguments: tuple[object, ...], returned: object
    ) -> None:
        self.events += 1
        self._hash.update(f"{at_us} {node} {method} ".encode())
        self._hash.update(digest(returned))
        if self._keep_text:
            shown = ", ".join(map(str, arguments))
            self.note(at_us, f"{node}.{method}({_short(shown)}) -> {_short(str(returned))}")

    def note(self, at_us: int, text: str) -> None:
        """Something that is no event of a plain object, e.g. a fault."""
        self._hash.update(f"{at_us} {text}\n".encode())
        if self._keep_text:
            self.lines.append(f"{at_us / 1e6:12.6f} {text}")

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}..."
