"""``ReadyQueue``: strict turns, each entry at most once."""

from hypothesis import given
from hypothesis import strategies as st

from netstack.handlers.partition_request_queue import ReadyQueue


def test_two_readers_that_always_have_more_alternate() -> None:
    """A reader that is queued again stands behind the other one."""
    queue: ReadyQueue[str] = ReadyQueue()
    queue.add("a")
    queue.add("b")

    turns = []
    for _ in range(6):
        entry = queue.pop()
        assert entry is not None
        turns.append(entry)
        queue.add(entry)

    assert turns == ["a", "b"] * 3


def test_add_tells_whether_the_queue_was_empty() -> None:
    """Only the first entry starts the writer; a second add of the same entry changes nothing."""
    queue: ReadyQueue[str] = ReadyQueue()

    assert queue.add("a") is True
    assert queue.add("a") is False
    assert queue.add("b") is False
    assert len(queue) == 2
    assert "a" in queue


def test_a_discarded_entry_never_gets_its_turn() -> None:
    """Discarding works at any place and for entries that are not queued."""
    queue: ReadyQueue[str] = ReadyQueue()
    for entry in "abc":
        queue.add(entry)

    queue.discard("b")
    queue.discard("z")

    assert [queue.pop(), queue.pop(), queue.pop()] == ["a", "c", None]


def test_a_cleared_queue_is_empty_and_usable() -> None:
    """Clear forgets the entries and their membership."""
    queue: ReadyQueue[str] = ReadyQueue()
    queue.add("a")

    queue.clear()

    assert len(queue) == 0
    assert queue.add("a") is True


@given(st.lists(st.tuples(st.sampled_from(["add", "pop", "discard"]), st.integers(0, 4))))
def test_it_is_an_ordered_set(steps: list[tuple[str, int]]) -> None:
    """Any sequence of calls behaves like a list without duplicates."""
    queue: ReadyQueue[int] = ReadyQueue()
    model: list[int] = []

    for action, entry in steps:
        if action == "add":
            assert queue.add(entry) == (not model and entry not in model)
            if entry not in model:
                model.append(entry)
        elif action == "pop":
            assert queue.pop() == (model.pop(0) if model else None)
        else:
            queue.discard(entry)
            if entry in model:
                model.remove(entry)
        assert len(queue) == len(model)


def test_after_a_clear_nothing_old_is_popped() -> None:
    """Only what was added since has its turn."""
    queue: ReadyQueue[str] = ReadyQueue()
    queue.add("old")
    queue.clear()

    queue.add("new")

    assert [queue.pop(), queue.pop()] == ["new", None]
