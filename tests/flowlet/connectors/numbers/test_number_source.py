from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain.stream_operator import OperatorContext
from flowlet.connectors.numbers.reader import NumberPosition, NumberReader, RecordRateLimit, numbered_records
from flowlet.connectors.split_reader import AssignedSource
from flowlet.datastream.connectors.datagen import RateLimiterStrategy
from flowlet.errors import StateRestoreError, UserFunctionError
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import MAX_CHUNK_RECORDS
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.split_kinds import NumberSplit
from flowlet.state.state_snapshots import StateShare
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from tests.flowlet.operators.harness import Harness
from tests.flowlet.operators.local_splits import enumerator_of, requests_to


def started(
    source: AssignedSource[NumberReader],
    num_readers: int = 1,
    enumerator: SplitEnumerator | None = None,
    positions: Sequence[NumberPosition] = (),
) -> list[NumberReader]:
    """Return the readers, one after the other; their questions are answered at once."""
    if enumerator is None:
        enumerator = enumerator_of(source)
        enumerator.discover(num_readers)
    readers = [source.create_reader(subtask, num_readers) for subtask in range(num_readers)]
    for subtask, reader in enumerate(readers):
        if positions:
            reader.restore_position(positions[subtask])
        reader.start(requests_to(enumerator, reader, subtask))
    return readers


def poll(reader: NumberReader) -> list[Any] | None:
    """Return the records of the next chunk; None at the end."""
    chunk = reader.poll_chunk()
    return None if chunk is None else list(chunk.values)


def rest(reader: NumberReader) -> list[Any]:
    return [value for values in iter(lambda: poll(reader), None) for value in values]


def with_clock(clock: TestProcessingTimeService) -> OperatorContext:
    return OperatorContext("task", 0, 1, 128, "numbers", clock=clock)


def limited(source: AssignedSource[NumberReader], clock: TestProcessingTimeService | None = None) -> NumberReader:
    (reader,) = started(source)
    if clock is not None:
        reader.setup(with_clock(clock))
    return reader


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_the_readers_together_give_each_number_once_and_in_order(parallelism: int) -> None:
    """The readers take turns, so each gives some numbers."""
    readers, given = started(numbered_records(-3, 9_000), parallelism), [list[Any]() for _ in range(parallelism)]

    while sum(map(len, given)) < 9_003:
        for reader, numbers in zip(readers, given, strict=True):
            numbers += poll(reader) or []

    assert sorted(number for numbers in given for number in numbers) == list(range(-3, 9_000))
    assert all(numbers == sorted(numbers) != [] for numbers in given)


def test_a_fast_reader_gives_what_a_slow_one_does_not() -> None:
    """The slow reader keeps its first split, and no other one."""
    slow, fast = started(numbered_records(0, 80_000), 2)
    slow.poll_chunk()

    assert rest(fast) == list(range(20_000, 80_000))
    assert rest(slow) == list(range(1_000, 20_000))


def test_a_reader_asks_in_the_last_quarter_of_its_split_and_waits_for_the_answer() -> None:
    asked: list[int] = []
    reader = numbered_records(0, 10_000).create_reader(0, 2)
    reader.start(lambda: asked.append(1))
    assert (poll(reader), len(asked), reader.available_future().is_done) == ([], 1, False)

    reader.add_splits([NumberSplit(0, 2_500)], 7_500)
    assert reader.available_future().is_done
    sizes = [(len(poll(reader) or []), len(asked)) for _ in range(4)]

    assert sizes == [(1_000, 1), (1_000, 2), (500, 2), (0, 2)]
    reader.no_more_splits()
    assert reader.available_future().is_done
    assert poll(reader) is None


def test_a_function_makes_the_records() -> None:
    assert rest(*started(numbered_records(1, 4, function=str))) == ["1", "2", "3"]


