"""Rigs that end with the test that made them."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager


class Ending(ABC):
    """What a test builds and does not have to end: ``close`` is called after it, unless the test has done so."""

    made: "list[Ending] | None" = None  # by the test that runs

    def __init__(self) -> None:
        self._is_closed = False
        if Ending.made is not None:
            Ending.made.append(self)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.give_back()

    @abstractmethod
    def give_back(self) -> None:
        """End everything, and assert that nothing leaked."""


@contextmanager
def all_closed() -> Iterator[None]:
    """Close what is made inside, the last one first."""
    made: list[Ending] = []
    Ending.made = made
    yield
    Ending.made = None
    for rig in reversed(made):
        rig.close()
