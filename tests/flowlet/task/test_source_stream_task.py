"""Source: Flink ``SourceStreamTaskTest``, ``SourceOperatorStreamTaskTest``."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.common.typeinfo import Types
from flowlet.connectors.blocking_source import BlockingSource
from flowlet.connectors.files.reader import TextPosition, text_lines
from flowlet.datastream import CheckpointedFunction, FunctionInitializationContext, FunctionSnapshotContext
from flowlet.datastream.state import ListStateDescriptor
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from flowlet.messages.control_messages import AddSplits, EmitMark, MarkCompleted
from flowlet.operators.source_operator import KeptRecords, PositionWithRest, SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import MAX_WATERMARK, Chunk, CompletionMark, Watermark
from flowlet.splits.split_kinds import FileSet, FileSplit
from flowlet.task.source_stream_task import MAX_POLLS_PER_ACTION, SourceStreamTask, create_stream_task
from flowlet.task.stream_task import StreamTask
from netstack.wire.events import Alignment, CheckpointOptions, EndOfData, SavepointFormat, SnapshotType, StopMode
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.connectors.test_blocking_source import Emitting
from tests.flowlet.task.checkpointed_tasks import VERTEX, checkpointing, trigger
from tests.flowlet.task.local_network import LocalNetwork, Recorder, SubpartitionReader, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, cancel, chain, is_parked, parked, source, step_until_idle
from tests.waiting import PATIENCE_S, spin_until


def blocked_task(tasks: Tasks, recorder: Recorder, function: SourceFunction) -> SourceStreamTask:
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

    cancel(task, thread)
    assert cancelled.is_set()


def test_a_stopped_source_ends_without_draining(network: LocalNetwork, tasks: Tasks) -> None:
    """The task emits no last watermark and calls no ``finish``; the consumers hear how it ended, and take no result of
    work that was under way.
    """
    recorder, partition = Recorder(), network.partition()
    reader = network.reader(partition)
    task = tasks.source(source(["a"], ["b"]), recorder, outputs=[edge(partition, source=1)])
    tasks.restored(task)
    task.mailbox_processor.run_mailbox_step()

    task.stop()
    step_until_idle(task)

    assert recorder.calls == ["open", "chunk"]

    def emit() -> None:
        recorder.output.collect(Chunk(["late"]))
        recorder.output.emit_control(Watermark(7))

    task.mailbox_processor.executor().execute(emit, "a late result")
    step_until_idle(task)

    assert reader.read_values() == ["a"]
    assert reader.events == [EndOfData(StopMode.NO_DRAIN)]


def test_a_stop_wakes_a_source_that_waits(network: LocalNetwork, tasks: Tasks) -> None:
    cancelled, recorder = threading.Event(), Recorder()

    def script(ctx: SourceContext) -> None:
        assert cancelled.wait(PATIENCE_S)

    task = blocked_task(tasks, recorder, Emitting(script, cancelled.set))
    thread = parked(task)

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
    task = tasks.restored(tasks.timed(environment, SourceOperator(Given(reader))))
    task.mailbox_processor.run_mailbox_step()
    return task, network.reader(partition)


def test_a_reader_that_may_wait_is_asked_once_per_action(network: LocalNetwork, tasks: Tasks) -> None:
    """A record is on its way before the reader is asked again."""
    task, output = stepped(tasks, network, reader := Counting(never_waits=False))

    assert (reader.num_polls, output.read_values()) == (1, [1])
    task.mailbox_processor.run_mailbox_step()
    assert (reader.num_polls, output.read_values()) == (2, [2])


@pytest.mark.parametrize(
    ("empty_at", "num_polls", "together"),
    [(-1, MAX_POLLS_PER_ACTION, list(range(1, MAX_POLLS_PER_ACTION + 1))), (3, 3, [1, 2])],
    ids=["until it was asked often", "until it has nothing"],
)
def test_what_a_reader_gives_that_never_waits_goes_together(
    network: LocalNetwork, tasks: Tasks, empty_at: int, num_polls: int, together: list[int]
) -> None:
    _, output = stepped(tasks, network, reader := Counting(never_waits=True, empty_at=empty_at))

    assert (reader.num_polls, output.read()) == (num_polls, [Chunk(together)])


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
    thread = Thread(task.invoke)
    spin_until(lambda: is_parked(task) and task.metrics().num_records_out == 1)

    before = reader.num_notifications
    task.carry_out(EmitMark(b"", 1))

    spin_until(lambda: network.marks == [1])
    assert reader.num_notifications > before, "it was flushed"
    assert reader.read() == [Chunk(["first"]), CompletionMark(1)]
    cancel(task, thread)


def test_a_source_that_has_ended_emits_no_mark(network: LocalNetwork, tasks: Tasks) -> None:
    """The end of data says more, and a source that was stopped promises nothing, as records in its operators are
    dropped.
    """
    for is_stopped in (False, True):
        task = tasks.restored(tasks.source(source(["a"]), Recorder()))
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
    reader.on_poll = lambda: task.carry_out(EmitMark(b"", 1)) if reader.num_polls == 1 else None
    tasks.restored(task)

    while reader.num_polls < 2:
        task.mailbox_processor.run_mailbox_step()

    assert [element for element in output.read() if isinstance(element, Chunk | CompletionMark)] == [
        Chunk([1]),
        Chunk([2]),
        CompletionMark(1),
    ]


def checkpointed(tasks: Tasks, head: SourceOperator, *others: StreamOperator, **options: Any) -> SourceStreamTask:
    """Make a task that takes checkpoints into a store, on the test's thread."""
    environment = tasks.network.environment("source", outputs=options.pop("outputs", ()))
    environment.checkpointing = checkpointing(**options)
    task = create_stream_task(environment, chain(head, *others))
    assert isinstance(task, SourceStreamTask)
    return tasks.restored(task)


