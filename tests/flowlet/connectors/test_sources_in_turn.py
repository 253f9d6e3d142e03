"""Tests of ``flowlet.connectors.sources_in_turn``: one reader, whose questions the test answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from flowlet.chain.stream_operator import OperatorContext
from flowlet.connectors.files.reader import text_lines
from flowlet.connectors.numbers.reader import NumberPosition, numbered_records
from flowlet.connectors.sources_in_turn import ReaderInTurn, SourcesInTurn, TurnPosition
from flowlet.datastream.connectors.datagen import RateLimiterStrategy
from flowlet.errors import StateRestoreError
from flowlet.operators.source_operator import SourceOperator
from flowlet.splits.split_kinds import FileSet, FileSplit, HybridSplit, HybridSplits, NumberRange, NumberSplit
from flowlet.state.state_snapshots import StateShare
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from tests.flowlet.operators.harness import Harness

NUMBERS = SourcesInTurn(numbered_records(0, 9), numbered_records(100, 109))


class Driven:
    """A reader that was started, and how often it has asked."""

    def __init__(self, source: SourcesInTurn = NUMBERS, position: TurnPosition | None = None) -> None:
        self.num_asked = 0
        self.reader: ReaderInTurn = source.create_reader(0, 2)
        self.reader.setup(OperatorContext("task", 0, 1, 128, "turns", clock=TestProcessingTimeService()))
        if position is not None:
            self.reader.restore_position(position)
        self.reader.start(self._ask)

    def _ask(self) -> None:
        self.num_asked += 1

    def poll(self) -> list[Any] | None:
        chunk: Any = self.reader.poll_chunk()
        return None if chunk is None else list(chunk.values)

    def add(self, *splits: HybridSplit) -> None:
        self.reader.add_splits(splits, 0)


def test_a_reader_says_that_it_has_finished_and_waits_for_the_next_source() -> None:
    driven = Driven()
    driven.add(HybridSplit(0, NumberSplit(0, 3)))
    assert (driven.poll(), driven.num_asked) == ([0, 1, 2], 2)
    driven.add(HybridSplit(0))

    assert (driven.poll(), driven.num_asked) == ([], 3)
    assert (driven.poll(), driven.num_asked) == ([], 3)
    future = driven.reader.available_future()
    assert not future.is_done
    driven.add(HybridSplit(1, NumberSplit(100, 102)))

    assert future.is_done
    assert (driven.poll(), driven.num_asked) == ([100, 101], 4)
    driven.reader.no_more_splits()
    assert driven.poll() is None


def test_a_restored_reader_with_nothing_left_wakes_its_task_for_the_next_source() -> None:
    """The task waits on the former source's reader: the checkpoint was taken between the two."""
    driven = Driven(position=TurnPosition(0, NumberPosition(())))
    assert driven.poll() == []
    future = driven.reader.available_future()
    assert not future.is_done

    driven.add(HybridSplit(1, NumberSplit(100, 102)))

    assert future.is_done
    assert driven.poll() == [100, 101]


def test_a_position_of_a_source_that_was_no_hybrid_one_is_refused() -> None:
    other: Any = NumberPosition(())
    reader = NUMBERS.create_reader(0, 2)

    with pytest.raises(
        StateRestoreError, match=r"that was no hybrid one \(NumberPosition\): give the hybrid source another uid"
    ):
        reader.restore_position(other)
    with pytest.raises(StateRestoreError, match="that was no hybrid one"):
        NUMBERS.redistribute_positions([None, other], StateShare(0, 1, 2, 1))


def test_what_was_given_comes_before_the_end_of_its_source() -> None:
    driven = Driven()
    driven.add(HybridSplit(0, NumberSplit(0, 1_500)))
    driven.poll()

    driven.add(HybridSplit(0))

    assert [driven.poll(), driven.num_asked] == [list(range(1_000, 1_500)), 1]
    assert [driven.poll(), driven.num_asked] == [[], 2]


def test_a_source_of_which_there_is_nothing_for_a_reader_is_finished_at_once() -> None:
    driven = Driven()
    driven.add(HybridSplit(0))
    driven.poll()

    driven.add(HybridSplit(1))

    assert (driven.poll(), driven.num_asked) == ([], 3)
    driven.reader.no_more_splits()
    assert driven.poll() is None


def test_a_reader_that_waits_may_get_nothing_more() -> None:
    driven = Driven()
    driven.add(HybridSplit(0))
    driven.poll()
    future = driven.reader.available_future()

    driven.reader.no_more_splits()

    assert future.is_done
    assert driven.poll() is None


