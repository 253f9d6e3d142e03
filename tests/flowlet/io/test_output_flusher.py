"""Promises of the flushers behind the buffer timeout.

Source: Flink `RecordWriterTest` (flusher error, buffer timeouts).
"""

import threading
from collections.abc import Callable

import pytest

from flowlet.io.output_flusher import OutputFlusher, OutputFlushers
from tests.flowlet.task.watchdog import tiny_switch_interval


class ManualTimer:
    """Timers that fire when the test says so."""

    def __init__(self) -> None:
        self.armed: list[tuple[float, Callable[[], None]]] = []
        self.num_cancelled = 0

    def schedule(self, delay_s: float, callback: Callable[[], None]) -> "ManualTimer":
        self.armed.append((delay_s, callback))
        return self

    def cancel(self) -> None:
        self.num_cancelled += 1

    def fire(self) -> None:
        _, callback = self.armed.pop(0)
        callback()


class Target:
    def __init__(self, on_flush: Callable[[], None] = lambda: None) -> None:
        self.num_flushes = 0
        self._on_flush = on_flush

    def flush_all(self) -> None:
        self.num_flushes += 1
        self._on_flush()


class Rig:
    def __init__(self) -> None:
        self.timer = ManualTimer()
        self.targets = [Target(), Target()]
        self.errors: list[Exception] = []
        self.flusher = OutputFlusher(self.targets, 100, self.timer.schedule, self.errors.append)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_first_write_arms_one_timer_for_all(rig: Rig) -> None:
    """The timer fires once the timeout is over and flushes every target; an idle task costs nothing."""
    assert rig.timer.armed == []
    for _ in range(3):
        rig.flusher.arm()

    assert [delay_s for delay_s, _ in rig.timer.armed] == [0.1]
    rig.timer.fire()
    assert [target.num_flushes for target in rig.targets] == [1, 1]
    assert rig.timer.armed == []
    rig.flusher.arm()
    rig.timer.fire()
    assert [target.num_flushes for target in rig.targets] == [2, 2], "a write after the flush arms again"


def test_a_write_during_the_flush_is_flushed_by_the_next(rig: Rig) -> None:
    """The forced interleaving: target 1 gets bytes after it was flushed and before the flush ends."""
    rig.targets.append(Target(on_flush=rig.flusher.arm))
    flusher = rig.flusher = OutputFlusher(
        [rig.targets[0], Target(lambda: flusher.arm())], 100, rig.timer.schedule, rig.errors.append
    )
    flusher.arm()

    rig.timer.fire()

    assert len(rig.timer.armed) == 1


def test_a_failed_flush_is_reported_and_the_next_write_fails(rig: Rig) -> None:
    """The error goes to the task, not to the loop; a writer need not wait for the report of the failure, of which the
    first counts.
    """
    errors = [ValueError("first"), ValueError("second")]
    remaining = iter(errors)

    def fail() -> None:
        raise next(remaining)

    flusher = OutputFlusher([Target(fail)], 100, rig.timer.schedule, rig.errors.append)
    flusher.arm()
    rig.timer.armed.append(rig.timer.armed[0])  # a second timer on its way
    rig.timer.fire()
    rig.timer.fire()

    for _ in range(2):
        with pytest.raises(ValueError, match="first"):
            flusher.arm()
    assert rig.errors == errors
    assert rig.timer.armed == []


