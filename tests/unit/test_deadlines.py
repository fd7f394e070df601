"""Deadlines against the obvious model."""

from hypothesis import given
from hypothesis import strategies as st

from core.deadlines import Deadlines

OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["set", "clear", "due"]), st.integers(0, 5), st.integers(0, 50))
)


@given(OPERATIONS)
def test_like_a_dictionary_of_times(operations: list[tuple[str, int, int]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, int] = {}
    for operation, key, at_us in operations:
        if operation == "set":
            deadlines.set(key, at_us)
            model.pop(key, None)
            model[key] = at_us
        elif operation == "clear":
            deadlines.clear(key)
            model.pop(key, None)
        else:
            passed = sorted((k for k, when in model.items() if when <= at_us), key=lambda k: model[k])
            assert deadlines.due(at_us) == passed
            model = {k: when for k, when in model.items() if when > at_us}
        assert deadlines.next_us == min(model.values(), default=None)
        assert len(deadlines) == len(model)


def test_moving_a_deadline_many_times_keeps_the_heap_small() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for at_us in range(10_000):
        deadlines.set("a", at_us)
    assert len(deadlines._heap) <= 70
    assert deadlines.due(10_000) == ["a"]
