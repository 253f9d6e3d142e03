"""Runs between the queue of the server's readers and the client's handler: the wire shows what it would show without
them.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from netstack.errors import RemoteProtocolError
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, EndOfData, StopMode
from netstack.wire.messages import AddCredit, BufferResponse, BufferRun, CancelPartitionRequest, DataType, ErrorResponse
from tests.netstack.handlers.client_side import Client, response, take
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, receiver_of, request

MAX = 2**31 - 1
BIG = replace(CONFIG, max_gather_bytes=16 * SEGMENT)
UNALIGNED = CheckpointBarrier(1, 1, CheckpointOptions(alignment=Alignment.UNALIGNED))


class CountingServer(ServerSide):
    """Knows how many buffers left in runs."""

    def __init__(self, *, has_runs: bool = True) -> None:
        super().__init__(BIG)
        self.run_lengths: list[int] = []
        self._has_runs = has_runs

    def open(self, number: int = 0, *, receiver: int = 1, credit: int = 8) -> CreditBasedSequenceNumberingViewReader:
        """The reader of a request."""
        self.receive(request(number, receiver=receiver, credit=credit))
        reader = self.queue._readers[receiver_of(receiver)]
        poll_run = reader._poll_run
        assert poll_run is not None

        def count(max_segments: int) -> object:
            run = poll_run(max_segments)
            if run is not None:
                assert len(run.segments) <= max_segments
                self.run_lengths.append(len(run.segments))
            return run

        reader._poll_run = count if self._has_runs else None  # type: ignore[assignment]  # it only counts
        return reader


@pytest.fixture
def server() -> Iterator[CountingServer]:
    one = CountingServer()
    yield one
    one.close()


def subpartition_of(partition: ResultPartition, index: int = 0) -> PipelinedSubpartition:
    found = partition._subpartitions[index]
    assert isinstance(found, PipelinedSubpartition)
    return found


def test_a_reader_that_is_alone_sends_what_it_has_as_one_run(server: CountingServer) -> None:
    """As far as credit goes; the rest follows with the next credit."""
    partition = server.partition()
    reader = server.open(credit=3)
    fill(partition, 5)

    assert server.data() == [(1, number) for number in range(3)]
    assert (server.run_lengths, reader.credit.available, reader.last_sequence_number) == ([3], 0, 2)
    server.receive(AddCredit(receiver_of(1), 4))
    assert server.data() == [(1, 3), (1, 4)]
    assert (reader.credit.available, reader.credit.spent) == (2, 5)
    reader.credit.check_invariants()


def script(server: ServerSide, partition: ResultPartition) -> None:
    """Whole buffers, parts of them, events and flushes in between."""
    record = bytes(range(256)) * (SEGMENT // 256)
    for number in range(3):
        partition.emit_record(record * 3, 0)
        partition.emit_record(record[: 100 * number], 0)
        partition.broadcast_event(
            EndOfData(StopMode.DRAIN) if number == 2 else CheckpointBarrier(number, 1, CheckpointOptions())
        )
        if number < 2:
            server.loop.run_pending()
            subpartition_of(partition).flush()


@pytest.mark.parametrize("first", [0, MAX - 2, MAX - 5])
def test_the_wire_shows_no_difference(first: int) -> None:
    """The same bytes with and without runs: numbers that wrap, backlogs, events and parts."""
    found = []
    for has_runs in (True, False):
        server = CountingServer(has_runs=has_runs)
        partition = server.partition()
        subpartition_of(partition)._sequence_number = first
        reader = server.open(credit=20)
        script(server, partition)
        messages = server.sent()
        for _ in range(2):
            reader.resume_consumption()
            server.queue.enqueue_available_reader(reader)
            messages += server.sent()
        assert bool(server.run_lengths) == has_runs
        found.append(
            [
                (*each[:7], bytes(each.buffer.view))
                for each in messages
                if isinstance(each, BufferResponse) and each.buffer
            ]
        )
        server.close()

    # A run is polled before its reader is asked again: a backlog may be larger by the segment that was not announced
    # yet.
    assert [each[:3] + each[4:] for each in found[0]] == [each[:3] + each[4:] for each in found[1]]
    assert len(found[0]) > 10


def test_readers_that_are_ready_together_take_turns(server: CountingServer) -> None:
    """Buffer by buffer, until one is alone."""
    partitions = [server.partition(number) for number in range(2)]
    for number in range(2):
        server.open(number, receiver=number + 1)
    for partition, num_buffers in zip(partitions, (2, 5), strict=True):
        fill(partition, num_buffers)

    found = server.data()

    assert found == [(1, 0), (2, 0), (1, 1), (2, 1), (2, 2), (2, 3), (2, 4)]


def test_a_priority_event_waits_for_no_run(server: CountingServer) -> None:
    """One that comes between two passes is before what is left; data that was copied for its checkpoint comes one by
    one.
    """
    partition = server.partition()
    server.open(credit=2)
    fill(partition, 4)
    assert server.data() == [(1, 0), (1, 1)]

    partition.broadcast_event(UNALIGNED, is_priority=True)
    [barrier] = [each for each in server.sent() if isinstance(each, BufferResponse)]
    server.receive(AddCredit(receiver_of(1), 2))

    assert (barrier.data_type, barrier.sequence_number) == (DataType.PRIORITIZED_EVENT_BUFFER, 2)
    assert server.data() == [(1, 3), (1, 4)]


def test_a_producer_that_fails_behind_a_run_is_told_behind_it(server: CountingServer) -> None:
    """What was polled is sent, then the failure."""
    partition = server.partition()
    server.open(credit=8)
    fill(partition, 3)
    server.loop.run_pending()
    partition.fail(RuntimeError("boom"))

    *data, error = server.sent()

    assert len([each for each in data if isinstance(each, BufferResponse)]) == 3
    assert isinstance(error, ErrorResponse)
    assert error.receiver == receiver_of(1)


def test_one_pass_stops_at_the_batch_limit(server: CountingServer) -> None:
    """16 segments of bytes per pass; each run at most what fits into a gather write, rounded up."""
    partition = server.partition()
    server.open(credit=60)
    fill(partition, 40)

    assert server.data() == [(1, number) for number in range(40)]
    assert max(server.run_lengths) <= 16


# ---------------------------------------------------------------- the client


@pytest.fixture
def client() -> Iterator[Client]:
    one = Client()
    yield one
    one.close()


def run_of(number: int, count: int, first: int = 0, payload: bytes = b"data") -> bytes:
    return b"".join(response(number, first + position, payload) for position in range(count))


def test_a_run_reaches_its_channel(client: Client) -> None:
    """In order, and one task is woken once."""
    gate = client.open_gate(num_exclusive=4)

    client.connection.write_inbound(run_of(1, 3))

    assert [take(gate) for _ in range(3)] == [b"data"] * 3


def test_a_run_for_nobody_is_cancelled_once(client: Client) -> None:
    """Its payloads are skipped, the next message is understood."""
    gate = client.open_gate(num_exclusive=4)
    client.sent()

    client.connection.write_inbound(run_of(7, 3) + run_of(1, 2))

    assert client.sent() == [CancelPartitionRequest(receiver_of(7))]
    assert [take(gate), take(gate)] == [b"data"] * 2


def test_a_run_for_a_channel_that_was_released_meanwhile_goes_home(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the decoder and the handler: the buffers were given out already."""
    gate, [channel] = client.open_channels(1, num_exclusive=4)
    original = client.handler._on_run

    def release_first(run: BufferRun) -> None:
        channel.release()
        original(run)

    monkeypatch.setattr(client.handler, "_on_run", release_first)

    client.connection.write_inbound(run_of(1, 3))

    assert client.pool.num_available == client.pool.num_total
    gate.close()


