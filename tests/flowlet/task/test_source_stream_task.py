"""Source: Flink ``SourceStreamTaskTest``, ``SourceOperatorStreamTaskTest``."""

import threading
from collections.abc import Callable

import pytest

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.common.typeinfo import Types
from flowlet.connectors.blocking_source import BlockingSource
from flowlet.connectors.files.reader import TextPosition, text_lines
from flowlet.datastream import CheckpointedFunction, FunctionInitializationContext, FunctionSnapshotContext
from flowlet.datastream.state import ListStateDescriptor
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from flowlet.errors import TaskCancelled
from flowlet.mailbox.mailbox_processor import TaskTimings
from flowlet.messages.control_messages import AddSplits, EmitMark, MarkCompleted
from flowlet.operators.source_operator import KeptRecords, PositionWithRest, SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import MAX_WATERMARK, Chunk, CompletionMark
from flowlet.splits.split_kinds import FileSet, FileSplit
from flowlet.task.source_stream_task import MAX_POLLS_PER_ACTION, SourceStreamTask, create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import Checkpointing
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    SavepointFormat,
    SnapshotType,
    StopMode,
)
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.connectors.test_blocking_source import Emitting
from tests.flowlet.task.local_network import LocalNetwork, Recorder, SubpartitionReader, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, chain, is_parked, source, step_until_idle
from tests.waiting import PATIENCE_S, spin_until


def blocked_task(tasks: Tasks, recorder: Recorder, function: SourceFunction) -> StreamTask:
    return tasks.source(SourceOperator(BlockingSource(function)), recorder)


def test_a_task_sleeps_while_its_source_blocks_and_processes_on_its_own_thread(
    network: LocalNetwork, tasks: Tasks
) -> None:
    go_on, recorder = threading.Event(), Recorder()

    def script(ctx: SourceContext) -> None:
        ctx.collect("first")
        assert go_on.wait(PATIENCE_S)
        ctx.collect("second")

    task = blocked_task(tasks, recorder, Emitting(script))
    thread = Thread(task.invoke)
    spin_until(lambda: recorder.values == ["first"] and is_parked(task))
    go_on.set()
    thread.result()

    assert recorder.values == ["first", "second"]
    assert recorder.controls == [MAX_WATERMARK]
    assert recorder.threads == {thread.ident}


def test_a_cancelled_task_cancels_its_source(network: LocalNetwork, tasks: Tasks) -> None:
    cancelled, recorder = threading.Event(), Recorder()

    def script(ctx: SourceContext) -> None:
        ctx.collect("first")
        assert cancelled.wait(PATIENCE_S)

    task = blocked_task(tasks, recorder, Emitting(script, cancelled.set))
    thread = Thread(task.invoke)
    spin_until(lambda: recorder.values == ["first"] and is_parked(task))

    task.cancel()

    with pytest.raises(TaskCancelled):
        thread.result()
    assert cancelled.is_set()


def test_a_stopped_source_ends_without_draining(network: LocalNetwork, tasks: Tasks) -> None:
    """The task emits no last watermark and calls no ``finish``; the consumers hear how it ended."""
    recorder, partition = Recorder(), network.partition()
    reader = network.reader(partition)
    task = tasks.source(source(["a"], ["b"]), recorder, outputs=[edge(partition, source=1)])
    assert isinstance(task, SourceStreamTask)
    tasks.restored(task)
    task.mailbox_processor.run_mailbox_step()

    task.stop()
    step_until_idle(task)

    assert reader.read_values() == ["a"]
    assert recorder.calls == ["open", "chunk"]
    assert reader.events == [EndOfData(StopMode.NO_DRAIN)]
    reader.view.release()


def test_a_stop_wakes_a_source_that_waits(network: LocalNetwork, tasks: Tasks) -> None:
    cancelled, recorder = threading.Event(), Recorder()

    def script(ctx: SourceContext) -> None:
        assert cancelled.wait(PATIENCE_S)

    task = blocked_task(tasks, recorder, Emitting(script, cancelled.set))
    assert isinstance(task, SourceStreamTask)
    thread = Thread(task.invoke)
    spin_until(lambda: is_parked(task))

    task.stop()
    thread.result()

    assert cancelled.is_set()
    assert recorder.controls == []


class Counting:
    """Gives a chunk per poll, and an empty one in between."""

    def __init__(self, *, never_waits: bool, empty_at: int = -1) -> None:
        self.never_waits = never_waits
        self.empty_at = empty_at
        self.num_polls = 0
        self.on_poll: Callable[[], None] = lambda: None

    def poll_chunk(self) -> Chunk | None:
        self.num_polls += 1
        self.on_poll()
        if self.num_polls == self.empty_at:
            return Chunk([])
        return None if self.num_polls > 20 else Chunk([self.num_polls])

    def close(self) -> None:
        pass


class Given(Source):
    def __init__(self, reader: Counting) -> None:
        self.reader = reader

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return self.reader


