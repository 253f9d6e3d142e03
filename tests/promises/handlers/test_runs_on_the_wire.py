"""Several whole buffers that go to one receiver together have the credit, turns and errors of single ones."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from netstack.errors import RemoteProtocolError
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions
from netstack.wire.messages import AddCredit, BufferResponse, CancelPartitionRequest, DataType, ErrorResponse
from tests.netstack.handlers.client_side import Client, run_of, take
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, receiver_of, request

UNALIGNED = CheckpointBarrier(1, 1, CheckpointOptions(alignment=Alignment.UNALIGNED))


@pytest.fixture
def server() -> Iterator[ServerSide]:
    """Yield a server whose gather write has room for 16 buffers."""
    one = ServerSide(replace(CONFIG, max_gather_bytes=16 * SEGMENT))
    yield one
    one.close()


def test_a_receiver_that_is_alone_gets_as_much_as_it_has_credit_for(server: ServerSide) -> None:
    """A receiver gets as much as its credit even if there is room for more; the rest follows with the next credit."""
    partition = server.partition()
    server.receive(request(credit=3))
    fill(partition, 5)

    assert server.data() == [(1, 0), (1, 1), (1, 2)]
    server.receive(AddCredit(receiver_of(1), 4))
    assert server.data() == [(1, 3), (1, 4)]
    [row] = server.queue.statistics()
    assert (row.num_buffers_sent, row.num_credits_available, row.last_sequence_number) == (5, 2, 4)


def test_readers_that_are_ready_together_take_turns(server: ServerSide) -> None:
    """Ready readers take turns buffer by buffer, until one is alone."""
    partitions = [server.partition(number) for number in range(2)]
    for number in range(2):
        server.receive(request(number, receiver=number + 1, credit=8))
    for partition, num_buffers in zip(partitions, (2, 5), strict=True):
        fill(partition, num_buffers)

    found = server.data()

    assert found == [(1, 0), (2, 0), (1, 1), (2, 1), (2, 2), (2, 3), (2, 4)]


def test_a_priority_event_waits_for_no_run(server: ServerSide) -> None:
    """A priority event that comes between two passes is before what is left; data that was copied for its checkpoint
    comes one by one.
    """
    partition = server.partition()
    server.receive(request(credit=2))
    fill(partition, 4)
    assert server.data() == [(1, 0), (1, 1)]

    partition.broadcast_event(UNALIGNED, is_priority=True)
    [barrier] = [each for each in server.sent() if isinstance(each, BufferResponse)]
    server.receive(AddCredit(receiver_of(1), 2))

    assert (barrier.data_type, barrier.sequence_number) == (DataType.PRIORITIZED_EVENT_BUFFER, 2)
    assert server.data() == [(1, 3), (1, 4)]


def test_a_producer_that_fails_behind_a_run_is_told_behind_it(server: ServerSide) -> None:
    """The polled buffers are sent, then the failure."""
    partition = server.partition()
    server.receive(request(credit=8))
    fill(partition, 3)
    server.loop.run_pending()
    partition.fail(RuntimeError("boom"))

    *data, error = server.sent()

    assert len([each for each in data if isinstance(each, BufferResponse)]) == 3
    assert isinstance(error, ErrorResponse)
    assert error.receiver == receiver_of(1)


# ---------------------------------------------------------------- the client


@pytest.fixture
def client() -> Iterator[Client]:
    one = Client()
    yield one
    one.close()


def test_a_run_reaches_its_channel(client: Client) -> None:
    """A run reaches its channel in order, and wakes one task once."""
    gate = client.open_gate(num_exclusive=4)

    client.connection.write_inbound(run_of(1, 3))

    assert [take(gate) for _ in range(3)] == [b"data"] * 3


def test_a_run_for_nobody_is_cancelled_once(client: Client) -> None:
    """The payloads of a run for nobody are skipped, and the next message is understood."""
    gate = client.open_gate(num_exclusive=4)
    client.sent()

    client.connection.write_inbound(run_of(7, 3) + run_of(1, 2))

    assert client.sent() == [CancelPartitionRequest(receiver_of(7))]
    assert [take(gate), take(gate)] == [b"data"] * 2


def test_a_run_with_a_wrong_number_fails_its_channel_only(client: Client) -> None:
    """The sender of a run with a wrong number is told to stop; the other channel of the connection goes on."""
    broken = client.open_gate(1, num_exclusive=4)
    other = client.open_gate(2, num_exclusive=4)
    client.sent()

    client.connection.write_inbound(run_of(1, 2, first=5) + run_of(2, 2))

    assert client.sent() == [CancelPartitionRequest(receiver_of(1))]
    with pytest.raises(RemoteProtocolError, match="expected sequence number 0, but received 5"):
        broken.poll_next()
    assert [take(other), take(other)] == [b"data"] * 2


def test_more_buffers_than_credit_break_the_channel_behind_what_was_paid_for(client: Client) -> None:
    """A run beyond the credit gets no memory for the rest of its buffers."""
    gate = client.open_gate(num_exclusive=2)

    client.connection.write_inbound(run_of(1, 4))

    with pytest.raises(RemoteProtocolError, match="3 buffers sent, 2 credits granted"):
        gate.poll_next()


def test_empty_buffers_in_a_row_are_credit_at_once(client: Client) -> None:
    """Empty buffers carry no data: the task never sees them, and the sender gets back the credit that it paid."""
    gate = client.open_gate(num_exclusive=2)
    client.sent()

    client.connection.write_inbound(run_of(1, 2, payload=b""))

    assert gate.poll_next() is None
    assert sum(each.credit for each in client.sent() if isinstance(each, AddCredit)) == 2
    client.connection.write_inbound(run_of(1, 2, first=2))
    assert [take(gate), take(gate)] == [b"data"] * 2
