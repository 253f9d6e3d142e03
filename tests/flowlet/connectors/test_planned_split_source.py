"""Tests of ``flowlet.connectors.planned_split_source``: splits take turns, wait, are paused, and go
on after a restart.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from flowlet.chain.stream_operator import OperatorContext
from flowlet.client.runtime_sources import planned_source
from flowlet.connectors.planned_split_source import RETRY_MS, PlannedSplitReader, Position
from flowlet.datastream.connectors import NO_RECORD, SplitSource
from flowlet.errors import JobGraphError, JobSubmissionError
from flowlet.splits.enumerators import PlannedSplitEnumerator
from flowlet.splits.split_kinds import PlannedSplits
from flowlet.state.state_snapshots import StateShare
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService


class Lists(SplitSource):
    """A list of records per split."""

    def __init__(self, splits: Mapping[str, Any], max_open_splits: int | None = None) -> None:
        self._splits = splits
        self.max_open_splits = max_open_splits

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return self._splits

    def read_split(self, split: Sequence[Any], num_read: int) -> Iterator[Any]:
        yield from split[num_read:]


class Driver:
    """A reader, its enumerator, and a manual clock."""

    def __init__(self, source: Lists, position: Position | None = None) -> None:
        planned = planned_source(source, "lists", 1)
        splits: Any = planned.split_set if position is None else PlannedSplits(())  # nothing waits
        self.enumerator = PlannedSplitEnumerator(splits)
        self.clock = TestProcessingTimeService()
        self.num_asked = 0
        self.reader = PlannedSplitReader(source, 1)
        self.reader.setup(OperatorContext("task", 0, 1, 128, "lists", clock=self.clock))
        if position is not None:
            self.reader.restore_position(position)
        self.reader.start(self._ask)

    def _ask(self) -> None:
        self.num_asked += 1

    def answer(self) -> None:
        """Answer all questions."""
        while self.num_asked:
            self.num_asked -= 1
            found = self.enumerator.next_splits(0)
            if found:
                self.reader.add_splits(found, 0)
            else:
                self.reader.no_more_splits()

    def poll(self) -> tuple[str, list[Any]] | None:
        """Return the split and its records; "" for no records; None at the end."""
        self.answer()
        chunk = self.reader.poll_chunk()
        self.answer()
        if chunk is None:
            return None
        return (self.reader.current_split, chunk.values) if len(chunk) else ("", [])

    def rest(self) -> list[tuple[str, list[Any]]]:
        found = []
        while (polled := self.poll()) is not None:
            found.append(polled)
        return [each for each in found if each[0]]


def test_splits_take_turns_in_chunks_of_a_thousand() -> None:
    driver = Driver(Lists({"a": range(2_500), "b": range(3)}))

    assert [(name, len(values)) for name, values in driver.rest()] == [("a", 1_000), ("b", 3), ("a", 1_000), ("a", 500)]


def test_a_split_is_open_from_its_assignment_to_its_last_record() -> None:
    driver = Driver(Lists({"a": [1], "b": [2]}))
    driver.answer()

    seen = [set(driver.reader.open_splits or ())]
    while driver.poll() is not None:
        seen.append(set(driver.reader.open_splits or ()))

    assert seen == [{"a", "b"}, {"b"}, set()]


def test_only_so_many_splits_are_open_at_once() -> None:
    driver = Driver(Lists({name: [name] * 1_500 for name in "abc"}, max_open_splits=1))

    assert [name for name, _ in driver.rest()] == ["a", "a", "b", "b", "c", "c"]


def test_the_next_split_is_asked_for_when_one_has_ended() -> None:
    """The split had as many records as fit chunks, so that its last poll gave none."""
    driver = Driver(Lists({name: [name] * 1_000 for name in "ab"}, max_open_splits=1))
    polled = [driver.poll(), driver.poll()]

    assert [None if each is None else each[0] for each in polled] == ["a", ""]
    assert driver.reader.available_future().is_done
    assert [name for name, _ in driver.rest()] == ["b"]


def test_a_split_without_records_is_asked_again_later() -> None:
    driver = Driver(Lists({"a": [1, NO_RECORD, 2]}))

    assert driver.poll() == ("a", [1])
    assert driver.poll() == ("a", [2])
    assert driver.poll() is None


def test_a_reader_without_records_waits() -> None:
    driver = Driver(Lists({"a": [NO_RECORD, NO_RECORD, 1]}))
    polled = [driver.poll(), driver.poll()]  # the first one asks for more splits, and the answer wakes the reader
    future = driver.reader.available_future()
    assert not future.is_done
    driver.clock.advance(RETRY_MS + 1)
    assert future.is_done

    polled.append(driver.poll())

    assert polled == [("", []), ("", []), ("a", [1])]


def test_a_reader_waits_for_the_answer_to_its_question() -> None:
    driver = Driver(Lists({"a": [1]}))
    chunk = driver.reader.poll_chunk()
    assert chunk is not None
    assert not len(chunk)
    future = driver.reader.available_future()
    assert not future.is_done
    driver.answer()

    assert future.is_done
    assert driver.poll() == ("a", [1])


def test_a_paused_split_gives_nothing_until_it_goes_on() -> None:
    driver = Driver(Lists({"a": range(3_000), "b": range(1_500)}))
    found = [driver.poll()]
    driver.reader.pause_or_resume_splits({"a"}, ())
    found += [driver.poll(), driver.poll(), driver.poll()]
    future = driver.reader.available_future()
    assert not future.is_done
    driver.reader.pause_or_resume_splits((), {"a"})
    assert future.is_done

    names = [each[0] for each in found if each is not None]

    assert names == ["a", "b", "b", ""]
    assert [name for name, _ in driver.rest()] == ["a", "a"]


def test_a_reader_goes_on_behind_the_records_that_it_gave() -> None:
    source = Lists({"a": range(1_500), "b": range(1_200)})
    before = Driver(source)
    given = [before.poll(), before.poll(), before.poll()]
    position = before.reader.snapshot_position()

    after = Driver(source, position)
    first = after.reader.snapshot_position()
    rest = after.rest()

    assert first == position
    assert [each[0] for each in given if each is not None] == ["a", "b", "a"]
    assert rest == [("b", list(range(1_000, 1_200)))]


def test_what_is_left_can_be_dealt_out_to_others() -> None:
    planned = planned_source(Lists({"a": [], "b": []}), "lists", 1)
    positions: list[Position | None] = [(("a", b"", 1), ("b", b"", 2)), None, (("c", b"", 3),)]

    found = [planned.redistribute_positions(positions, StateShare(subtask, 2, 128, 3)) for subtask in (0, 1)]

    assert found == [(("a", b"", 1), ("c", b"", 3)), (("b", b"", 2),)]


def test_closing_ends_the_generators() -> None:
    ended: list[str] = []

    class Told(Lists):
        def read_split(self, split: Sequence[Any], num_read: int) -> Iterator[Any]:
            try:
                yield from split
            finally:
                ended.append("closed")

    driver = Driver(Told({"a": [1, NO_RECORD, 2]}))
    driver.poll()
    driver.reader.close()

    assert ended == ["closed"]


def test_a_reader_without_a_clock_says_what_it_needs() -> None:
    driver = Driver(Lists({"a": [NO_RECORD]}))
    driver.answer()
    driver.reader.setup(OperatorContext("task", 0, 1, 128, "lists"))

    with pytest.raises(RuntimeError, match="clock"):
        driver.reader.poll_chunk()


@pytest.mark.parametrize(
    ("splits", "limit", "message"),
    [
        ({}, None, "at least one"),
        ([1], None, "returns a dict"),
        ({3: 1}, None, "a name for each split"),
        ({"a": 1}, 0, "max_open_splits is None"),
        ({"a": 1}, True, "max_open_splits is None"),
    ],
)
def test_mistakes_are_named_when_the_job_starts(splits: Any, limit: Any, message: str) -> None:
    with pytest.raises(JobGraphError, match=f"source 'lists': .*{message}"):
        planned_source(Lists(splits, limit), "lists", 1)


def test_a_split_that_cannot_be_pickled_is_named() -> None:
    with pytest.raises(JobSubmissionError, match="its split 'a' cannot be sent"):
        planned_source(Lists({"a": threading.Lock()}), "lists", 1)
