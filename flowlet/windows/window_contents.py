"""What is kept of the records of a window.

Side:       task.
Invariants: every method is about the window that was entered in ``WindowStates``.  A window without records keeps
            nothing.
Source:     Flink ``WindowOperator.windowState``: a list, reducing or aggregating state of the name ``window-contents``.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

from flowlet.datastream.state import AggregatingStateDescriptor, ListStateDescriptor, ReducingStateDescriptor
from flowlet.datastream.window.evictors import TimestampedValue
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.windows.window_states import WindowStates

WINDOW_STATE_NAME: Final = "window-contents"


class WindowContents(Protocol):
    """The records of windows, or what was made of them."""

    def add(self, value: Any, timestamp: int | None) -> None:
        """Add a record."""

    def get(self) -> list[Any] | None:
        """The records, or the one value that they were combined to; None: there is nothing."""

    def clear(self) -> None:
        """Forget everything."""

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        """What is kept for the windows ``sources`` now belongs to ``target``."""


class ListContents:
    """All records."""

    def __init__(self, spec: WindowSpec, states: WindowStates) -> None:
        self._states = states
        self._descriptor = ListStateDescriptor(WINDOW_STATE_NAME, spec.state_type)
        self.state = states.state(self._descriptor)

    def add(self, value: Any, timestamp: int | None) -> None:
        """Add a record."""
        self.state.add(value)

    def get(self) -> list[Any] | None:
        """The records, in the order in which they came."""
        return self.state.get() or None

    def clear(self) -> None:
        """Forget the records."""
        self.state.clear()

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        """Put the records of the ``sources`` behind those of the ``target``."""
        self._states.merge(self._descriptor, target, sources)


class CombinedContents:
    """One value: what the function made of all records."""

    def __init__(self, spec: WindowSpec, states: WindowStates) -> None:
        self._states = states
        self._descriptor = (
            AggregatingStateDescriptor(WINDOW_STATE_NAME, spec.combine, spec.state_type)
            if spec.aggregates
            else ReducingStateDescriptor(WINDOW_STATE_NAME, spec.combine, spec.state_type)
        )
        self.state = states.state(self._descriptor)
        # What is kept: the accumulator, where there is one.
        self.kept = self.state.accumulator if spec.aggregates else self.state.get
        self.update = self.state.update_accumulator if spec.aggregates else self.state.update

    def add(self, value: Any, timestamp: int | None) -> None:
        """Combine what there is with a record."""
        self.state.add(value)

    def get(self) -> list[Any] | None:
        """The result, as the only element."""
        result = self.state.get()
        return None if result is None else [result]

    def clear(self) -> None:
        """Forget the value."""
        self.state.clear()

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        """Combine the values."""
        self._states.merge(self._descriptor, target, sources)


class TimestampedContents:
    """All records with their timestamps, for an evictor."""

    def __init__(self, states: WindowStates) -> None:
        self._states = states
        self._descriptor = ListStateDescriptor(WINDOW_STATE_NAME)
        self._state = states.state(self._descriptor)

    def add(self, value: Any, timestamp: int | None) -> None:
        """Add a record."""
        self._state.add((value, timestamp))

    def get(self) -> list[TimestampedValue[Any]] | None:
        """The records, in the order in which they came."""
        pairs = self._state.get()
        return [TimestampedValue(value, timestamp) for value, timestamp in pairs] or None

    def replace(self, elements: Sequence[TimestampedValue[Any]]) -> None:
        """Keep these records and no others."""
        self._state.update([(each.value, each.timestamp) for each in elements])

    def clear(self) -> None:
        """Forget the records."""
        self._state.clear()

    def merge(self, target: Any, sources: Sequence[Any]) -> None:
        """Put the records of the ``sources`` behind those of the ``target``."""
        self._states.merge(self._descriptor, target, sources)


def contents_of(spec: WindowSpec, states: WindowStates) -> WindowContents:
    """What is kept for such windows."""
    if spec.evictor is not None:
        return TimestampedContents(states)
    return ListContents(spec, states) if spec.combine is None else CombinedContents(spec, states)
