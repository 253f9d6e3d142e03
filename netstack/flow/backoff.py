"""How long to wait before another try: ``Backoff``.

Side:   pure.
Units:  those of the delays that it was given.
"""

from collections.abc import Callable, Iterator
from itertools import count

from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """The delays before one try after another: ``first``, each later one ``factor`` times as long, at most ``longest``.

    ``jitter``: the share of a delay that may be taken off at random, so that those who failed together do not come
    back together.
    """

    first: float
    longest: float
    factor: float = 2
    jitter: float = 0.0

    def delay(self, num_failures: int, chance: float = 0.0) -> float:
        """The delay after so many failures, one at least; ``chance``, up to 1: how much of the jitter counts."""
        try:
            delay = min(self.first * self.factor ** (num_failures - 1), self.longest)
        except OverflowError:
            delay = self.longest
        return delay * (1 - self.jitter * chance)

    def delays(self, chance: Callable[[], float] = float) -> Iterator[float]:
        """The delay after each failure, without end."""
        return (self.delay(num_failures, chance()) for num_failures in count(1))
