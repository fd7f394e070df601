"""Which characters of a prompt may be read as control tokens.

A chat prompt mixes two authors. The template writes control strings such as `<|im_end|>`, and they must
become control tokens. The client writes contents, names and tool schemas, and there the same characters are
just text. Once rendered, the two look alike, so the client's strings are marked before rendering: a mark
goes inside every control string they hold, and at an end of them that could complete one together with
its neighbour. A control string without a mark in it is then the template's. It is replaced by a stand-in
that only a twin of the tokenizer knows as a control token (the twin in turn does not know the control
strings), the marks are removed, and the text is encoded whole: nothing is spliced, so merges, space rules
and pre-tokenization are the library's own.

Marks and stand-ins use Unicode noncharacters (U+FDD0 to U+FDD2), which are reserved for use inside a
program; where a client sends one of them in a marked string it becomes U+FFFD. A template sees the
marks, so one that searches a content for a control string does not find the client's. Not covered: a
template that itself builds a control string around a client's string, as some do with the role; roles come
from a closed list and are never marked.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

_STAND_IN_OPEN, _STAND_IN_CLOSE, _MARK = "\ufdd0", "\ufdd1", "\ufdd2"
_RESERVED = str.maketrans(dict.fromkeys((_STAND_IN_OPEN, _STAND_IN_CLOSE, _MARK), "\ufffd"))
_ESCAPED_MARK = "\\ufdd2"


def stand_in(token_id: int) -> str:
    """The string that the twin tokenizer reads as control token `token_id`."""
    return f"{_STAND_IN_OPEN}{token_id}{_STAND_IN_CLOSE}"


class ControlGuard:
    """Marks control strings in what a client wrote, and tells the template's own from them."""

    def __init__(self, token_id_of: Mapping[str, int], normalize: Callable[[str], str] | None = None) -> None:
        """`token_id_of` maps each control string to its token.

        A control string of one character cannot be marked and is left out. `normalize` is given where the
        tokenizer looks for control strings in normalized text.
        """
        self._token_id_of = {string: token for string, token in token_id_of.items() if len(string) > 1}
        self._normalize = normalize
        # The tokenizer takes the longest of several control strings that begin at one place.
        strings = sorted(self._token_id_of, key=lambda string: (-len(string), string))
        alternatives = "|".join(re.escape(string) for string in strings) or r"(?!)"
        self._control = re.compile(alternatives)
        self._control_starts = re.compile(f"(?={alternatives})")
        self._endings = _by_first(string[cut:] for string in strings for cut in range(1, len(string)))
        self._beginnings = _by_last(string[:cut] for string in strings for cut in range(1, len(string)))

    def touches(self, value: object) -> bool:
        """Whether any string in `value` (JSON-like) holds, or at an end could complete, a control string."""
        if isinstance(value, str):
            return self._touches_text(value)
        if isinstance(value, Mapping):
            return any(self.touches(key) or self.touches(item) for key, item in value.items())
        if isinstance(value, Sequence):
            return any(self.touches(item) for item in value)
        return False

    def marked(self, value: object) -> object:
        """`value` (JSON-like) with every control string in it, keys included, broken by a mark."""
        if isinstance(value, str):
            return self._marked_text(value)
        if isinstance(value, Mapping):
            return {self._marked_inside(str(key)): self.marked(item) for key, item in value.items()}
        if isinstance(value, Sequence):
            return [self.marked(item) for item in value]
        return value

    def reveal(self, rendered: str) -> str:
        """The text for the twin tokenizer: the template's control strings as stand-ins, no marks."""
        text = self._control.sub(lambda match: stand_in(self._token_id_of[match[0]]), rendered)
        # A template may write a tool's schema as pure ASCII, which escapes the mark.
        return text.replace(_MARK, "").replace(_ESCAPED_MARK, "")

    def _touches_text(self, text: str) -> bool:
        if self._control.search(text) or self._opens(text) or self._closes(text):
            return True
        return self._normalize is not None and self._control.search(self._normalize(text)) is not None

    def _opens(self, text: str) -> bool:
        return any(text.endswith(part) for part in self._beginnings.get(text[-1:], ()))

    def _closes(self, text: str) -> bool:
        return any(text.startswith(part) for part in self._endings.get(text[:1], ()))

    def _marked_text(self, text: str) -> str:
        inside = self._marked_inside(text)
        return f"{_MARK if self._closes(text) else ''}{inside}{_MARK if self._opens(text) else ''}"

    def _marked_inside(self, text: str) -> str:
        text = text.translate(_RESERVED)
        cuts = [match.start() + 1 for match in self._control_starts.finditer(text)]
        borders = [0, *cuts, len(text)]
        return _MARK.join(text[start:end] for start, end in pairwise(borders))


def _by_first(parts: Iterable[str]) -> dict[str, list[str]]:
    index: dict[str, list[str]] = {}
    for part in dict.fromkeys(parts):
        index.setdefault(part[0], []).append(part)
    return index


def _by_last(parts: Iterable[str]) -> dict[str, list[str]]:
    index: dict[str, list[str]] = {}
    for part in dict.fromkeys(parts):
        index.setdefault(part[-1], []).append(part)
    return index
