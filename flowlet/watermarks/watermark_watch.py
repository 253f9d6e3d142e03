"""Says which inputs hold a watermark back that has not moved for long: as a rule an empty partition without ``with_idleness``.

Side:       shared.  The task thread moves the valve; ``held_back_by`` is asked on any one thread, again and again.
Units:      nanoseconds of a clock that is never set.
Source:     ours; in Flink people compare the watermarks of all channels by hand.
"""

from collections.abc import Callable
from typing import Final

from flowlet.watermarks.status_watermark_valve import StatusWatermarkValve

STALL_NS: Final = 60_000_000_000  # not measured


class WatermarkWatch:
    """Looks at one valve.

    Args:
        valve: may be a watermark ahead of what is seen here.
        clock_ns: never set.
    """

    def __init__(self, valve: StatusWatermarkValve, clock_ns: Callable[[], int]) -> None:
        self._valve = valve
        self._clock_ns = clock_ns
        self._watermark = valve.last_output  # at the last look, as what follows
        self._moved_ns = clock_ns()

    def __repr__(self) -> str:
        return f"<WatermarkWatch of {self._valve!r}>"

    def held_back_by(self) -> list[int]:
        """The channels that held it back for the last minute while others were ahead of them; the minute begins at a look."""
        now_ns, watermark = self._clock_ns(), self._valve.last_output
        if watermark != self._watermark or not self._valve.is_held_back:
            self._watermark, self._moved_ns = watermark, now_ns
        return self._valve.held_back_by() if now_ns - self._moved_ns >= STALL_NS else []