def stepped(tasks: Tasks, network: LocalNetwork, reader: Counting) -> tuple[StreamTask, SubpartitionReader]:
    """Make a task that took one step, and a reader of its output."""
    partition = network.partition()
    environment = network.environment("source", outputs=[edge(partition, source=0)])
    # With a clock that stands still: an action that takes long ends.
    task = tasks.restored(
        SourceStreamTask(environment, chain(SourceOperator(Given(reader))), timings=TaskTimings(tasks.clock))
    )
    task.mailbox_processor.run_mailbox_step()
    return task, network.reader(partition)


def test_a_reader_that_may_wait_is_asked_once_per_action(network: LocalNetwork, tasks: Tasks) -> None:
    """A record is on its way before the reader is asked again."""
    task, output = stepped(tasks, network, reader := Counting(never_waits=False))

    assert (reader.num_polls, output.read_values()) == (1, [1])
    task.mailbox_processor.run_mailbox_step()
    assert (reader.num_polls, output.read_values()) == (2, [2])
    output.view.release()


def test_what_a_reader_gives_that_never_waits_goes_together(network: LocalNetwork, tasks: Tasks) -> None:
    _, output = stepped(tasks, network, Counting(never_waits=True))

    assert output.read() == [Chunk(list(range(1, MAX_POLLS_PER_ACTION + 1)))]
    output.view.release()


def test_a_reader_that_has_nothing_lets_go_what_it_gave(network: LocalNetwork, tasks: Tasks) -> None:
    _, output = stepped(tasks, network, reader := Counting(never_waits=True, empty_at=3))

    assert (reader.num_polls, output.read()) == (3, [Chunk([1, 2])])
    output.view.release()


def test_a_mail_does_not_wait_for_a_reader_that_has_more(network: LocalNetwork, tasks: Tasks) -> None:
    partition, reader = network.partition(), Counting(never_waits=True)
    task = tasks.restored(tasks.source(SourceOperator(Given(reader)), outputs=[edge(partition, source=0)]))
    output, seen = network.reader(partition), []

    def mail_at_2() -> None:
        if reader.num_polls == 2:
            task.mailbox_processor.executor().execute(lambda: seen.append(reader.num_polls), "look")

    reader.on_poll = mail_at_2
    for _ in range(2):
        task.mailbox_processor.run_mailbox_step()

    assert seen == [2]
    assert output.read()[0] == Chunk([1, 2])
    output.view.release()


def test_a_mark_is_emitted_by_a_source_that_has_nothing_and_reaches_the_consumers_at_once(
    network: LocalNetwork, tasks: Tasks
) -> None:
    """The mark needs no timer that flushes the output; it is behind the records, and counts as passed here."""
    release, partition = threading.Event(), network.partition()
    reader = network.reader(partition)

    def script(ctx: SourceContext) -> None:
        ctx.collect("first")
        assert release.wait(PATIENCE_S)

    operator = SourceOperator(BlockingSource(Emitting(script, release.set)))
    task = tasks.source(operator, outputs=[edge(partition, buffer_timeout_ms=-1)])
    assert isinstance(task, SourceStreamTask)
    thread = Thread(task.invoke)
    spin_until(lambda: is_parked(task) and task.metrics().num_records_out == 1)

    before = reader.num_notifications
    task.carry_out(EmitMark(b"", 1))

    spin_until(lambda: network.marks == [1])
    assert reader.num_notifications > before, "it was flushed"
    assert reader.read() == [Chunk(["first"]), CompletionMark(1)]
    task.cancel()
    with pytest.raises(TaskCancelled):
        thread.result()
    reader.view.release()


def test_a_source_that_has_ended_emits_no_mark(network: LocalNetwork, tasks: Tasks) -> None:
    """The end of data says more, and a source that was stopped promises nothing, as records in its operators are
    dropped.
    """
    for is_stopped in (False, True):
        task = tasks.source(source(["a"]), Recorder())
        assert isinstance(task, SourceStreamTask)
        tasks.restored(task)
        if is_stopped:
            task.stop()
        else:
            step_until_idle(task)
        task.carry_out(EmitMark(b"", 1))
        task.carry_out(MarkCompleted(b"", 1))
        step_until_idle(task)

    assert network.marks == []


class YieldsInAChunk(StreamOperator):
    """Runs mails before each record."""

    name = "yields"
    waits = True

    def process_record(self, record: object, timestamp: int | None) -> None:
        self.ctx.mailbox_executor.try_yield()
        self.output.collect(Chunk([record]))


class OneChunk(Counting):
    def poll_chunk(self) -> Chunk | None:
        super().poll_chunk()
        return Chunk([1, 2]) if self.num_polls == 1 else None


def test_a_mark_follows_what_the_reader_gave_before_it(network: LocalNetwork, tasks: Tasks) -> None:
    """An operator that waits runs mails while the records of a chunk are on their way to it, but the mark stays behind
    them.
    """
    partition, reader = network.partition(), OneChunk(never_waits=False)
    output = network.reader(partition)
    task = tasks.source(SourceOperator(Given(reader)), YieldsInAChunk(), outputs=[edge(partition, source=1)])
    assert isinstance(task, SourceStreamTask)
    reader.on_poll = lambda: task.carry_out(EmitMark(b"", 1)) if reader.num_polls == 1 else None
    tasks.restored(task)

    while reader.num_polls < 2:
        task.mailbox_processor.run_mailbox_step()

    assert [element for element in output.read() if isinstance(element, Chunk | CompletionMark)] == [
        Chunk([1]),
        Chunk([2]),
        CompletionMark(1),
    ]
    output.view.release()


