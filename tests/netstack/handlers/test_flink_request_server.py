"""The scenarios of Flink's ``PartitionRequestServerHandlerTest`` and ``CancelPartitionRequestTest``, and every message in every state."""

from collections.abc import Callable, Iterator

import pytest

from netstack.errors import RemoteProtocolError
from netstack.wire.events import Event, OtherEvent, serialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BufferResponse,
    CancelPartitionRequest,
    ErrorCode,
    ErrorResponse,
    NewBufferSize,
    ResumeConsumption,
    SegmentId,
    TaskEventRequest,
)
from tests.netstack.handlers.doubles import BARRIER, DATA, ScriptedView, block, notify, open_reader, unblock
from tests.netstack.handlers.server_side import CONFIG, ServerSide, fill, partition_id_of, receiver_of, request

ME = receiver_of(1)
EVENT = OtherEvent("org.example.Superstep", b"\0\1")


@pytest.fixture
def server() -> Iterator[ServerSide]:
    side = ServerSide()
    yield side
    side.close()


def test_resume_consumption(server: ServerSide) -> None:
    """PartitionRequestServerHandlerTest: resume consumption reaches the view of that receiver."""
    view = ScriptedView()
    open_reader(server, view)

    server.receive(ResumeConsumption(ME))

    assert view.orders == ["resume"]


def test_acknowledge_all_records_processed(server: ServerSide) -> None:
    """PartitionRequestServerHandlerTest: the acknowledgement reaches the view of that receiver."""
    view = ScriptedView()
    open_reader(server, view)

    server.receive(AckAllUserRecordsProcessed(ME))

    assert view.orders == ["acknowledge"]


def test_new_buffer_size(server: ServerSide) -> None:
    """PartitionRequestServerHandlerTest: a new buffer size reaches the view of that receiver."""
    view = ScriptedView()
    open_reader(server, view)

    server.receive(NewBufferSize(ME, 666))

    assert view.orders == [("size", 666)]


def test_new_buffer_size_before_the_reader_is_created(server: ServerSide) -> None:
    """PartitionRequestServerHandlerTest: a new buffer size for nobody is ignored, no error comes back."""
    server.receive(NewBufferSize(ME, 666))

    assert server.sent() == []
    assert server.channel.is_open


def test_partition_not_found_error_response(server: ServerSide) -> None:
    """PartitionRequestServerHandlerTest (1.17): partition not found is an error of that receiver, the handler lives on."""
    server.receive(request(3))
    server.loop.advance(CONFIG.partition_request_timeout_s)

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PARTITION_NOT_FOUND, ME)
    fill(server.partition(), 1)
    server.receive(request(0, receiver=2))
    assert server.data() == [(2, 0)]


# ---------------------------------------------------------------- task events


def test_a_task_event_reaches_whoever_subscribed(server: ServerSide) -> None:
    """From the bytes of the message to the event; nothing is answered."""
    server.partition()
    seen: list[Event] = []
    server.manager.task_events.subscribe(partition_id_of(), EVENT.class_name, seen.append)

    server.receive(TaskEventRequest(serialize_event(EVENT), partition_id_of(), ME))

    assert seen == [EVENT]
    assert server.sent() == []


def test_a_task_event_for_nobody_is_an_error_of_its_receiver(server: ServerSide) -> None:
    """Flink's text; the connection stays open."""
    server.receive(TaskEventRequest(serialize_event(EVENT), partition_id_of(9), ME))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.UNKNOWN_TASK_EVENT_RECEIVER, ME)
    assert "Task event receiver not found." in error.message
    assert server.channel.is_open


def test_a_task_event_whose_handler_fails_is_told_to_its_sender(server: ServerSide) -> None:
    """The producer's error does not end the connection."""
    server.partition()

    def choke(event: Event) -> None:
        raise OSError("callback")

    server.manager.task_events.subscribe(partition_id_of(), EVENT.class_name, choke)

    server.receive(TaskEventRequest(serialize_event(EVENT), partition_id_of(), ME))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver, error.about, error.message) == (ErrorCode.INTERNAL, None, ME, "OSError: callback")
    assert server.channel.is_open


def test_a_task_event_that_cannot_be_read_ends_the_connection(server: ServerSide) -> None:
    """It is part of the frame."""
    server.receive(TaskEventRequest(b"\x7f\xff\xff\xff", partition_id_of(), ME))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, None)
    assert not server.channel.is_open


# ---------------------------------------------------------------- cancel


