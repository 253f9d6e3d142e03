"""A source function with states of its own: a snapshot sees all changes and records of one block, or none."""

import threading
from typing import Any

from flowlet.chain.stream_operator import OperatorContext
from flowlet.connectors.blocking_source import MAX_PENDING_RECORDS, BlockingSourceReader, CheckpointLock
from flowlet.datastream import CheckpointedFunction, FunctionInitializationContext, FunctionSnapshotContext
from flowlet.datastream.state import ListStateDescriptor
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from flowlet.records import Chunk
from flowlet.state.state_backends import OperatorStateBackend
from tests.waiting import PATIENCE_S, spin_until


class Counts(SourceFunction, CheckpointedFunction):
    """Emits numbers in blocks, as fast as it can, until it is cancelled; its state says how many there were."""

    def __init__(self, block_size: int = 3) -> None:
        self.count = 0
        self.block_size = block_size
        self.has_ended = threading.Event()

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("count"))

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """The state is up to date at the end of each block."""

    def run(self, ctx: SourceContext) -> None:
        try:
            while not ctx.is_cancelled:
                with ctx.get_checkpoint_lock():
                    for _ in range(self.block_size):
                        ctx.collect(self.count)
                        self.count += 1
                    self.state.update([self.count])
        finally:
            self.has_ended.set()


def context() -> OperatorContext:
    return OperatorContext("task", 0, 1, 128, "source", operator_state=OperatorStateBackend())


def records_in(elements: Any) -> int:
    return sum(len(each) for each in elements if isinstance(each, Chunk))


def snapshot_count(ctx: OperatorContext) -> int:
    finish = ctx.operator_state_backend.snapshot()
    assert finish is not None
    (count,) = finish().states["count"].elements
    return int(count)


def test_each_snapshot_counts_exactly_what_was_emitted_in_front_of_it() -> None:
    """The function goes on in a tight loop meanwhile, and waits for room inside its block."""
    function = Counts()
    ctx, reader = context(), BlockingSourceReader(function, "source")
    reader.setup(ctx)
    reader.start(lambda: None)
    num_records, snapshots = records_in([reader.poll_chunk()]), []

    for _ in range(50):
        num_records += records_in([reader.poll_chunk()])
        num_records += records_in(reader.hold())
        reader.snapshot_function(1, 0)
        spin_until(lambda after=num_records + 3: function.count > after, "a block more")  # type: ignore[misc]  # mypy knows no such default
        snapshots.append((snapshot_count(ctx), num_records))
    reader.close()

    assert [count for count, _ in snapshots] == [number for _, number in snapshots]
    assert {count % 3 for count, _ in snapshots} == {0}


def test_a_snapshot_does_not_wait_for_room() -> None:
    """The function waits for room inside its block; the block ends, and more is pending than may be."""
    size = 2 * MAX_PENDING_RECORDS
    ctx, reader = context(), BlockingSourceReader(Counts(size), "source")
    reader.setup(ctx)
    reader.start(lambda: None)
    num_records = records_in([reader.poll_chunk()])
    spin_until(lambda: reader.available_future().is_done, "the block has begun")

    num_records += records_in(reader.hold())
    reader.snapshot_function(1, 0)
    count = snapshot_count(ctx)
    reader.close()

    assert count == num_records == size


def test_a_reader_that_is_closed_lets_its_function_end() -> None:
    """The task may fail between the barrier and the snapshot."""
    function = Counts()
    ctx, reader = context(), BlockingSourceReader(function, "source")
    reader.setup(ctx)
    reader.start(lambda: None)
    reader.poll_chunk()
    reader.hold()

    reader.close()

    assert function.has_ended.is_set()


def test_a_function_without_states_is_not_held() -> None:
    class Plain(SourceFunction):
        def run(self, ctx: SourceContext) -> None:
            with ctx.get_checkpoint_lock():
                ctx.collect(1)

    reader = BlockingSourceReader(Plain(), "source")
    first = records_in([reader.poll_chunk()])
    spin_until(lambda: first or reader.available_future().is_done, "the record is there")

    assert list(reader.hold()) == []
    assert first + records_in([reader.poll_chunk()]) == 1
    reader.close()


def test_nobody_gets_the_lock_that_the_task_holds() -> None:
    """A function in a tight loop cannot keep the lock from the task."""
    lock, order = CheckpointLock(threading.Condition()), []

    def function() -> None:
        with lock:
            order.append("function")

    lock.hold()
    thread = threading.Thread(target=function)
    thread.start()
    thread.join(0.05)  # it would have ended long before
    order.append("task")
    lock.let_go()
    thread.join(PATIENCE_S)

    assert order == ["task", "function"]


def test_the_lock_may_be_taken_again_by_its_owner_and_by_nobody_else() -> None:
    lock, order = CheckpointLock(threading.Condition()), []
    has_begun = threading.Event()

    def other() -> None:
        has_begun.set()
        with lock:
            order.append("other")

    with lock:
        thread = threading.Thread(target=other)
        thread.start()
        assert has_begun.wait(PATIENCE_S)
        with lock:
            order.append("owner")
        order.append("owner")
    thread.join(PATIENCE_S)

    assert order == ["owner", "owner", "other"]
