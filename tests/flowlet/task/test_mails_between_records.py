"""Mails and barriers wait for at most one record of the head of a chain, one timer or one firing window, however slow a
function is.

A function sends a mail, or begins a checkpoint, in its tenth call; so the number of calls when it runs is known,
whatever a call takes.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.client.runtime_sources import planned_source
from flowlet.columns import ArrayColumn, Columns, Shape
from flowlet.common import Duration
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.connectors.numbers.reader import numbered_records
from flowlet.connectors.sources_in_turn import SourcesInTurn
from flowlet.datastream import CoMapFunction, KeyedProcessFunction
from flowlet.datastream.connectors import Sink, SplitSource
from flowlet.datastream.connectors.base import SinkWriter
from flowlet.datastream.connectors.datagen import RateLimiterStrategy
from flowlet.datastream.functions import ReduceFunction, WindowFunction
from flowlet.datastream.window import EventTimeTrigger, TumblingEventTimeWindows
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import TaskCancelled, UserFunctionError
from flowlet.graph.partitioner import Custom, KeyGroups, Partitioner
from flowlet.mailbox.mailbox_processor import TaskTimings
from flowlet.messages.control_messages import SplitsRequested
from flowlet.operators.co_functions import CoFlatMapOperator, CoMapOperator
from flowlet.operators.event_time_stream import TimestampsAndWatermarksOperator
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator, KeyedSumOperator
from flowlet.operators.process_operator import FilterOperator, FlatMapOperator, MapOperator, ProcessOperator
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.operators.source_reader import Source
from flowlet.records import Chunk, Watermark
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.task.source_stream_task import SourceStreamTask, create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.windows.window_operator import WindowOperator
from netstack.config import NetstackConfig
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, StopMode
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.operators.local_splits import enumerator_of, requests_to
from tests.flowlet.task.checkpointed_tasks import VERTEX, checkpointing, trigger
from tests.flowlet.task.local_network import (
    SEGMENT_BYTES,
    LocalNetwork,
    ManualTimer,
    Recorder,
    ScriptedSource,
    Thread,
    edge,
)
from tests.flowlet.task.local_tasks import Tasks, cancel, chain, is_parked, run, send, step_until_idle
from tests.waiting import PATIENCE_S, spin_until

NUM_RECORDS = 900


class Job:
    """A task whose function does something at its tenth call; notes how many calls there were when a mail runs."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.at_mail: list[int] = []
        self.task: StreamTask | None = None
        self.on_tenth: Callable[[], object] = self.send_mail

    def call(self, value: Any) -> Any:
        self.num_calls += 1
        if self.num_calls == 10:
            self.on_tenth()
        return value

    def send_mail(self) -> None:
        assert self.task is not None
        self.task.mailbox_processor.executor().execute(lambda: self.at_mail.append(self.num_calls), "a mail")

    def run(self, task: StreamTask, tasks: Tasks) -> None:
        self.task = tasks.restored(task)
        step_until_idle(task)


def numbers() -> SourceOperator:
    return SourceOperator(CollectionSource(range(NUM_RECORDS)))


def reading(tasks: Tasks, *operators: StreamOperator) -> StreamTask:
    """Return a task that finds the numbers at its gate."""
    upstream = tasks.network.partition()
    send(upstream, Chunk(list(range(NUM_RECORDS))))
    return tasks.sink(*operators, producers=[upstream])


class Process(KeyedProcessFunction):
    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield self.call(value)


class Assigner:
    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        found: int = self.call(value)
        return found


class Writing(Sink):
    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def create_writer(self, context: object) -> SinkWriter[Any]:
        call = self.call

        class Writer(SinkWriter[Any]):
            def write(self, value: Any, context: object) -> None:
                call(value)

            def flush(self, *, end_of_input: bool) -> None:
                pass

        return Writer()


def timestamps(call: Callable[[Any], Any]) -> WatermarkStrategy:
    return WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Assigner(call))  # type: ignore[arg-type]