def test_cancel_partition_request(server: ServerSide) -> None:
    """CancelPartitionRequestTest: cancel.  While the socket takes nothing the view is released, and nothing more is sent."""
    view = ScriptedView(*[DATA] * 10)
    reader = open_reader(server, view, credit=10)
    block(server)
    notify(server, reader)

    server.receive(CancelPartitionRequest(ME))
    unblock(server)

    assert view.num_released == 1
    assert server.sent() == []


def test_duplicate_cancel(server: ServerSide) -> None:
    """CancelPartitionRequestTest: duplicate cancel.  The second one is tolerated and releases nothing twice."""
    view = ScriptedView(*[DATA] * 10)
    notify(server, open_reader(server, view))

    server.receive(CancelPartitionRequest(ME))
    server.receive(CancelPartitionRequest(ME))

    assert view.num_released == 1
    assert server.channel.is_open
    assert server.data() == [(1, 0), (1, 1)]


# ---------------------------------------------------------------- every message in every state


def _unknown(server: ServerSide) -> None:
    pass


def _waiting(server: ServerSide) -> None:
    server.receive(request(8))


def _open(server: ServerSide) -> None:
    server.partition(8)
    server.receive(request(8))


def _blocked(server: ServerSide) -> None:
    notify(server, open_reader(server, ScriptedView(BARRIER, DATA)))


def _failed(server: ServerSide) -> None:
    partition = server.partition(8)
    server.receive(request(8))
    partition.fail(ValueError("out of cheese"))


def _overdrawn(server: ServerSide) -> None:
    _open(server)
    server.receive(AddCredit(ME, 2**31 - 1))


def _finished(server: ServerSide) -> None:
    partition = server.partition(8)
    server.receive(request(8))
    partition.finish()


def _cancelled(server: ServerSide) -> None:
    _open(server)
    server.receive(CancelPartitionRequest(ME))


SILENT, STRANGER, SENSELESS, FATAL = "silent", "no such receiver", "not now", "the connection ends"
STATES: list[Callable[[ServerSide], None]] = [_unknown, _waiting, _open, _blocked, _failed, _overdrawn, _finished, _cancelled]
LIVING = {_open, _blocked, _failed, _overdrawn, _finished}


def _expected(message: object, state: Callable[[ServerSide], None]) -> str:
    match message:
        case AddCredit():
            return SILENT if state in LIVING | {_waiting} else STRANGER
        case ResumeConsumption() if state in (_open, _finished):
            return SENSELESS
        case ResumeConsumption() | AckAllUserRecordsProcessed():
            return SILENT if state in LIVING else STRANGER
        case NewBufferSize() | SegmentId() | CancelPartitionRequest() | TaskEventRequest():
            return SILENT
        case _:
            return FATAL if state in LIVING | {_waiting} else SILENT


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "message",
    [
        AddCredit(ME, 1),
        ResumeConsumption(ME),
        AckAllUserRecordsProcessed(ME),
        NewBufferSize(ME, 100),
        SegmentId(ME, 0, 1),
        CancelPartitionRequest(ME),
        TaskEventRequest(serialize_event(EVENT), partition_id_of(0), ME),
        request(1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_hist_24738_every_message_in_every_state(server: ServerSide, message: object, state: Callable[[ServerSide], None]) -> None:
    """Each message is acted upon, ignored, or refused at the documented scope; nothing raises, and the neighbour is unharmed or told."""
    server.partition(0)
    neighbour = server.partition(2)
    server.receive(request(2, receiver=2))
    state(server)
    server.sent()

    server.receive(message)
    answers = [each for each in server.sent() if isinstance(each, ErrorResponse)]

    expected = _expected(message, state)
    if expected == FATAL:
        [answer] = answers
        assert (answer.code, answer.receiver) == (ErrorCode.PROTOCOL, None)
        assert not server.channel.is_open
        assert neighbour.all_data_processed.is_done, "every reader was released"
        return
    codes = {SILENT: [], STRANGER: [ErrorCode.UNKNOWN_RECEIVER], SENSELESS: [ErrorCode.PROTOCOL]}[expected]
    assert [(each.code, each.receiver, each.about) for each in answers] == [(code, None, ME) for code in codes]
    fill(neighbour, 1)
    assert (2, 0) in server.data()


def test_orders_for_a_reader_that_has_ended_do_not_reach_its_view(server: ServerSide) -> None:
    """Its receiver did not know yet when it gave them."""
    view = ScriptedView(DATA)
    open_reader(server, view)
    server.receive(AddCredit(ME, 2**31 - 1))

    for order in (ResumeConsumption(ME), AckAllUserRecordsProcessed(ME), NewBufferSize(ME, 300), SegmentId(ME, 0, 1), AddCredit(ME, 1)):
        server.receive(order)

    assert view.orders == []
    assert len(server.sent()) == 1


def test_an_acknowledgement_that_the_producer_chokes_on_is_told(server: ServerSide) -> None:
    """Its own trouble; the connection and the reader go on."""
    view = ScriptedView(DATA)

    def choke() -> None:
        raise OSError("callback")

    view.acknowledge_all_data_processed = choke  # type: ignore[method-assign]
    open_reader(server, view)

    server.receive(AckAllUserRecordsProcessed(ME))
    server.receive(AddCredit(ME, 1))

    error, response = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver, error.about, error.message) == (ErrorCode.INTERNAL, None, ME, "OSError: callback")
    assert isinstance(response, BufferResponse)


# ---------------------------------------------------------------- limits


def test_requests_that_wait_are_limited_per_connection(server: ServerSide) -> None:
    """One more than the limit is refused to its receiver at once; a place that becomes free can be taken."""
    for number in range(CONFIG.max_waiting_requests):
        server.channel.write_inbound(request(1, subpartition=number, receiver=number + 1))
    assert server.sent() == []

    server.receive(request(2, receiver=5000))
    [error] = server.sent()
    assert "1 awaited" in repr(server.manager), "nobody waits for the partition of the refused request"
    server.receive(CancelPartitionRequest(ME))
    server.receive(request(1, receiver=5001))

    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.LIMIT_EXCEEDED, receiver_of(5000))
    assert "max_waiting_requests" in error.message
    assert server.sent() == []
    assert server.loop.num_timers == CONFIG.max_waiting_requests
    assert f"{CONFIG.max_waiting_requests} requests wait" in repr(server.channel.pipeline.handlers[1])


