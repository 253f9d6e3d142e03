"""Mails and barriers wait for at most one record of the head of a chain, one timer or one firing window, however slow a function is.

A function sends a mail, or begins a checkpoint, in its tenth call; so the number of calls when it runs is known, whatever a call takes.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.responder import InMemoryCheckpointStore
from flowlet.checkpoint.snapshots import CheckpointMetadata, OperatorState
from flowlet.common import Duration
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.datastream import CoMapFunction, KeyedProcessFunction
from flowlet.datastream.connectors import Sink
from flowlet.datastream.connectors.sink_writer import SinkWriter
from flowlet.datastream.functions import WindowFunction
from flowlet.datastream.window import EventTimeTrigger, TumblingEventTimeWindows
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import TaskCancelled
from flowlet.mailbox.task_timings import TaskTimings
from flowlet.operators.co_functions import CoMapOperator
from flowlet.operators.filter_operator import FilterOperator
from flowlet.operators.flat_map_operator import FlatMapOperator
from flowlet.operators.keyed_reduce_operator import KeyedReduceOperator
from flowlet.operators.map_operator import MapOperator
from flowlet.operators.process_operator import ProcessOperator
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.operators.timestamps_and_watermarks_operator import TimestampsAndWatermarksOperator
from flowlet.records import Chunk, Watermark
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.task.create_stream_task import StreamTask, create_stream_task
from flowlet.task.one_input_stream_task import OneInputStreamTask
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.task.task_environment import Checkpointing
from flowlet.windows.window_operator import WindowOperator
from netstack.config import NetstackConfig
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, CheckpointOptions, StopMode
from tests.flowlet.checkpoint.doubles import ManualTimers
from tests.flowlet.task.local_network import SEGMENT_BYTES, LocalNetwork, Recorder, ScriptedSource, Thread, edge
from tests.flowlet.task.local_tasks import Clock, Tasks, chain, is_parked, send, step_until_idle
from tests.waiting import PATIENCE_S, spin_until

VERTEX = "3" * 32
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
    "reduce": lambda call: [MapOperator(call), KeyedReduceOperator(lambda value: value % 7, lambda first, second: second)],
    "timestamps": lambda call: [TimestampsAndWatermarksOperator(timestamps(call))],
    "the end of a chain": lambda call: [MapOperator(lambda value: value), MapOperator(call)],
    "a sink": lambda call: [SinkOperator(Writing(call))],
}


@pytest.mark.parametrize("name", OPERATORS)
def test_a_mail_waits_for_one_record_of_a_task_that_reads_a_gate(network: LocalNetwork, tasks: Tasks, name: str) -> None:
    """The other records of the chunk are processed all the same."""
    job, upstream = Job(), network.partition()
    task = tasks.sink(*OPERATORS[name](job.call), producers=[upstream])
    send(upstream, Chunk(list(range(NUM_RECORDS))))

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert job.num_calls == NUM_RECORDS


def test_a_mail_waits_for_one_call_of_a_reduce_function(network: LocalNetwork, tasks: Tasks) -> None:
    job, upstream = Job(), network.partition()
    operator = KeyedReduceOperator(lambda value: 0, lambda first, second: job.call(first + second))
    task = tasks.sink(operator, producers=[upstream])
    send(upstream, Chunk(list(range(NUM_RECORDS))))

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert job.num_calls == NUM_RECORDS - 1


def test_a_mail_waits_for_one_record_of_a_co_operator(network: LocalNetwork, tasks: Tasks) -> None:
    job, left, right = Job(), network.partition(), network.partition()

    class Both(CoMapFunction):
        def map1(self, value: Any) -> Any:
            return job.call(value)

        def map2(self, value: Any) -> Any:
            return job.call(value)

    gates = [network.gate(left), network.gate(right)]
    environment = network.environment("both", gates=gates)
    environment.gate_inputs = [1, 2]
    task = create_stream_task(environment, chain(CoMapOperator(Both())))
    send(left, Chunk(list(range(NUM_RECORDS))))
    send(right, Chunk(list(range(NUM_RECORDS))))

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert job.num_calls == 2 * NUM_RECORDS


@pytest.mark.parametrize("strategy", [None, timestamps(lambda value: value)], ids=["without event time", "with timestamps"])
def test_a_mail_waits_for_one_record_behind_a_source(network: LocalNetwork, tasks: Tasks, strategy: WatermarkStrategy | None) -> None:
    job = Job()
    head = SourceOperator(CollectionSource(range(NUM_RECORDS)), strategy=strategy)
    task = tasks.source(head, MapOperator(job.call))

    job.run(task, tasks)

    assert job.at_mail == [10]
    assert job.num_calls == NUM_RECORDS


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
        self.pool: list[Callable[[], None]] = []

    def task(self, *operators: StreamOperator, states: dict[str, object] | None = None) -> StreamTask:
        environment = self.network.environment("slow")
        restored = {name: OperatorState(state) for name, state in (states or {}).items()}
        environment.checkpointing = Checkpointing(
            self.store.responder_of(VERTEX, 0), self.pool.append, ManualTimers(), InMemoryChannelStateWriter(), restored=restored
        )
        return create_stream_task(environment, chain(*operators))

    def states(self, checkpoint_id: int) -> dict[str, object]:
        while self.pool:
            self.pool.pop(0)()
        operators = self.store.state_of(checkpoint_id, VERTEX, 0).operators
        return {name: state.own for name, state in operators.items() if isinstance(state, OperatorState)}


class Summing(Recorder):
    """Keeps the sum of what it saw."""

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


def trigger(task: StreamTask | None, checkpoint_id: int) -> None:
    assert task is not None
    assert task.checkpoints is not None
    task.checkpoints.trigger_checkpoint_async(CheckpointMetadata(checkpoint_id, 0, 0), CheckpointOptions())


@pytest.mark.parametrize("strategy", [None, timestamps(lambda value: value)], ids=["without event time", "with timestamps"])
def test_a_checkpoint_of_a_source_is_taken_between_two_records(
    network: LocalNetwork, tasks: Tasks, strategy: WatermarkStrategy | None
) -> None:
    """What goes on from it processes each other record once."""
    rig, job = Checkpointed(network), Job()
    job.on_tenth = lambda: trigger(job.task, 1)

    def source() -> SourceOperator:
        return SourceOperator(CollectionSource(range(NUM_RECORDS)), strategy=strategy)

    task = tasks.restored(rig.task(source(), MapOperator(job.call), Summing()))
    job.task = task
    while not job.task.checkpoints.statistics.num_acknowledged:  # type: ignore[union-attr]
        assert task.mailbox_processor.run_mailbox_step()
        rig.pool and rig.pool.pop(0)()
    num_calls = job.num_calls
    after = Job()
    restored = rig.task(source(), MapOperator(after.call), summing := Summing(), states=rig.states(1))
    after.on_tenth = lambda: None
    after.run(restored, tasks)

    assert num_calls == 10
    assert after.num_calls == NUM_RECORDS - 10
    assert summing.total == sum(range(NUM_RECORDS))


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
        while not task.checkpoints.statistics.num_acknowledged:  # type: ignore[union-attr]
            assert task.mailbox_processor.run_mailbox_step()
            rig.pool and rig.pool.pop(0)()
        states = rig.states(number)
        totals.append(summing.total)

    assert totals == [sum(range(10 * number)) for number in (1, 2, 3)]


def test_a_barrier_is_taken_while_timers_in_front_of_it_are_left(network: LocalNetwork, tasks: Tasks) -> None:
    """As in Flink with interruptible timers: the others are in the state, and what they emit follows the barrier."""
    rig, upstream, downstream = Checkpointed(network), network.partition(), network.partition()
    reader, clock, fired = network.reader(downstream), Clock(), []

    class Timers(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(value)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[int]:
            fired.append(timestamp)
            clock.now_ns += 20_000_000  # longer than the task may be blind for barriers
            yield timestamp

    def execute_async(run: Callable[[], None]) -> None:
        num_fired.append(len(fired))
        task.mailbox_processor.suspend()
        rig.pool.append(run)

    num_fired: list[int] = []
    environment = network.environment("timers", gates=[network.gate(upstream)], outputs=[edge(downstream)])
    environment.checkpointing = Checkpointing(
        rig.store.responder_of(VERTEX, 0), execute_async, ManualTimers(), InMemoryChannelStateWriter()
    )
    task = OneInputStreamTask(environment, chain(ProcessOperator(Timers(), lambda value: value)), timings=TaskTimings(clock))
    send(upstream, Chunk(list(range(50)), list(range(50))), Watermark(100))
    upstream.broadcast_event(CheckpointBarrier(1, 0, CheckpointOptions()))

    tasks.restored(task)
    task.mailbox_processor.run_mailbox_loop()
    step_until_idle(task)
    before = reader.read_values()
    reader.view.resume_consumption()
    behind = reader.read_values()

    assert num_fired[0] <= 2
    assert before + behind == list(range(50)), "the others follow the barrier"
    assert len(before) == num_fired[0]
    reader.view.release()


@pytest.mark.parametrize("name", OPERATORS)
def test_a_cancelled_chain_calls_its_function_for_no_other_record(network: LocalNetwork, tasks: Tasks, name: str) -> None:
    job, upstream = Job(), network.partition()
    task = tasks.sink(*OPERATORS[name](job.call), producers=[upstream])
    job.on_tenth = lambda: task.cancel()
    send(upstream, Chunk(list(range(NUM_RECORDS))))

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
    """They do not wait for its end."""
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
        SourceOperator(CollectionSource([1])), FlatMapOperator(generate), outputs=[edge(partition, source=1, buffer_timeout_ms=100)]
    )

    job.run(task, tasks)

    assert seen == [list(range(10))]
    network.timer.fire()
    assert reader.read_values() == list(range(10, 20))
    reader.view.release()


def test_a_stopped_source_hands_its_rest_to_the_savepoint(network: LocalNetwork, tasks: Tasks) -> None:
    """Without draining nothing else is processed; with draining everything that was read is."""
    counts = []
    for mode in (StopMode.NO_DRAIN, StopMode.DRAIN):
        job = Job()
        task = Checkpointed(network).task(SourceOperator(CollectionSource(range(NUM_RECORDS))), MapOperator(job.call))
        job.on_tenth = lambda task=task, mode=mode: task._stop(mode)  # type: ignore[misc]
        job.task = tasks.restored(task)
        job.send_mail()
        step_until_idle(task)
        counts.append(job.num_calls)

    assert counts[1] == NUM_RECORDS


def test_a_task_without_room_for_its_output_takes_mails(network: LocalNetwork, tasks: Tasks) -> None:
    """The rest of what one default action has made gets buffers beyond those of the output; then the task waits for room."""
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
    task.cancel()
    with pytest.raises(TaskCancelled):
        thread.result()

    assert is_taken
    assert full.statistics().hard_blocked_ns == 0


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
    job.on_tenth = lambda: task.mailbox_processor.executor().execute(lambda: seen.append(reader.read_values()), "a mail")
    send(upstream, Chunk(list(range(50)), [0] * 50), Watermark(2_000))

    job.run(task, tasks)

    assert len(seen[0]) == 10
    assert sorted([*seen[0], *reader.read_values()], key=str) == sorted(range(50), key=str)
    reader.view.release()


@pytest.mark.parametrize("mode", [StopMode.NO_DRAIN, StopMode.DRAIN])
def test_a_source_that_stops_while_thousands_of_timers_fire_comes_to_its_end(network: LocalNetwork, tasks: Tasks, mode: StopMode) -> None:
    """With draining behind all of them; without, the others are left for the savepoint."""
    clock, fired = Clock(), list[int]()

    class Timers(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            ctx.timer_service().register_event_time_timer(value)

        def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
            fired.append(timestamp)
            clock.now_ns += 20_000_000  # one timer per mail
            if len(fired) == 10:
                task._stop(mode)

    head = SourceOperator(ScriptedSource(list(range(1_500)), Watermark(2_000), list(range(1_500))))  # type: ignore[arg-type]  # as it comes
    environment = network.environment("timers")
    chained = [ChainedOperator(head), ChainedOperator(ProcessOperator(Timers(), lambda value: value), 0)]
    task = SourceStreamTask(environment, chained, timings=TaskTimings(clock))

    thread = Thread(task.invoke)
    thread.result()

    assert len(fired) == (10 if mode is StopMode.NO_DRAIN else 1_500)
