"""Source: Flink `MailboxMetricsController`, `TaskMailboxProcessorTest` (latency)."""

from collections.abc import Callable, Iterator

import pytest

from flowlet.mailbox.mailbox_processor import (
    LatencyHistogram,
    LatencyProbe,
    MailboxController,
    MailboxProcessor,
    histogram_of,
)
from flowlet.mailbox.task_mailbox import TaskMailbox
from flowlet.mailbox.task_timings import TaskTimings, WaitKind
from netstack.testing.embedded_event_loop import ManualClock

MS = 1_000_000


class Timer:
    def __init__(self, delay_s: float, call: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.call = call
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Probed:
    """A task of mails only, with a probe on a manual clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.timers: list[Timer] = []
        self.mailbox = TaskMailbox()
        self.mailbox.bind_to_current_thread()
        self.processor = MailboxProcessor(_suspend, self.mailbox, TaskTimings(self.clock.now_ns))
        self.probe = LatencyProbe(
            self.mailbox, lambda: self.processor.num_mails_processed, self._schedule, self.clock.now_ns
        )
        self.processor.measure_latency(self.probe)

    def _schedule(self, delay_s: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(delay_s, call))
        return self.timers[-1]

    def mail(self) -> None:
        self.processor.executor().execute(lambda: None, "a mail")

    def run(self) -> None:
        while self.processor.run_mailbox_step():
            pass


def _suspend(controller: MailboxController) -> None:
    controller.suspend_default_action(WaitKind.IDLE, "mails")


@pytest.fixture
def probed() -> Iterator[Probed]:
    made = Probed()
    yield made
    made.mailbox.check_invariants()


def test_measuring_begins_with_the_first_ordinary_mail(probed: Probed) -> None:
    """A control mail (resume, end) does not start it: such mails come to every task."""
    probed.processor.send_control_mail(lambda: None, "control")
    probed.run()
    assert probed.probe.metrics().latency.count == 0
    assert probed.timers == []

    probed.mail()
    probed.run()

    assert probed.probe.metrics().latency.count == 1
    assert [timer.delay_s for timer in probed.timers] == [1.0]


def test_the_latency_is_from_the_put_to_the_run(probed: Probed) -> None:
    probed.mail()
    probed.run()
    probed.timers[-1].call()
    probed.clock.advance(7 * MS)
    probed.run()

    latency = probed.probe.metrics().latency

    assert (latency.count, latency.min_ms, latency.max_ms, latency.mean_ms) == (2, 0.0, 7.0, 3.5)


def test_a_stuck_task_gathers_no_measuring_mails(probed: Probed) -> None:
    """The next timer is set only when the last mail has run."""
    probed.mail()
    probed.run()
    probed.timers[-1].call()

    assert len(probed.timers) == 1
    assert probed.probe.metrics().queue_size == 1


def test_the_last_sixty_measurements_count(probed: Probed) -> None:
    probed.mail()
    probed.run()
    for latency_ms in range(1, 101):
        probed.timers[-1].call()
        probed.clock.advance(latency_ms * MS)
        probed.run()

    latency = probed.probe.metrics().latency

    assert (latency.count, latency.min_ms, latency.max_ms, latency.p50_ms) == (60, 41.0, 100.0, 70.0)


def test_mails_per_second_look_back_one_minute(probed: Probed) -> None:
    """Ten mails in each of 100 seconds, and the measuring one: 11 per second; after a minute of silence, none."""
    probed.mail()
    probed.run()
    for _ in range(100):
        for _ in range(10):
            probed.mail()
        probed.clock.advance(1_000 * MS)
        probed.timers[-1].call()
        probed.run()

    assert probed.probe.metrics().mails_per_second == pytest.approx(11.0)
    assert len(probed.probe._samples) <= 61
    probed.clock.advance(120_000 * MS)
    assert probed.probe.metrics().mails_per_second == 0.0


def test_before_any_time_has_passed_there_is_no_rate(probed: Probed) -> None:
    assert probed.probe.metrics().mails_per_second == 0.0


def test_closing_the_loop_ends_the_measuring(probed: Probed) -> None:
    """The timer is cancelled; one that fires all the same does nothing."""
    probed.mail()
    probed.run()

    probed.processor.close()

    assert probed.timers[-1].is_cancelled
    probed.timers[-1].call()
    assert len(probed.timers) == 1
    assert "closed" in repr(probed.probe)


def test_a_measuring_mail_that_runs_after_the_end_sets_no_timer(probed: Probed) -> None:
    probed.probe.start()
    probed.probe.close()

    probed.run()

    assert probed.timers == []


def test_a_probe_that_was_never_started_can_be_closed(probed: Probed) -> None:
    probed.processor.close()

    assert probed.timers == []


def test_an_interval_has_to_be_positive(probed: Probed) -> None:
    with pytest.raises(ValueError, match="above 0 ms"):
        LatencyProbe(probed.mailbox, lambda: 0, probed._schedule, probed.clock.now_ns, interval_ms=0)


def test_percentiles_are_values_that_were_measured() -> None:
    """Of 1 to 100 ms the 95th percentile is 95 ms; of one value every percentile is that one."""
    assert histogram_of(()) == LatencyHistogram(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert histogram_of((4 * MS,)) == LatencyHistogram(1, 4.0, 4.0, 4.0, 4.0, 4.0, 4.0)
    assert histogram_of((3 * MS, 1 * MS, 2 * MS)) == LatencyHistogram(3, 1.0, 3.0, 2.0, 2.0, 3.0, 3.0)
    hundred = histogram_of(tuple(number * MS for number in range(100, 0, -1)))
    assert (hundred.p50_ms, hundred.p95_ms, hundred.p99_ms) == (50.0, 95.0, 99.0)
