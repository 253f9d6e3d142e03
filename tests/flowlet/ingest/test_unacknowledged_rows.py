"""The rows that a producer keeps so that it can send them again."""

from hypothesis import given
from hypothesis import strategies as st

from flowlet.ingest.partition_push import UnacknowledgedRows
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
