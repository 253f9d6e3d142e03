from hypothesis import given
from hypothesis import strategies as st

from flowlet.operators.source_operator import ShareReader
from flowlet.records import Chunk
from flowlet.splits.split_kinds import Runs, share_of_runs

LENGTHS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=6)


def runs_of(lengths: list[tuple[int, int]]) -> Runs:
    """Runs with gaps between them."""
    found, start = [], 0
    for gap, length in lengths:
        found.append((start + gap, start + gap + length))
        start += gap + length
    return tuple(found)


def numbers(runs: Runs) -> list[int]:
    return [number for start, end in runs for number in range(start, end)]


@given(LENGTHS, st.integers(1, 9))
def test_the_shares_are_the_runs_each_number_once_and_about_equal(
    lengths: list[tuple[int, int]], parallelism: int
) -> None:
    runs = runs_of(lengths)

    shares = [numbers(share_of_runs(runs, subtask, parallelism)) for subtask in range(parallelism)]

    assert [number for share in shares for number in share] == numbers(runs)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(LENGTHS, st.lists(st.integers(1, 4), min_size=1, max_size=40))
def test_what_was_read_and_what_is_left_are_everything(lengths: list[tuple[int, int]], sizes: list[int]) -> None:
    runs = share_of_runs(runs_of(lengths), 0, 1)
    read: list[int] = []

    for size in sizes:
        reader = ShareReader(0, (0, 1), lambda part: Chunk(list(part)), size)
        reader.restore_position(runs)
        chunk = reader.poll_chunk()
        if chunk is None:
            break
        assert 0 < len(chunk) <= size
        read += chunk.values
        runs = reader.snapshot_position()

    assert read + numbers(runs) == numbers(runs_of(lengths))


def test_at_the_end_nothing_is_left() -> None:
    reader = ShareReader(2, (0, 1), lambda part: Chunk(list(part)), 5)
    chunk = reader.poll_chunk()
    assert chunk is not None

    assert chunk.values == [0, 1]
    assert reader.poll_chunk() is None
    assert reader.snapshot_position() == ()
