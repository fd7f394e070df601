"""Which methods of a plain object are the things that can happen to it."""

from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

MARK = "__event__"


def event(method: Method) -> Method:
    """Marks an event method: it takes `now_us` and returns a list of frozen actions or a value.

    An object's life is the list of its events, so these are what a recording holds and a replay
    repeats. The mark changes nothing else; reads that change no state are left unmarked.
    """
    setattr(method, MARK, True)
    return method


def event_methods(kind: type) -> dict[str, Callable[..., Any]]:
    """The event methods of a class by name, sorted. An override of one is one, marked or not."""
    found: dict[str, Callable[..., Any]] = {}
    for ancestor in kind.__mro__:
        for name, member in vars(ancestor).items():
            if getattr(member, MARK, False):
                found[name] = getattr(kind, name)
    return dict(sorted(found.items()))
