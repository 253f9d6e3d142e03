"""Windows: the finite parts of a stream.

Side:   pure.
Rules:  a window cannot change: it is part of the keys under which state is kept.
Units:  milliseconds of event time or processing time.
Source: PyFlink ``pyflink.datastream.window``.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass  # not late: programs may ask for the parameters of its __init__
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from flowlet.datastream.window.window_assigners import MergingWindowAssigner

__all__ = ["CountWindow", "GlobalWindow", "TimeWindow", "Window"]

MAX_WINDOW_TIMESTAMP: Final = 2**63 - 1
"""The end of all time: of windows that end with no timestamp."""


class Window(ABC):
    """A part of a stream.  A class of windows of your own needs ``__eq__`` and ``__hash__``, and can be pickled."""

    __slots__ = ()

    @abstractmethod
    def max_timestamp(self) -> int:
        """The largest timestamp that belongs to the window."""


@dataclass(frozen=True, slots=True)
class TimeWindow(Window):
    """The time from ``start`` to before ``end``."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond of the window."""
        return self.end - 1

    def intersects(self, other: "TimeWindow") -> bool:
        """Whether the windows overlap, or one begins where the other ends."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: "TimeWindow") -> "TimeWindow":
        """The smallest window that covers both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """The start of the window of a timestamp, where windows begin at the multiples of their
        size plus ``offset``.
        """
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(
        windows: Iterable["TimeWindow"], callback: "MergingWindowAssigner.MergeCallback[TimeWindow]"
    ) -> None:
        """Report each run of windows that touch each other to ``callback``."""
        runs: list[list[TimeWindow]] = []
        covering: list[TimeWindow] = []
        for window in sorted(set(windows)):
            if runs and covering[-1].intersects(window):
                runs[-1].append(window)
                covering[-1] = covering[-1].cover(window)
            else:
                runs.append([window])
                covering.append(window)
        for run, result in zip(runs, covering, strict=True):
            if len(run) > 1:
                callback.merge(run, result)

    def __lt__(self, other: Any) -> bool:
        return (self.start, self.end) < _pair_of(other)

    def __le__(self, other: Any) -> bool:
        return (self.start, self.end) <= _pair_of(other)

    def __reduce__(self) -> Any:
        return type(self), (self.start, self.end)


def _pair_of(window: Any) -> tuple[int, int]:
    if not isinstance(window, TimeWindow):
        raise TypeError(
            f"a TimeWindow is compared with another TimeWindow, got {window!r} of type {type(window).__name__}"
        )
    return window.start, window.end


@dataclass(frozen=True, slots=True)
class CountWindow(Window):
    """The window with the number ``id`` of its key."""

    id: int

    def max_timestamp(self) -> int:
        """The end of all time."""
        return MAX_WINDOW_TIMESTAMP

    def __reduce__(self) -> Any:
        return type(self), (self.id,)


@dataclass(frozen=True, slots=True, repr=False)
class GlobalWindow(Window):
    """The one window of ``GlobalWindows``, which holds all records of a key."""

    @staticmethod
    def get() -> "GlobalWindow":
        """The window."""
        return _GLOBAL_WINDOW

    def max_timestamp(self) -> int:
        """The end of all time."""
        return MAX_WINDOW_TIMESTAMP

    def __reduce__(self) -> Any:
        return type(self), ()

    def __repr__(self) -> str:
        return "GlobalWindow"


_GLOBAL_WINDOW: Final = GlobalWindow()
