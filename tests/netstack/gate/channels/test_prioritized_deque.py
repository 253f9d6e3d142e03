"""``PrioritizedDeque``: priority first, both kinds in order."""

from netstack.gate.channels.input_channel import PrioritizedDeque


def numbers(count: int, *with_priority: int) -> PrioritizedDeque[int]:
    found: PrioritizedDeque[int] = PrioritizedDeque()
    found.rest.extend(range(count))
    found.priority.extend(with_priority)
    return found


def test_priority_elements_keep_their_order() -> None:
    """PrioritizedDequeTest: add with and without priority; polled in that order, then nothing."""
    deque = numbers(2, 10, 11)
    listed = (list(deque), len(deque))

    polled = [deque.poll() for _ in range(5)]

    assert (listed, polled) == (([10, 11, 0, 1], 4), [10, 11, 0, 1, None])


def test_an_element_is_found_and_removed() -> None:
    """PrioritizedDequeTest: getAndRemove looks at those with priority first, and leaves the others in order."""
    deque = numbers(3, 4)

    found = [deque.get_and_remove(lambda each: each % 2 == 0), deque.get_and_remove(lambda each: each == 1)]

    assert (found, list(deque), deque.get_and_remove(lambda each: each > 7)) == ([4, 1], [0, 2], None)


def test_both_kinds_are_forgotten() -> None:
    deque = numbers(2, 7)

    deque.clear()

    assert (len(deque), deque.poll()) == (0, None)
