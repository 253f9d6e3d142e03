"""The records of a partition that a gate's subtask passes on: each once, through any failures, attempts and twins."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.common.job_settings import RetryRule
from flowlet.connectors.gates.partition_ledger import (
    AttemptCursor,
    HeldPartition,
    PartitionLedger,
    UnfitAttemptError,
    merged,
)
from flowlet.messages.control_messages import CountedPartition

KEY, OTHER = CountedPartition("job", 0, 0), CountedPartition("job", 0, 1)


def new_records(ledger: PartitionLedger, cursor: AttemptCursor, num_records: int) -> int:
    return num_records - ledger.admit(cursor, num_records)


def test_another_attempt_passes_on_only_what_is_not_held() -> None:
    ledger = PartitionLedger()
    first = ledger.open(KEY, 0, 0)
    assert new_records(ledger, first, 10) == 10
    ledger.close(first)

    second = ledger.open(KEY, 1, 0)
    assert [new_records(ledger, second, 6) for _ in range(3)] == [0, 2, 6]


def test_an_attempt_may_begin_where_a_checkpoint_ends() -> None:
    ledger = PartitionLedger(restored=[HeldPartition(KEY, 0, 10, has_ended=False)])

    assert new_records(ledger, ledger.open(KEY, 0, 4), 8) == 2
    with pytest.raises(
        UnfitAttemptError,
        match="goes on with record 13, but the gate holds 12: its job went back to an older checkpoint",
    ):
        ledger.open(KEY, 0, 13)
    with pytest.raises(UnfitAttemptError, match="goes on with record 1, but the gate holds 0"):
        ledger.open(OTHER, 0, 1)


def test_attempts_of_other_lengths_are_refused() -> None:
    ledger = PartitionLedger()
    whole = ledger.open(KEY, 0, 0)
    ledger.admit(whole, 10)
    ledger.end(whole)

    short = ledger.open(KEY, 1, 0)
    ledger.admit(short, 9)
    with pytest.raises(
        UnfitAttemptError,
        match="has 9 records for this subtask, of which 10 are in already: attempts must have the same",
    ):
        ledger.end(short)
    with pytest.raises(UnfitAttemptError, match="has more than the 10 records that an earlier attempt had"):
        ledger.admit(short, 2)


def test_a_partition_is_complete_with_the_checkpoint_that_holds_its_end() -> None:
    """A checkpoint that was taken before does not count; one that failed is made up for by the next."""
    ledger = PartitionLedger()
    cursor = ledger.open(KEY, 0, 0)
    ledger.admit(cursor, 10)
    ledger.take(1)
    ledger.admit(cursor, 5)
    ledger.end(cursor)
    ledger.take(2)

    assert ledger.complete(1) == []
    assert (cursor.entry.kept, cursor.entry.is_end_kept) == (10, False)
    ledger.abort(2)
    assert ledger.complete(2) == []
    ledger.take(3)
    assert ledger.complete(3) == [KEY]
    assert (cursor.entry.kept, cursor.entry.is_end_kept) == (15, True)
    assert ledger.ended() == [KEY]
    ledger.take(4)
    assert ledger.complete(4) == []


def test_where_attempts_may_differ_another_one_begins_anew_and_the_same_one_goes_on() -> None:
    """The one that was overtaken is refused, so that its rows do not go on beside those of its successor."""
    ledger = PartitionLedger(RetryRule.ANY_ROWS, [HeldPartition(KEY, 3, 10, has_ended=True)])

    same = ledger.open(KEY, 3, 10)
    ledger.end(same)
    other = ledger.open(KEY, 4, 0)
    assert new_records(ledger, other, 7) == 7
    with pytest.raises(UnfitAttemptError, match=r"another attempt .* has taken the place of this one"):
        ledger.end(same)
    assert ledger.held() == [HeldPartition(KEY, 4, 7, has_ended=False)]


def test_the_oldest_partitions_that_nobody_brings_are_forgotten_first() -> None:
    ledger = PartitionLedger(max_remembered=2)
    cursors = [ledger.open(CountedPartition("job", 0, number), 0, 0) for number in range(3)]
    assert len(ledger.held()) == 3

    ledger.close(cursors[1])

    assert [each.key.partition for each in ledger.held()] == [0, 2]


def test_with_another_parallelism_complete_partitions_are_complete_everywhere_and_others_are_refused() -> None:
    """A partition that had not ended is refused, because no subtask can tell which one held which of its records."""
    former = [
        [HeldPartition(KEY, 0, 10, has_ended=True), HeldPartition(OTHER, 0, 3, has_ended=True)],
        [HeldPartition(KEY, 1, 4, has_ended=True), HeldPartition(OTHER, 0, 9, has_ended=False)],
        None,
    ]
    again = merged([merged(former), merged(former)])
    for held in (merged(former), again):
        ledger = PartitionLedger(restored=held)
        assert ledger.ended() == [KEY]
        cursor = ledger.open(KEY, 2, 0)
        assert new_records(ledger, cursor, 123) == 0
        ledger.end(cursor)
        with pytest.raises(UnfitAttemptError, match="was half in when its job was started with another parallelism"):
            ledger.open(OTHER, 2, 0)


@dataclass
class Model:
    """One subtask, with checkpoints and failures; ``out`` is the result of a job: it goes back to a checkpoint, as the
    job's state does.
    """

    num_records: int
    ledger: PartitionLedger = field(default_factory=PartitionLedger)
    out: list[int] = field(default_factory=list)
    kept_out: list[int] = field(default_factory=list)
    kept: list[HeldPartition] = field(default_factory=list)
    kept_by_producer: int = 0  # what the producer was told, and has given up
    cursors: list[AttemptCursor] = field(default_factory=list)
    checkpoint_id: int = 0

    def open(self, *, from_start: bool) -> None:
        self.cursors.append(self.ledger.open(KEY, len(self.cursors), 0 if from_start else self.kept_by_producer))

    def bring(self, which: int, num_records: int) -> None:
        if self.cursors:
            cursor = self.cursors[which % len(self.cursors)]
            start = cursor.position
            end = min(self.num_records, start + num_records)
            num_known = self.ledger.admit(cursor, end - start)
            self.out += range(start + num_known, end)
            if end == self.num_records:
                self.ledger.end(cursor)

    def checkpoint(self, *, completes: bool) -> None:
        self.checkpoint_id += 1
        self.ledger.take(self.checkpoint_id)
        held, out = self.ledger.held(), self.out.copy()
        if not completes:
            self.ledger.abort(self.checkpoint_id)
            return
        ended = self.ledger.complete(self.checkpoint_id)
        self.kept, self.kept_out = held, out
        self.kept_by_producer = max([self.kept_by_producer, *(each.entry.kept for each in self.cursors)])
        assert self.kept_by_producer <= len(out)
        assert not ended or out == list(range(self.num_records))

    def fail(self) -> None:
        self.ledger, self.out, self.cursors = PartitionLedger(restored=self.kept), self.kept_out.copy(), []


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("bring"), st.integers(0, 3), st.integers(0, 12)),
        st.tuples(st.just("checkpoint"), st.booleans()),
        st.just(("fail",)),
    ),
    max_size=40,
)


@given(num_records=st.integers(0, 30), steps=STEPS)
@settings(max_examples=200)
def test_every_record_is_in_the_state_once_and_none_that_was_acknowledged_is_lost(
    num_records: int, steps: list[tuple[object, ...]]
) -> None:
    """Attempts begin at the start (another process) or behind the acknowledged records (the running call), beside each
    other and after failures.
    """
    model = Model(num_records)
    for kind, *values in steps:
        match kind, values:
            case "open", [bool(from_start)]:
                model.open(from_start=from_start)
            case "bring", [int(which), int(number)]:
                model.bring(which, number)
            case "checkpoint", [bool(completes)]:
                model.checkpoint(completes=completes)
            case _:
                model.fail()
        model.ledger.check_invariants()
        assert model.out == list(range(len(model.out)))
        assert len(model.out) >= model.kept_by_producer

    model.open(from_start=False)
    model.bring(len(model.cursors) - 1, num_records)
    assert model.out == list(range(num_records))