@pytest.mark.parametrize("num_polls", [1, 2])
def test_a_reader_goes_on_in_its_source(num_polls: int) -> None:
    driven = Driven()
    driven.add(HybridSplit(0))
    driven.poll()
    driven.add(HybridSplit(1, NumberSplit(100, 2_500)))
    for _ in range(num_polls):
        driven.poll()

    restored = Driven(position=driven.reader.snapshot_position())

    assert restored.num_asked == 0, "it has numbers"
    assert restored.poll() == list(range(100 + 1_000 * num_polls, min(1_100 + 1_000 * num_polls, 2_500)))


def test_a_reader_that_had_finished_its_source_asks_again_and_goes_on_with_a_later_one() -> None:
    driven = Driven()
    driven.add(HybridSplit(0))
    driven.poll()

    restored = Driven(position=driven.reader.snapshot_position())
    assert (restored.poll(), restored.num_asked) == ([], 1)
    restored.add(HybridSplit(1, NumberSplit(100, 101)))

    assert restored.poll() == [100]


def dealt(positions: Sequence[TurnPosition | None], parallelism: int) -> list[TurnPosition]:
    return [
        NUMBERS.redistribute_positions(positions, StateShare(each, parallelism, 128, len(positions)))
        for each in range(parallelism)
    ]


def test_what_is_left_of_the_newest_source_is_dealt_out() -> None:
    """The rest of the newest source is divided among all readers; a reader at an earlier source has none of it."""
    positions = [TurnPosition(0, NumberPosition(())), None, TurnPosition(1, NumberPosition(((102, 106),)))]

    assert dealt(positions, 2) == [
        TurnPosition(1, NumberPosition(((102, 104),))),
        TurnPosition(1, NumberPosition(((104, 106),))),
    ]


def test_a_program_with_fewer_sources_is_refused() -> None:
    with pytest.raises(StateRestoreError, match="is at its source 2 in the checkpoint, and has 2 now"):
        Driven(position=TurnPosition(2, None))
    with pytest.raises(StateRestoreError, match="is at its source 2 in the checkpoint, and has 2 now"):
        dealt([TurnPosition(2, None)], 1)


def test_splits_are_told_or_the_source_stands_for_them(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("line\n" * 5_000)
    driven = Driven(SourcesInTurn(numbered_records(0, 9), text_lines(FileSet((str(path),)))))
    driven.add(HybridSplit(0, NumberSplit(0, 3)))
    driven.poll()
    assert (driven.reader.current_split, set(driven.reader.open_splits)) == ("source 0", {"source 0"})
    driven.add(HybridSplit(0))
    driven.poll()
    assert not driven.reader.open_splits

    driven.add(HybridSplit(1, FileSplit(str(path), 0, path.stat().st_size)))
    driven.poll()

    assert (driven.reader.current_split, set(driven.reader.open_splits)) == (f"{path}:0", {f"{path}:0"})
    driven.reader.pause_or_resume_splits([f"{path}:0"], [])
    driven.reader.close()
    driven.reader.close()


def test_the_splits_of_a_source_do_not_travel_to_its_tasks() -> None:
    """The JobManager deals them out; a task knows that there are some."""
    source = SourcesInTurn(numbered_records(0, 3), numbered_records(3, 6))

    sent = cloudpickle.loads(cloudpickle.dumps(source))

    assert source.split_set == HybridSplits((NumberRange(0, 3), NumberRange(3, 6)))
    assert sent.split_set == HybridSplits(())


def test_the_operator_reads_all_sources_and_tells_the_present_one_of_checkpoints() -> None:
    limited = numbered_records(100, 104, limit=RateLimiterStrategy.per_checkpoint(2))
    # As the JobManager has it: the splits do not travel to the tasks with the source.
    harness = Harness(SourceOperator(SourcesInTurn(numbered_records(0, 3), limited), name="numbers"), pickled=False)

    for _ in range(6):
        harness.operator.emit_next()

    assert harness.output.values == [0, 1, 2, 100, 101]
    future = harness.operator.wait_future()
    assert harness.operator.snapshot_state(7) == TurnPosition(1, NumberPosition(((102, 104),)))
    harness.operator.notify_checkpoint_aborted(6)
    assert not future.is_done
    harness.operator.notify_checkpoint_complete(7)
    assert future.is_done
    harness.operator.emit_next()
    assert harness.output.values == [0, 1, 2, 100, 101, 102, 103]
