"""Timers that ring when a test says so, and a checker of producers that answers when asked to."""

from collections.abc import Callable
from typing import Any

from netstack.gate.channels.input_channel import ProducerState
from netstack.ids import ResultPartitionID


class Due:
    """One entry of a list of due calls; ``cancel`` removes it."""

    def __init__(self, due: list[Any], entry: object) -> None:
        self._due = due
        self._entry = entry

    def cancel(self) -> None:
        if self._entry in self._due:
            self._due.remove(self._entry)


class ManualTimers:
    """Keeps the calls that are due until the test makes them."""

    def __init__(self) -> None:
        self.delays_ms: list[float] = []
        self._due: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None], /) -> Due:
        self.delays_ms.append(delay_s * 1000)
        self._due.append(call)
        return Due(self._due, call)

    @property
    def num_due(self) -> int:
        return len(self._due)

    def ring(self) -> None:
        """Make the first due call."""
        self._due.pop(0)()


class ManualStateChecker:
    """Keeps the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[ResultPartitionID, Callable[[ProducerState], None]]] = []

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        self.asked.append((partition_id, on_result))

    def answer(self, state: ProducerState) -> None:
        """Answer the oldest question."""
        self.asked.pop(0)[1](state)