@pytest.mark.parametrize("widths", [(1, 2, 3), (3, 2, 1), (2, 5, 2)])
def test_positions_are_dealt_out_to_other_numbers_of_readers(widths: tuple[int, ...]) -> None:
    """Each time every reader gives a little first; in the end every number was given once, and those of each reader
    rise.
    """
    source, given = numbered_records(0, 30 * MAX_CHUNK_RECORDS), list[Any]()
    enumerator = enumerator_of(source)
    enumerator.discover(widths[0])
    readers = started(source, widths[0], enumerator)
    for width in (*widths[1:], 1):
        given += [value for reader in readers for value in poll(reader) or []]
        positions, state = [reader.snapshot_position() for reader in readers], enumerator.snapshot()
        enumerator = enumerator_of(source)
        enumerator.restore(state, width)
        shares = [
            source.redistribute_positions(positions, StateShare(subtask, width, 128, len(positions)))
            for subtask in range(width)
        ]
        readers = started(source, width, enumerator, shares)

    left = rest(readers[0])
    assert left == sorted(left)
    assert sorted(given + left) == list(range(30 * MAX_CHUNK_RECORDS))


def test_a_reader_that_had_ended_has_nothing_to_deal_out() -> None:
    left = NumberPosition(((2, 4),))

    assert numbered_records(0, 4).redistribute_positions([None, left], StateShare(0, 1, 128, 2)) == left


def test_numbers_are_dealt_out_in_ascending_order() -> None:
    """No reader goes back in event time."""
    positions = [NumberPosition(((6, 8),)), NumberPosition(((0, 2), (8, 10)))]

    shares = [
        numbered_records(0, 10).redistribute_positions(positions, StateShare(subtask, 2, 128, 2)).runs
        for subtask in range(2)
    ]

    assert shares == [((0, 2), (6, 7)), ((7, 8), (8, 10))]


def test_the_position_of_an_older_flowlet_is_refused() -> None:
    """The enumerator of an older flowlet would hand out all numbers again."""
    former: Any = ((2, 4),)
    source = numbered_records(0, 4)

    with pytest.raises(StateRestoreError, match="as an older flowlet kept them"):
        source.redistribute_positions([None, former], StateShare(0, 1, 128, 2))
    with pytest.raises(StateRestoreError, match="as an older flowlet kept them"):
        source.create_reader(0, 1).restore_position(former)


def test_a_reader_with_a_rate_has_nothing_until_its_timer_fires() -> None:
    clock = TestProcessingTimeService(now_ms=1_000)
    reader = limited(numbered_records(0, 100, limit=RateLimiterStrategy.per_second(10)), clock)
    assert poll(reader) == [0]

    assert poll(reader) == []
    future = reader.available_future()
    clock.advance(99)
    assert not future.is_done
    clock.advance(1)
    assert future.is_done
    assert poll(reader) == [1]


@pytest.mark.parametrize(("per_second", "parallelism"), [(7, 1), (100, 3), (5_000, 2)])
def test_all_readers_together_keep_the_rate(per_second: int, parallelism: int) -> None:
    """The rate holds over ten seconds of a manual clock; 1,000 records are the largest chunk."""
    clock = TestProcessingTimeService()
    source = numbered_records(0, 10**9, limit=RateLimiterStrategy.per_second(per_second))
    readers = started(source, parallelism)
    for reader in readers:
        reader.setup(with_clock(clock))

    total = 0
    while clock.current_time_ms() < 10_000:
        for reader in readers:
            while (chunk := reader.poll_chunk()) is not None and len(chunk):
                total += len(chunk)
        clock.set_time(clock.active_timers()[0])

    assert total == pytest.approx(10 * per_second, rel=0.02, abs=parallelism)


def test_a_rate_per_checkpoint_goes_on_with_the_checkpoint() -> None:
    reader = limited(numbered_records(0, 5, limit=RateLimiterStrategy.per_checkpoint(2)), TestProcessingTimeService())
    given = [poll(reader), poll(reader)]
    future = reader.available_future()
    assert (given, future.is_done) == ([[0, 1], []], False)

    reader.position_kept(1)

    assert future.is_done
    assert poll(reader) == [2, 3]


def test_the_end_comes_without_a_wait() -> None:
    reader = limited(numbered_records(0, 1, limit=RateLimiterStrategy.per_second(0.001)), TestProcessingTimeService())
    reader.poll_chunk()

    assert reader.poll_chunk() is None


