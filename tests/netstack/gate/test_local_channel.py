"""``LocalInputChannel``: the same partition, without the network."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import LocalProtocolError, ProducerFailedError, ResourceClosedError
from netstack.gate.local_channel import LocalInputChannel
from netstack.partition.manager import ResultPartitionManager
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import EndOfData, StopMode
from netstack.wire.messages import DataType
from tests.netstack.gate.doubles import RecordingGate
from tests.netstack.partition.doubles import partition_id_of


class Fixture:
    def __init__(self) -> None:
        self.network = NetworkBufferPool(16, 64)
        self.manager = ResultPartitionManager()
        self.gate = RecordingGate()
        pool = self.network.create_buffer_pool(owner="producer", num_required=2, max_buffers=8)
        self.partition = ResultPartition(partition_id_of(), 1, pool, "producer")
        self.channel = LocalInputChannel(self.gate, 0, partition_id_of(), 0, self.manager)

    def poll(self) -> tuple[DataType, bytes, bool]:
        found = self.channel.next_buffer()
        assert found is not None
        buffer, has_more = found.buffer, found.next_data_type is not DataType.NONE
        facts = (buffer.data_type, bytes(buffer.view), has_more)
        buffer.recycle()
        return facts


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.channel.release()
    fixture.partition.close()
    fixture.manager.shutdown()
    fixture.network.destroy()
    assert fixture.network.num_available == 16


@pytest.mark.parametrize("is_early", [True, False])
def test_data_is_read_from_the_producers_buffers(it: Fixture, is_early: bool) -> None:
    """Whether the partition or the request came first; in order, with what is behind each."""
    if is_early:
        it.channel.request_subpartition()
        it.manager.register(it.partition)
    else:
        it.manager.register(it.partition)
        it.channel.request_subpartition()
    it.channel.request_subpartition()

    it.partition.emit_record(b"abc", 0)
    it.partition.broadcast_event(EndOfData(StopMode.DRAIN))

    assert it.gate.notified == [it.channel]
    assert it.poll() == (DataType.DATA_BUFFER, b"abc", True)
    assert it.poll()[0] is DataType.END_OF_DATA
    assert (it.channel.next_buffer(), it.channel.num_buffers_in, it.channel.num_bytes_in) == (None, 2, 8)


def test_data_that_was_there_before_the_view_is_announced_after_it(it: Fixture) -> None:
    """A notification that comes while the view is being opened finds nothing; another one follows."""
    it.manager.register(it.partition)
    it.partition.broadcast_event(EndOfData(StopMode.DRAIN))
    polled = []

    class PollingGate(RecordingGate):
        def notify_channel_non_empty(self, channel: object) -> None:
            polled.append(it.channel.next_buffer())

    it.channel.gate = PollingGate()
    it.channel.request_subpartition()

    assert polled[0] is None
    found = polled[1]
    assert found is not None
    found[0].recycle()


def test_a_channel_that_waits_has_nothing(it: Fixture) -> None:
    """No error, no view; acknowledging does nothing; it says what it waits for."""
    it.channel.request_subpartition()

    it.channel.acknowledge_all_records_processed()

    assert it.channel.next_buffer() is None
    assert "waits for its partition" in repr(it.channel)


def test_polling_before_the_request_is_a_bug(it: Fixture) -> None:
    """Nothing could ever arrive."""
    with pytest.raises(LocalProtocolError, match="polled before it was requested"):
        it.channel.next_buffer()


def test_a_failed_producer_is_an_error_at_the_next_poll(it: Fixture) -> None:
    """With its cause, again and again; the gate was told."""
    it.manager.register(it.partition)
    it.channel.request_subpartition()

    error = ValueError("the dog ate it")
    it.partition.fail(error)

    assert it.gate.notified == [it.channel]
    for _ in range(2):
        with pytest.raises(ProducerFailedError, match="ValueError: the dog ate it") as caught:
            it.channel.next_buffer()
        assert isinstance(caught.value.__cause__, ProducerFailedError)
        assert caught.value.__cause__.__cause__ is error


def test_a_view_that_cannot_be_opened_is_the_channels_error(it: Fixture) -> None:
    """Not the registering producer's."""
    other = LocalInputChannel(it.gate, 1, partition_id_of(), 0, it.manager)
    it.channel.request_subpartition()
    other.request_subpartition()

    it.manager.register(it.partition)

    with pytest.raises(LocalProtocolError, match="read by somebody else"):
        other.next_buffer()
    assert it.channel.next_buffer() is None
    other.release()


def test_shutdown_reaches_a_waiting_channel(it: Fixture) -> None:
    """It does not wait for a partition that cannot come any more."""
    it.channel.request_subpartition()

    it.manager.shutdown()

    with pytest.raises(ResourceClosedError, match="manager was shut down"):
        it.channel.next_buffer()
    assert it.gate.notified == [it.channel]


def test_the_acknowledgement_reaches_the_partition(it: Fixture) -> None:
    """Directly."""
    it.manager.register(it.partition)
    it.channel.request_subpartition()

    it.channel.acknowledge_all_records_processed()

    assert it.partition.all_data_processed.is_done


def test_release_consumes_the_subpartition(it: Fixture) -> None:
    """Once; a released channel has nothing and raises nothing, whatever the producer does then."""
    it.manager.register(it.partition)
    it.channel.request_subpartition()
    it.partition.emit_record(b"abc", 0)
    it.partition.finish()
    it.partition.close()

    it.channel.release()
    it.channel.release()

    assert (it.partition.is_released, it.partition.failure_cause, it.channel.next_buffer()) == (True, None, None)
    it.channel.acknowledge_all_records_processed()


def test_a_released_channel_does_not_open_a_view(it: Fixture) -> None:
    """It stopped waiting; the subpartition is free for somebody else."""
    it.channel.request_subpartition()
    it.channel.release()

    it.manager.register(it.partition)

    assert "0 awaited" in repr(it.manager)
    other = LocalInputChannel(it.gate, 1, partition_id_of(), 0, it.manager)
    other.request_subpartition()
    assert other.next_buffer() is None
    other.release()


def test_a_view_that_comes_too_late_is_released_at_once(it: Fixture) -> None:
    """The canceler came while the manager made the view."""
    manager = it.manager
    manager.register(it.partition)
    original = manager.create_view_or_listen

    def release_meanwhile(*args: Any, **options: Any) -> object:
        view = original(*args, **options)
        it.channel.release()
        return view

    manager.create_view_or_listen = release_meanwhile  # type: ignore[assignment,method-assign]  # a forced interleaving
    it.channel.request_subpartition()
    it.partition.finish()
    it.partition.close()

    assert (it.partition.is_released, it.partition.failure_cause) == (True, None)


@pytest.mark.slow
def test_registering_requesting_and_releasing_race(tiny_switch_interval: None) -> None:
    """In any order: the partition ends up released once it is closed, nothing waits, nothing leaks (FLINK-12510)."""
    for _ in range(150):
        it = Fixture()
        threads = [
            threading.Thread(target=it.manager.register, args=(it.partition,)),
            threading.Thread(target=it.channel.request_subpartition),
            threading.Thread(target=it.channel.release),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert "0 awaited" in repr(it.manager)
        it.partition.close()
        assert it.partition.is_released
        it.network.destroy()
        assert it.network.num_available == 16
