"""Finds inputs that have held a watermark back for long: usually empty partitions without ``with_idleness``.

Side:       shared.  The task thread changes the valve; one other thread calls ``held_back_by`` regularly.
Units:      nanoseconds of a monotonic clock.
Source:     none in Flink, where people compare the watermarks of all channels by hand.
"""

from collections.abc import Callable
from typing import Final

from flowlet.watermarks.status_watermark_valve import StatusWatermarkValve

STALL_NS: Final = 60_000_000_000  # not measured


class WatermarkWatch:
    """Watches one valve; what it reads may be one watermark stale."""

    def __init__(self, valve: StatusWatermarkValve, clock_ns: Callable[[], int]) -> None:
        self._valve = valve
        self._clock_ns = clock_ns
        self._watermark = valve.last_output  # at the last call, like the fields below
        self._moved_ns = clock_ns()

    def __repr__(self) -> str:
        return f"<WatermarkWatch of {self._valve!r}>"

    def held_back_by(self) -> list[int]:
        """The channels that held the watermark back for the last minute while others were ahead; the minute starts at a
        call.
        """
        now_ns, watermark = self._clock_ns(), self._valve.last_output
        if watermark != self._watermark or not self._valve.is_held_back:
            self._watermark, self._moved_ns = watermark, now_ns
        return self._valve.held_back_by() if now_ns - self._moved_ns >= STALL_NS else []