def test_a_run_with_a_wrong_number_fails_its_channel_only(client: Client) -> None:
    """The sender is told to stop; the other channel of the connection goes on."""
    broken = client.open_gate(1, num_exclusive=4)
    other = client.open_gate(2, num_exclusive=4)
    client.sent()

    client.connection.write_inbound(run_of(1, 2, first=5) + run_of(2, 2))

    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    with pytest.raises(RemoteProtocolError, match="expected sequence number 0, but received 5"):
        broken.poll_next()
    assert [take(other), take(other)] == [b"data"] * 2


def test_more_buffers_than_credit_break_the_channel_behind_what_was_paid_for(client: Client) -> None:
    """The rest of the run gets no memory."""
    gate = client.open_gate(num_exclusive=2)

    client.connection.write_inbound(run_of(1, 4))

    with pytest.raises(RemoteProtocolError, match="3 buffers sent, 2 credits granted"):
        gate.poll_next()


def test_empty_buffers_in_a_row_are_credit_at_once(client: Client) -> None:
    """They carry nothing: the task never sees them, and the sender gets back what it paid."""
    gate = client.open_gate(num_exclusive=2)
    client.sent()

    client.connection.write_inbound(run_of(1, 2, payload=b""))

    assert gate.poll_next() is None
    assert sum(each.credit for each in client.sent() if isinstance(each, AddCredit)) == 2
    client.connection.write_inbound(run_of(1, 2, first=2))
    assert [take(gate), take(gate)] == [b"data"] * 2
