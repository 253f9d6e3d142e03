"""Source: Flink ``SourceCoordinatorAlignmentTest``: the timers, by a clock that the test moves."""

from collections.abc import Callable

import msgspec

from flowlet.jm.alignment.watermark_alignment import SourceSubtask, WatermarkAnnouncer
from flowlet.messages.control_messages import JobGraphMessage, WatermarkAlignmentMessage
from flowlet.records import MAX_TIMESTAMP
from tests.flowlet.jm.scripted_task_manager import SINK_ID, SOURCE_ID, word_count


class Call:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def aligned_job() -> JobGraphMessage:
    """Its source is in a group."""
    source, sink = word_count(sources=2).vertices
    return msgspec.structs.replace(
        word_count(sources=2),
        vertices=[msgspec.structs.replace(source, watermark_alignment=WatermarkAlignmentMessage("g", 100, 250)), sink],
    )


class Announced:
    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.allowed: list[tuple[int, int]] = []
        self.announcer = WatermarkAnnouncer(aligned_job(), self._allow, self._call_later)

    def _allow(self, subtask: SourceSubtask, timestamp: int) -> None:
        self.allowed.append((subtask.subtask, timestamp))

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> Call:
        self.calls.append(Call(delay_s, callback))
        return self.calls[-1]

    def fire(self) -> list[tuple[int, int]]:
        self.allowed.clear()
        self.calls[-1].callback()
        return list(self.allowed)


def test_a_second_start_makes_no_second_timer_but_one_after_the_end_does() -> None:
    """Tasks may be deployed while others run."""
    announced = Announced()

    announced.announcer.start()
    announced.announcer.start()
    before = len(announced.calls)
    announced.announcer.close()
    announced.announcer.start()

    assert (before, len(announced.calls)) == (1, 2)


def test_each_interval_the_group_is_told_how_far_it_may_be() -> None:
    """Nobody before the first report; those that have ended are neither told nor waited for."""
    announced = Announced()
    announced.announcer.start()

    assert [call.delay_s for call in announced.calls] == [0.25]
    assert announced.fire() == []
    assert announced.announcer.report(SourceSubtask(SOURCE_ID, 0), 1_000)
    assert announced.announcer.report(SourceSubtask(SOURCE_ID, 1), 30)
    assert announced.fire() == [(0, 130), (1, 130)]
    announced.announcer.forget(SourceSubtask(SOURCE_ID, 1))
    assert announced.fire() == [(0, 1_100)]
    assert announced.announcer.report(SourceSubtask(SOURCE_ID, 0), MAX_TIMESTAMP)
    assert announced.fire() == [(0, MAX_TIMESTAMP)]


def test_vertices_without_a_group_are_not_heard() -> None:
    announced = Announced()

    assert not announced.announcer.report(SourceSubtask(SINK_ID, 0), 1_000)
    announced.announcer.forget(SourceSubtask(SINK_ID, 0))


def test_after_the_end_nothing_is_announced() -> None:
    announced = Announced()
    announced.announcer.start()
    announced.fire()

    announced.announcer.close()
    announced.announcer.close()

    assert [call.is_cancelled for call in announced.calls] == [False, True]
