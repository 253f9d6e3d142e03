"""The results of mails when the data ends.

Source: Flink ``StreamTaskTest`` and ``StreamOperatorWrapperTest`` (timers quiesced before an operator finishes, with
        and without draining).
"""

import threading
from collections.abc import Callable

import pytest

from flowlet.mailbox.mailbox_processor import MailboxExecutor
from flowlet.timers.system_processing_time_service import ScheduledCallback, ServiceState, SystemProcessingTimeService
from netstack.wire.events import StopMode
from tests.flowlet.task.local_network import LocalNetwork, Recorder, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, is_parked, source, step_until_idle
from tests.waiting import PATIENCE_S, spin_until


class LateExecutor(MailboxExecutor):
    """Puts its mail when ``is_time`` says so; the caller has decided to put it long before."""

    def __init__(self, executor: MailboxExecutor, is_time: Callable[[], bool]) -> None:
        self._executor = executor
        self._is_time = is_time
        self.called = threading.Event()

    def execute(self, *args: object, **options: object) -> None:
        self.called.set()
        spin_until(self._is_time)
        self._executor.execute(*args, **options)  # type: ignore[arg-type]  # passed on as it came


class FiringTimer(Recorder):
    """Has a timer whose wait is over on another thread, and whose mail comes as late as it can."""

    def __init__(self, is_parked: Callable[[], bool]) -> None:
        super().__init__()
        self._is_parked = is_parked
        self.thread: Thread | None = None

    def open(self) -> None:
        super().open()
        clock = self.ctx.processing_time_service
        assert isinstance(clock, SystemProcessingTimeService)
        late = clock.executor = LateExecutor(clock.executor, lambda: self._is_too_late(clock))
        timer = ScheduledCallback(clock, lambda timestamp: self._note("timer"), 0, None)
        self.thread = Thread(lambda: clock.put_mail(timer))
        assert late.called.wait(PATIENCE_S)

    def _is_too_late(self, clock: SystemProcessingTimeService) -> bool:
        return clock.state is not ServiceState.ALIVE and (
            "finish" in self.calls or "close" in self.calls or self._is_parked()
        )


@pytest.mark.parametrize("mode", StopMode)
def test_a_timer_that_is_about_to_put_its_mail_runs_before_the_end(
    network: LocalNetwork, tasks: Tasks, mode: StopMode
) -> None:
    operator = FiringTimer(lambda: is_parked(task))
    task = tasks.source(source(["a"]), operator)
    if mode is StopMode.NO_DRAIN:
        task.stop()

    Thread(task.invoke).result()

    assert operator.thread is not None
    operator.thread.result()
    end = ["watermark", "timer", "finish", "close"] if mode is StopMode.DRAIN else ["timer", "close"]
    assert operator.calls[-len(end) :] == end


def test_no_timer_fires_after_an_end_without_draining(network: LocalNetwork, tasks: Tasks) -> None:
    recorder, partition = Recorder(), network.partition()
    task = tasks.source(source(["a"], ["b"]), recorder, outputs=[edge(partition, source=1)])
    tasks.restored(task)
    clock = recorder.ctx.processing_time_service
    assert isinstance(clock, SystemProcessingTimeService)
    clock.schedule_with_fixed_delay(lambda timestamp: recorder._note("timer"), initial_delay_ms=1, period_ms=1)

    task.stop()
    step_until_idle(task)

    assert clock.state is ServiceState.QUIESCED
    assert clock.num_timers == 0
