"""The metrics that functions register and update; and ``MetricRegistry``: all metrics of one operator, with their
present values.

Hot path.  ``inc``, ``mark_event`` and ``update`` are additions on an object with slots; nothing is locked or looked up
per record.
Side:       pure.
Invariants: names are unique per operator.  A metric is changed by the thread of the operator; any thread reads
            ``values``, which takes the tuple of metrics by one load of an attribute, and from each metric numbers that
            may be one record stale.
Units:      rates per second, time in nanoseconds of a monotonic clock.
Source:     PyFlink ``pyflink.metrics.metricbase``.  Flink ``AbstractMetricGroup``, ``MeterView``, ``SimpleCounter``;
            PyFlink ``GenericMetricGroup``, whose distributions have sum, count, smallest and largest, too.  Flink
            divides the count of a meter by its whole span from the start on; here a young meter divides by its age.
"""

import numbers
from collections import deque
from collections.abc import Callable
from dataclasses import field
from typing import Any, Final, Literal, TypeVar

from flowlet.errors import FlowletError
from netstack.late import dataclass

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]

# Per operator and subtask: names made of values of records must not fill the messages of a TaskManager.
MAX_METRICS: Final = 1_000
MAX_NAME_CHARS: Final = 256
MAX_TEXT_CHARS: Final = 256
SAMPLE_INTERVAL_MS: Final = 1_000  # Flink's meters take a sample per 5 s; reports are sent about once per second
_NS_PER_S: Final = 1_000_000_000
_INT64: Final = range(-(2**63), 2**63)

Number = int | float


@dataclass(frozen=True, slots=True)
class MetricValue:
    """The present value of a metric.

    ``value``: the count of a counter or meter; the result of a gauge (None: it failed, or was not called yet); the
        number of values of a distribution.  ``rate``: of a meter.  ``sum``, ``min``, ``max``: of a distribution; the
        last two are None without values.
    """

    name: str
    kind: Literal["counter", "gauge", "meter", "distribution"]
    value: Number | str | bool | None
    rate: float | None = None
    sum: Number | None = None
    min: Number | None = None
    max: Number | None = None


class Metric:
    """Base class of all metrics; the function's thread writes a metric, any thread reads it."""

    __slots__ = ()


class Counter(Metric):
    """A number that a function raises and lowers."""

    __slots__ = ("_count",)

    def __init__(self) -> None:
        self._count = 0

    def inc(self, n: int = 1) -> None:
        """Add ``n``."""
        self._count += n if type(n) is int else _plain(n)

    def dec(self, n: int = 1) -> None:
        """Subtract ``n``."""
        self._count -= n if type(n) is int else _plain(n)

    def get_count(self) -> int:
        """The present count."""
        return self._count

    def _value_as(self, name: str) -> MetricValue:
        """The present value under a name."""
        return MetricValue(name, "counter", _number(self._count))


class Meter(Metric):
    """Counts events, and computes how many there are per second."""

    __slots__ = ("_count", "_rate", "_samples", "_span_ns")

    def __init__(self, span_s: float, now_ns: int) -> None:
        self._count = 0
        self._span_ns = span_s * _NS_PER_S
        self._samples: deque[tuple[int, int]] = deque([(now_ns, 0)])  # time and count, oldest first
        self._rate = 0.0

    def mark_event(self, value: int = 1) -> None:
        """Count ``value`` events."""
        self._count += value if type(value) is int else _plain(value)

    def get_count(self) -> int:
        """How many events were counted."""
        return self._count

    def _sample(self, now_ns: int) -> None:
        """Take the count at a time, for the rate."""
        samples = self._samples
        while len(samples) > 1 and now_ns - samples[1][0] >= self._span_ns:
            samples.popleft()
        since_ns, before = samples[0]
        if now_ns > since_ns:
            self._rate = float((self._count - before) * _NS_PER_S / (now_ns - since_ns))
        samples.append((now_ns, self._count))

    def _value_as(self, name: str) -> MetricValue:
        """The present count and rate under a name."""
        return MetricValue(name, "meter", _number(self._count), rate=self._rate)


