"""The splits and watermarks that readers are told, and when; calls in the background end when the test says so.

Source: Flink ``SourceCoordinatorAlignmentTest``, ``WatermarkAggregatorTest``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.errors import FlowletError
from flowlet.jm.source_coordinator import MessageFor, SourceCoordinator, WatermarkAnnouncer
from flowlet.messages.control_messages import AllowSourceWatermark, NoMoreSplits
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.operators.event_time_stream import WatermarkEmitter
from flowlet.operators.source_event_time import SourceAlignment
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.enumerators import enumerator_for
from flowlet.splits.split_kinds import FileSet, FileSplit, HybridSplits, NumberRange
from tests.flowlet.jm.scripted_task_manager import SINK_ID, SOURCE_ID, word_count
from tests.flowlet.operators.harness import RecordingOutput
from tests.flowlet.rpc.manual_timers import ManualTimer


class Enumerator(SplitEnumerator):
    """Gives single splits of one byte."""

    def __init__(self, num_splits: int) -> None:
        self._waiting = [FileSplit(str(number), 0, 1) for number in range(num_splits)]
        self.num_readers = 0

    def discover(self, num_readers: int) -> None:
        if not self._waiting:
            raise FlowletError("cannot read a.txt")
        self.num_readers = num_readers

    def snapshot(self) -> bytes:
        return len(self._waiting).to_bytes(1, "big")

    def restore(self, state: bytes, num_readers: int) -> None:
        self.num_readers = -num_readers
        self._waiting = self._waiting[len(self._waiting) - state[0] :]

    def left(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def take_left(self, *left: Any) -> None:
        raise NotImplementedError

    discovery_interval_ms: int | None = None
    to_find: Any = ()

    def find_new(self) -> Sequence[Any]:
        if isinstance(self.to_find, Exception):
            raise self.to_find
        return list(self.to_find)

    def add_found(self, found: Sequence[Any]) -> None:
        self._waiting += found

    def next_splits(self, reader: int) -> list[FileSplit]:
        return [self._waiting.pop(0)] if self._waiting else []

    @property
    def waiting_bytes(self) -> int:
        return len(self._waiting)


class Coordinated:
    """A coordinator, and its messages."""

    def __init__(
        self, num_splits: int, restored: bytes | None = None, enumerator: SplitEnumerator | None = None
    ) -> None:
        self.said: list[tuple[int, str | None, int]] = []
        self.errors: list[Exception] = []
        self.finish: Callable[[], None] = lambda: None
        self.enumerator = Enumerator(num_splits)
        self.later: list[ManualTimer] = []
        self.coordinator = SourceCoordinator(
            "vertex",
            "source",
            self.enumerator if enumerator is None else enumerator,
            2,
            send=self._send,
            fail=lambda error, _: self.errors.append(error),
            call_in_background=self._call,
            call_later=self._call_later,
            restored=restored,
        )
        self.coordinator.start()

    def _send(self, reader: Subtask, message_for: MessageFor) -> None:
        subtask = reader.subtask
        message = message_for(b"attempt")
        if isinstance(message, NoMoreSplits):
            self.said.append((subtask, None, 0))
            return
        (split,) = message.splits
        name = split.path if isinstance(split, FileSplit) else split.split_id
        self.said.append((subtask, name, message.waiting_bytes))

    def _call_later(self, seconds: float, function: Callable[[], None]) -> ManualTimer:
        self.later.append(ManualTimer(seconds, function))
        return self.later[-1]

    def _call(
        self,
        function: Callable[[], Any],
        on_result: Callable[[Any], None],
        on_error: Callable[[Exception], None],
        name: str,
    ) -> None:
        def finish() -> None:
            try:
                result = function()
            except FlowletError as error:
                on_error(error)
            else:
                on_result(result)

        assert name == "splits of source"
        self.finish = finish

    def ask(self, *subtasks: int) -> None:
        for subtask in subtasks:
            self.coordinator.splits_requested(subtask)


def test_readers_that_ask_early_wait_for_the_splits_and_get_them_in_turn() -> None:
    coordinated = Coordinated(3)
    coordinated.ask(1, 0)
    assert "2 readers wait" in repr(coordinated.coordinator)
    assert coordinated.said == []

    coordinated.finish()
    coordinated.ask(1, 0, 1)

    assert coordinated.said == [(1, "0", 2), (0, "1", 1), (1, "2", 0), (0, None, 0), (1, None, 0)]
    assert coordinated.enumerator.num_readers == 2


@pytest.mark.parametrize(
    ("num_splits", "state", "message"),
    [
        pytest.param(0, None, "cannot read a.txt", id="no splits are found"),
        pytest.param(3, b"\xc1", "the state of source 'source' in a checkpoint cannot be read", id="no state"),
        pytest.param(
            3,
            msgspec.msgpack.encode((2, None)),
            "the state of source 'source' has version 2, this flowlet reads 1",
            id="a newer state",
        ),
    ],
)
def test_a_start_that_fails_fails_the_job_once(num_splits: int, state: bytes | None, message: str) -> None:
    coordinated = Coordinated(num_splits, state)
    coordinated.ask(0)

    coordinated.finish()
    coordinated.ask(0)

    # Behind the colon are the words of the decoder.
    assert [str(error).partition(": MessagePack")[0] for error in coordinated.errors] == [message]
    assert coordinated.said == []


def test_after_its_end_nobody_is_told_anything() -> None:
    """Neither results of the search nor questions are answered."""
    for num_splits in (0, 2):
        coordinated = Coordinated(num_splits)
        coordinated.ask(0)

        coordinated.coordinator.close()
        coordinated.finish()
        coordinated.ask(1)

        assert (coordinated.said, coordinated.errors) == ([], [])
        assert "closed" in repr(coordinated.coordinator)


def test_a_restored_coordinator_hands_out_what_was_not_assigned() -> None:
    """The restored coordinator does not discover its splits again."""
    before = Coordinated(3)
    before.finish()
    before.ask(1)
    coordinated = Coordinated(3, before.coordinator.snapshot())

    coordinated.ask(0)
    coordinated.finish()
    coordinated.ask(1, 1)

    assert coordinated.said == [(0, "1", 1), (1, "2", 0), (1, None, 0)]
    assert coordinated.enumerator.num_readers == -2


def test_until_it_is_ready_a_coordinator_is_where_it_began() -> None:
    """A checkpoint may be complete before the splits are discovered, or taken from the checkpoint before."""
    discovering, before = Coordinated(3), Coordinated(3)
    before.finish()
    before.ask(0)
    restoring = Coordinated(3, before.coordinator.snapshot())

    from_the_start, later = (
        Coordinated(3, discovering.coordinator.snapshot()),
        Coordinated(3, restoring.coordinator.snapshot()),
    )
    for coordinated in (from_the_start, later):
        coordinated.finish()
        coordinated.ask(0)

    assert (from_the_start.said, later.said) == ([(0, "0", 2)], [(0, "1", 1)])


def discovering(num_splits: int) -> Coordinated:
    """New splits are looked for every two seconds; the search at the start is over."""
    coordinated = Coordinated(num_splits)
    coordinated.enumerator.discovery_interval_ms = 2_000
    coordinated.finish()
    return coordinated


def test_a_reader_without_a_split_waits_until_one_appears() -> None:
    coordinated = discovering(1)
    coordinated.ask(0, 0, 1)
    assert coordinated.said == [(0, "0", 0)]
    (timer,) = coordinated.later
    assert timer.when() == 2

    timer.callback()
    coordinated.enumerator.to_find = [FileSplit("new", 0, 1)]
    coordinated.finish()

    assert coordinated.said == [(0, "0", 0), (0, "new", 0)]
    assert len(coordinated.later) == 2
    assert coordinated.errors == []


def test_a_search_that_fails_is_tried_again_and_no_failure_of_the_job() -> None:
    coordinated = discovering(1)
    coordinated.ask(1, 1)

    coordinated.later.pop().callback()
    coordinated.enumerator.to_find = FlowletError("no broker")
    coordinated.finish()
    coordinated.later.pop().callback()
    coordinated.enumerator.to_find = [FileSplit("new", 0, 1)]
    coordinated.finish()

    assert coordinated.said == [(1, "0", 0), (1, "new", 0)]
    assert coordinated.errors == []


def test_a_closed_coordinator_looks_for_nothing() -> None:
    coordinated = discovering(1)
    search = coordinated.later.pop().callback
    search()
    coordinated.coordinator.close()

    coordinated.enumerator.to_find = [FileSplit("new", 0, 1)]
    coordinated.finish()
    search()

    assert (coordinated.said, coordinated.later) == ([], [])


def two_sources(restored: bytes | None = None) -> Coordinated:
    """Three numbers, then two."""
    enumerator = enumerator_for(HybridSplits((NumberRange(0, 3), NumberRange(3, 5))))
    return Coordinated(0, restored, enumerator)


def test_the_next_source_is_discovered_on_the_same_thread_once_all_readers_have_come_to_it() -> None:
    """A reader that asks earlier gets no answer until then."""
    coordinated = two_sources()
    coordinated.finish()
    coordinated.ask(0, 0, 0, 0, 1, 0)
    told = [(0, "0: up to 1", 2), (0, "0: up to 2", 1), (0, "0: up to 3", 0), (0, "0: end", 0), (1, "0: end", 0)]
    assert coordinated.said == told

    coordinated.ask(1)

    assert coordinated.said == told
    coordinated.finish()
    assert coordinated.said[5:] == [(0, "1: up to 4", 1), (1, "1: up to 5", 0)]
    coordinated.ask(1, 0)
    assert coordinated.said[7:] == [(1, None, 0), (0, None, 0)]


def test_while_the_next_source_is_discovered_the_state_is_its_beginning() -> None:
    coordinated = two_sources()
    coordinated.finish()
    coordinated.ask(0, 0, 0, 0, 1, 0, 1)
    state = coordinated.coordinator.snapshot()

    restored = two_sources(state)
    restored.ask(1)
    restored.finish()

    assert restored.said == [(1, "1: up to 4", 1)]
    coordinated.finish()
    assert coordinated.coordinator.snapshot() != state


def test_a_next_source_that_cannot_be_discovered_fails_the_job() -> None:
    enumerator = enumerator_for(HybridSplits((NumberRange(0, 0), FileSet(("/nowhere/to/be/found",)))))
    coordinated = Coordinated(0, enumerator=enumerator)
    coordinated.finish()
    coordinated.ask(0, 0, 1, 1)
    assert coordinated.errors == []

    coordinated.finish()

    assert [str(error) for error in coordinated.errors] == [
        "cannot read /nowhere/to/be/found: No such file or directory"
    ]


def test_a_closed_one_leaves_no_timer_behind() -> None:
    """A timer would keep the coordinator of a run that is over, with all its splits, until the next search was due."""
    coordinated = Coordinated(1)
    coordinated.enumerator.discovery_interval_ms = 3_600_000
    coordinated.finish()
    assert [timer.is_cancelled for timer in coordinated.later] == [False]

    coordinated.coordinator.close()
    coordinated.coordinator.close()

    assert [timer.is_cancelled for timer in coordinated.later] == [True]


DRIFT = 1000


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
        self.calls: list[ManualTimer] = []
        self.allowed: dict[tuple[str, int], int] = {}
        job = aligned_job(*(sources or ((SOURCE_ID, "g", DRIFT, 250),)))
        self.announcer = WatermarkAnnouncer(job, self._send, self._call_later)

    def _send(self, subtask: Subtask, message_for: Callable[[bytes], AllowSourceWatermark]) -> None:
        self.allowed[subtask] = message_for(b"attempt").max_allowed

    def _call_later(self, delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        self.calls.append(ManualTimer(delay_s, callback))
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
    """Tasks may be deployed while others run; after the end nothing is announced."""
    announced = Announced()

    announced.announcer.start()
    announced.announcer.start()
    assert [call.is_cancelled for call in announced.calls] == [False]
    announced.announcer.close()
    announced.announcer.close()
    assert [call.is_cancelled for call in announced.calls] == [True]
    announced.announcer.start()

    assert [call.is_cancelled for call in announced.calls] == [True, False]


def test_each_interval_the_group_is_told_how_far_it_may_be() -> None:
    """No reader is told before the first report; readers that have ended are neither told nor waited for."""
    announced = Announced((SOURCE_ID, "g", 100, 250))
    announced.announcer.start()

    assert [call.when() for call in announced.calls] == [0.25]
    assert announced.fire() == {}
    assert announced.report(0, 1_000)
    assert announced.report(1, 30)
    assert announced.fire() == {(SOURCE_ID, 0): 130, (SOURCE_ID, 1): 130}
    announced.forget(1)
    assert announced.fire() == {(SOURCE_ID, 0): 1_100}
    assert announced.report(0, MAX_TIMESTAMP)
    assert announced.fire() == {(SOURCE_ID, 0): MAX_TIMESTAMP}
    assert repr(announced.announcer) == f"<WatermarkAnnouncer of g at {MAX_TIMESTAMP}, 1 timers>"


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([({0: 42, 1: 44}, 1042), ({0: 5000}, 1044)], id="the slowest subtask decides"),
        pytest.param([({0: MAX_TIMESTAMP, 1: 44}, 1044), ({0: 42}, 1042)], id="an idle subtask holds nobody back"),
        pytest.param(
            [({0: MAX_TIMESTAMP - 1}, MAX_TIMESTAMP), ({0: MIN_TIMESTAMP}, MIN_TIMESTAMP + DRIFT)],
            id="the limit does not wrap around",
        ),
    ],
)
def test_all_subtasks_may_be_as_far_as_the_slowest_and_the_drift(steps: list[tuple[dict[int, int], int]]) -> None:
    """Each step has the reports of subtasks, and the limit that is announced next."""
    announced = Announced()

    for reports, limit in steps:
        for subtask, timestamp in reports.items():
            announced.report(subtask, timestamp)
        assert set(announced.fire().values()) == {limit}


@pytest.mark.parametrize(
    ("other", "allowed"),
    [(("t", "h", DRIFT, 100), (1042, 6000)), (("t", "g", 10, 100), (1042, 52))],
    ids=["two groups", "one group"],
)
def test_sources_wait_for_those_of_their_group_each_with_its_own_drift(
    other: tuple[str, str, int, int], allowed: tuple[int, int]
) -> None:
    announced = Announced(("s", "g", DRIFT, 100), other)

    announced.report(0, 42, "s")
    announced.report(0, 5000, "t")

    assert announced.fire() == {("s", 0): allowed[0], ("t", 0): allowed[1]}


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

    assert [call.when() for call in announced.calls] == [0.2, 0.3]


def test_vertices_without_a_group_are_not_heard() -> None:
    announced = Announced()

    assert not announced.report(0, 1_000, SINK_ID)
    announced.announcer.forget(Subtask(SINK_ID, 0))


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
