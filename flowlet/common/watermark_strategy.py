"""``WatermarkStrategy``: how a stream gets event time.

Side:   pure.
Units:  timestamps in milliseconds since the epoch.
Source: PyFlink ``pyflink.common.watermark_strategy``; Flink's ``forGenerator``, which PyFlink has only for Java
        classes.  ``with_max_future_skew`` is new: without it, one record dated in the far future makes all later ones
        late.
Absent: Flink's ``WatermarkGeneratorSupplier``: any callable without arguments makes a generator.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, final

from flowlet.common.checks import is_name
from flowlet.common.time import Duration, Length, duration_of
from flowlet.common.watermark_generator import (
    BoundedOutOfOrdernessWatermarks,
    NoWatermarks,
    WatermarkGenerator,
    WatermarksWithIdleness,
)
from flowlet.errors import JobGraphError
from netstack.late import dataclass

__all__ = ["TimestampAssigner", "WatermarkAlignment", "WatermarkStrategy"]

_NANOS_PER_MILLI: Final = 1_000_000
# Flink's WatermarkAlignmentParams.DEFAULT_UPDATE_INTERVAL.
_DEFAULT_UPDATE_INTERVAL: Final = Duration.of_seconds(1)


class TimestampAssigner(ABC):
    """Extracts the event time of records."""

    @abstractmethod
    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        """Return the event time of a record in milliseconds since the epoch; ``record_timestamp`` is the source's,
        -2**63 if it gave none.
        """


@dataclass(frozen=True, slots=True)
class WatermarkAlignment:
    """Sources of one group wait for each other: none may be more than ``max_drift_ms`` ahead of the slowest."""

    group: str
    max_drift_ms: int
    update_interval_ms: int


@final
@dataclass(frozen=True, slots=True, repr=False, eq=False)
class WatermarkStrategy:
    """The way in which records get timestamps, and watermarks follow from them; made by a static method, refined by
    ``with_`` methods.

    Every ``with_`` method returns a new strategy.  Lengths of time are a ``Duration``, a ``Time`` or a ``timedelta``.
    An argument of another type, or out of its range, raises JobGraphError.
    ``reads_timestamps``: whether watermarks follow the records' own timestamps.
    """

    name: str
    make_generator: Callable[[], WatermarkGenerator]
    reads_timestamps: bool
    timestamp_assigner: Any = None
    idle_timeout: Duration | None = None
    alignment: WatermarkAlignment | None = None
    max_future_skew: Duration | None = None

    @staticmethod
    def no_watermarks() -> "WatermarkStrategy":
        """Make a strategy without watermarks before the last one, at the end of the input."""
        return WatermarkStrategy("no_watermarks()", NoWatermarks, reads_timestamps=False)

    @staticmethod
    def for_monotonous_timestamps() -> "WatermarkStrategy":
        """Make the strategy of streams whose timestamps never fall.

        For a source without timestamps (text files) this does what ``no_watermarks()`` does.
        """
        make_generator = partial(BoundedOutOfOrdernessWatermarks, 0)
        return WatermarkStrategy("for_monotonous_timestamps()", make_generator, reads_timestamps=True)

    @staticmethod
    def for_bounded_out_of_orderness(max_out_of_orderness: Length) -> "WatermarkStrategy":
        """Make the strategy of streams whose records are at most this far (0 or more) behind the largest timestamp
        before them.
        """
        delay = duration_of(max_out_of_orderness, "for_bounded_out_of_orderness()", at_least_nanos=0)
        name = f"for_bounded_out_of_orderness({delay!r})"
        make_generator = partial(BoundedOutOfOrdernessWatermarks, delay.to_millis())
        return WatermarkStrategy(name, make_generator, reads_timestamps=True)

    @staticmethod
    def for_generator(make_generator: Callable[[], WatermarkGenerator]) -> "WatermarkStrategy":
        """Make a strategy with your own generator; each subtask calls ``make_generator`` once."""
        if not callable(make_generator):
            raise JobGraphError(
                f"for_generator() needs a callable that makes a WatermarkGenerator, got {make_generator!r}"
            )
        return WatermarkStrategy("for_generator(...)", make_generator, reads_timestamps=True)

    def with_timestamp_assigner(self, timestamp_assigner: TimestampAssigner) -> "WatermarkStrategy":
        """Use this assigner for the event time of each record."""
        if not callable(getattr(timestamp_assigner, "extract_timestamp", None)) or isinstance(timestamp_assigner, type):
            raise JobGraphError(
                "with_timestamp_assigner() needs an object with extract_timestamp(value, record_timestamp), got "
                f"{timestamp_assigner!r}"
            )
        return replace(self, timestamp_assigner=timestamp_assigner)

    def with_idleness(self, idle_timeout: Length) -> "WatermarkStrategy":
        """Mark a subtask idle after this long (above 0) without a record, so that consumers do not wait for it."""
        return replace(self, idle_timeout=duration_of(idle_timeout, "with_idleness()", at_least_nanos=1))

    def with_watermark_alignment(
        self, watermark_group: str, max_allowed_watermark_drift: Length, update_interval: Length | None = None
    ) -> "WatermarkStrategy":
        """Let the sources of a group that are further ahead than the drift (0 or more) wait for the slowest of them.

        They are compared once per update interval, by default 1 s, at least 1 ms.
        """
        method = "with_watermark_alignment()"
        given = _DEFAULT_UPDATE_INTERVAL if update_interval is None else update_interval
        if not is_name(watermark_group):
            raise JobGraphError(f"{method} needs the name of a group, got {watermark_group!r}")
        drift = duration_of(max_allowed_watermark_drift, method, at_least_nanos=0)
        interval = duration_of(given, method, at_least_nanos=_NANOS_PER_MILLI)
        return replace(self, alignment=WatermarkAlignment(watermark_group, drift.to_millis(), interval.to_millis()))

    def with_max_future_skew(self, max_future_skew: Length) -> "WatermarkStrategy":
        """Do not let records dated further than this (0 or more) in the future raise the watermark.

        The records themselves pass unchanged.
        """
        return replace(self, max_future_skew=duration_of(max_future_skew, "with_max_future_skew()", at_least_nanos=0))

    @property
    def is_refined(self) -> bool:
        """Whether the strategy does more than follow the records' timestamps."""
        refinements = (self.timestamp_assigner, self.idle_timeout, self.alignment, self.max_future_skew)
        return any(each is not None for each in refinements)

    def create_generator(self, now_ns: Callable[[], int]) -> WatermarkGenerator:
        """Make the generator of one subtask; ``now_ns`` is the clock for idleness (see ``WatermarksWithIdleness``).

        Raises:
            JobGraphError: the user's callable returned something else.
        """
        generator = self.make_generator()
        if not isinstance(generator, WatermarkGenerator):
            raise JobGraphError(f"for_generator(): the callable made {generator!r}, which is no WatermarkGenerator")
        if self.idle_timeout is None:
            return generator
        return WatermarksWithIdleness(generator, self.idle_timeout.nanos, now_ns)

    def __repr__(self) -> str:
        parts = [f"WatermarkStrategy.{self.name}"]
        if self.timestamp_assigner is not None:
            parts.append(f"with_timestamp_assigner({type(self.timestamp_assigner).__name__})")
        if self.idle_timeout is not None:
            parts.append(f"with_idleness({self.idle_timeout!r})")
        if self.alignment is not None:
            parts.append(f"with_watermark_alignment({self.alignment.group!r}, {self.alignment.max_drift_ms} ms)")
        if self.max_future_skew is not None:
            parts.append(f"with_max_future_skew({self.max_future_skew!r})")
        return ".".join(parts)