OPERATORS: dict[str, Callable[[Callable[[Any], Any]], list[StreamOperator]]] = {
    "map": lambda call: [MapOperator(call)],
    "filter": lambda call: [FilterOperator(lambda value: call(value) is not None)],
    "flat_map": lambda call: [FlatMapOperator(lambda value: [call(value)])],
    "process": lambda call: [ProcessOperator(Process(call), lambda value: value % 7)],
    "reduce": lambda call: [
        MapOperator(call),
        KeyedReduceOperator(lambda value: value % 7, lambda first, second: second),
    ],
    "a reduce function": lambda call: [
        KeyedReduceOperator(lambda value: 0, lambda first, second: call(first + second))
    ],
    "timestamps": lambda call: [TimestampsAndWatermarksOperator(timestamps(call))],
    "the end of a chain": lambda call: [MapOperator(lambda value: value), MapOperator(call)],
    "a sink": lambda call: [SinkOperator(Writing(call))],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_mail_waits_for_one_record_of_a_task_that_reads_a_gate(tasks: Tasks, name: str) -> None:
    """The other records of the chunk are processed after the mail."""
    job = Job()

    job.run(reading(tasks, *OPERATORS[name](job.call)), tasks)

    assert job.at_mail == [10]
    assert job.num_calls == NUM_RECORDS - (name == "a reduce function")


def test_a_mail_waits_for_one_record_of_a_co_operator(network: LocalNetwork, tasks: Tasks) -> None:
    job, producers = Job(), [network.partition(), network.partition()]

    class Both(CoMapFunction):
        def map1(self, value: Any) -> Any:
            return job.call(value)

        map2 = map1

    environment = network.environment("both", gates=[network.gate(each) for each in producers])
    environment.gate_inputs = [1, 2]
    task = create_stream_task(environment, chain(CoMapOperator(Both())))
    for each in producers:
        send(each, Chunk(list(range(NUM_RECORDS))))

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert job.num_calls == 2 * NUM_RECORDS


@pytest.mark.parametrize(
    "strategy", [None, timestamps(lambda value: value)], ids=["without event time", "with timestamps"]
)
def test_a_mail_waits_for_one_record_behind_a_source(
    network: LocalNetwork, tasks: Tasks, strategy: WatermarkStrategy | None
) -> None:
    job = Job()
    head = SourceOperator(CollectionSource(range(NUM_RECORDS)), strategy=strategy)
    task = tasks.source(head, MapOperator(job.call))

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert job.num_calls == NUM_RECORDS


class Lines(SplitSource):
    """One split, whose iterator calls a function for each record."""

    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"all": NUM_RECORDS}

    def read_split(self, split: int, num_read: int) -> Iterator[Any]:
        return (self.call(number) for number in range(num_read, split))