class Distribution(Metric):
    """The sum, the count, the smallest and the largest of the values of a variable."""

    __slots__ = ("_count", "_max", "_min", "_sum")

    def __init__(self) -> None:
        self._count = 0
        self._sum: Number = 0
        self._min: Number | None = None
        self._max: Number | None = None

    def update(self, value: Number) -> None:
        """Add the present value of the variable."""
        if type(value) is not int and type(value) is not float:
            value = _plain(value)
        self._count += 1
        self._sum += value
        if self._min is None or value < self._min:
            self._min = value
        if self._max is None or value > self._max:
            self._max = value

    def _value_as(self, name: str) -> MetricValue:
        """The present sum, count and extremes under a name."""
        low, high = (None if bound is None else _number(bound) for bound in (self._min, self._max))
        return MetricValue(name, "distribution", self._count, sum=_number(self._sum), min=low, max=high)


class _Gauge(Metric):
    __slots__ = ("_function", "_has_failed", "_value")

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._value: Number | str | bool | None = None
        self._has_failed = False

    def _sample(self) -> Exception | None:
        """Call the function; returns its first error, later ones are dropped."""
        try:
            self._value = _shown(self._function())
        except Exception as error:  # noqa: BLE001  # handed to the caller: a gauge must not fail the job, as in Flink
            self._value = None
            is_first, self._has_failed = not self._has_failed, True
            return error if is_first else None
        return None

    def _value_as(self, name: str) -> MetricValue:
        return MetricValue(name, "gauge", self._value)


_Any = Counter | _Gauge | Meter | Distribution
MetricT = TypeVar("MetricT", bound=_Any)


@dataclass(slots=True, eq=False)
class MetricRegistry:
    """The metrics of one operator of one subtask.

    Threading: the operator's thread; ``values`` and ``num_refused`` any.

    Args:
        now_ns: a monotonic clock, for meters.
        start_sampling: called once, with the first gauge or meter: from then on ``sample`` must be called at intervals.
        on_gauge_error: gets the name of a gauge and its first error.
    """

    now_ns: Callable[[], int] = lambda: 0
    start_sampling: Callable[[], object] = lambda: None
    on_gauge_error: Callable[[str, Exception], object] = lambda _name, _error: None
    num_refused: int = field(init=False, default=0)  # how often a function asked for a metric beyond the limit
    _is_sampled: bool = field(init=False, default=False)
    _by_name: dict[str, _Any] = field(init=False, default_factory=dict)
    # Written by the operator's thread, replaced as a whole; read anywhere.
    _metrics: tuple[tuple[str, _Any], ...] = field(init=False, default=())
    # Metrics that functions get beyond the limit, one of each kind; their values are not shown.
    _unshown: dict[type, _Any] = field(init=False, default_factory=dict)

    def __repr__(self) -> str:
        return f"<MetricRegistry of {len(self._metrics)} metrics>"

    @property
    def group(self) -> "MetricGroup":
        """The group of the operator."""
        return MetricGroup(self, "")

    def values(self) -> list[MetricValue]:
        """The value of each metric, in the order in which they were registered."""
        return [metric._value_as(name) for name, metric in self._metrics]

    def sample(self) -> None:
        """Call the functions of gauges, and compute the rates of meters."""
        for name, metric in self._metrics:
            if isinstance(metric, _Gauge):
                error = metric._sample()
                if error is not None:
                    self.on_gauge_error(name, error)
            elif isinstance(metric, Meter):
                metric._sample(self.now_ns())

    def get(self, name: str, new: MetricT, *, replaces: bool = False) -> MetricT:
        """The metric of a full name; ``new`` if there is none, or if ``new`` ``replaces`` it."""
        found: _Any | None = self._by_name.get(name)
        if found is not None and type(found) is not type(new):
            is_taken_by = type(found).__name__.removeprefix("_").lower()
            raise FlowletError(
                f"the name {name!r} is taken by a {is_taken_by}; give each metric of a group a name of its own"
            )
        if found is None and len(self._by_name) >= MAX_METRICS:
            # Further metrics are not kept: names made of records' values have no end.
            self.num_refused += 1
            found = self._unshown.setdefault(type(new), new)
        elif found is None or replaces:
            found = self._by_name[name] = new
            self._metrics = (*(each for each in self._metrics if each[0] != name), (name, new))
            if isinstance(new, _Gauge | Meter) and not self._is_sampled:
                self._is_sampled = True
                self.start_sampling()
        assert isinstance(found, type(new)), "checked above"
        return found


