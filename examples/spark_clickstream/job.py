"""The flowlet job: running figures per user, and an alert during a burst of clicks.

Spark sends the records: each is a ``Row`` with the fields of ``EVENT``, in time order per user.
"""

import time
from collections import deque
from collections.abc import Iterator
from typing import Any, Final

from flowlet.common import Row, Types
from flowlet.datastream import DataStream, KeyedProcessFunction, OutputTag, StreamExecutionEnvironment
from flowlet.datastream.connectors import BucketAssigner, FileSink
from flowlet.datastream.formats.parquet import ParquetBulkWriters

GATE: Final = "clickstream"
BURST_CLICKS: Final = 10  # this many clicks of one user ...
BURST_US: Final = 1_000_000  # ... within this time are not human
CLICK: Final = "click"

# sent_ns: when the row was given to the gate, by the machine's clock; for the latency of alerts.
EVENT = Types.ROW_NAMED(
    ["user", "at_us", "event", "kind", "cents", "country", "sent_ns"],
    [Types.LONG(), Types.LONG(), Types.LONG(), Types.STRING(), Types.LONG(), Types.STRING(), Types.LONG()],
)
FIGURES = Types.ROW_NAMED(
    ["user", "event", "country", "clicks", "purchases", "revenue_cents"],
    [Types.LONG(), Types.LONG(), Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()],
)
ALERTS = OutputTag("alerts")


class RunningFigures(KeyedProcessFunction):
    """Emits after each event how often its user has clicked and bought, and for how much.  Alerts about bursts go to a
    side output.
    """

    def __init__(self) -> None:
        self._figures: dict[int, list[int]] = {}
        self._clicks: dict[int, deque[int]] = {}

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Process one event."""
        user, at_us, event, kind, cents, country, sent_ns = value
        figures = self._figures.setdefault(user, [0, 0, 0])
        if kind == CLICK:
            figures[0] += 1
            times = self._clicks.setdefault(user, deque(maxlen=BURST_CLICKS))
            times.append(at_us)
            if len(times) == BURST_CLICKS and at_us - times[0] <= BURST_US:
                yield ALERTS, (user, event, at_us - times[0], sent_ns, time.time_ns())
        else:
            figures[1] += 1
            figures[2] += cents
        yield (user, event, country, *figures)


def user_of(event: Row) -> Any:
    """Return the key of an event."""
    return event[0]


def build(env: StreamExecutionEnvironment, num_partitions: int, output: str) -> DataStream:
    """Write figures to Parquet files in ``output``; returns the stream of alerts.

    An alert: user, event, length of the burst in microseconds, when its last click was sent and when the alert was
        raised, in nanoseconds.
    """
    events = env.from_remote_gate(GATE, type_info=EVENT, producers=num_partitions)
    figures = events.key_by(user_of).process(RunningFigures())
    files = FileSink.for_bulk_format(output, ParquetBulkWriters.for_row_type(FIGURES))
    figures.sink_to(files.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build())
    return figures.get_side_output(ALERTS)
