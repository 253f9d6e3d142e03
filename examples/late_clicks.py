"""Counts out-of-order clicks per user and minute of event time; late clicks go to a side output.

The watermark is five seconds behind the latest click.  When it reaches the end of a minute, the timers of that minute
fire and emit the counts.  A click of a minute that was counted already is late.

Run it: ``python examples/late_clicks.py``.  It prints the counts and the late clicks.
"""

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.table import Table

from flowlet.common import Duration, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)

MINUTE_MS = 60_000
LATE = OutputTag("late clicks")
# (user, second).  Ann's 5 and Bob's 59 are out of order, but not late.
CLICKS = [
    ("ann", 2),
    ("bob", 8),
    ("ann", 7),
    ("ann", 5),
    ("bob", 58),
    ("ann", 61),
    ("bob", 59),
    ("ann", 130),
    ("bob", 131),
]
LATE_CLICKS = [("ann", 30), ("bob", 50)]  # sent after minute 0 was counted


class Clicks(SourceFunction):
    """The clicks as a web server might send them."""

    def run(self, ctx: SourceContext) -> None:
        """Emit the clicks; the late ones after the watermark has passed them."""
        for click in CLICKS:
            ctx.collect(click)
        time.sleep(1.0)
        for click in LATE_CLICKS:
            ctx.collect(click)


class ClickTime(TimestampAssigner):
    """The time of a click."""

    def extract_timestamp(self, value: tuple[str, int], record_timestamp: int) -> int:
        """Return the second of the click, in milliseconds."""
        return 1000 * value[1]


class ClicksPerMinute(KeyedProcessFunction):
    """Counts the clicks of each user and minute; emits the count when the minute is over."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        """Count a click, unless its minute is over."""
        end_ms = MINUTE_MS * (value[1] // 60 + 1) - 1
        if end_ms <= ctx.timer_service().current_watermark():
            yield LATE, value
        else:
            self._counts[value[0], end_ms] += 1
            ctx.timer_service().register_event_time_timer(end_ms)  # to register a timer again changes nothing

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[tuple[str, int, int]]:
        """Emit the count of a minute that is over."""
        yield ctx.get_current_key(), timestamp // MINUTE_MS, self._counts.pop((ctx.get_current_key(), timestamp))


def build(env: StreamExecutionEnvironment) -> DataStream:
    """Return rows of user, minute and number of clicks, or of user, minute and the word "late"."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5)).with_timestamp_assigner(
        ClickTime()
    )
    clicks = env.add_source(Clicks()).assign_timestamps_and_watermarks(strategy)
    counts = clicks.key_by(lambda click: click[0]).process(ClicksPerMinute())
    return counts.union(counts.get_side_output(LATE).map(lambda click: (click[0], click[1] // 60, "late")))


if __name__ == "__main__":
    table = Table("user", "minute", "clicks")
    environment = StreamExecutionEnvironment.get_execution_environment()
    for row in sorted(build(environment.set_parallelism(2)).execute_and_collect(), key=str):
        table.add_row(*map(str, row))
    Console().print(table)
