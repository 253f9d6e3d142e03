"""Evictors, which take records out of a window when it is evaluated.  Not in PyFlink.

A window with an evictor keeps all its records: ``reduce`` and ``aggregate`` combine them at each evaluation.

Side:   pure.  An instance is pickled, and called on the thread of one task for the windows of all keys.
Source: Flink ``Evictor``, ``CountEvictor``, ``TimeEvictor``, ``DeltaEvictor``, with names in the style of Python.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic

from flowlet.common.time import Length, millis_of
from flowlet.datastream.user_functions.argument_checks import T, W
from flowlet.datastream.user_functions.window_clock import WindowClock
from flowlet.errors import JobGraphError
from netstack.late import dataclass

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "TimeEvictor", "TimestampedValue"]


@dataclass(frozen=True, slots=True)
class TimestampedValue(Generic[T]):
    """A record of a window, and its timestamp in milliseconds; None: it has none."""

    value: T
    timestamp: int | None = None

    def get_value(self) -> T:
        """The record."""
        return self.value

    def get_timestamp(self) -> int:
        """The timestamp; -2**63 if there is none."""
        return -(2**63) if self.timestamp is None else self.timestamp

    def has_timestamp(self) -> bool:
        """Whether there is one."""
        return self.timestamp is not None


class Evictor(ABC, Generic[T, W]):
    """Takes records out of a window, before or after it is evaluated."""

    class EvictorContext(WindowClock):
        """The clock."""

    @abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: "Evictor.EvictorContext"
    ) -> None:
        """Take records that the function shall not see out of the list; later evaluations do not see them, either.

        ``elements``: the records in the order in which they came.  ``size``: their number.
        """

    @abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: "Evictor.EvictorContext"
    ) -> None:
        """Take records out of the list after the function was called; later evaluations do not see them.

        ``size``: the number of records before any was taken out.
        """


class _OneSidedEvictor(Evictor[T, W]):
    """Evicts either before the function or after it."""

    _do_evict_after: bool

    def evict_before(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: Evictor.EvictorContext
    ) -> None:
        """Evict, unless it is done after the function."""
        if not self._do_evict_after:
            self._evict(elements)

    def evict_after(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: Evictor.EvictorContext
    ) -> None:
        """Evict, if it is done after the function."""
        if self._do_evict_after:
            self._evict(elements)

    @abstractmethod
    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        """Take records out of the list."""


class CountEvictor(_OneSidedEvictor[T, W]):
    """Keeps the newest ``max_count`` records."""

    def __init__(self, max_count: int, do_evict_after: bool = False) -> None:  # noqa: FBT001, FBT002  # Flink's order
        if max_count < 0:
            raise JobGraphError(f"CountEvictor needs a number of records of 0 or more, got {max_count}")
        self._max_count = max_count
        self._do_evict_after = do_evict_after

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> "CountEvictor[Any, Any]":  # Flink's order  # noqa: FBT001, FBT002
        """Keep the newest ``max_count`` records; by default the function sees only these."""
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        del elements[: max(0, len(elements) - self._max_count)]


class TimeEvictor(_OneSidedEvictor[T, W]):
    """Keeps the records whose timestamps are less than ``window_size`` milliseconds before the newest timestamp."""

    def __init__(self, window_size: int | Length, do_evict_after: bool = False) -> None:  # noqa: FBT001, FBT002  # Flink's order
        self._window_size = millis_of(window_size, "TimeEvictor", takes_number=True)
        self._do_evict_after = do_evict_after

    @staticmethod
    def of(window_size: Length, do_evict_after: bool = False) -> "TimeEvictor[Any, Any]":  # Flink's order  # noqa: FBT001, FBT002
        """Keep the newest ``window_size`` of event time; by default the function sees only that."""
        return TimeEvictor(millis_of(window_size, "TimeEvictor.of()"), do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        if elements and elements[0].has_timestamp():
            limit = max(each.get_timestamp() for each in elements) - self._window_size
            elements[:] = [each for each in elements if each.get_timestamp() > limit]


class DeltaEvictor(_OneSidedEvictor[T, W]):
    """Keeps the records whose distance from the newest one is less than ``threshold``.

    ``delta_function(record, newest)`` gives the distance; a callable, or an object with ``get_delta``.
    """

    def __init__(
        self,
        threshold: float,
        delta_function: Callable[[T, T], float] | Any,
        do_evict_after: bool = False,  # noqa: FBT001, FBT002
    ) -> None:  # Flink's order
        if not callable(getattr(delta_function, "get_delta", delta_function)):
            raise JobGraphError(
                f"DeltaEvictor needs a callable of two records or an object with get_delta(), got {delta_function!r}"
            )
        self._threshold = threshold
        self._delta_function = delta_function
        self._do_evict_after = do_evict_after

    @staticmethod
    def of(
        threshold: float,
        delta_function: Callable[[Any, Any], float] | Any,
        do_evict_after: bool = False,  # noqa: FBT001, FBT002
    ) -> "DeltaEvictor[Any, Any]":  # Flink's order
        """Keep the records nearer to the newest one than ``threshold``; by default the function sees only these."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements: list[TimestampedValue[T]]) -> None:
        if elements:
            delta = getattr(self._delta_function, "get_delta", self._delta_function)
            newest = elements[-1].value
            elements[:] = [each for each in elements if delta(each.value, newest) < self._threshold]
