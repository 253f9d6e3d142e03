"""Bugs that Flink had in this place, each as the test that would have found it."""

from collections.abc import Callable
from typing import Any

import pytest

from netstack.errors import NetstackError, RemoteProtocolError, TransportError
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.wire.message_bytes import BUFFER_RESPONSE_HEADER, encode
from netstack.wire.messages import (
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    ErrorCode,
    ErrorResponse,
    NewBufferSize,
    ResumeConsumption,
)
from tests.netstack.handlers.client_side import Client, response, take
from tests.netstack.handlers.doubles import BARRIER, DATA, EVENT, ScriptedView, block, notify, open_reader, unblock
from tests.netstack.handlers.server_side import CONFIG, ServerSide, fill, partition_id_of, receiver_of, request

ME = receiver_of(1)
TIMEOUT_S = CONFIG.partition_request_timeout_s


def test_hist_13100_a_socket_that_took_nothing_for_long_resumes_by_itself(server: ServerSide) -> None:
    """Data, credit and a resumption that arrive while the peer's window is shut leave by themselves when it opens."""
    view = ScriptedView(BARRIER, DATA, EVENT, DATA)
    reader = open_reader(server, view, credit=1)
    other = ScriptedView(DATA)
    block(server)
    notify(server, reader)
    notify(server, open_reader(server, other, receiver=2, credit=1))
    for _ in range(50):
        server.loop.advance(0.1)
        notify(server, reader)
    server.receive(AddCredit(ME, 1))

    unblock(server)
    first = [each.data_type for each in server.sent() if isinstance(each, BufferResponse)]
    block(server)
    server.receive(ResumeConsumption(ME))
    server.loop.advance(5.0)
    unblock(server)

    assert sorted(first) == [DATA, BARRIER]
    assert [each.data_type for each in server.sent() if isinstance(each, BufferResponse)] == [DATA, EVENT, DATA]
    assert view.elements == other.elements


def test_hist_4021_a_cancelled_channel_does_not_stop_the_reading_of_the_connection(client: Client) -> None:
    """A channel that is cancelled with half of its payload received does not keep its neighbours from reading."""
    leaving = client.open_gate(1, num_floating=4)
    staying = client.open_gate(2)
    frame = response(1, payload=bytes(500), backlog=3)
    client.connection.write_inbound(frame[:100])

    leaving.close()
    client.connection.write_inbound(frame[100:] + response(2, 0) + response(1, 1) + response(2, 1))

    assert [take(staying), take(staying)] == [b"data"] * 2
    assert client.handler.num_channels == 1