@pytest.mark.parametrize("alignment", [Alignment.ALIGNED, Alignment.UNALIGNED])
def test_a_checkpoint_has_the_splits_that_were_sent_before_its_trigger(
    network: LocalNetwork, tasks: Tasks, alignment: Alignment
) -> None:
    """Later splits are still in the enumerator's part of the checkpoint, and would be read twice."""
    store, pool = InMemoryCheckpointStore(), list[Callable[[], None]]()
    operator = SourceOperator(text_lines(FileSet(("a", "b"))))
    operator.operator_id = b"o" * 16
    environment = network.environment("source")
    environment.checkpointing = Checkpointing(store.responder_of("v", 0), pool.append, InMemoryChannelStateWriter())
    task = create_stream_task(environment, chain(operator))
    assert isinstance(task, SourceStreamTask)
    assert task.checkpoints is not None
    tasks.restored(task)
    before, after = FileSplit("a", 0, 1), FileSplit("b", 0, 1)

    task.carry_out(AddSplits(b"", [before], 1))
    task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 0, CheckpointOptions(alignment=alignment)))
    task.carry_out(AddSplits(b"", [after], 0))
    while not pool:
        task.mailbox_processor.run_mailbox_step()
    for run in pool:
        run()

    state = store.state_of(1, "v", 0).operators[operator.operator_id.hex()]
    assert isinstance(state, OperatorState)
    assert state.own == TextPosition((before,), None)
    task.cancel()


def test_a_savepoint_that_stops_a_source_has_no_splits_that_came_later(network: LocalNetwork, tasks: Tasks) -> None:
    """The source stops first and is asked for its state then; meanwhile splits come that are in the
    enumerator's part.
    """
    store = InMemoryCheckpointStore()
    operator = SourceOperator(text_lines(FileSet(("a", "b"))))
    operator.operator_id = b"o" * 16
    environment = network.environment("source")
    environment.checkpointing = Checkpointing(
        store.responder_of("v", 0), lambda call: call(), InMemoryChannelStateWriter()
    )
    task = create_stream_task(environment, chain(operator))
    assert isinstance(task, SourceStreamTask)
    assert task.checkpoints is not None
    tasks.restored(task)
    before, after = FileSplit("a", 0, 1), FileSplit("b", 0, 1)

    task.carry_out(AddSplits(b"", [before], 1))
    options = CheckpointOptions(SnapshotType.SAVEPOINT_SUSPEND, SavepointFormat.CANONICAL)
    task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 0, options))
    task.carry_out(AddSplits(b"", [after], 0))
    step_until_idle(task)

    state = store.state_of(1, "v", 0).operators[operator.operator_id.hex()]
    assert isinstance(state, OperatorState)
    assert state.own == TextPosition((before,), None)
    task.cancel()


class _Collected(SourceFunction, CheckpointedFunction):
    """Emits three records at once when it may, and waits."""

    count = 0
    may_begin, is_done = threading.Event(), threading.Event()

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("count", Types.LONG()))

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        self.state.update([self.count])

    def run(self, ctx: SourceContext) -> None:
        assert self.may_begin.wait(PATIENCE_S)
        with ctx.get_checkpoint_lock():
            for number in range(3):
                ctx.collect(number)
                self.count += 1
        self.is_done.wait(PATIENCE_S)

    def cancel(self) -> None:
        self.is_done.set()


def test_a_savepoint_that_stops_a_source_has_what_its_function_has_emitted(network: LocalNetwork, tasks: Tasks) -> None:
    """The function's state says that it was emitted, so no later job would do so again; and the savepoint waits for
    none of it.
    """
    store, partition = InMemoryCheckpointStore(), network.partition()
    reader = network.reader(partition)
    function = _Collected()
    environment = network.environment("source", outputs=[edge(partition, source=1)])
    environment.checkpointing = Checkpointing(
        store.responder_of("v", 0), lambda call: call(), InMemoryChannelStateWriter()
    )
    task = create_stream_task(environment, chain(SourceOperator(BlockingSource(function)), Recorder()))
    assert isinstance(task, SourceStreamTask)
    assert task.checkpoints is not None
    tasks.restored(task)
    task.mailbox_processor.run_mailbox_step()  # starts the function
    step_until_idle(task)
    function.may_begin.set()
    spin_until(lambda: function.count == 3)

    options = CheckpointOptions(SnapshotType.SAVEPOINT_SUSPEND, SavepointFormat.CANONICAL)
    task.checkpoints.trigger_checkpoint_async(CheckpointBarrier(1, 0, options))
    step_until_idle(task)

    assert reader.read_values() == []
    (state,) = store.state_of(1, "v", 0).operators.values()
    assert isinstance(state, OperatorState)
    assert state.own == PositionWithRest(None, ((None, KeptRecords((0, 1, 2), None)),))
    tasks.finish(task)
    reader.view.release()
