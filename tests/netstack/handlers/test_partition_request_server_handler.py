"""``PartitionRequestServerHandler``: what consumers may ask, how each mistake is answered, and every message in every
state.

Source: Flink ``PartitionRequestServerHandlerTest``, ``CancelPartitionRequestTest``: the sections of these names.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import pytest

from netstack.errors import RemoteProtocolError, ResourceBrokenError
from netstack.handlers.partition_request_server_handler import PartitionRequestServerHandler
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.wire.events import Event, OtherEvent, StopMode, serialize_event
from netstack.wire.messages import (
    AckAllUserRecordsProcessed,
    AddCredit,
    BacklogAnnouncement,
    BufferResponse,
    CancelPartitionRequest,
    CloseRequest,
    DataType,
    ErrorCode,
    ErrorResponse,
    NewBufferSize,
    PartitionRequest,
    ResumeConsumption,
    SegmentId,
    TaskEventRequest,
)
from tests.netstack.handlers.doubles import BARRIER, DATA, ScriptedView, block, notify, open_reader, unblock
from tests.netstack.handlers.server_side import CONFIG, ServerSide, fill, partition_id_of, receiver_of, request


def test_a_request_waits_as_long_as_the_partition_is_announced(server: ServerSide) -> None:
    """However long its producer is deployed."""
    announced = request().partition
    server.manager.announce([announced])
    server.receive(request(credit=2))

    server.loop.advance(5 * CONFIG.partition_request_timeout_s)
    waited = server.sent()
    fill(server.partition(), 1)

    assert (waited, server.data(), server.loop.num_timers) == ([], [(1, 0)], 0)


def test_a_request_for_a_partition_that_was_withdrawn_is_refused_after_the_timeout(server: ServerSide) -> None:
    """The request of a partition whose producer failed before it had one is refused after the timeout."""
    announced = request().partition
    server.manager.announce([announced])
    server.receive(request())
    server.loop.advance(2.5 * CONFIG.partition_request_timeout_s)
    server.manager.withdraw([announced])

    server.loop.advance(0.5 * CONFIG.partition_request_timeout_s)

    assert server.only_error().code == ErrorCode.PARTITION_NOT_FOUND
    assert server.loop.num_timers == 0


def test_a_partition_that_comes_while_the_timer_fires_is_served(
    server: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registering thread has called the loop, which runs the timer first: the request is not refused."""
    server.receive(request(credit=2))
    hops: list[Callable[[], None]] = []
    monkeypatch.setattr(server.loop, "execute_threadsafe", lambda *call: hops.append(partial(*call)))
    partition = server.partition()
    monkeypatch.undo()

    server.loop.advance(CONFIG.partition_request_timeout_s)
    [try_again] = hops
    server.loop.execute_threadsafe(try_again)
    fill(partition, 1)

    assert (server.data(), server.loop.num_timers) == ([(1, 0)], 0)


