from typing import Any

import pytest

from flowlet.chain.state_share import StateShare
from flowlet.connectors.number_source import LimitedNumberReader, NumberReader, NumberSource
from flowlet.connectors.rate_limits import RecordsPerCheckpoint, RecordsPerSecond
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.source_operator import MAX_CHUNK_RECORDS, SourceOperator
from flowlet.testing.manual_processing_time_service import TestProcessingTimeService
from tests.flowlet.operators.harness import Harness


def rest(reader: NumberReader) -> list[Any]:
    found: list[Any] = []
    while (chunk := reader.poll_chunk()) is not None:
        found += chunk.values
    return found


def limited(reader: NumberReader) -> LimitedNumberReader:
    assert isinstance(reader, LimitedNumberReader)
    return reader


@pytest.mark.parametrize("parallelism", [1, 2, 3, 7])
def test_the_readers_together_give_each_number_once(parallelism: int) -> None:
    source = NumberSource(-3, 2_500)

    shares = [rest(source.create_reader(subtask, parallelism)) for subtask in range(parallelism)]

    assert [number for share in shares for number in share] == list(range(-3, 2_500))


def test_a_function_makes_the_records() -> None:
    assert rest(NumberSource(1, 4, function=str).create_reader(0, 1)) == ["1", "2", "3"]


@pytest.mark.parametrize("widths", [(1, 2, 3), (3, 2, 1), (2, 5, 2)])
def test_positions_are_dealt_out_to_other_numbers_of_readers(widths: tuple[int, ...]) -> None:
    """Each time every reader gives a little first; in the end every number was given once."""
    source, given, positions = NumberSource(0, 9 * MAX_CHUNK_RECORDS), list[Any](), list[Any]()
    for width in widths:
        readers = [source.create_reader(subtask, width) for subtask in range(width)]
        if positions:
            former = len(positions)
            for subtask, reader in enumerate(readers):
                reader.restore_position(source.redistribute_positions(positions, StateShare(subtask, width, 128, former)))
        for reader in readers:
            chunk = reader.poll_chunk()
            given += [] if chunk is None else chunk.values
        positions = [reader.snapshot_position() for reader in readers]

    given += [number for runs in positions for start, end in runs for number in range(start, end)]
    assert sorted(given) == list(range(9 * MAX_CHUNK_RECORDS))


def test_a_reader_that_had_ended_has_nothing_to_deal_out() -> None:
    assert NumberSource(0, 4).redistribute_positions([None, ((2, 4),)], StateShare(0, 1, 128, 2)) == ((2, 4),)


def test_a_reader_with_a_rate_has_nothing_until_its_timer_fires() -> None:
    clock = TestProcessingTimeService(now_ms=1_000)
    reader = limited(NumberSource(0, 100, limit=lambda parallelism: RecordsPerSecond(10 / parallelism)).create_reader(0, 1))
    reader.use_clock(clock)
    first = reader.poll_chunk()
    assert first is not None
    assert first.values == [0]

    nothing = reader.poll_chunk()

    assert nothing is not None
    assert len(nothing) == 0
    future = reader.available_future()
    clock.advance(99)
    assert not future.is_done
    clock.advance(1)
    assert future.is_done
    found = reader.poll_chunk()
    assert found is not None
    assert found.values == [1]


@pytest.mark.parametrize(("per_second", "parallelism"), [(7, 1), (100, 3), (5_000, 2)])
def test_all_readers_together_keep_the_rate(per_second: int, parallelism: int) -> None:
    """Over ten seconds of a manual clock; 1,000 records are the largest chunk."""
    clock = TestProcessingTimeService()
    source = NumberSource(0, 10**9, limit=lambda width: RecordsPerSecond(per_second / width))
    readers = [limited(source.create_reader(subtask, parallelism)) for subtask in range(parallelism)]
    for reader in readers:
        reader.use_clock(clock)

    total = 0
    while clock.current_time_ms() < 10_000:
        for reader in readers:
            while (chunk := reader.poll_chunk()) is not None and len(chunk):
                total += len(chunk)
        clock.set_time(clock.active_timers()[0])

    assert total == pytest.approx(10 * per_second, rel=0.02, abs=parallelism)


def test_a_rate_per_checkpoint_goes_on_with_the_checkpoint() -> None:
    reader = limited(NumberSource(0, 5, limit=lambda _: RecordsPerCheckpoint(2)).create_reader(0, 1))
    reader.use_clock(TestProcessingTimeService())
    given = [chunk.values for chunk in (reader.poll_chunk(), reader.poll_chunk()) if chunk is not None]
    future = reader.available_future()
    assert (given, future.is_done) == ([[0, 1], []], False)

    reader.position_kept(1)

    assert future.is_done
    chunk = reader.poll_chunk()
    assert chunk is not None
    assert chunk.values == [2, 3]


def test_the_end_comes_without_a_wait() -> None:
    reader = limited(NumberSource(0, 1, limit=lambda _: RecordsPerSecond(0.001)).create_reader(0, 1))
    reader.use_clock(TestProcessingTimeService())
    reader.poll_chunk()

    assert reader.poll_chunk() is None


def test_a_reader_with_a_rate_needs_a_clock() -> None:
    with pytest.raises(FlowletError, match="needs the clock of a task"):
        NumberSource(0, 1, limit=lambda _: RecordsPerSecond(1)).create_reader(0, 1).poll_chunk()


def test_close_cancels_the_timer() -> None:
    clock = TestProcessingTimeService()
    reader = limited(NumberSource(0, 9, limit=lambda _: RecordsPerSecond(1)).create_reader(0, 1))
    reader.use_clock(clock)
    reader.poll_chunk()
    reader.poll_chunk()
    assert clock.num_timers == 1

    reader.close()

    assert clock.num_timers == 0


def test_the_operator_gives_its_reader_the_clock_and_tells_of_checkpoints() -> None:
    harness = Harness(SourceOperator(NumberSource(0, 4, limit=lambda _: RecordsPerCheckpoint(1))))

    assert harness.operator.emit_next()
    assert harness.operator.emit_next()
    assert harness.operator.wait_future() is not None
    assert harness.operator.snapshot_state(7) == ((1, 4),)
    harness.operator.notify_checkpoint_complete(7)
    assert harness.operator.emit_next()

    assert harness.output.values == [0, 1]


def test_what_the_function_raises_names_the_source() -> None:
    harness = Harness(SourceOperator(NumberSource(0, 4, function=lambda number: 1 // number), name="generator"))

    with pytest.raises(UserFunctionError, match="generator") as caught:
        harness.operator.emit_next()

    assert isinstance(caught.value.__cause__, ZeroDivisionError)
