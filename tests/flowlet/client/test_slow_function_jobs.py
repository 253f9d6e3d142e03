"""Jobs whose functions are slow: checkpoints are taken between their records, results arrive, a cancellation ends them
at once.

Functions wait for what a test is about, a complete checkpoint or a result, for a moment in each call, and count their
calls.
"""

from collections.abc import Callable, Iterator
from operator import add
from pathlib import Path
from typing import Any, ClassVar

import pytest

from flowlet.common import Types, WatermarkStrategy
from flowlet.common.watermark_generator import WatermarkGenerator, WatermarkOutput
from flowlet.datastream import (
    CheckpointedFunction,
    DataStream,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import FileSource, NumberSequenceSource, StreamFormat
from flowlet.datastream.functions import CheckpointListener
from flowlet.datastream.state import ListStateDescriptor
from flowlet.errors import JobExecutionError
from flowlet.records import MIN_TIMESTAMP
from tests.flowlet.client.jobs import TimeIs, counts, hold, ran, reached, released
from tests.waiting import PATIENCE_S

NUM_RECORDS = 3_000
MOMENT_S = 0.002  # what a call takes while nothing has happened


class FailsAfterCheckpoint(MapFunction, CheckpointedFunction, CheckpointListener):
    """Fails as soon as it hears of a complete checkpoint that has records; not again after a restart."""

    num_calls: ClassVar[list[int]]  # by attempt

    def open(self, runtime_context: RuntimeContext) -> None:
        self.attempt = runtime_context.get_attempt_number()
        self.num_calls.append(0)

    def map(self, value: int) -> int:
        self.num_calls[-1] += 1
        if self.attempt == 0 and reached["checkpoint"].wait(MOMENT_S):
            raise RuntimeError("after the first checkpoint")
        return value

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.with_records: set[int] = set()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        if self.num_calls[-1]:
            self.with_records.add(context.get_checkpoint_id())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        if checkpoint_id in self.with_records:
            reached["checkpoint"].set()


class Replayed(SourceFunction):
    """Marks its position now and then."""

    start = 0

    def run(self, ctx: SourceContext) -> None:
        for number in range(self.start, NUM_RECORDS):
            ctx.collect(number)
            if number % 700 == 0:
                ctx.mark_position(number + 1)

    def restore_position(self, position: Any) -> None:
        self.start = position


class Stateful(SourceFunction, CheckpointedFunction):
    """Keeps the numbers that it has emitted in a state, and does not emit them again."""

    next = 0

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("next", Types.LONG()))
        for each in self.state.get():
            self.next = each

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update([self.next])

    def run(self, ctx: SourceContext) -> None:
        while self.next < NUM_RECORDS:
            with ctx.get_checkpoint_lock():
                ctx.collect(self.next)
                self.next += 1


def collection(environment: StreamExecutionEnvironment, _folder: Path) -> DataStream:
    return environment.from_collection(list(range(NUM_RECORDS)), Types.LONG())


def sequence(environment: StreamExecutionEnvironment, _folder: Path) -> DataStream:
    source = NumberSequenceSource(0, NUM_RECORDS - 1)
    return environment.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "numbers", Types.LONG())


def lines(environment: StreamExecutionEnvironment, folder: Path) -> DataStream:
    (folder / "lines").write_text("".join(f"{number}\n" for number in range(NUM_RECORDS)))
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(folder / "lines")).build()
    return environment.from_source(source, WatermarkStrategy.no_watermarks(), "lines").map(int, Types.LONG())


def replayed(environment: StreamExecutionEnvironment, _folder: Path) -> DataStream:
    return environment.add_source(Replayed(), type_info=Types.LONG())


def stateful(environment: StreamExecutionEnvironment, _folder: Path) -> DataStream:
    return environment.add_source(Stateful(), type_info=Types.LONG())


def behind_key_by(environment: StreamExecutionEnvironment, folder: Path) -> DataStream:
    return collection(environment, folder).key_by(lambda value: value % 7, Types.LONG())