SOURCES: dict[str, Callable[[Callable[[Any], Any]], Source]] = {
    "generator": lambda call: numbered_records(0, NUM_RECORDS, function=call),
    "generator with a rate": lambda call: numbered_records(
        0, NUM_RECORDS, function=call, limit=RateLimiterStrategy.per_checkpoint(NUM_RECORDS)
    ),
    "splits": lambda call: planned_source(Lines(call), "lines", 1),
    "one after the other": lambda call: SourcesInTurn(
        numbered_records(0, NUM_RECORDS, function=call), numbered_records(0, 1)
    ),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_mail_waits_for_one_record_that_a_function_of_a_source_makes(
    network: LocalNetwork, tasks: Tasks, name: str
) -> None:
    """A poll gives up to 1,000 records; those that are made when the mail comes go on their way."""
    job = Job()
    source = SOURCES[name](job.call)
    environment = network.environment("making")
    enumerator = enumerator_of(source)
    enumerator.discover(1)
    head = SourceOperator(source)
    request_splits = requests_to(enumerator, head)
    environment.send = lambda message: request_splits() if isinstance(message, SplitsRequested) else None
    seen: list[Any] = []
    task = create_stream_task(environment, chain(head, MapOperator(seen.append)))
    job.run(task, tasks)

    assert job.at_mail == [10]
    assert seen[:NUM_RECORDS] == list(range(NUM_RECORDS))
    assert job.num_calls == NUM_RECORDS


INNER: dict[str, Callable[[Callable[[Any], Any]], StreamOperator]] = {
    "map": MapOperator,
    "flat_map": lambda call: FlatMapOperator(lambda value: [call(value)]),
    "process": lambda call: ProcessOperator(Process(call), lambda value: value % 7),
    "reduce": lambda call: KeyedReduceOperator(lambda value: 0, lambda first, second: call(first + second)),
    "window": lambda call: WindowOperator(
        WindowSpec(
            TumblingEventTimeWindows.of(Duration.of_seconds(1)), EventTimeTrigger.create(), combine=Reducing(call)
        ),
        lambda value: 0,
    ),
}


class Reducing(ReduceFunction):
    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def reduce(self, first: Any, second: Any) -> Any:
        return self.call(first + second)


@pytest.mark.parametrize("name", INNER)
def test_a_mail_waits_for_one_record_of_a_function_behind_a_key_by_inside_a_chain(
    network: LocalNetwork, tasks: Tasks, name: str
) -> None:
    """Both sides of a ``key_by`` are one task with parallelism 1."""
    job = Job()
    head = SourceOperator(
        CollectionSource(range(NUM_RECORDS)), strategy=timestamps(lambda value: 5), emits_watermarks=False
    )
    chained = [ChainedOperator(head), ChainedOperator(INNER[name](job.call), 0, key_selector=lambda value: 0)]
    task = create_stream_task(network.environment("inner"), chained)

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert job.num_calls == NUM_RECORDS - (name in ("reduce", "window"))


@pytest.mark.parametrize("name", ["a sink", "map behind a sum"])
def test_a_mail_waits_for_at_most_a_hundred_records_where_a_chain_cannot_be_left(
    network: LocalNetwork, tasks: Tasks, name: str
) -> None:
    """Operators behind one that takes whole chunks get at most a hundred records once they were slow; before, a mail
    waits for one slice.
    """
    job = Job()

    def call(value: Any) -> Any:
        job.num_calls += 1
        if 2_000 <= job.num_calls < 2_500 or job.num_calls >= 5_010:
            tasks.clock.advance_ms(20)
        if job.num_calls == 5_010:
            job.send_mail()
        return value

    head = SourceOperator(CollectionSource([("key", 1)] * 6_000))
    chained = [ChainedOperator(head), ChainedOperator(SinkOperator(Writing(call)), 0)]
    if name == "map behind a sum":
        chained = [
            ChainedOperator(head),
            ChainedOperator(KeyedSumOperator(itemgetter(0), 1), 0, key_selector=itemgetter(0)),
            ChainedOperator(MapOperator(call), 1),
        ]
    task = SourceStreamTask(network.environment("slow"), chained, timings=TaskTimings(tasks.clock))

    job.run(task, tasks)

    assert 5_010 <= job.at_mail[0] <= 5_110
    assert job.num_calls == 6_000


SELECTORS: dict[str, Callable[[Callable[[Any], Any]], Partitioner]] = {
    "key_by": KeyGroups,
    "the key of partition_custom": lambda call: Custom(lambda key, num_channels: 0, call),
    "partition_custom": lambda call: Custom(lambda key, num_channels: call(0), lambda value: value),
}


@pytest.mark.parametrize("is_cancelled", [False, True])
@pytest.mark.parametrize("name", SELECTORS)
def test_a_selector_that_is_called_for_columns_holds_nothing_up(
    network: LocalNetwork, tasks: Tasks, name: str, *, is_cancelled: bool
) -> None:
    """No function sees a single record there, so all of a slice go to the selector at once."""
    job, partition = Job(), network.partition(max_buffers=40)
    job.on_tenth = (lambda: task.cancel()) if is_cancelled else job.send_mail

    def call(value: Any) -> Any:
        tasks.clock.advance_ms(20)
        return job.call(value)

    columns = Chunk.of_columns(Columns(NUM_RECORDS, (ArrayColumn(np.arange(NUM_RECORDS)),), Shape.SCALAR), None)
    environment = network.environment("slow", outputs=[edge(partition, SELECTORS[name](call))])
    task = tasks.timed(environment, SourceOperator(ScriptedSource(columns)))

    if is_cancelled:
        with pytest.raises(TaskCancelled):
            run(task)
        assert job.num_calls == 10
    else:
        job.run(task, tasks)
        assert (job.at_mail, job.num_calls) == ([10], NUM_RECORDS)


@pytest.mark.parametrize("name", [*SELECTORS, "key_by inside a chain", "the key of an operator at the head"])
def test_a_selector_that_turned_slow_is_called_for_no_further_record_of_a_cancelled_task(
    network: LocalNetwork, tasks: Tasks, name: str
) -> None:
    """The slice had all records of the chunk, since the first ones were quick."""
    job, partition, upstream = Job(), network.partition(max_buffers=40), network.partition()
    job.on_tenth = lambda: task.cancel()
    numbers = ArrayColumn(np.arange(NUM_RECORDS))
    columns = Chunk.of_columns(Columns(NUM_RECORDS, (numbers, numbers), Shape.TUPLE), None)
    source = SourceOperator(ScriptedSource(*[columns] * 3))
    number = itertools.count()

    def call(value: Any) -> Any:
        if next(number) >= 2 * NUM_RECORDS:
            tasks.clock.advance_ms(20)
            job.call(value)
        return 0

    if name in SELECTORS:
        task = tasks.timed(network.environment("slow", outputs=[edge(partition, SELECTORS[name](call))]), source)
    elif name == "key_by inside a chain":
        chained = [ChainedOperator(source), ChainedOperator(KeyedSumOperator(lambda value: 0, 1), 0, key_selector=call)]
        task = SourceStreamTask(network.environment("slow"), chained, timings=TaskTimings(tasks.clock))
    else:
        task = tasks.timed(network.environment("slow", gates=[network.gate(upstream)]), KeyedSumOperator(call, 1))
        send(upstream, *[columns] * 3)

    with pytest.raises(TaskCancelled):
        run(task)

    assert job.num_calls == 10


def test_a_mail_waits_for_one_timer(network: LocalNetwork, tasks: Tasks) -> None:
    """The next record waits for all timers, as if no mail had come."""
    job, upstream = Job(), network.partition()
    seen: list[Any] = []

    class Timers(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            seen.append(value)
            timestamp = ctx.timestamp()
            assert timestamp is not None
            ctx.timer_service().register_event_time_timer(timestamp)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
            seen.append(job.call("timer"))

    task = tasks.sink(ProcessOperator(Timers(), lambda value: value), producers=[upstream])
    send(upstream, Chunk(list(range(50)), list(range(50))), Watermark(100), Chunk([50], [150]))

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert seen == [*range(50), *["timer"] * 50, 50]


class Checkpointed:
    """A task with checkpoints in memory."""

    def __init__(self, network: LocalNetwork) -> None:
        self.network = network
        self.store = InMemoryCheckpointStore()

    def task(self, *operators: StreamOperator, states: dict[str, object] | None = None) -> StreamTask:
        environment = self.network.environment("slow")
        restored = {name: OperatorState(state) for name, state in (states or {}).items()}
        environment.checkpointing = checkpointing(self.store, restored=restored)
        return create_stream_task(environment, chain(*operators))

    def states(self, checkpoint_id: int) -> dict[str, object]:
        operators = self.store.state_of(checkpoint_id, VERTEX, 0).operators
        return {name: state.own for name, state in operators.items()}


class Summing(Recorder):
    """Keeps the sum of its records."""

    operator_id = b"summing operator"

    def __init__(self) -> None:
        super().__init__("summing")
        self.total = 0

    def process_chunk(self, chunk: Chunk) -> None:
        self.total += sum(chunk.values)

    def initialize_state(self, state: object | None) -> None:
        assert state is None or isinstance(state, int)
        self.total = state or 0

    def snapshot_state(self, checkpoint_id: int) -> object:
        return self.total


def run_until_acknowledged(task: StreamTask) -> None:
    """Run a task until it has taken a checkpoint."""
    assert task.checkpoints is not None
    while not task.checkpoints.responder.statistics.num_acknowledged:
        assert task.mailbox_processor.run_mailbox_step()


@pytest.mark.parametrize(
    "strategy", [None, timestamps(lambda value: value)], ids=["without event time", "with timestamps"]
)
def test_a_checkpoint_of_a_source_is_taken_between_two_records(
    network: LocalNetwork, tasks: Tasks, strategy: WatermarkStrategy | None
) -> None:
    """A task that goes on from the checkpoint processes each other record once."""
    rig, job = Checkpointed(network), Job()
    job.on_tenth = lambda: trigger(job.task, 1)

    def source() -> SourceOperator:
        return SourceOperator(CollectionSource(range(NUM_RECORDS)), strategy=strategy)

    task = tasks.restored(rig.task(source(), MapOperator(job.call), Summing()))
    job.task = task
    run_until_acknowledged(task)
    num_calls = job.num_calls
    after = Job()
    restored = rig.task(source(), MapOperator(after.call), summing := Summing(), states=rig.states(1))
    after.on_tenth = lambda: None
    after.run(restored, tasks)

    assert num_calls == 10
    assert after.num_calls == NUM_RECORDS - 10
    assert summing.total == sum(range(NUM_RECORDS))


class Listening:
    """A reader that is told how many of its records wait when a checkpoint has its position."""

    def __init__(self) -> None:
        self.num_waiting: list[int] = []
        self._reader = CollectionSource(range(NUM_RECORDS)).create_reader(0, 1)

    def poll_chunk(self) -> Any:
        return self._reader.poll_chunk()

    def snapshot_position(self) -> object:
        return 1

    def position_taken(self, checkpoint_id: int, num_waiting: int) -> None:
        self.num_waiting.append(num_waiting)

    def position_kept(self, checkpoint_id: int) -> None:
        pass

    position_lost = position_kept

    def close(self) -> None:
        self._reader.close()


class ListeningSource(Source):
    def __init__(self, reader: Listening) -> None:
        self._reader = reader

    def create_reader(self, subtask: int, parallelism: int) -> Any:
        return self._reader


def test_a_reader_is_told_how_many_of_its_records_wait_when_a_checkpoint_is_taken(
    network: LocalNetwork, tasks: Tasks
) -> None:
    """A source with offsets of its own outside, as Kafka's groups have, does not count them."""
    rig, job, reader = Checkpointed(network), Job(), Listening()
    job.on_tenth = lambda: trigger(job.task, 1)

    job.run(rig.task(SourceOperator(ListeningSource(reader)), MapOperator(job.call)), tasks)

    assert reader.num_waiting == [NUM_RECORDS - 10]


def test_a_restored_rest_is_kept_by_the_next_checkpoint(network: LocalNetwork, tasks: Tasks) -> None:
    """Records that can change are in it as they were given."""
    rig, totals = Checkpointed(network), []
    states: dict[str, object] | None = None
    for number in range(1, 4):
        job = Job()
        job.on_tenth = lambda job=job, number=number: trigger(job.task, number)  # type: ignore[misc]

        def change(value: list[int], job: Job = job) -> int:
            value.append(0)
            assert len(value) == 2
            return int(job.call(value[0]))

        values = [[each] for each in range(NUM_RECORDS)]
        job.task = task = tasks.restored(
            rig.task(SourceOperator(CollectionSource(values)), MapOperator(change), summing := Summing(), states=states)
        )
        run_until_acknowledged(task)
        states = rig.states(number)
        totals.append(summing.total)

    assert totals == [sum(range(10 * number)) for number in (1, 2, 3)]


class LoopLeftError(Exception):
    """Ends a loop between two mails."""


def test_a_barrier_is_taken_while_timers_in_front_of_it_are_left(network: LocalNetwork, tasks: Tasks) -> None:
    """Timers that have not fired are in the state, and their results follow the barrier, as in Flink with interruptible
    timers.
    """
    upstream, downstream = network.partition(), network.partition()
    reader, fired = network.reader(downstream), []

    class Timers(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(value)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[int]:
            fired.append(timestamp)
            tasks.clock.advance_ms(20)  # longer than the task may be blind for barriers
            yield timestamp

    def execute_async(run: Callable[[], None]) -> None:
        num_fired.append(len(fired))
        task.mailbox_processor.send_control_mail(leave_loop, "leave the loop")

    def leave_loop() -> None:
        raise LoopLeftError

    num_fired: list[int] = []
    environment = network.environment("timers", gates=[network.gate(upstream)], outputs=[edge(downstream)])
    environment.checkpointing = checkpointing(InMemoryCheckpointStore(), execute_async)
    task = tasks.timed(environment, ProcessOperator(Timers(), lambda value: value))
    send(upstream, Chunk(list(range(50)), list(range(50))), Watermark(100))
    upstream.broadcast_event(CheckpointBarrier(1, 0, CheckpointOptions()))

    tasks.restored(task)
    with pytest.raises(LoopLeftError):
        task.mailbox_processor.run_mailbox_loop()
    step_until_idle(task)
    before = reader.read_values()
    reader.view.resume_consumption()
    behind = reader.read_values()

    assert num_fired[0] <= 2
    assert before + behind == list(range(50)), "the others follow the barrier"
    assert len(before) == num_fired[0]


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - {"a reduce function"}))
@pytest.mark.parametrize("is_source", [False, True])
def test_records_before_one_that_fails_are_in_the_counters(
    network: LocalNetwork, tasks: Tasks, name: str, *, is_source: bool
) -> None:
    """The others of its slice are not."""
    job, upstream = Job(), network.partition()

    def call(value: Any) -> Any:
        if value == 19:
            raise ValueError("the twentieth")
        return value

    operators = OPERATORS[name](call)
    if is_source:
        task = tasks.timed(network.environment("failing"), numbers(), *operators)
    else:
        task = tasks.timed(network.environment("failing", gates=[network.gate(upstream)]), *operators)
        send(upstream, Chunk(list(range(NUM_RECORDS))))

    with pytest.raises(UserFunctionError):
        job.run(task, tasks)

    metrics = task.metrics().operators
    expected = 19
    if name == "a sink" and is_source:
        expected = 73  # slices of 1, 8 and 64 have left the source
    assert (metrics[0].num_records_out if is_source else metrics[0].num_records_in) == expected
    assert metrics[-1].num_records_in == expected


@pytest.mark.parametrize("name", OPERATORS)
def test_a_cancelled_chain_calls_its_function_for_no_other_record(tasks: Tasks, name: str) -> None:
    job = Job()
    task = reading(tasks, *OPERATORS[name](job.call))
    job.on_tenth = task.cancel

    with pytest.raises(TaskCancelled):
        job.run(task, tasks)

    assert job.num_calls == 10


def test_a_cancelled_generator_is_not_resumed(network: LocalNetwork, tasks: Tasks) -> None:
    job = Job()

    def endless(value: Any) -> Iterator[Any]:
        while True:
            yield job.call(value)

    task = tasks.source(SourceOperator(CollectionSource([1])), FlatMapOperator(endless))
    job.on_tenth = task.cancel

    with pytest.raises(TaskCancelled):
        job.run(task, tasks)

    assert job.num_calls == 10


def test_results_of_a_generator_leave_the_task_when_their_time_is_over(network: LocalNetwork, tasks: Tasks) -> None:
    """Results of a generator do not wait for its end."""
    job, partition = Job(), network.partition()
    reader = network.reader(partition)
    seen: list[list[object]] = []

    def generate(value: Any) -> Iterator[Any]:
        for number in range(20):
            if number == 10:
                network.timer.fire()
            if number == 11:
                seen.append(reader.read_values())
            yield number

    task = tasks.source(
        SourceOperator(CollectionSource([1])),
        FlatMapOperator(generate),
        outputs=[edge(partition, source=1, buffer_timeout_ms=100)],
    )

    job.run(task, tasks)

    assert seen == [list(range(11))]
    network.timer.fire()
    assert reader.read_values() == list(range(11, 20))


class SlowItems(WindowFunction):
    """A generator whose third item takes long: meanwhile the time of results is over.

    Notes what has left the task at each item.
    """

    def __init__(self, network: LocalNetwork, partition: ResultPartition) -> None:
        self._network = network
        self._reader = network.reader(partition)
        self.left: list[list[object]] = []

    def items(self, *_: Any, **__: Any) -> Iterator[int]:
        for number in range(6):
            if number in (0, 3):
                self._network.timer.fire()  # at 0 nothing is there that could leave
            self.left.append(self._reader.read_values())
            yield number

    flat_map1 = flat_map2 = apply = items


class SlowItemsOfProcess(KeyedProcessFunction):
    def __init__(self, items: Callable[..., Iterator[int]], *, by_timer: bool) -> None:
        self._items = items
        self._by_timer = by_timer

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[int] | None:
        if not self._by_timer:
            return self._items()
        ctx.timer_service().register_event_time_timer(1)
        return None

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[int]:
        return self._items()


def window_of(function: WindowFunction) -> StreamOperator:
    spec = WindowSpec(TumblingEventTimeWindows.of(Duration.of_millis(5)), EventTimeTrigger.create(), function=function)
    return WindowOperator(spec, lambda value: value)


SLOW_ITEMS: dict[str, Callable[[SlowItems], list[StreamOperator]]] = {
    "flat_map": lambda slow: [FlatMapOperator(slow.items)],
    "flat_map behind flat_map": lambda slow: [
        FlatMapOperator(lambda value: iter([value])),
        FlatMapOperator(slow.items),
    ],
    "flat_map of two streams": lambda slow: [CoFlatMapOperator(slow)],
    "process": lambda slow: [ProcessOperator(SlowItemsOfProcess(slow.items, by_timer=False), lambda value: value)],
    "window": lambda slow: [window_of(slow)],
    "window before map": lambda slow: [window_of(slow), MapOperator(lambda value: value)],
    "timer": lambda slow: [ProcessOperator(SlowItemsOfProcess(slow.items, by_timer=True), lambda value: value)],
}


@pytest.mark.parametrize("name", SLOW_ITEMS)
def test_an_item_of_a_generator_that_took_long_leaves_before_the_next_one_is_asked_for(
    network: LocalNetwork, tasks: Tasks, name: str
) -> None:
    """The item leaves even if there was nothing to pass on when the time of results was over for the first time."""
    upstream, partition = network.partition(), network.partition()
    slow = SlowItems(network, partition)
    operators = SLOW_ITEMS[name](slow)
    gates = [network.gate(upstream), network.gate(network.partition())][: 2 if "two" in name else 1]
    environment = network.environment(
        "slow", gates=gates, outputs=[edge(partition, source=len(operators) - 1, buffer_timeout_ms=100)]
    )
    if len(gates) == 2:
        environment.gate_inputs = [1, 2]
    send(upstream, Chunk([1], [1]), Watermark(10))

    step_until_idle(tasks.restored(create_stream_task(environment, chain(*operators))))

    assert slow.left == [[], [0], [], [], [1, 2, 3], []]


def test_a_source_that_stops_with_draining_processes_all_that_it_read(network: LocalNetwork, tasks: Tasks) -> None:
    job = Job()
    task = Checkpointed(network).task(numbers(), MapOperator(job.call))
    assert isinstance(task, SourceStreamTask)
    job.on_tenth = lambda: task._stop(StopMode.DRAIN)

    job.run(task, tasks)

    assert job.num_calls == NUM_RECORDS


def test_a_task_without_room_for_its_output_takes_mails(network: LocalNetwork, tasks: Tasks) -> None:
    """The rest of a default action's records gets buffers beyond those of the output; then the task waits for room."""
    overdraft = NetstackConfig().max_overdraft_buffers_per_gate
    pool = network.pool.create_buffer_pool(owner="full", num_required=2, max_buffers=2, max_overdraft_buffers=overdraft)
    partition = network.partition()
    full = ResultPartition(partition.partition_id, 1, pool, "full")
    task = tasks.source(SourceOperator(CollectionSource([bytes(SEGMENT_BYTES - 64)] * 20)), outputs=[edge(full)])
    took_mail = threading.Event()

    thread = Thread(task.invoke)
    spin_until(lambda: is_parked(task) or full.statistics().hard_blocked_ns > 0)
    task.mailbox_processor.executor().execute(took_mail.set, "a mail")
    is_taken = took_mail.wait(PATIENCE_S)
    cancel(task, thread)

    assert is_taken
    assert full.statistics().hard_blocked_ns == 0


class FullOutput:
    """A source whose consumers, behind a ``key_by``, read nothing; network memory is so small that none is left to
    overdraw.
    """

    def __init__(self, network: LocalNetwork, *operators: StreamOperator) -> None:
        self._pool: list[Callable[[], None]] = []
        pool = network.pool.create_buffer_pool(owner="full", num_required=5, max_buffers=6, max_overdraft_buffers=0)
        self.partition = ResultPartition(network.partition().partition_id, 4, pool, "full")
        environment = network.environment(
            "full", outputs=[edge(self.partition, KeyGroups(lambda value: value), source=len(operators) - 1)]
        )
        environment.checkpointing = checkpointing(InMemoryCheckpointStore(), self._pool.append)
        self.task = create_stream_task(environment, chain(*operators))

    def acknowledged(self) -> int:
        while self._pool:
            self._pool.pop(0)()
        assert self.task.checkpoints is not None
        return self.task.checkpoints.responder.statistics.num_acknowledged

    @property
    def blocks(self) -> bool:
        return self.partition.statistics().hard_blocked_ns > 0


@pytest.mark.parametrize("alignment", [Alignment.ALIGNED, Alignment.UNALIGNED])
def test_a_task_whose_slow_consumers_leave_no_network_memory_takes_checkpoints(
    network: LocalNetwork, alignment: Alignment
) -> None:
    """The task waits between two records of its head, in its mailbox, where it can be cancelled, too."""
    full = FullOutput(network, SourceOperator(CollectionSource(range(10_000))))

    thread = Thread(full.task.invoke)
    spin_until(lambda: is_parked(full.task) or full.blocks)
    trigger(full.task, 1, CheckpointOptions(alignment=alignment))
    spin_until(lambda: full.acknowledged() == 1 or full.blocks)
    blocks = full.blocks
    cancel(full.task, thread)

    assert not blocks


def test_a_task_that_waits_for_room_in_the_middle_of_one_record_can_be_cancelled(network: LocalNetwork) -> None:
    """A mail waits for a record with all its results, however many, as in Flink; a cancellation does not."""
    job = Job()
    flat_map = FlatMapOperator(lambda value: (job.call(each) for each in range(1_000_000)))
    full = FullOutput(network, SourceOperator(CollectionSource([1])), flat_map)
    job.on_tenth = lambda: None

    thread = Thread(full.task.invoke)
    spin_until(lambda: full.blocks)
    cancel(full.task, thread)

    assert job.num_calls < 1_000_000


def test_results_of_windows_do_not_wait_for_the_other_keys(network: LocalNetwork, tasks: Tasks) -> None:
    """Windows of fifty keys end together; a mail comes at the tenth, and finds the results of ten."""
    job, upstream, downstream = Job(), network.partition(max_buffers=24), network.partition(max_buffers=24)
    reader, seen = network.reader(downstream), list[list[object]]()

    class Slow(WindowFunction):
        def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> list[Any]:
            return [job.call(key)]

    spec = WindowSpec(TumblingEventTimeWindows.of(Duration.of_seconds(1)), EventTimeTrigger.create(), function=Slow())
    operator = WindowOperator(spec, lambda value: value)
    task = tasks.task("windows", operator, gates=[network.gate(upstream)], outputs=[edge(downstream)])
    job.on_tenth = lambda: task.mailbox_processor.executor().execute(
        lambda: seen.append(reader.read_values()), "a mail"
    )
    send(upstream, Chunk(list(range(50)), [0] * 50), Watermark(2_000))

    job.run(task, tasks)

    assert len(seen[0]) == 10
    assert sorted([*seen[0], *reader.read_values()], key=str) == sorted(range(50), key=str)


@pytest.mark.parametrize("mode", [StopMode.NO_DRAIN, StopMode.DRAIN])
def test_a_source_that_stops_while_thousands_of_timers_fire_comes_to_its_end(
    network: LocalNetwork, tasks: Tasks, mode: StopMode
) -> None:
    """The end is behind all timers with draining; without, the others are left for the savepoint."""
    fired = list[int]()

    class Timers(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(value)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
            fired.append(timestamp)
            tasks.clock.advance_ms(20)  # one timer per mail
            if len(fired) == 10:
                stop(mode)

    head = SourceOperator(ScriptedSource(list(range(1_500)), Watermark(2_000), list(range(1_500))))  # type: ignore[arg-type]  # as it comes
    task = tasks.timed(network.environment("timers"), head, ProcessOperator(Timers(), lambda value: value))
    assert isinstance(task, SourceStreamTask)
    stop = task._stop

    run(task)

    assert len(fired) == (10 if mode is StopMode.NO_DRAIN else 1_500)


def test_after_a_record_that_took_more_than_a_second_the_loop_runs_until_it_has_done_what_is_due(
    network: LocalNetwork, tasks: Tasks
) -> None:
    """The function may have kept the interpreter's lock, and may do so again; a heartbeat is several callbacks of the
    loop.
    """
    rounds, environment = [], network.environment("slow")

    def call(value: Any) -> Any:
        tasks.clock.advance_ms(1_500 if value in (3, 20) else 0)
        return value

    def on_loop(delay_s: float, callback: Callable[[], None]) -> ManualTimer:
        rounds.append(delay_s)
        callback()
        return ManualTimer()

    environment.schedule_timer = on_loop
    run(tasks.timed(environment, SourceOperator(CollectionSource(range(30))), MapOperator(call)))

    assert [delay_s for delay_s in rounds if delay_s == 0] == [0] * 4