def test_hist_7499_2089_a_write_that_fails_leaves_no_buffer_behind(
    server: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second buffer that cannot be encoded and the pending first one are both recycled once."""
    view = ScriptedView(*[DATA] * 3)
    reader = open_reader(server, view, credit=3)
    num_left = 1

    def fail_at_the_second(*args: Any) -> bytes:
        nonlocal num_left
        num_left -= 1
        if num_left < 0:
            raise RuntimeError("expected")
        return BUFFER_RESPONSE_HEADER.pack(*args)

    with monkeypatch.context() as patch:
        patch.setattr("netstack.transport.message_codec._pack_header", fail_at_the_second)
        notify(server, reader)

    server.channel.lose_connection()
    assert view.num_out == 0
    assert view.num_released == 1


def test_hist_7499_2089_a_write_after_the_close_recycles(server: ServerSide) -> None:
    """A closed channel recycles each buffer that it gets."""
    view = ScriptedView(*[DATA] * 3)
    reader = open_reader(server, view, credit=3)
    server.channel.close()

    notify(server, reader)

    assert view.num_out == 0
    assert view.num_released == 1


def _idle(server: ServerSide, view: ScriptedView) -> None:
    view.elements.clear()


def _without_credit(server: ServerSide, view: ScriptedView) -> None:
    notify(server, open_reader_of(server))
    server.sent()


def _queued(server: ServerSide, view: ScriptedView) -> None:
    block(server)
    notify(server, open_reader_of(server))


def _being_written(server: ServerSide, view: ScriptedView) -> None:
    notify(server, open_reader_of(server))
    assert server.channel.pending_bytes


def _blocked(server: ServerSide, view: ScriptedView) -> None:
    view.elements.appendleft(BARRIER)
    notify(server, open_reader_of(server))


def _overdrawn(server: ServerSide, view: ScriptedView) -> None:
    server.receive(AddCredit(ME, 2**31 - 1))


def open_reader_of(server: ServerSide) -> CreditBasedSequenceNumberingViewReader:
    reader = server.queue.reader(ME)
    assert reader is not None
    return reader


@pytest.mark.parametrize("state", [_idle, _without_credit, _queued, _being_written, _blocked, _overdrawn])
def test_hist_13245_cancel_in_every_state_of_the_reader(
    server: ServerSide, state: Callable[[ServerSide, ScriptedView], None]
) -> None:
    """Its view is released exactly once, also if the connection ends right after."""
    view = ScriptedView(*[DATA] * 5)
    open_reader(server, view, credit=2)
    state(server, view)

    server.receive(CancelPartitionRequest(ME))
    server.receive(CancelPartitionRequest(ME))
    server.channel.lose_connection()

    assert view.num_released == 1
    assert view.num_out == 0
    assert server.queue.reader(ME) is None


def test_hist_13245_cancel_of_a_request_that_waits(server: ServerSide) -> None:
    """No listener and no timer stays, and the partition that comes later is read by the next one."""
    server.receive(request())

    server.receive(CancelPartitionRequest(ME))

    assert server.loop.num_timers == 0
    assert "0 awaited" in repr(server.manager)
    fill(server.partition(), 1)
    server.receive(request(receiver=2))
    assert server.data() == [(2, 0)]


@pytest.mark.parametrize("delay_s", [0.0, 1.0, TIMEOUT_S - 0.001])
def test_hist_1954_9413_25055_a_partition_that_comes_late_is_served(server: ServerSide, delay_s: float) -> None:
    """The data of a partition that is registered within the timeout comes at once, without another request."""
    server.receive(request())
    server.loop.advance(delay_s)

    fill(server.partition(), 1)

    assert server.data() == [(1, 0)]
    assert server.loop.num_timers == 0


@pytest.mark.parametrize("delay_s", [TIMEOUT_S + 0.001, 60.0])
def test_hist_1954_9413_25055_a_partition_that_comes_too_late_is_asked_for_again(
    server: ServerSide, delay_s: float
) -> None:
    """The consumer hears of it once, after the timeout; the request that it makes again is served."""
    server.receive(request())
    server.loop.advance(delay_s)
    error = server.only_error()

    server.receive(request())
    fill(server.partition(), 1)

    assert (error.code, error.receiver) == (ErrorCode.PARTITION_NOT_FOUND, ME)
    assert server.data() == [(1, 0)]


@pytest.mark.parametrize("is_registered_first", [False, True])
def test_hist_1954_9413_25055_registered_at_the_tick_of_the_timeout(
    server: ServerSide, is_registered_first: bool
) -> None:
    """Exactly one of registration and timeout answers, whichever comes first."""
    server.receive(request())
    server.loop.advance(TIMEOUT_S - 0.001)

    if is_registered_first:
        fill(server.partition(), 1)  # the loop hears of it behind the timer that is due now
        server.loop.clock.advance(1_000_000)
        server.loop.advance(0.0)
    else:
        server.loop.advance(0.001)
        fill(server.partition(), 1)
    sent = server.sent()

    assert [type(each) for each in sent] == [BufferResponse if is_registered_first else ErrorResponse]
    assert server.loop.num_timers == 0
    assert "0 awaited" in repr(server.manager)


STEPS = ["create_view_or_listen", "set_view", "enqueue_available_reader", "call_at"]


@pytest.mark.parametrize("step", STEPS)
def test_hist_9057_a_failure_at_any_step_of_making_a_reader(
    server: ServerSide, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The consumer gets the error, everything that was made is cleaned up, and the id can be used again."""
    if step != "call_at":
        server.partition()

    def fail(*_args: object, **_options: object) -> None:
        raise OSError(f"no {step}")

    owner: object = {
        "create_view_or_listen": ResultPartitionManager,
        "set_view": CreditBasedSequenceNumberingViewReader,
        "enqueue_available_reader": PartitionRequestQueue,
        "call_at": server.loop.loop,
    }[step]
    with monkeypatch.context() as patch:
        patch.setattr(owner, step, fail)
        server.receive(request())

    error = server.only_error()
    assert (error.code, error.receiver, error.about, error.message) == (
        ErrorCode.INTERNAL,
        None,
        ME,
        f"OSError: no {step}",
    )
    assert server.queue.reader(ME) is None
    assert server.channel.is_open
    fill(server.partition(1), 1)
    server.receive(request(1))
    assert server.data() == [(1, 0)]


def test_hist_24738_a_new_buffer_size_in_every_state_of_the_receiver(server: ServerSide) -> None:
    """Never an error: before the request, waiting, open, after a failure, and after the cancel."""
    size = NewBufferSize(ME, 300)

    server.receive(size)
    server.receive(request(1))
    server.receive(size)
    partition = server.partition(1)
    server.receive(size)
    server.loop.run_pending()
    server.receive(size)
    partition.fail(ValueError("out of cheese"))
    server.sent()
    server.receive(size)
    server.receive(CancelPartitionRequest(ME))
    server.receive(size)

    assert server.sent() == []
    assert server.channel.is_open


def test_hist_24738_a_channel_that_was_released_announces_no_size(client: Client) -> None:
    """The consumer drops the order of a channel that left, and sends those of the others."""
    leaving, [gone] = client.open_channels(1)
    _, [other] = client.open_channels(2)
    leaving.close()
    client.sent()

    client.handler.order(gone, NewBufferSize(gone.channel_id, 300))
    client.handler.order(other, NewBufferSize(other.channel_id, 300))

    assert client.sent() == [NewBufferSize(receiver_of(2), 300)]


def test_hist_17992_one_poisoned_channel_of_a_hundred(client: Client) -> None:
    """The others read on, and the next attempt of the poisoned task is served."""
    gates = {number: client.open_gate(number) for number in range(1, 31)}
    client.sent()

    client.connection.write_inbound(response(17, sequence_number=29))
    for number in gates:
        client.connection.write_inbound(response(number))

    with pytest.raises(RemoteProtocolError, match="expected sequence number 0, but received 29"):
        gates[17].poll_next()
    assert all(take(gate) == b"data" for number, gate in gates.items() if number != 17)
    again = client.open_gate(117)
    client.connection.write_inbound(response(117))
    assert take(again) == b"data"
    assert client.connection.is_open


def test_hist_18348_the_first_cause_is_the_one_that_is_told(client: Client) -> None:
    """Not the end of the connection that follows from it, also to a late request."""
    early = client.open_gate(1)

    client.connection.write_inbound(encode(ErrorResponse(ErrorCode.INTERNAL, "disk on fire", None)))
    client.connection.lose_connection(ConnectionResetError("reset"))
    client.handler.fail_all(TransportError("closed by us"))
    late = client.open_gate(2)

    for gate in (early, late):
        with pytest.raises(NetstackError, match="disk on fire"):
            gate.poll_next()


def test_hist_18348_a_refused_request_tells_why(server: ServerSide) -> None:
    """The error says that the partition was released, and why, not that a reader is missing."""
    partition = server.partition()
    server.receive(request(3, receiver=2))  # keeps the connection busy with something else
    partition.fail(ValueError("out of cheese"))
    server.manager._partitions[partition_id_of()] = partition  # as if its release had not reached the manager yet

    server.receive(request())

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.PARTITION_NOT_FOUND, ME)
    assert "out of cheese" in error.message
    del server.manager._partitions[partition_id_of()]
