from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.operators.source_reader import MAX_CHUNK_RECORDS, Source, SourceReader, SourceReaderBase
from flowlet.records import Chunk
from flowlet.splits.split_kinds import FileSet, FileSplit, SourceSplit, SplitSet
from tests.flowlet.operators.harness import Harness, RecordingOutput, set_up


def read_all(reader: SourceReader) -> list[Any]:
    values: list[Any] = []
    while (chunk := reader.poll_chunk()) is not None:
        assert isinstance(chunk, Chunk)
        assert 0 < len(chunk) <= MAX_CHUNK_RECORDS
        values += chunk.values
    assert reader.poll_chunk() is None
    reader.close()
    return values


@given(st.lists(st.integers(), max_size=30), st.integers(1, 8))
def test_the_subtasks_together_read_a_collection_once_and_in_order(values: list[int], parallelism: int) -> None:
    source = CollectionSource(values)

    shares = [read_all(source.create_reader(subtask, parallelism)) for subtask in range(parallelism)]

    assert [value for share in shares for value in share] == values
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_collection_is_copied_and_may_be_any_iterable() -> None:
    values = [1, 2]
    source = CollectionSource(values)
    values.append(3)

    assert read_all(source.create_reader(0, 1)) == [1, 2]
    assert read_all(CollectionSource(iter("ab")).create_reader(0, 1)) == ["a", "b"]
    assert source.is_bounded


def test_a_large_collection_comes_in_chunks() -> None:
    harness = Harness(SourceOperator(CollectionSource(range(2500)), name="numbers"))

    emitted = [harness.operator.emit_next() for _ in range(5)]

    assert emitted == [True, True, True, False, False]
    assert [value for chunk in harness.output.chunks for value in chunk.values] == list(range(2500))
    assert max(map(len, harness.output.chunks)) <= 1000
    assert harness.output.values == list(range(2500))


class ScriptedReader:
    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.closed = 0

    def poll_chunk(self) -> Chunk | None:
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step  # type: ignore[no-any-return]

    def close(self) -> None:
        self.closed += 1


class ScriptedSource(Source):
    def __init__(self, *script: Any) -> None:
        self.readers: list[tuple[int, int, ScriptedReader]] = []
        self.script = list(script)

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        if self.script and self.script[0] == "refuse":
            raise ValueError("no such topic")
        self.readers.append((subtask, parallelism, ScriptedReader(self.script)))
        return self.readers[-1][2]


def test_the_reader_is_made_at_open_and_closed_once() -> None:
    source = ScriptedSource()
    harness = Harness(SourceOperator(source), subtask=1, parallelism=3, pickled=False)

    harness.operator.close()
    harness.operator.close()

    ((subtask, parallelism, reader),) = source.readers
    assert (subtask, parallelism, reader.closed) == (1, 3, 1)


def test_an_empty_chunk_is_not_the_end_and_not_passed_on() -> None:
    harness = Harness(SourceOperator(ScriptedSource(Chunk([]), Chunk([1], [5]), None)))

    assert [harness.operator.emit_next() for _ in range(3)] == [True, True, False]
    assert harness.output.elements == [Chunk([1], [5])]


def test_a_failing_reader_is_the_users_failure_unless_it_says_what_is_wrong() -> None:
    harness = Harness(
        SourceOperator(ScriptedSource(ValueError("bad data"), FlowletError("a.txt is gone")), name="read"), subtask=2
    )

    with pytest.raises(UserFunctionError) as caught:
        harness.operator.emit_next()
    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("read", 2, None)
    assert isinstance(caught.value.__cause__, ValueError)

    with pytest.raises(FlowletError, match=r"a\.txt is gone") as said:
        harness.operator.emit_next()
    assert type(said.value) is FlowletError


def test_a_reader_that_cannot_be_made_fails_the_operator() -> None:
    operator = SourceOperator(ScriptedSource("refuse"), name="read")

    with pytest.raises(UserFunctionError, match="operator 'read'"):
        Harness(operator, pickled=False)
    operator.close()


def test_a_reader_that_cannot_be_closed_names_the_operator() -> None:
    source = ScriptedSource()
    harness = Harness(SourceOperator(source, name="read"), subtask=2, pickled=False)
    reader = source.readers[0][2]

    def fail() -> None:
        raise OSError("connection lost")

    reader.close = fail  # type: ignore[method-assign]  # a reader that fails

    with pytest.raises(UserFunctionError, match="operator 'read'") as caught:
        harness.operator.close()
    assert isinstance(caught.value.__cause__, OSError)


def test_a_failure_of_a_consumer_is_not_blamed_on_the_source() -> None:
    class FailingOutput:
        def collect_some(self, chunk: Chunk, interrupts: object) -> int:
            raise OSError("disk full")

    harness = Harness(SourceOperator(CollectionSource([1])))
    harness.operator.output = FailingOutput()

    with pytest.raises(OSError, match="disk full"):
        harness.operator.emit_next()


def test_a_single_record_in_front_of_which_a_mail_comes_is_emitted_afterwards() -> None:
    """The loop of the chain is left before its first record; the forced interleaving."""
    taken: list[int] = []

    class InterruptedOutput:
        def collect_some(self, chunk: Chunk, interrupts: object) -> int:
            if not taken:
                taken.append(0)
                return 0
            taken.extend(chunk.values)
            return len(chunk)

    harness = Harness(SourceOperator(CollectionSource([7])))
    harness.operator.output = InterruptedOutput()

    assert harness.operator.emit_next(lambda: True)
    while harness.operator.emit_next(lambda: True):
        pass

    assert taken == [0, 7]