class TestSeveralTimeouts:
    def flushers(self, timer: ManualTimer, *timeouts_ms: int) -> tuple[OutputFlushers, list[Target]]:
        targets = [Target() for _ in timeouts_ms]
        return OutputFlushers(zip(targets, timeouts_ms, strict=True), timer.schedule, lambda error: None), targets

    def test_every_output_is_flushed_after_its_own_timeout(self) -> None:
        """Outputs with equal timeouts share a timer."""
        timer = ManualTimer()
        flushers, targets = self.flushers(timer, 100, 10, 100)

        for timeout_ms in (100, 10, 100):
            arm = flushers.arm_of(timeout_ms)
            assert arm is not None
            arm()

        assert [delay_s for delay_s, _ in timer.armed] == [0.1, 0.01]
        timer.fire()
        assert [target.num_flushes for target in targets] == [1, 0, 1]
        timer.fire()
        assert [target.num_flushes for target in targets] == [1, 1, 1]

    @pytest.mark.parametrize("timeout_ms", [0, -1])
    def test_an_output_without_a_timeout_has_no_flusher(self, timeout_ms: int) -> None:
        """The output is flushed by its writer, or not at all."""
        flushers, _ = self.flushers(ManualTimer(), timeout_ms)

        assert flushers.arm_of(timeout_ms) is None
        assert repr(flushers) == "<OutputFlushers []>"

    def test_closing_closes_each(self) -> None:
        timer = ManualTimer()
        flushers, targets = self.flushers(timer, 100, 10)
        arms = [flushers.arm_of(100), flushers.arm_of(10)]
        assert arms[0] is not None
        arms[0]()

        flushers.close()
        timer.fire()

        assert timer.num_cancelled == 1
        assert [target.num_flushes for target in targets] == [0, 0]


class TestTheAlarm:
    def test_goes_off_again_and_again_while_the_task_is_at_work(self) -> None:
        """The task may arm nothing meanwhile, because one call of a function lasts long."""
        timer, is_at_work = ManualTimer(), [True, True, False]
        flushers = OutputFlushers([(Target(), 100)], timer.schedule, lambda error: None, lambda: is_at_work.pop(0), 10)
        flushers.arm_alarm()

        for num_left in (2, 1, 0):
            assert [delay_s for delay_s, _ in timer.armed] == [0.01]
            timer.fire()
            assert len(is_at_work) == num_left
        assert timer.armed == []

    @pytest.mark.parametrize(
        ("act", "num_armed"),
        [(lambda flushers: flushers.arm_alarm(), 1), (OutputFlushers.close, 0)],
        ids=["the task arms it, and it is armed once", "the task ends, and it goes off no more"],
    )
    def test_while_it_goes_off(self, act: Callable[[OutputFlushers], None], num_armed: int) -> None:
        timer = ManualTimer()

        def on_time() -> bool:
            act(flushers)
            return True

        flushers = OutputFlushers([], timer.schedule, lambda error: None, on_time, 10)
        flushers.arm_alarm()
        timer.fire()

        assert len(timer.armed) == num_armed


def test_after_the_end_nothing_is_armed_or_flushed(rig: Rig) -> None:
    """A timer that was on its way flushes nothing, either; where none is armed none is cancelled."""
    unarmed = Rig()
    unarmed.flusher.close()
    assert unarmed.timer.num_cancelled == 0
    rig.flusher.arm()
    rig.flusher.close()
    rig.timer.fire()
    rig.flusher.arm()

    assert rig.timer.num_cancelled == 1
    assert rig.timer.armed == []
    assert rig.targets[0].num_flushes == 0


@pytest.mark.parametrize("timeout_ms", [0, -1])
def test_a_flusher_needs_a_timeout(timeout_ms: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        OutputFlusher([], timeout_ms, ManualTimer().schedule, lambda error: None)


@pytest.mark.slow
def test_no_write_is_forgotten_by_racing_timers() -> None:
    """Writer and timer thread under constant switches: at the end, everything written was flushed."""
    written = flushed = 0
    pending: list[Callable[[], None]] = []
    is_over = threading.Event()

    class Counter:
        def flush_all(self) -> None:
            nonlocal flushed
            flushed = written

    def schedule(delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        pending.append(callback)
        return ManualTimer()

    flusher = OutputFlusher([Counter()], 1, schedule, lambda error: None)

    def fire() -> None:
        while not is_over.is_set() or pending:
            if pending:
                pending.pop()()

    thread = threading.Thread(target=fire)
    with tiny_switch_interval():
        thread.start()
        try:
            for _ in range(20_000):
                written += 1
                flusher.arm()
        finally:
            is_over.set()
            thread.join()

    assert flushed == written == 20_000
