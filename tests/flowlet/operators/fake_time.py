"""Clock and timers for operators that no task runs."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from flowlet.records import MIN_TIMESTAMP, Watermark, WatermarkStatus
from flowlet.timers.keyed_timer_service import KeyContext, Timer, Triggerable, WatermarkOutput


class FakeHandle:
    def cancel(self) -> None:
        raise AssertionError("nobody cancels here")


class FakeClock:
    """A clock with the time of the test; keeps the calls to come."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.registered: list[tuple[int, Callable[[int], None]]] = []

    def current_time_ms(self) -> int:
        return self.now_ms

    def relative_time_ns(self) -> int:
        return self.now_ms * 1_000_000

    def register_timer(self, timestamp_ms: int, callback: Callable[[int], None]) -> FakeHandle:
        self.registered.append((timestamp_ms, callback))
        return FakeHandle()

    def schedule_with_fixed_delay(
        self, callback: Callable[[int], None], *, initial_delay_ms: int, period_ms: int
    ) -> FakeHandle:
        return self.register_timer(self.now_ms + initial_delay_ms, callback)


class FakeTimers:
    """One timer service for all names, on sorted lists."""

    def __init__(self, clock: FakeClock, key_context: KeyContext) -> None:
        self.clock = clock
        self.key_context = key_context
        self.event: set[Timer] = set()
        self.processing: set[Timer] = set()
        self.watermark = MIN_TIMESTAMP
        self.triggerable: Triggerable | None = None

    def timer_service(self, name: str, triggerable: Triggerable, *, is_batch: bool = False) -> "FakeTimers":
        self.triggerable = triggerable
        return self

    is_used = True

    def end_keys(self) -> None:
        return

    def advance_watermark(self, timestamp: int) -> None:
        self.watermark = timestamp
        self._fire(self.event, timestamp, lambda found, timer: found.on_event_time(timer))

    def snapshot(self) -> Mapping[int, Mapping[str, object]]:
        return {}

    def restore(self, groups: Mapping[int, Mapping[str, object]]) -> None:
        assert not groups, "these timers do not survive a restart"

    def pass_watermark(self, watermark: Watermark, output: WatermarkOutput) -> None:
        self.advance_watermark(watermark.timestamp)
        output.emit_control(watermark)

    @property
    def is_interrupted(self) -> bool:
        return False

    def leave_rest(self) -> None:
        pass

    def pass_status(self, status: WatermarkStatus, output: WatermarkOutput) -> None:
        output.emit_control(status)

    def advance_clock(self, timestamp: int) -> None:
        self.clock.now_ms = timestamp
        self._fire(self.processing, timestamp, lambda found, timer: found.on_processing_time(timer))

    def _fire(self, timers: set[Timer], timestamp: int, fire: Callable[[Triggerable, Timer], None]) -> None:
        for timer in sorted(
            (timer for timer in timers if timer.timestamp <= timestamp), key=attrgetter("timestamp", "key", "namespace")
        ):
            timers.remove(timer)
            self.key_context.current_key = timer.key
            assert self.triggerable is not None
            fire(self.triggerable, timer)

    def current_processing_time(self) -> int:
        return self.clock.now_ms

    def current_watermark(self) -> int:
        return self.watermark

    def _timer(self, namespace: Any, timestamp: int) -> Timer:
        return Timer(timestamp, self.key_context.current_key, namespace)

    def register_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        self.event.add(self._timer(namespace, timestamp))

    def register_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        self.processing.add(self._timer(namespace, timestamp))

    def delete_event_time_timer(self, namespace: Any, timestamp: int) -> None:
        self.event.discard(self._timer(namespace, timestamp))

    def delete_processing_time_timer(self, namespace: Any, timestamp: int) -> None:
        self.processing.discard(self._timer(namespace, timestamp))