def test_an_announced_partition_that_comes_while_the_timer_looks_is_opened_once(
    server: ServerSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the timer and the registering thread ask again; the second one does not find the subpartition taken."""
    announced = request().partition
    server.manager.announce([announced])
    server.receive(request(credit=2))

    def comes_behind_the_look(partition: object) -> bool:
        monkeypatch.undo()
        fill(server.partition(), 1)
        return partition == announced

    monkeypatch.setattr(server.manager, "is_announced", comes_behind_the_look)
    server.loop.advance(CONFIG.partition_request_timeout_s)

    assert [type(each) for each in server.sent()] == [BufferResponse], "no error"
    assert server.loop.num_timers == 0


def test_a_lost_connection_stops_waiting(server: ServerSide) -> None:
    """No timer and no listener stay behind."""
    server.receive(request())

    server.channel.lose_connection()

    assert server.loop.num_timers == 0
    assert "0 awaited" in repr(server.manager)


@pytest.mark.parametrize("subpartition", [-1, 1])
def test_a_subpartition_out_of_range_is_refused_without_receiver(server: ServerSide, subpartition: int) -> None:
    """As in Flink; our own body names it. The connection stays open, and the id may be used again."""
    partition = server.partition()

    server.receive(request(subpartition=subpartition))

    error = server.only_error()
    assert (error.code, error.receiver, error.about) == (ErrorCode.SUBPARTITION_TAKEN, None, receiver_of(1))
    assert str(subpartition) in error.message
    server.receive(request())
    fill(partition, 1)
    assert server.data() == [(1, 0)]


def test_a_taken_subpartition_is_refused_to_the_second_receiver(server: ServerSide) -> None:
    """A pipelined subpartition is read once; the first reader goes on."""
    partition = server.partition()
    server.receive(request(receiver=1))

    server.receive(request(receiver=2))

    error = server.only_error()
    assert (error.code, error.receiver, error.about) == (ErrorCode.SUBPARTITION_TAKEN, None, receiver_of(2))
    fill(partition, 1)
    assert server.data() == [(1, 0)]


def test_a_view_that_cannot_be_made_is_our_own_trouble(server: ServerSide, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing file is no error of the receiver, and its subpartition stays free."""
    partition = server.partition()

    def fail(*_: object, **__: object) -> None:
        raise ResourceBrokenError("the file is gone")

    monkeypatch.setattr(partition, "create_subpartition_view", fail)
    server.receive(request())

    error = server.only_error()
    assert (error.code, error.about, error.message) == (ErrorCode.INTERNAL, receiver_of(1), "the file is gone")


def test_a_range_of_subpartitions_is_served(server: ServerSide) -> None:
    """One receiver reads both subpartitions: each response names its subpartition, and the numbers go on."""
    partition = server.partition(num_subpartitions=2)
    fill(partition, 2, 0)
    fill(partition, 1, 1)
    partition.finish()

    server.receive(PartitionRequest(partition_id_of(), 0, 1, receiver_of(1), 5))

    responses = [message for message in server.sent() if isinstance(message, BufferResponse)]
    assert [(each.subpartition, each.data_type.is_buffer, each.sequence_number) for each in responses] == [
        (0, True, 0),
        (0, True, 1),
        (0, False, 2),
        (1, True, 3),
        (1, False, 4),
    ]


def test_a_range_outside_of_the_partition_is_refused(server: ServerSide) -> None:
    """A range outside of the partition is refused, and none of its subpartitions is read."""
    server.partition(num_subpartitions=2)

    server.receive(PartitionRequest(partition_id_of(), 1, 2, receiver_of(1), 2))

    assert "1 to 2 are none of them" in server.only_error().message


def test_the_acknowledgement_reaches_the_partition(server: ServerSide) -> None:
    """After the acknowledgement of all data of all subpartitions, the producer may end."""
    partition = server.partition(num_subpartitions=2)
    for index in range(2):
        server.receive(request(subpartition=index, receiver=index + 1))
    partition.notify_end_of_data(StopMode.DRAIN)
    server.sent()

    server.receive(AckAllUserRecordsProcessed(receiver_of(1)))
    assert not partition.all_data_processed.is_done
    server.receive(AckAllUserRecordsProcessed(receiver_of(2)))

    assert partition.all_data_processed.is_done


def test_a_close_request_closes(server: ServerSide) -> None:
    """A close request releases all readers, and the connection ends without an error."""
    partition = server.partition()
    server.receive(request())

    server.receive(CloseRequest())

    assert server.sent() == []
    assert not server.channel.is_open
    assert partition.all_data_processed.is_done, "its reader was released"


@pytest.mark.parametrize(
    "message", [ErrorResponse(ErrorCode.INTERNAL, "boom", None), BacklogAnnouncement(receiver_of(1), 3)]
)
def test_messages_that_are_not_served_are_refused_by_name(server: ServerSide, message: object) -> None:
    """An unserved message is refused by name: if it were ignored, the peer would wait for ever."""
    server.receive(message)

    error = server.only_error()
    assert type(message).__name__ in error.message
    assert not server.channel.is_open


def test_a_request_after_the_shutdown_finds_no_partition(server: ServerSide) -> None:
    """The consumer made no mistake: it gets the answer for every partition that is gone."""
    server.manager.shutdown()

    server.receive(request())

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.PARTITION_NOT_FOUND, receiver_of(1))
    assert "shut down" in error.message
    assert server.channel.is_open


def test_a_partition_may_come_after_the_event_loop_closed(server: ServerSide) -> None:
    """The registration succeeds, although the consumer that waited for the partition is gone with the loop."""
    server.receive(request())
    server.loop.close()

    partition = server.partition()

    assert not partition.is_released


def test_a_partition_that_is_gone_again_is_waited_for_again(server: ServerSide) -> None:
    """A request goes on waiting, and ends once, if its partition is registered and released before the loop looked."""
    server.receive(request())
    server.partition().release()
    server.loop.run_pending()

    assert server.loop.num_timers == 1
    server.loop.advance(CONFIG.partition_request_timeout_s)

    assert server.only_error().code is ErrorCode.PARTITION_NOT_FOUND
    assert server.loop.num_timers == 0