@pytest.mark.parametrize(
    "options",
    [
        CheckpointOptions(alignment=Alignment.ALIGNED),
        CheckpointOptions(alignment=Alignment.UNALIGNED),
        CheckpointOptions(SnapshotType.SAVEPOINT_SUSPEND, SavepointFormat.CANONICAL),
    ],
    ids=["aligned", "unaligned", "a savepoint that stops the source"],
)
def test_a_checkpoint_has_the_splits_that_came_before_its_trigger(tasks: Tasks, options: CheckpointOptions) -> None:
    """Later splits are still in the enumerator's part of the checkpoint, and would be read twice.

    For a savepoint the source stops first and is asked for its state then.
    """
    store, operator = InMemoryCheckpointStore(), SourceOperator(text_lines(FileSet(("a", "b"))))
    operator.operator_id = b"o" * 16
    task = checkpointed(tasks, operator, store=store)
    before, after = FileSplit("a", 0, 1), FileSplit("b", 0, 1)

    task.carry_out(AddSplits(b"", [before], 1))
    trigger(task, 1, options)
    task.carry_out(AddSplits(b"", [after], 0))
    while not store.num_acknowledged(1):
        task.mailbox_processor.run_mailbox_step()

    state = store.state_of(1, VERTEX, 0).operators[operator.operator_id.hex()]
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
    task = checkpointed(
        tasks, SourceOperator(BlockingSource(function)), Recorder(), outputs=[edge(partition, source=1)], store=store
    )
    task.mailbox_processor.run_mailbox_step()  # starts the function
    step_until_idle(task)
    function.may_begin.set()
    spin_until(lambda: function.count == 3)

    trigger(task, 1, CheckpointOptions(SnapshotType.SAVEPOINT_SUSPEND, SavepointFormat.CANONICAL))
    step_until_idle(task)

    assert reader.read_values() == []
    (state,) = store.state_of(1, VERTEX, 0).operators.values()
    assert isinstance(state, OperatorState)
    assert state.own == PositionWithRest(None, ((None, KeptRecords((0, 1, 2), None)),))
    tasks.finish(task)