def test_request_and_cancel_in_a_loop_end_the_connection(server: ServerSide) -> None:
    """A burst is fine, as when a job with thousands of channels ends; for ever it is an attack."""
    burst = 10 * CONFIG.max_cancels_per_s
    for _ in range(burst):
        server.channel.write_inbound(CancelPartitionRequest(ME))
    assert server.channel.is_open

    server.receive(CancelPartitionRequest(ME))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, None)
    assert "too many cancelled requests" in error.message
    assert not server.channel.is_open


def test_cancels_at_the_allowed_rate_go_on_for_ever(server: ServerSide) -> None:
    """Ten minutes of them."""
    for _ in range(600):
        server.loop.advance(1.0)
        for _ in range(CONFIG.max_cancels_per_s // 50):
            server.channel.write_inbound(CancelPartitionRequest(ME))

    assert server.channel.is_open


def test_a_peer_that_makes_us_answer_and_does_not_read_is_cut_off(server: ServerSide) -> None:
    """GHSA-8r5v-vm4m-4g25: answers do not pile up without bound; every reader is released."""
    partition = server.partition()
    server.receive(request(receiver=2))
    block(server)

    num_answered = 0
    while server.channel.is_open and num_answered < 5000:
        server.channel.write_inbound(AddCredit(receiver_of(99), 1))
        num_answered += 1

    assert num_answered == 1001
    assert partition.all_data_processed.is_done


def test_a_peer_that_reads_its_answers_may_be_wrong_for_ever(server: ServerSide) -> None:
    """Flink answers, and so do we."""
    for _ in range(3000):
        server.receive(AddCredit(receiver_of(99), 1))
        server.channel.flush_outbound()
        server.channel.read_all_outbound()

    assert server.channel.is_open


def test_a_receiver_id_in_use_ends_the_connection(server: ServerSide) -> None:
    """Stricter than Flink, which replaces the reader and forgets the first one: told with a code, everything released."""
    server.partition(0)
    other = server.partition(1)
    server.receive(request(0))

    server.receive(request(1))

    [error] = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, None)
    assert not server.channel.is_open
    fill(other, 1)


def test_an_error_after_the_end_is_not_answered(server: ServerSide) -> None:
    """Two broken frames in one read: the peer hears of the first one."""
    server.channel.pipeline.fire_exception_caught(RemoteProtocolError("first"))
    server.queue.reply(ErrorResponse(ErrorCode.INTERNAL, "second", None))

    assert [each.message for each in server.sent() if isinstance(each, ErrorResponse)] == ["first"]
