"""The end of a task, step by step with its producers and consumers.

Source: Flink ``StreamTaskTest``.
"""

import itertools
from functools import partial

import pytest

from flowlet.records import MAX_WATERMARK, Chunk
from netstack.wire.events import EndOfData, EndOfPartition, StopMode
from tests.flowlet.task.local_network import LocalNetwork, Recorder, edge
from tests.flowlet.task.local_tasks import Tasks, source, step_until_idle


def test_the_end_goes_step_by_step(network: LocalNetwork, tasks: Tasks) -> None:
    """Records go first, then the last watermark, then the end of data; the end of partition only after the consumer
    acknowledged.
    """
    partition = network.partition()
    reader = network.reader(partition)
    task = tasks.restored(tasks.source(source([1, 2]), outputs=[edge(partition)]))

    step_until_idle(task)
    elements = reader.read()
    events_before = list(reader.events)
    assert "to process all data" in (task.waiting_for or "")
    reader.view.acknowledge_all_data_processed()
    step_until_idle(task)
    tasks.finish(task)

    assert elements == [Chunk([1, 2]), MAX_WATERMARK]
    assert events_before == [EndOfData(StopMode.DRAIN)]
    reader.read()
    assert reader.events[1:] == [EndOfPartition()]
    reader.view.release()


def test_every_partition_has_to_be_acknowledged(network: LocalNetwork, tasks: Tasks) -> None:
    """The partition does not end before its slowest consumer has processed all data, in any order of
    acknowledgements.
    """
    for order in itertools.permutations(range(3)):
        partitions = [network.partition() for _ in order]
        readers = [network.reader(partition) for partition in partitions]
        task = tasks.restored(tasks.source(source([1]), outputs=[edge(partition) for partition in partitions]))
        step_until_idle(task)

        for index in order:
            assert "to process all data" in (task.waiting_for or ""), f"{index} of {order}"
            readers[index].read()
            readers[index].view.acknowledge_all_data_processed()
            step_until_idle(task)
        tasks.finish(task)

        for reader in readers:
            reader.read()
            assert reader.events == [EndOfData(StopMode.DRAIN), EndOfPartition()]
            reader.view.release()


def test_a_consumer_waits_for_the_end_of_its_partitions(network: LocalNetwork, tasks: Tasks) -> None:
    """A consumer's own end of data goes out before the end of its partitions, its own end of partition after."""
    upstream, downstream = network.partition(), network.partition()
    reader = network.reader(downstream)
    task = tasks.task("middle", Recorder(), gates=[network.gate(upstream)], outputs=[edge(downstream)])
    tasks.restored(task)
    upstream.notify_end_of_data(StopMode.DRAIN)

    step_until_idle(task)
    reader.read()
    assert reader.events == [EndOfData(StopMode.DRAIN)]
    assert "end of partition" in (task.waiting_for or "")
    reader.view.acknowledge_all_data_processed()
    step_until_idle(task)
    assert "end of partition" in (task.waiting_for or "")
    upstream.finish()
    step_until_idle(task)
    tasks.finish(task)

    reader.read()
    assert reader.events == [EndOfData(StopMode.DRAIN), EndOfPartition()]
    reader.view.release()


def test_stopping_without_draining_finishes_nothing(network: LocalNetwork, tasks: Tasks) -> None:
    """A stop without draining sends no last watermark and calls no ``finish``; the mode is passed on."""
    upstream, downstream = network.partition(), network.partition()
    reader = network.reader(downstream)
    recorder = Recorder()
    task = tasks.task("middle", recorder, gates=[network.gate(upstream)], outputs=[edge(downstream)])
    tasks.restored(task)
    upstream.notify_end_of_data(StopMode.NO_DRAIN)

    step_until_idle(task)
    reader.read()

    assert recorder.calls == ["open"]
    assert reader.events == [EndOfData(StopMode.NO_DRAIN)]
    reader.view.release()


@pytest.mark.parametrize("depth", range(1, 6))
def test_mails_posted_at_the_very_end_still_run(tasks: Tasks, depth: int) -> None:
    """A mail that posts a mail that posts a mail, from ``finish`` on, still runs (FLINK-24846)."""
    recorder = Recorder()
    ran: list[int] = []

    def post(level: int) -> None:
        if level <= depth:
            task.mailbox_processor.executor().execute(partial(run, level), "mail %d", level)

    def run(level: int) -> None:
        ran.append(level)
        post(level + 1)

    class Last(Recorder):
        def finish(self) -> None:
            post(1)

    task = tasks.source(source(), Last(), recorder)
    task.invoke()

    assert ran == list(range(1, depth + 1))