def test_a_source_goes_on_where_its_snapshot_was_taken() -> None:
    harness = Harness(SourceOperator(CollectionSource(range(2500))))
    harness.operator.emit_next()
    position = harness.operator.snapshot_state(1)
    harness.operator.emit_next()

    again = Harness(SourceOperator(CollectionSource(range(2500))), restored=position)
    while again.operator.emit_next():
        pass

    assert again.output.values == list(range(1000, 2500))


def test_a_reader_that_cannot_tell_its_position_has_none_and_a_warning_says_so_once() -> None:
    harness = Harness(SourceOperator(ScriptedSource([Chunk([1])])))

    with capture_logs() as logs:
        assert harness.operator.snapshot_state(1) is None
        assert harness.operator.snapshot_state(2) is None

    assert [(line["log_level"], line["reader"]) for line in logs] == [("warning", "ScriptedReader")]


def test_a_failure_of_a_readers_position_is_the_users() -> None:
    harness = Harness(SourceOperator(CollectionSource([1])))
    harness.operator._reader.snapshot_position = lambda: [][0]

    with pytest.raises(UserFunctionError):
        harness.operator.snapshot_state(1)


class OwnSplitReading:
    """A reader of a user that is handed its splits, and gives their names; it derives from nothing."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.request: Callable[[], None] = lambda: None
        self.is_last = False

    def start(self, request_splits: Callable[[], None]) -> None:
        self.request = request_splits
        request_splits()

    def add_splits(self, splits: Sequence[SourceSplit], waiting_bytes: int) -> None:
        if waiting_bytes < 0:
            raise KeyError("the user's reader")
        self.names += [split.split_id for split in splits]

    def no_more_splits(self) -> None:
        self.is_last = True

    def poll_chunk(self) -> Chunk | None:
        if self.names:
            return Chunk([self.names.pop(0)])
        return None if self.is_last else Chunk([])

    def close(self) -> None:
        pass


class SplitReading(OwnSplitReading, SourceReaderBase):
    """The same, of ours."""


class SplitSource(Source):
    split_set: SplitSet | None = FileSet(())

    def __init__(self, reader: Any) -> None:
        self.reader = reader

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        reader: SourceReader = self.reader
        return reader


def operator_of(reader: Any, request_splits: Callable[[], None] | None) -> tuple[SourceOperator, RecordingOutput]:
    operator, output = SourceOperator(SplitSource(reader), name="splits"), RecordingOutput()
    set_up(operator, OperatorContext("task", 0, 1, 128, "splits", request_splits=request_splits), output)
    return operator, output


@pytest.mark.parametrize("kind", [SplitReading, OwnSplitReading])
def test_splits_come_when_the_reader_asks(kind: type[OwnSplitReading]) -> None:
    asked: list[int] = []
    operator, output = operator_of(kind(), lambda: asked.append(1))
    operator.open()

    operator.add_splits([FileSplit("a", 0, 1)], 0)
    operator.no_more_splits()
    emitted = [operator.emit_next(), operator.emit_next()]
    operator.close()
    operator.add_splits([FileSplit("b", 0, 1)], 0)  # the task ends; nobody wants them
    operator.no_more_splits()

    assert (asked, emitted) == ([1], [True, False])
    assert output.values == ["a:0"]


def test_a_reader_that_takes_no_splits_is_named() -> None:
    """A reader without a base class has no ``start``, so it cannot read a source that has splits."""
    reader = ScriptedReader([])
    operator = operator_of(reader, lambda: None)[0]

    with pytest.raises(FlowletError, match=r"a ScriptedReader is to read splits, and has no start\(\)"):
        operator.open()
    operator.close()

    assert reader.closed == 1


def test_what_a_reader_has_as_none_it_has_not() -> None:
    class Bare(ScriptedReader):
        snapshot_position = None
        available_future = None

    class Reading(ScriptedSource):
        def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
            return Bare(self.script)

    operator = Harness(SourceOperator(Reading(Chunk([1]))), pickled=False).operator

    assert operator.wait_future() is None
    assert operator.emit_next()


def test_without_splits_a_method_start_is_the_readers_own() -> None:
    class Started(ScriptedReader):
        def start(self) -> None:
            raise AssertionError("the user calls it")

    class Starting(ScriptedSource):
        def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
            return Started(self.script)

    assert Harness(SourceOperator(Starting(Chunk([1]))), pickled=False).operator.emit_next()


def test_a_source_without_an_enumerator_ignores_splits() -> None:
    operator = Harness(SourceOperator(CollectionSource([1]))).operator

    operator.add_splits([FileSplit("a", 0, 1)], 0)
    operator.no_more_splits()

    assert operator.emit_next()


def test_only_a_job_manager_hands_out_splits() -> None:
    with pytest.raises(
        FlowletError, match="source 'splits': only a JobManager hands out its splits; run the job on a cluster"
    ):
        operator_of(SplitReading(), None)[0].open()


def test_a_reader_that_fails_to_take_its_splits_fails_the_task() -> None:
    operator, _ = operator_of(SplitReading(), lambda: None)
    operator.open()

    with pytest.raises(UserFunctionError, match="operator 'splits'") as caught:
        operator.add_splits([], -1)

    assert isinstance(caught.value.__cause__, KeyError)