def test_a_subpartition_that_was_taken_while_two_waited_is_refused_to_the_second(server: ServerSide) -> None:
    """The first of two early requests for a subpartition is served; the second is refused and leaves no timer."""
    server.receive(request(receiver=1))
    server.receive(request(receiver=2))

    fill(server.partition(), 1)
    sent = server.sent()

    assert [each.receiver for each in sent if isinstance(each, BufferResponse)] == [receiver_of(1)]
    assert [each.about for each in sent if isinstance(each, ErrorResponse)] == [receiver_of(2)]
    assert server.loop.num_timers == 0


def test_requests_that_time_out_together_leave_the_connection_alone(server: ServerSide) -> None:
    """Refusals that pile up while the socket takes no bytes are no error of the peer."""
    partition = server.partition()
    server.receive(request(receiver=1))
    for number in range(CONFIG.max_waiting_requests):
        server.receive(request(7, receiver=10 + number))
    block(server)

    server.loop.advance(CONFIG.partition_request_timeout_s)
    unblock(server)

    assert server.channel.is_open
    assert len(server.sent()) == CONFIG.max_waiting_requests
    fill(partition, 1)
    assert server.data() == [(1, 0)]


def test_a_connection_has_so_many_readers_and_no_more() -> None:
    """One reader beyond the limit is refused to its receiver; after another one has left it is accepted."""
    server = ServerSide(dataclasses.replace(CONFIG, max_readers=2))
    partition = server.partition(num_subpartitions=3)
    for number in (0, 1, 2):
        server.receive(request(subpartition=number, receiver=number))

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.LIMIT_EXCEEDED, receiver_of(2))
    assert "max_readers" in error.message
    server.receive(CancelPartitionRequest(receiver_of(0)))
    server.receive(request(subpartition=2, receiver=2))
    fill(partition, 1, 2)
    assert server.data() == [(2, 0)]


def test_the_cancel_of_a_receiver_that_got_everything_does_not_count() -> None:
    """Every channel says so when it ends, and a job of any size may end at once; others still count."""
    server = ServerSide(dataclasses.replace(CONFIG, max_cancels_per_s=1))
    server.partition(num_subpartitions=20).finish()
    server.partition(1, num_subpartitions=10)
    for number in range(20):
        server.receive(request(subpartition=number, receiver=number))
    for number in range(10):
        server.receive(request(1, subpartition=number, receiver=20 + number))
    server.sent()

    for number in range(30):
        server.receive(CancelPartitionRequest(receiver_of(number)))

    assert server.channel.is_open
    server.receive(CancelPartitionRequest(receiver_of(30)))
    assert "too many cancelled requests" in server.only_error().message


def test_a_range_of_which_one_end_is_missing_counts_when_it_is_cancelled() -> None:
    """A reader of a range has ended only when it has sent the end of each of its subpartitions."""
    server = ServerSide(dataclasses.replace(CONFIG, max_cancels_per_s=1))
    server.partition(num_subpartitions=2).finish()
    server.receive(PartitionRequest(partition_id_of(), 0, 1, receiver_of(1), 2))
    reader = server.queue.reader(receiver_of(1))

    assert reader is not None
    assert reader.has_ended
    fresh = CreditBasedSequenceNumberingViewReader(
        PartitionRequest(partition_id_of(), 0, 1, receiver_of(2), 2), server.queue
    )
    fresh.set_view(ScriptedView(DataType.END_OF_PARTITION, DataType.END_OF_PARTITION))
    fresh.next_buffer()
    has_ended = [fresh.has_ended]
    fresh.next_buffer()
    assert [*has_ended, fresh.has_ended] == [False, True]
    server.sent()


ME = receiver_of(1)
EVENT = OtherEvent("org.example.Superstep", b"\0\1")


# ---------------------------------------------------------------- PartitionRequestServerHandlerTest


@pytest.mark.parametrize(
    ("message", "order"),
    [
        (ResumeConsumption(ME), "resume"),
        (AckAllUserRecordsProcessed(ME), "acknowledge"),
        (NewBufferSize(ME, 666), ("size", 666)),
    ],
    ids=["resumption", "acknowledgement", "new buffer size"],
)
def test_an_order_reaches_the_view_of_its_receiver(server: ServerSide, message: object, order: object) -> None:
    """PartitionRequestServerHandlerTest: resumption, acknowledgement and a new buffer size."""
    view = ScriptedView()
    open_reader(server, view)

    server.receive(message)

    assert view.orders == [order]


# ---------------------------------------------------------------- task events


def test_a_task_event_reaches_whoever_subscribed(server: ServerSide) -> None:
    """A task event reaches its subscribers, from the bytes of the message on, and is not answered."""
    server.partition()
    seen: list[Event] = []
    server.manager.task_events.subscribe(partition_id_of(), EVENT.class_name, seen.append)

    server.receive(TaskEventRequest(serialize_event(EVENT), partition_id_of(), ME))

    assert seen == [EVENT]
    assert server.sent() == []


