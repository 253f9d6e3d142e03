"""Source: Flink ``SourceStreamTaskTest``, ``SourceOperatorStreamTaskTest``."""

import threading

import pytest

from flowlet.datastream.source_function import SourceContext, SourceFunction
from flowlet.errors import TaskCancelled
from flowlet.operators.blocking_source import BlockingSource
from flowlet.operators.source import SourceOperator
from flowlet.records import MAX_WATERMARK
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.task.stream_task import StreamTask
from netstack.wire.events import EndOfData, StopMode
from tests.flowlet.operators.test_blocking_source import Emitting
from tests.flowlet.task.local_network import DEADLINE_S, LocalNetwork, Recorder, Thread, edge, spin_until
from tests.flowlet.task.local_tasks import Tasks, is_parked, source, step_until_idle


def blocked_task(tasks: Tasks, recorder: Recorder, function: SourceFunction) -> StreamTask:
    return tasks.source(SourceOperator(BlockingSource(function)), recorder)


def test_a_task_sleeps_while_its_source_blocks_and_processes_on_its_own_thread(network: LocalNetwork, tasks: Tasks) -> None:
    go_on, recorder = threading.Event(), Recorder()

    def script(ctx: SourceContext) -> None:
        ctx.collect("first")
        assert go_on.wait(DEADLINE_S)
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
        assert cancelled.wait(DEADLINE_S)

    task = blocked_task(tasks, recorder, Emitting(script, cancelled.set))
    thread = Thread(task.invoke)
    spin_until(lambda: recorder.values == ["first"] and is_parked(task))

    task.cancel()

    with pytest.raises(TaskCancelled):
        thread.result()
    assert cancelled.is_set()


def test_a_stopped_source_ends_without_draining(network: LocalNetwork, tasks: Tasks) -> None:
    """No last watermark, no finish(); the consumers hear how it ended."""
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
        assert cancelled.wait(DEADLINE_S)

    task = blocked_task(tasks, recorder, Emitting(script, cancelled.set))
    assert isinstance(task, SourceStreamTask)
    thread = Thread(task.invoke)
    spin_until(lambda: is_parked(task))

    task.stop()
    thread.result()

    assert cancelled.is_set()
    assert recorder.controls == []
