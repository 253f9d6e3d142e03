"""What a function may do with its metrics.

Side:   pure.
Source: PyFlink ``pyflink.metrics.metricbase``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]


class Metric(ABC):  # noqa: B024  # PyFlink's base class has no methods
    """Base class of all metrics; a metric is written by one thread, that of the function, and read by any."""


class Counter(Metric, ABC):
    """Counts something."""

    @abstractmethod
    def inc(self, n: int = 1) -> None:
        """Add ``n``."""

    @abstractmethod
    def dec(self, n: int = 1) -> None:
        """Subtract ``n``."""

    @abstractmethod
    def get_count(self) -> int:
        """The present count."""


class Meter(Metric, ABC):
    """Counts events, and tells how many there are per second."""

    @abstractmethod
    def mark_event(self, value: int = 1) -> None:
        """So many events happened."""

    @abstractmethod
    def get_count(self) -> int:
        """How many events there were."""


class Distribution(Metric, ABC):
    """Sum, count, smallest and largest of the values of a variable."""

    @abstractmethod
    def update(self, value: int) -> None:
        """The variable has this value now."""


class MetricGroup(ABC):
    """Metrics with names, and groups of them.

    A metric of one kind and name is made once per group: a second call returns the same object.
    """

    @abstractmethod
    def add_group(self, name: str, extra: str | None = None) -> "MetricGroup":
        """The group of that name inside this one; with ``extra`` the group ``extra`` inside the group ``name``."""

    @abstractmethod
    def counter(self, name: str) -> Counter:
        """The counter of that name.  Raises FlowletError: the name is taken by a metric of another kind."""

    @abstractmethod
    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """Show what the function ``obj`` returns; it is called about once per second, on the function's thread.

        Raises as ``counter``.
        """

    @abstractmethod
    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """The meter of that name; its rate is that of the last ``time_span_in_seconds``.  Raises as ``counter``."""

    @abstractmethod
    def distribution(self, name: str) -> Distribution:
        """The distribution of that name.  Raises as ``counter``."""
