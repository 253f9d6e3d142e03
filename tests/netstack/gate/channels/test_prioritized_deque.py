"""``PrioritizedDeque``: priority first, both kinds in order."""

from netstack.gate.channels.input_channel import PrioritizedDeque


def numbers(count: int, *with_priority: int) -> PrioritizedDeque[int]:
    found: PrioritizedDeque[int] = PrioritizedDeque()
    found.rest.extend(range(count))
    found.priority.extend(with_priority)
    return found


def test_priority_elements_keep_their_order() -> None:
    """PrioritizedDequeTest: add with and without priority."""
    deque = numbers(2, 10, 11)

    assert (list(deque), len(deque)) == ([10, 11, 0, 1], 4)


def test_both_kinds_are_forgotten() -> None:
    deque = numbers(2, 7)

    deque.clear()

    assert (len(deque), list(deque)) == (0, [])
