"""Sources, and what gives records their time."""

from typing import Any

from flowlet.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from tests.differential.worlds import TICK_MS, Boom, Logged, touch


class _Source(Logged, SourceFunction):
    """Emits ``num_records`` records; with timestamps, and a watermark after every third one, if asked to."""

    def prepare(self, num_records: int, has_timestamps: bool) -> None:
        self.num_records = num_records
        self.has_timestamps = has_timestamps

    def run(self, ctx: SourceContext) -> None:
        for number in range(self.num_records):
            record = self.record(number)
            self.see(record)
            if self.has_timestamps:
                ctx.collect_with_timestamp(record, number * TICK_MS)
                if number % 3 == 2:
                    ctx.emit_watermark(number * TICK_MS)
            else:
                ctx.collect(record)
            self.after(record)

    def record(self, number: int) -> Any:
        raise NotImplementedError

    def after(self, record: Any) -> None:
        """Do something between two records."""


class EmitGrowing(_Source):
    def record(self, number: int) -> Any:
        self.found.append(number)
        return self.found


class EmitChanging(_Source):
    """Emits one dict that changes, and changes it after it was emitted."""

    def record(self, number: int) -> Any:
        self.entries["k"] = number
        return self.entries

    def after(self, record: Any) -> None:
        touch(record)


class EmitNumbers(_Source):
    def record(self, number: int) -> Any:
        return number


class SourceFails(_Source):
    def record(self, number: int) -> Any:
        if number == self.num_records - 1:
            raise Boom(f"source, record {number}")
        return [number]


class Ticks(Logged, TimestampAssigner):
    """Timestamps that rise, though not with every record."""

    def prepare(self, order: tuple[int, ...]) -> None:
        self.order = order

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        self.see("timestamp of", value)
        self.calls += 1
        return (self.calls + self.order[self.calls % len(self.order)]) * TICK_MS


class TicksFail(Ticks):
    def prepare(self, order: tuple[int, ...], at: int = 1) -> None:
        super().prepare(order)
        self.at = at

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        timestamp = super().extract_timestamp(value, record_timestamp)
        if self.calls == self.at:
            raise Boom(f"assigner, call {self.calls}")
        return timestamp


class Punctuated(Logged, WatermarkGenerator):
    """A watermark with every so many records, some ticks behind the largest timestamp."""

    def prepare(self, every: int, ticks: int) -> None:
        self.every = every
        self.ticks = ticks
        self.largest = 0

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        self.calls += 1
        self.see("event", event, event_timestamp)
        self.largest = max(self.largest, event_timestamp)
        if self.calls % self.every == 0:
            output.emit_watermark(self.largest - self.ticks * TICK_MS)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit no watermark: one that depends on the clock cannot be compared."""


class MakePunctuated:
    def __init__(self, world_number: int, step: int, every: int, ticks: int) -> None:
        self.arguments = (world_number, step, every, ticks)

    def __call__(self) -> Punctuated:
        return Punctuated(*self.arguments)