def test_a_reader_with_a_rate_waits_for_numbers_without_a_timer() -> None:
    clock = TestProcessingTimeService()
    reader = numbered_records(0, 9, limit=RateLimiterStrategy.per_second(1)).create_reader(0, 2)
    reader.setup(with_clock(clock))
    reader.start(lambda: None)

    assert (poll(reader), clock.num_timers) == ([], 0)
    future = reader.available_future()
    assert not future.is_done
    reader.add_splits([NumberSplit(3, 9)], 0)
    assert future.is_done
    assert poll(reader) == [3]


def test_a_reader_with_a_rate_needs_a_clock() -> None:
    with pytest.raises(RuntimeError, match="has no clock"):
        started(numbered_records(0, 1, limit=RateLimiterStrategy.per_second(1)))[0].poll_chunk()


def test_close_cancels_the_timer() -> None:
    clock = TestProcessingTimeService()
    reader = limited(numbered_records(0, 9, limit=RateLimiterStrategy.per_second(1)), clock)
    reader.poll_chunk()
    reader.poll_chunk()
    assert clock.num_timers == 1

    reader.close()

    assert clock.num_timers == 0


def test_the_operator_gives_its_reader_the_clock_and_tells_of_checkpoints() -> None:
    harness = Harness(SourceOperator(numbered_records(0, 4, limit=RateLimiterStrategy.per_checkpoint(1))))

    assert harness.operator.emit_next()
    assert harness.operator.emit_next()
    assert harness.operator.wait_future() is not None
    assert harness.operator.snapshot_state(7) == NumberPosition(((1, 4),))
    harness.operator.notify_checkpoint_complete(7)
    assert harness.operator.emit_next()

    assert harness.output.values == [0, 1]


def test_what_the_function_raises_names_the_source() -> None:
    harness = Harness(SourceOperator(numbered_records(0, 4, function=lambda number: 1 // number), name="generator"))

    with pytest.raises(UserFunctionError, match="generator") as caught:
        harness.operator.emit_next()

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


SECOND_NS = 1_000_000_000


@pytest.mark.parametrize(("per_second", "seconds"), [(0.5, 40), (1, 20), (3, 20), (1_000, 3), (123_456, 2)])
def test_a_reader_that_is_polled_when_it_may_keeps_the_rate(per_second: float, seconds: int) -> None:
    """The number of records is exactly the rate times the time, and the first one, which may be given at once."""
    limit, now_ns, total = RecordRateLimit(RateLimiterStrategy.per_second(per_second), 1), 0, 0

    while now_ns <= seconds * SECOND_NS:
        allowed = limit.allowed(now_ns)
        limit.take(allowed)
        total += allowed
        pause_ns = limit.pause_ns()
        assert pause_ns is not None
        now_ns += pause_ns

    assert total == pytest.approx(per_second * seconds, abs=max(1.0, per_second / 100))


@given(st.floats(0.1, 1e6), st.lists(st.integers(0, 5 * SECOND_NS), min_size=1, max_size=20))
def test_no_time_has_more_than_its_share_and_one_second(per_second: float, steps: list[int]) -> None:
    """The polls may be as irregular as they like."""
    limit, now_ns = RecordRateLimit(RateLimiterStrategy.per_second(per_second), 1), 0
    given_at: list[tuple[int, int]] = []

    for step in steps:
        now_ns += step
        allowed = limit.allowed(now_ns)
        limit.take(allowed)
        given_at.append((now_ns, allowed))

    for index, (start, _) in enumerate(given_at):
        for end, _ in given_at[index:]:
            records = sum(count for at, count in given_at[index:] if at <= end)
            assert records <= (end - start) / SECOND_NS * per_second + max(per_second, 1) + 1e-3


def test_a_clock_that_goes_back_gives_nothing_and_takes_nothing() -> None:
    limit = RecordRateLimit(RateLimiterStrategy.per_second(10), 1)
    limit.take(limit.allowed(SECOND_NS))

    assert limit.allowed(0) == 0
    assert limit.allowed(2 * SECOND_NS) == 10


def test_a_rate_per_checkpoint_waits_for_the_checkpoint() -> None:
    limit = RecordRateLimit(RateLimiterStrategy.per_checkpoint(3), 1)
    limit.take(2)
    limit.take(1)
    assert limit.allowed(10**12) == 0
    assert limit.pause_ns() is None

    limit.checkpoint_completed()

    assert limit.allowed(0) == 3
