"""The moments at which a sink is flushed and its writes count; each interleaving of faults is forced."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from flowlet.datastream.connectors import Sink, SinkWriter, SinkWriterContext, SupportsCommitter, WriterInitContext
from flowlet.errors import FlowletError, StateRestoreError, UserFunctionError
from flowlet.sinks.commit_runner import MAX_RETRIES, RETRY_PAUSE_MS
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.testing.harness_environment import SubtaskPlace
from flowlet.testing.input_harnesses import OneInputOperatorHarness
from flowlet.testing.operator_harness import OperatorSnapshot
from tests.flowlet.sinks.dealt_out import dealt_out
from tests.flowlet.sinks.ledger_sink import LEDGERS, Batch, Ledger, LedgerSink


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    LEDGERS["x"] = Ledger()
    yield LEDGERS["x"]
    LEDGERS.clear()


def opened(
    snapshot: OperatorSnapshot | None = None,
    *,
    attempt: int = 0,
    place: SubtaskPlace | None = None,
    after_finish: bool = False,
) -> OneInputOperatorHarness:
    """Return a harness of the sink, which goes on from a snapshot."""
    if place is None:
        place = SubtaskPlace(attempt=attempt, restored_checkpoint_id=None if snapshot is None else 1)
    operator = SinkOperator(LedgerSink("x"))
    if after_finish:
        operator.restored_after_finish()
    harness = OneInputOperatorHarness(operator, place=place)
    harness.initialize_state(snapshot)
    harness.open()
    return harness


def killed_behind_a_checkpoint(*chunks: str, is_notified: bool = False) -> OperatorSnapshot:
    """Return the snapshot of an attempt that took the first chunk before a checkpoint, and failed behind it."""
    harness = opened()
    harness.process_chunk(chunks[0])
    complete = harness.snapshot(1)
    if is_notified:
        harness.notify_checkpoint_complete(1)
    for each in chunks[1:]:
        harness.process_chunk(each)
    harness.close()  # nothing else is called
    return complete


def test_records_count_when_their_checkpoint_is_complete(ledger: Ledger) -> None:
    with opened() as harness:
        harness.process_chunk("ab")
        harness.snapshot(1)
        assert ledger.records == []

        harness.process_chunk("c")
        harness.notify_checkpoint_complete(1)

        assert ledger.records == ["a", "b"]


def test_a_barrier_flushes_before_it_asks_for_state(ledger: Ledger) -> None:
    with opened() as harness:
        harness.process_chunk("a")
        harness.snapshot(7)

    assert ledger.calls == ["writer from 0", "flush False", "snapshot 7", "close writer", "close committer"]


def test_what_an_aborted_checkpoint_held_counts_with_the_next_one(ledger: Ledger) -> None:
    with opened() as harness:
        harness.process_chunk("a")
        harness.snapshot(1)
        harness.notify_checkpoint_aborted(1)
        harness.process_chunk("b")
        harness.snapshot(2)

        harness.notify_checkpoint_complete(2)

        assert ledger.records == ["a", "b"]


def test_what_no_checkpoint_holds_never_counts(ledger: Ledger) -> None:
    """The job fails, or is cancelled."""
    with opened() as harness:
        harness.process_chunk("a")
        harness.snapshot(1)
        harness.process_chunk("b")

    assert ledger.records == []


@pytest.mark.parametrize(
    ("is_notified", "num_kills"),
    [
        pytest.param(False, 1, id="between prepare and commit"),
        pytest.param(True, 1, id="between commit and notify"),
        pytest.param(False, 2, id="twice in a row"),
    ],
)
def test_a_kill_behind_a_checkpoint_costs_nothing_and_repeats_nothing(
    ledger: Ledger, is_notified: bool, num_kills: int
) -> None:
    """The restart commits again what was committed, and the ledger has it once; records behind the checkpoint are read
    again.
    """
    complete = killed_behind_a_checkpoint("ab", "c", is_notified=is_notified)
    for attempt in range(1, num_kills):
        opened(complete, attempt=attempt).close()

    with opened(complete, attempt=num_kills) as last:
        assert ledger.records == ["a", "b"]
        assert ledger.calls.count("commit 1") == is_notified + num_kills
        last.process_chunk("c")
        last.snapshot(2)
        last.notify_checkpoint_complete(2)

    assert ledger.records == ["a", "b", "c"]


def test_a_restored_commit_comes_before_the_writer_and_the_first_record(ledger: Ledger) -> None:
    complete = killed_behind_a_checkpoint("a")
    ledger.calls.clear()

    with opened(complete):
        assert ledger.calls == ["commit 1", "writer from 1"]


def test_a_restored_commit_that_is_to_be_tried_later_still_comes_before_the_first_record(ledger: Ledger) -> None:
    complete = killed_behind_a_checkpoint("a")
    ledger.faults = ["retry", "retry"]

    with opened(complete) as second:
        assert ledger.records == ["a"]
        assert second.processing_time == 2 * RETRY_PAUSE_MS


def test_a_commit_is_tried_again_after_a_pause_while_records_go_on(ledger: Ledger) -> None:
    ledger.faults = ["retry"]
    with opened() as harness:
        harness.process_chunk("a")
        harness.snapshot(1)
        harness.notify_checkpoint_complete(1)
        harness.process_chunk("b")
        assert ledger.records == []

        harness.advance_processing_time(RETRY_PAUSE_MS)

        assert ledger.records == ["a"]


def test_what_is_to_be_tried_later_stays_in_checkpoints(ledger: Ledger) -> None:
    ledger.faults = ["retry"]
    first = opened()
    first.process_chunk("a")
    first.snapshot(1)
    first.notify_checkpoint_complete(1)
    complete = first.snapshot(2)
    first.close()

    with opened(complete):
        assert ledger.records == ["a"]


def test_a_lost_committable_is_counted_and_the_job_goes_on(ledger: Ledger) -> None:
    ledger.faults = ["lost"]
    with opened() as harness:
        harness.process_chunk("a")
        harness.snapshot(1)
        harness.notify_checkpoint_complete(1)

        assert harness.environment.ctx.counters.num_lost_committables == 1
        assert ledger.records == []


@pytest.mark.parametrize("fault", ["unknown", "raise", "raise after commit"])
def test_a_failed_commit_fails_the_job_and_is_repeated_after_the_restart(ledger: Ledger, fault: str) -> None:
    ledger.faults = [fault]
    first = opened()
    first.process_chunk("a")
    complete = first.snapshot(1)
    with pytest.raises(UserFunctionError, match=r"operator 'Sink: Writer' \(subtask 0\)"):
        first.notify_checkpoint_complete(1)
    first.close()

    with opened(complete):
        assert ledger.records == ["a"]


@pytest.mark.parametrize(
    ("faults", "text", "num_shown"),
    [
        (["unknown"], r"\(subtask 0\) failed", 0),
        (["retry"] * (MAX_RETRIES + 1), f"a batch was to be committed again after {MAX_RETRIES} retries", 1),
    ],
)
def test_a_committable_is_shown_only_where_the_committer_gave_no_error(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, faults: list[str], text: str, num_shown: int
) -> None:
    """The ``repr`` of a committable is a function of the user, and may take long."""
    shown: list[Batch] = []

    def noted_repr(batch: Batch) -> str:
        shown.append(batch)
        return "a batch"

    monkeypatch.setattr(Batch, "__repr__", noted_repr)
    ledger.faults = faults
    harness = opened()
    harness.process_chunk("a")
    harness.end_input()
    harness.finish()
    harness.operator.prepare_snapshot_pre_barrier(1)

    with pytest.raises(FlowletError, match=text):
        harness.operator.notify_checkpoint_complete(1)
    harness.close()

    assert len(shown) == num_shown


# -- the end


def test_the_last_records_count_with_the_final_checkpoint(ledger: Ledger) -> None:
    harness = opened()
    harness.process_chunk("ab")
    harness.end_input()
    harness.finish()
    assert ledger.records == []
    assert "flush True" in ledger.calls

    operator = harness.operator
    operator.prepare_snapshot_pre_barrier(5)
    operator.snapshot_functions(5, 0)
    operator.notify_checkpoint_complete(5)
    harness.close()

    assert ledger.records == ["a", "b"]


def test_an_older_checkpoint_that_completes_after_the_end_does_not_commit_the_last_records(ledger: Ledger) -> None:
    harness = opened()
    harness.process_chunk("a")
    harness.snapshot(1)
    harness.process_chunk("b")
    harness.end_input()
    harness.finish()

    harness.operator.notify_checkpoint_complete(1)
    harness.close()

    assert ledger.records == ["a"]


def test_a_commit_at_the_end_waits_between_its_attempts(ledger: Ledger) -> None:
    """No timer fires any more, so the notification returns only when all is committed."""
    ledger.faults = ["retry", "retry"]
    harness = opened()
    harness.process_chunk("a")
    harness.end_input()
    harness.finish()

    harness.operator.prepare_snapshot_pre_barrier(1)
    harness.operator.notify_checkpoint_complete(1)
    harness.close()

    assert ledger.records == ["a"]


def test_a_subtask_that_had_finished_commits_what_its_final_checkpoint_holds(ledger: Ledger) -> None:
    """The subtask was killed after the checkpoint was complete, and before it heard of that."""
    first = opened()
    first.process_chunk("a")
    first.end_input()
    first.operator.finish()
    complete = first.snapshot(1)
    first.close()

    second = opened(complete, after_finish=True)

    assert ledger.records == ["a"]
    with pytest.raises(StateRestoreError, match="had finished"):
        second.process_chunk("b")
    second.close()


def test_without_checkpoints_records_count_at_the_end(ledger: Ledger) -> None:
    harness = opened(place=SubtaskPlace(has_checkpoints=False))
    harness.process_chunk("ab")
    assert ledger.records == []

    harness.end_input()
    harness.finish()
    harness.close()

    assert ledger.records == ["a", "b"]


# -- another parallelism


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 3), (3, 2), (2, 5)])
def test_another_parallelism_loses_and_repeats_no_committable(ledger: Ledger, before: int, after: int) -> None:
    snapshots = []
    for subtask in range(before):
        harness = opened(place=SubtaskPlace(subtask, before))
        harness.process_chunk([f"{subtask}/1"])
        harness.snapshot(1)
        harness.process_chunk([f"{subtask}/2"])
        snapshots.append(harness.snapshot(2))
        harness.close()

    for subtask, each in enumerate(dealt_out(snapshots, after, SinkOperator(LedgerSink("x")))):
        opened(each, place=SubtaskPlace(subtask, after, attempt=1, restored_checkpoint_id=2)).close()

    assert sorted(ledger.records) == [
        f"{subtask}/{checkpoint_id}" for subtask in range(before) for checkpoint_id in (1, 2)
    ]


# -- errors and shapes of sinks


def test_an_error_of_write_names_operator_and_record(ledger: Ledger) -> None:
    ledger.faults = ["write"]
    with (
        opened() as harness,
        pytest.raises(UserFunctionError, match=r"'Sink: Writer'.*while processing the record 'a'"),
    ):
        harness.process_chunk("a")


def test_an_error_of_flush_fails_the_checkpoint_and_the_task(ledger: Ledger) -> None:
    ledger.faults = ["flush"]
    with opened() as harness, pytest.raises(UserFunctionError, match="'Sink: Writer'"):
        harness.snapshot(1)


class Plain(SinkWriter[Any]):
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def write(self, value: Any, context: SinkWriterContext) -> None:
        self.seen.append((value, context.timestamp(), context.current_watermark()))

    def flush(self, *, end_of_input: bool) -> None:
        pass


class InBatches(Plain):
    """Takes many records in one call."""

    def write_all(self, values: Sequence[Any], context: SinkWriterContext) -> None:
        self.seen.append((list(values), context.timestamp()))


class PlainSink(Sink):
    """A sink whose writers are of the given class."""

    def __init__(self, made: Any) -> None:
        self.made = made

    def create_writer(self, context: WriterInitContext) -> SinkWriter[Any]:
        writer = self.made()
        self.writer = writer
        return writer  # type: ignore[no-any-return]  # also used with what is no writer


def plain(made: Any) -> tuple[OneInputOperatorHarness, PlainSink]:
    sink = PlainSink(made)
    harness = OneInputOperatorHarness(SinkOperator(sink), is_shipped=False)
    return harness, sink


def test_a_record_is_written_with_its_timestamp_and_the_watermark() -> None:
    harness, sink = plain(Plain)
    with harness:
        harness.process_watermark(3)
        harness.process_chunk("ab", [4, 5])
        harness.process_chunk("c")

        assert sink.writer.seen == [("a", 4, 3), ("b", 5, 3), ("c", None, 3)]


def test_a_writer_that_takes_many_records_gets_each_chunk_in_one_call() -> None:
    harness, sink = plain(InBatches)
    with harness:
        harness.process_chunk("ab", [4, 5])

        assert sink.writer.seen == [(["a", "b"], None)]


def test_watermarks_pass_on() -> None:
    harness, _ = plain(Plain)
    with harness:
        harness.process_watermark(3)

        assert harness.watermarks == [3]


def test_what_is_no_writer_is_refused() -> None:
    harness, _ = plain(int)

    with pytest.raises(
        FlowletError, match=r"create_writer\(\) of PlainSink must return a SinkWriter, got 0 of type int"
    ):
        harness.open()
    harness.close()


class WithCommitter(PlainSink, SupportsCommitter):
    """A sink with a committer."""

    def create_committer(self, context: WriterInitContext) -> Any:
        return None


def test_what_is_no_committer_is_refused() -> None:
    harness = OneInputOperatorHarness(SinkOperator(WithCommitter(Plain)), is_shipped=False)

    with pytest.raises(FlowletError, match=r"create_committer\(\) of WithCommitter must return a Committer, got None"):
        harness.open()
    harness.close()
