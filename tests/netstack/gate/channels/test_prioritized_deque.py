"""``PrioritizedDeque``: priority first, both kinds in order."""

import pytest

from netstack.gate.channels.prioritized_deque import PrioritizedDeque


def numbers(count: int) -> PrioritizedDeque[int]:
    found: PrioritizedDeque[int] = PrioritizedDeque()
    for number in range(count):
        found.add(number)
    return found


def test_prioritize_moves_an_element_to_the_front() -> None:
    """PrioritizedDequeTest: [0, 1, 2, 3] prioritize 3 -> [3, 0, 1, 2]; the second time nothing changes."""
    deque = numbers(4)

    deque.prioritize(3)
    deque.prioritize(3)

    assert (list(deque), deque.num_priority_elements, len(deque)) == ([3, 0, 1, 2], 1, 4)


def test_priority_elements_keep_their_order() -> None:
    """PrioritizedDequeTest: add with and without priority; polled in that order, then nothing."""
    deque = numbers(2)
    deque.add_priority_element(10)
    deque.add_priority_element(11)

    peeked = [deque.peek()]
    polled = [deque.poll() for _ in range(3)]
    peeked.append(deque.peek())
    polled += [deque.poll(), deque.poll()]

    assert (peeked, polled, deque.peek()) == ([10, 1], [10, 11, 0, 1, None], None)


def test_an_element_is_found_and_removed() -> None:
    """PrioritizedDequeTest: getAndRemove looks at those with priority first, and leaves the others in order."""
    deque = numbers(3)
    deque.add_priority_element(4)

    found = [deque.get_and_remove(lambda each: each % 2 == 0), deque.get_and_remove(lambda each: each == 1)]

    assert (found, list(deque), deque.get_and_remove(lambda each: each > 7)) == ([4, 1], [0, 2], None)


def test_what_is_not_there_cannot_get_priority() -> None:
    """And clear forgets both kinds."""
    deque = numbers(2)
    deque.add_priority_element(7)

    with pytest.raises(ValueError, match="not in deque"):
        deque.prioritize(5)
    deque.clear()

    assert (len(deque), deque.poll()) == (0, None)
