"""Promises of ``WatermarkAnnouncer``, by a clock that the test moves.

Source: Flink ``SourceCoordinatorAlignmentTest``, ``WatermarkAggregatorTest``.
"""

from collections.abc import Callable

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.jm.source_coordinator import WatermarkAnnouncer
from flowlet.messages.control_messages import AllowSourceWatermark, JobGraphMessage
from flowlet.messages.execution_state import Subtask
from flowlet.operators.event_time_stream import WatermarkEmitter
from flowlet.operators.source_event_time import SourceAlignment
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from tests.flowlet.jm.scripted_task_manager import SINK_ID, SOURCE_ID, word_count
from tests.flowlet.operators.harness import RecordingOutput

DRIFT = 1000


class Call:
    def __init__(self, delay_s: float, callback: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.callback = callback
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


def aligned_job(*sources: tuple[str, str, int, int]) -> JobGraphMessage:
    """Return a job whose sources have these ids, groups, drifts and intervals, and a sink without a group."""
    source, sink = word_count(sources=2).vertices
    vertices = [
        msgspec.structs.replace(
            source, id=vertex_id, watermark_alignment=WatermarkAlignment(group, drift_ms, interval_ms)
        )
        for vertex_id, group, drift_ms, interval_ms in sources
    ]
    return msgspec.structs.replace(word_count(sources=2), vertices=[*vertices, sink])


class Announced:
    """An announcer, its timers, and the watermarks that it has sent."""

    def __init__(self, *sources: tuple[str, str, int, int]) -> None:
        self.calls: list[Call] = []
        self.allowed: dict[tuple[str, int], int] = {}
        job = aligned_job(*(sources or ((SOURCE_ID, "g", DRIFT, 250),)))
        self.announcer = WatermarkAnnouncer(job, self._send, self._call_later)

    def _send(self, subtask: Subtask, message_for: Callable[[bytes], AllowSourceWatermark]) -> None:
        self.allowed[subtask] = message_for(b"attempt").max_allowed

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> Call:
        self.calls.append(Call(delay_s, callback))
        return self.calls[-1]

    def report(self, subtask: int, timestamp: int, source: str = SOURCE_ID) -> bool:
        return self.announcer.report(Subtask(source, subtask), timestamp)

    def forget(self, subtask: int) -> None:
        self.announcer.forget(Subtask(SOURCE_ID, subtask))

    def fire(self) -> dict[tuple[str, int], int]:
        """Return the watermarks that are sent when the timers of all groups are due."""
        if not self.calls:
            self.announcer.start()
        self.allowed.clear()
        due, self.calls = self.calls, []
        for call in due:
            call.callback()
        return dict(self.allowed)


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
    """No reader is told before the first report; readers that have ended are neither told nor waited for."""
    announced = Announced((SOURCE_ID, "g", 100, 250))
    announced.announcer.start()

    assert [call.delay_s for call in announced.calls] == [0.25]
    assert announced.fire() == {}
    assert announced.report(0, 1_000)
    assert announced.report(1, 30)
    assert announced.fire() == {(SOURCE_ID, 0): 130, (SOURCE_ID, 1): 130}
    announced.forget(1)
    assert announced.fire() == {(SOURCE_ID, 0): 1_100}
    assert announced.report(0, MAX_TIMESTAMP)
    assert announced.fire() == {(SOURCE_ID, 0): MAX_TIMESTAMP}
    assert repr(announced.announcer) == f"<WatermarkAnnouncer of g at {MAX_TIMESTAMP}, 1 timers>"


def test_the_slowest_subtask_decides() -> None:
    announced = Announced()

    announced.report(0, 42)
    announced.report(1, 44)
    assert announced.fire() == {(SOURCE_ID, 0): 1042, (SOURCE_ID, 1): 1042}
    announced.report(0, 5000)
    assert announced.fire() == {(SOURCE_ID, 0): 1044, (SOURCE_ID, 1): 1044}


def test_an_idle_subtask_holds_nobody_back() -> None:
    announced = Announced()

    announced.report(0, MAX_TIMESTAMP)
    announced.report(1, 44)
    assert announced.fire() == {(SOURCE_ID, 0): 1044, (SOURCE_ID, 1): 1044}
    announced.report(0, 42)
    assert announced.fire()[SOURCE_ID, 1] == 1042


def test_groups_do_not_know_each_other() -> None:
    announced = Announced(("s", "g", DRIFT, 100), ("t", "h", DRIFT, 100))

    announced.report(0, 42, "s")
    announced.report(0, 5000, "t")

    assert announced.fire() == {("s", 0): 1042, ("t", 0): 6000}


def test_sources_of_one_group_wait_for_each_other_each_with_its_own_drift() -> None:
    announced = Announced(("s", "g", DRIFT, 100), ("t", "g", 10, 100))

    announced.report(0, 42, "s")
    announced.report(0, 50, "t")

    assert announced.fire() == {("s", 0): 1042, ("t", 0): 52}


def test_the_limit_does_not_wrap_around() -> None:
    announced = Announced()

    announced.report(0, MAX_TIMESTAMP - 1)
    assert announced.fire() == {(SOURCE_ID, 0): MAX_TIMESTAMP}
    announced.report(0, MIN_TIMESTAMP)
    assert announced.fire() == {(SOURCE_ID, 0): MIN_TIMESTAMP + DRIFT}


def test_a_subtask_that_failed_counts_again_once_it_reports() -> None:
    announced = Announced()
    announced.report(0, 42)
    announced.report(1, 100)

    announced.forget(0)
    announced.forget(0)
    assert announced.fire() == {(SOURCE_ID, 1): 1100}
    announced.report(0, 7)

    assert announced.fire()[SOURCE_ID, 1] == 1007


def test_a_group_is_announced_as_often_as_its_most_impatient_source_asks() -> None:
    announced = Announced(("s", "g", 1, 500), ("t", "g", 1, 200), ("u", "h", 1, 300))

    announced.announcer.start()

    assert [call.delay_s for call in announced.calls] == [0.2, 0.3]


def test_vertices_without_a_group_are_not_heard() -> None:
    announced = Announced()

    assert not announced.report(0, 1_000, SINK_ID)
    announced.announcer.forget(Subtask(SINK_ID, 0))


def test_after_the_end_nothing_is_announced() -> None:
    announced = Announced()
    announced.announcer.start()

    announced.announcer.close()
    announced.announcer.close()

    assert [call.is_cancelled for call in announced.calls] == [True]


@given(speeds=st.lists(st.integers(1, 500), min_size=2, max_size=4), drift=st.integers(0, 400))
def test_sources_of_different_speed_stay_together_and_none_starves(speeds: list[int], drift: int) -> None:
    """Every source goes on for ever; none is further ahead of the slowest than drift, samples and one step allow."""
    announced = Announced((SOURCE_ID, "g", drift, 100))
    emitters = [WatermarkEmitter(RecordingOutput()) for _ in speeds]
    sources = [SourceAlignment(emitter, num_samples=1) for emitter in emitters]
    watermarks = [0] * len(speeds)

    for _ in range(100):
        for subtask, (source, speed) in enumerate(zip(sources, speeds, strict=True)):
            if not source.must_wait:
                watermarks[subtask] += speed
                emitters[subtask].emit_watermark(watermarks[subtask])
            announced.report(subtask, source.sample())
        for (_, subtask), timestamp in announced.fire().items():
            sources[subtask].allow(timestamp)
        assert max(watermarks) - min(watermarks) <= drift + 2 * max(speeds)

    # In every round at least the slowest of the (at most four) sources runs.
    assert min(watermarks) >= min(speeds) * 20