def test_a_task_event_for_nobody_is_an_error_of_its_receiver(server: ServerSide) -> None:
    """Flink's text; the connection stays open."""
    server.receive(TaskEventRequest(serialize_event(EVENT), partition_id_of(9), ME))

    error = server.only_error()
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

    error = server.only_error()
    assert (error.code, error.receiver, error.about, error.message) == (
        ErrorCode.INTERNAL,
        None,
        ME,
        "OSError: callback",
    )
    assert server.channel.is_open


def test_a_task_event_that_cannot_be_read_ends_the_connection(server: ServerSide) -> None:
    """A task event is part of its frame: if it cannot be read, the connection is broken."""
    server.receive(TaskEventRequest(b"\x7f\xff\xff\xff", partition_id_of(), ME))

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, None)
    assert not server.channel.is_open


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
STATES: list[Callable[[ServerSide], None]] = [
    _unknown,
    _waiting,
    _open,
    _blocked,
    _failed,
    _overdrawn,
    _finished,
    _cancelled,
]
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
def test_hist_24738_every_message_in_every_state(
    server: ServerSide, message: object, state: Callable[[ServerSide], None]
) -> None:
    """Acted upon, ignored, or refused at its scope: the neighbour goes on or gets the error."""
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
    assert expected != STRANGER or "of the unknown receiver" in answers[0].message
    fill(neighbour, 1)
    assert (2, 0) in server.data()


def test_orders_for_a_reader_that_has_ended_do_not_reach_its_view(server: ServerSide) -> None:
    """Orders that a receiver sent before it knew of the end are dropped."""
    view = ScriptedView(DATA)
    open_reader(server, view)
    server.receive(AddCredit(ME, 2**31 - 1))

    for order in (
        ResumeConsumption(ME),
        AckAllUserRecordsProcessed(ME),
        NewBufferSize(ME, 300),
        SegmentId(ME, 0, 1),
        AddCredit(ME, 1),
    ):
        server.receive(order)

    assert view.orders == []
    assert len(server.sent()) == 1


def test_an_acknowledgement_that_the_producer_chokes_on_is_told(server: ServerSide) -> None:
    """An error of the producer at an acknowledgement is its own: connection and reader go on."""
    view = ScriptedView(DATA)

    def choke() -> None:
        raise OSError("callback")

    view.acknowledge_all_data_processed = choke  # type: ignore[method-assign]
    open_reader(server, view)

    server.receive(AckAllUserRecordsProcessed(ME))
    server.receive(AddCredit(ME, 1))

    error, response = server.sent()
    assert isinstance(error, ErrorResponse)
    assert (error.code, error.receiver, error.about, error.message) == (
        ErrorCode.INTERNAL,
        None,
        ME,
        "OSError: callback",
    )
    assert isinstance(response, BufferResponse)


# ---------------------------------------------------------------- limits


def test_requests_that_wait_are_limited_per_connection(server: ServerSide) -> None:
    """A request beyond the limit is refused to its receiver at once; a place that becomes free can be taken."""
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
    assert f"{CONFIG.max_waiting_requests} requests wait" in repr(
        server.channel.pipeline.find(PartitionRequestServerHandler)
    )


def test_request_and_cancel_in_a_loop_end_the_connection(server: ServerSide) -> None:
    """A burst is fine, as when a job with thousands of channels ends; for ever it is an attack."""
    burst = 10 * CONFIG.max_cancels_per_s
    for _ in range(burst):
        server.channel.write_inbound(CancelPartitionRequest(ME))
    assert server.channel.is_open

    server.receive(CancelPartitionRequest(ME))

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, None)
    assert "too many cancelled requests" in error.message
    assert not server.channel.is_open


def test_cancels_at_the_allowed_rate_go_on_for_ever(server: ServerSide) -> None:
    """A peer may cancel at the allowed rate for ever; here for ten minutes."""
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
    """Stricter than Flink, which replaces the reader and forgets the first one."""
    server.partition(0)
    other = server.partition(1)
    server.receive(request(0))

    server.receive(request(1))

    error = server.only_error()
    assert (error.code, error.receiver) == (ErrorCode.PROTOCOL, None)
    assert "already" in error.message
    assert not server.channel.is_open
    fill(other, 1)


def test_an_error_after_the_end_is_not_answered(server: ServerSide) -> None:
    """Only the first of two broken frames in one read is answered."""
    server.channel.pipeline.head.fire_exception_caught(RemoteProtocolError("first"))
    server.queue.reply(ErrorResponse(ErrorCode.INTERNAL, "second", None))

    assert [each.message for each in server.sent() if isinstance(each, ErrorResponse)] == ["first"]