class MetricGroup:
    """The metrics and groups whose full names begin with the prefix of this group.

    A metric of one kind and name is made once per group: later calls return that object.
    """

    def __init__(self, registry: MetricRegistry, prefix: str) -> None:
        self._registry = registry
        self._prefix = prefix

    def add_group(self, name: str, extra: str | None = None) -> "MetricGroup":
        """The group of that name inside this one; with ``extra`` the group ``extra`` inside the group ``name``."""
        group = MetricGroup(self._registry, f"{self._full(name)}.")
        return group if extra is None else group.add_group(extra)

    def counter(self, name: str) -> Counter:
        """The counter of that name.  Raises FlowletError: the name is taken by a metric of another kind."""
        return self._registry.get(self._full(name), Counter())

    def gauge(self, name: str, obj: Callable[[], Any]) -> None:
        """Show the results of the function ``obj``, which is called about once per second, on the operator's thread.

        Raises as ``counter``.
        """
        full = self._full(name)
        if not callable(obj):
            raise FlowletError(f"gauge {full!r} needs a function without arguments, got {obj!r}")
        self._registry.get(full, _Gauge(obj), replaces=True)

    def meter(self, name: str, time_span_in_seconds: Any = 60) -> Meter:
        """The meter of that name; its rate is of the last ``time_span_in_seconds``.  Raises as ``counter``."""
        full = self._full(name)
        if not isinstance(time_span_in_seconds, int | float) or not time_span_in_seconds > 0:
            raise FlowletError(f"meter {full!r} needs a time span above 0 seconds, got {time_span_in_seconds!r}")
        return self._registry.get(full, Meter(time_span_in_seconds, self._registry.now_ns()))

    def distribution(self, name: str) -> Distribution:
        """The distribution of that name.  Raises as ``counter``."""
        return self._registry.get(self._full(name), Distribution())

    def _full(self, name: Any) -> str:
        if not isinstance(name, str) or not name:
            raise FlowletError(f"a metric or a group of metrics needs a name that is not empty, got {name!r}")
        full = self._prefix + name
        if len(full) > MAX_NAME_CHARS:
            raise FlowletError(
                f"the name of a metric has at most {MAX_NAME_CHARS} characters, its groups included, got "
                f"{full[:50]!r}..."
            )
        return full


def _plain(value: Any) -> Any:
    """A number as a Python number: sums of NumPy's small integers would wrap around."""
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def _number(value: Any) -> Number | None:
    """A number that messages can hold; None: the value is no number, or too large."""
    try:
        if not isinstance(value, numbers.Integral):
            return float(value)
        plain = int(value)  # a number of NumPy, for one, would be searched for in the range, which never ends
        return plain if plain in _INT64 else float(plain)
    except (TypeError, ValueError, OverflowError):
        return None


def _shown(value: Any) -> Number | str | bool | None:
    """The value that a gauge shows: a number or truth value unchanged, any other value as a text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, numbers.Real):
        return _number(value)
    return str(value)[:MAX_TEXT_CHARS]
