"""A queue whose first elements have priority.

Side:       pure.
Hot path:   per buffer; whoever needs the speed uses the two deques themselves.
Invariants: elements with priority come first, both kinds in the order of their arrival.
Source:     Flink ``PrioritizedDeque``.
"""

from collections import deque
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Generic, TypeVar

T = TypeVar("T")


class PrioritizedDeque(Generic[T]):
    """First ``priority``, then ``rest``."""

    __slots__ = ("priority", "rest")

    def __init__(self) -> None:
        self.priority: deque[T] = deque()
        self.rest: deque[T] = deque()

    def __repr__(self) -> str:
        return f"<PrioritizedDeque {len(self.priority)} with priority, {len(self.rest)} without>"

    def __len__(self) -> int:
        return len(self.priority) + len(self.rest)

    def __iter__(self) -> Iterator[T]:
        return chain(self.priority, self.rest)

    def poll(self) -> T | None:
        """Take the first element; None if there is none."""
        if self.priority:
            return self.priority.popleft()
        return self.rest.popleft() if self.rest else None

    def get_and_remove(self, is_wanted: Callable[[T], bool]) -> T | None:
        """Take out the first element that ``is_wanted``; None if there is none."""
        for elements in (self.priority, self.rest):
            for position, element in enumerate(elements):
                if is_wanted(element):
                    del elements[position]
                    return element
        return None

    def clear(self) -> None:
        """Forget everything."""
        self.priority.clear()
        self.rest.clear()
