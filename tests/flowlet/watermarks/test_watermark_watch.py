"""The input that holds a watermark back is named after a minute, by a clock that the test moves."""

from flowlet.records import IDLE, Watermark
from flowlet.task.one_input_stream_task import STALL_NS, WatermarkWatch
from flowlet.watermarks.combined_watermarks import StatusWatermarkValve


class Watched:
    def __init__(self, num_channels: int) -> None:
        self.now_ns = 5
        self.valve = StatusWatermarkValve(num_channels)
        self.watch = WatermarkWatch(self.valve, lambda: self.now_ns)

    def look_after(self, duration_ns: int) -> list[int]:
        self.now_ns += duration_ns
        return self.watch.held_back_by()


def test_a_channel_that_never_had_a_watermark_is_named_after_a_minute() -> None:
    watched = Watched(3)
    watched.valve.input_watermark(0, Watermark(100))
    watched.valve.input_watermark(2, Watermark(50))

    assert watched.look_after(STALL_NS - 1) == []
    assert watched.look_after(1) == [1]
    watched.valve.input_status(1, IDLE)

    assert watched.look_after(1) == []
    assert watched.look_after(STALL_NS) == [2]


def test_a_watermark_that_moves_is_not_held_back() -> None:
    watched = Watched(2)
    watched.valve.input_watermark(0, Watermark(1_000))

    for timestamp in range(10):
        watched.valve.input_watermark(1, Watermark(timestamp))
        assert watched.look_after(STALL_NS - 1) == []


def test_channels_that_are_all_silent_hold_nobody_back() -> None:
    watched = Watched(2)

    assert watched.look_after(STALL_NS) == []
    watched.valve.input_watermark(0, Watermark(7))
    assert watched.look_after(STALL_NS - 1) == []

    assert watched.look_after(STALL_NS) == [1]
