"""Timers that ring when a test says so, and a checker of producers that answers when asked to."""

from collections.abc import Callable

from netstack.gate.channels.partition_request_client import ProducerState
from netstack.ids import ResultPartitionID


class ManualTimers:
    """Keeps what is due."""

    def __init__(self) -> None:
        self.delays_ms: list[float] = []
        self._due: list[Callable[[], None]] = []

    def call_later(self, delay_ms: float, call: Callable[[], None]) -> Callable[[], None]:
        self.delays_ms.append(delay_ms)
        self._due.append(call)

        def cancel() -> None:
            if call in self._due:
                self._due.remove(call)

        return cancel

    @property
    def num_due(self) -> int:
        return len(self._due)

    def ring(self) -> None:
        """The first one is due."""
        self._due.pop(0)()


class ManualStateChecker:
    """Keeps the questions."""

    def __init__(self) -> None:
        self.asked: list[tuple[ResultPartitionID, Callable[[ProducerState], None]]] = []

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        self.asked.append((partition_id, on_result))

    def answer(self, state: ProducerState) -> None:
        """The oldest question is answered."""
        self.asked.pop(0)[1](state)