@pytest.mark.slow
@pytest.mark.parametrize("source", [collection, sequence, lines, replayed, stateful, behind_key_by])
def test_a_job_goes_on_from_the_middle_of_a_chunk_exactly_once(
    surviving: StreamExecutionEnvironment,
    tmp_path: Path,
    source: Callable[[StreamExecutionEnvironment, Path], DataStream],
) -> None:
    """The checkpoint does not wait for the chunk of a thousand records; no record counts twice or is missing."""
    FailsAfterCheckpoint.num_calls = []
    surviving.enable_checkpointing(20)

    numbers = source(surviving, tmp_path).map(FailsAfterCheckpoint(), Types.LONG())
    found = ran(numbers.key_by(lambda value: 0, Types.LONG()).reduce(add))

    before, after = FailsAfterCheckpoint.num_calls
    assert len(found) == NUM_RECORDS
    assert found[-1] == sum(range(NUM_RECORDS))
    assert before < 900, "records before the first checkpoint was complete"
    assert after < NUM_RECORDS


def generate(value: int) -> Iterator[int]:
    """Yield numbers until the first one has arrived."""
    for number in range(value):
        counts["yielded"] = number + 1
        yield number
        if reached["first"].wait(MOMENT_S):
            return


def test_results_of_a_generator_arrive_while_it_runs(environment: StreamExecutionEnvironment) -> None:
    """Results arrive within the buffer timeout, not when the generator has ended."""
    numbers: Any = environment.from_collection([1_500], Types.LONG()).flat_map(generate, Types.LONG())

    with numbers.execute_and_collect() as results:
        first = next(results)
        num_yielded = counts["yielded"]
        reached["first"].set()

    assert first == 0
    assert num_yielded < 1_500


def count_and_hold(value: int) -> int:
    counts[f"call with {value}"] += 1
    return hold("call", value)  # type: ignore[no-any-return]


def test_a_cancelled_job_calls_its_function_for_no_other_record(environment: StreamExecutionEnvironment) -> None:
    environment.from_collection(list(range(100)), Types.LONG()).map(count_and_hold, Types.LONG()).print()
    job = environment.execute_async("sleeps")
    assert reached["call"].wait(PATIENCE_S)

    job.cancel().result()
    released["call"].set()
    with pytest.raises(JobExecutionError):
        job.get_job_execution_result().result()

    assert counts == {"call with 0": 1}


class Clocked(WatermarkGenerator):
    """Says each millisecond how far it has come."""

    def __init__(self) -> None:
        self.highest = MIN_TIMESTAMP

    def on_event(self, event: int, event_timestamp: int, output: WatermarkOutput) -> None:
        self.highest = event_timestamp

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self.highest > MIN_TIMESTAMP:
            output.emit_watermark(self.highest)


class SeesWatermarks(KeyedProcessFunction):
    """Says which watermark each record sees; a record takes a moment until one has seen any."""

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        watermark = ctx.timer_service().current_watermark()
        if watermark > MIN_TIMESTAMP:
            reached["watermark"].set()
        yield value, watermark
        reached["watermark"].wait(MOMENT_S)


def test_a_watermark_generator_that_asks_the_clock_is_asked_between_records(
    environment: StreamExecutionEnvironment,
) -> None:
    """The generator is asked in the middle of a chunk, inside a chain; its answer holds for the records behind it
    alone.
    """
    environment.get_config().set_auto_watermark_interval(1)
    strategy = WatermarkStrategy.for_generator(Clocked).with_timestamp_assigner(TimeIs(int))
    numbers = environment.from_collection(list(range(1, 901)), Types.LONG()).assign_timestamps_and_watermarks(strategy)

    found = ran(numbers.key_by(lambda value: 0, Types.LONG()).process(SeesWatermarks()))

    assert [value for value, _ in found] == list(range(1, 901))
    assert all(seen < value for value, seen in found), "a watermark overtook its record"
    assert any(seen > MIN_TIMESTAMP for _, seen in found), "the generator was asked when the chunk had ended"
