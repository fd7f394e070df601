"""How much our own objects hold: every container that can be reached from one, by its place."""

from collections import deque
from collections.abc import Iterator
from typing import Any

OURS = ("core.", "text.", "rpc.", "router.", "services.")
CONTAINERS = (dict, list, set, deque)


def held(root: object) -> dict[str, int]:
    """Lengths by path, e.g. "._ledger._opened_us"; what is shared counts once, where it is met first."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    waiting: list[tuple[str, object]] = [("", root)]
    while waiting:
        path, thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, CONTAINERS):
            found[path] = len(thing)
        waiting += _inside(path, thing)
    return found


def _inside(path: str, thing: Any) -> Iterator[tuple[str, object]]:
    if isinstance(thing, dict):
        yield from ((f"{path}[{key!r}]", value) for key, value in thing.items())
    elif isinstance(thing, (list, tuple, set, deque)):
        yield from ((f"{path}[{number}]", value) for number, value in enumerate(thing))
    elif type(thing).__module__.startswith(OURS):
        names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        names += list(getattr(thing, "__dict__", ()))
        yield from ((f"{path}.{name}", getattr(thing, name)) for name in names if hasattr(thing, name))
