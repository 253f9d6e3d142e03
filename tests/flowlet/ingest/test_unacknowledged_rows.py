"""The rows that a producer keeps so that it can send them again, and its waits that are too long."""

from hypothesis import given
from hypothesis import strategies as st

from flowlet.ingest.partition_push import UnacknowledgedRows
from flowlet.ingest.runtime import CREDIT, NO_CREDIT_QUESTION_S, WARN_AFTER_S, StallWatch
from flowlet.records import Chunk


def test_a_chunk_is_given_up_when_every_subtask_holds_its_part_and_all_before_it() -> None:
    rows = UnacknowledgedRows(2, 100)
    for sent in ((2, 1), (3, 3)):
        rows.add(Chunk([0, 0, 0]), 10).num_sent = sent
    rows.add(Chunk([0]), 10)  # is being sent

    rows.acknowledge((2, 0))
    assert (len(rows.kept), rows.next_needed) == (3, (2, 1))
    rows.acknowledge((3, 1))
    assert (len(rows.kept), rows.first_records, rows.num_before, rows.num_bytes) == (2, (2, 1), 3, 20)
    rows.acknowledge((9, 9))
    assert (len(rows.kept), rows.first_records, rows.num_before, rows.next_needed) == (1, (3, 3), 6, None)


def test_one_chunk_may_be_larger_than_all_that_may_be_kept() -> None:
    rows = UnacknowledgedRows(1, 10)

    assert rows.has_room(1_000)
    rows.add(Chunk([0]), 1_000)
    assert not rows.has_room(1)
    assert "1000 of 10 bytes" in repr(rows)


@given(
    chunks=st.lists(st.lists(st.integers(0, 1), max_size=5), max_size=20),
    acknowledged=st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=10),
)
def test_nothing_is_given_up_that_a_subtask_does_not_hold(
    chunks: list[list[int]], acknowledged: list[tuple[int, int]]
) -> None:
    rows = UnacknowledgedRows(2, 1 << 20)
    sent = [0, 0]
    for routes in chunks:
        for each in routes:
            sent[each] += 1
        rows.add(Chunk(routes), len(routes)).num_sent = (sent[0], sent[1])

    best = [0, 0]
    for held in acknowledged:
        rows.acknowledge(held)
        rows.check_invariants()
        best = [max(pair) for pair in zip(best, held, strict=True)]
        assert all(first <= has for first, has in zip(rows.first_records, best, strict=True))

    everything = [each for routes in chunks for each in routes]
    kept = [each for chunk in rows.kept for each in chunk.chunk.values]
    assert kept == everything[rows.num_before :]


# -------------------------------------------------------------------- waits that are too long


def test_a_stall_is_reported_once_and_the_next_one_again() -> None:
    """Ten seconds of one wait, not of many short ones together."""
    now_s = 0.0
    watch = StallWatch(lambda: now_s)

    for _ in range(3):
        watch.mark_start()
        now_s += WARN_AFTER_S - 1
        assert watch.overdue_s() is None
        watch.mark_end()
    watch.mark_start()
    now_s += WARN_AFTER_S
    assert watch.overdue_s() == WARN_AFTER_S
    now_s += 3600
    assert watch.overdue_s() is None
    watch.mark_end()
    assert repr(watch) == "<StallWatch idle>"
    watch.mark_start()
    now_s += 11
    assert watch.overdue_s() == 11


def test_a_wait_that_begins_while_the_one_before_is_reported_is_reported_too() -> None:
    """The writer goes on and waits again between two steps of the look."""
    now_s, writes = 0.0, False

    def clock() -> float:
        nonlocal writes
        if writes:
            writes = False
            watch.mark_end()
            watch.mark_start()
        return now_s

    watch = StallWatch(clock)
    watch.mark_start()
    now_s = WARN_AFTER_S
    writes = True
    assert watch.overdue_s() == WARN_AFTER_S
    now_s += WARN_AFTER_S

    assert watch.overdue_s() == WARN_AFTER_S


def test_the_jobmanager_is_asked_again_and_again_during_one_wait() -> None:
    """The gate may be slow at the first question and gone at the second."""
    now_s = 0.0
    watch = StallWatch(lambda: now_s)
    now_s = 100.0
    assert not watch.is_question_due(), "it does not wait"
    watch.mark_start()

    asked_s = []
    for _ in range(25):
        if watch.is_question_due():
            asked_s.append(now_s - 100)
        now_s += 1

    assert asked_s == [NO_CREDIT_QUESTION_S, 2 * NO_CREDIT_QUESTION_S]


def test_a_wait_says_what_it_is_for() -> None:
    """Buffer pools say nothing: they wait for credit."""
    watch = StallWatch(lambda: 0.0)

    watch.mark_start("all operators and sinks")
    assert watch.awaited == "all operators and sinks"
    watch.mark_end()
    watch.mark_start()

    assert watch.awaited == CREDIT
