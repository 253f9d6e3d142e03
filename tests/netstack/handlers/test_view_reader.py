"""``CreditBasedSequenceNumberingViewReader``: credit, announcements, and the orders that it passes on to its view."""

import pytest

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.handlers.view_reader import SEVERAL, CreditBasedSequenceNumberingViewReader
from netstack.wire.events import EndOfData, StopMode
from netstack.wire.messages import AddCredit
from tests.netstack.handlers.doubles import BARRIER, DATA, EVENT, ScriptedView, open_reader
from tests.netstack.handlers.server_side import ServerSide, receiver_of, request
from tests.netstack.present import present


@pytest.mark.parametrize(("initial_credit", "expected"), [(0, 0), (2, 5)])
def test_resumption_resets_the_credit_only_without_exclusive_buffers(
    server: ServerSide, initial_credit: int, expected: int
) -> None:
    """Resume consumption. Floating buffers were given away while it was blocked."""
    reader = open_reader(server, ScriptedView(), credit=initial_credit)
    reader.credit.grant(5 - initial_credit)

    reader.resume_consumption()

    assert reader.credit.available == expected


@pytest.mark.parametrize(
    ("initial_credit", "granted", "is_needed"), [(2, 0, False), (2, -2, False), (0, 0, True), (0, 5, False)]
)
def test_when_the_backlog_is_announced(server: ServerSide, initial_credit: int, granted: int, is_needed: bool) -> None:
    """NeedAnnounceBacklog. Exactly without exclusive buffers and without credit."""
    reader = open_reader(server, ScriptedView(), credit=initial_credit)
    if granted > 0:
        reader.credit.grant(granted)
    if granted < 0:
        reader.credit.reset()

    assert reader.needs_backlog_announcement is is_needed


def test_the_next_subpartition_is_asked_of_the_view_for_a_range_only(server: ServerSide) -> None:
    """CreditBasedSequenceNumberingViewReaderTest: peek the next buffer's subpartition id."""
    one = CreditBasedSequenceNumberingViewReader(request(subpartition=4), server.queue)
    several = open_reader(server, ScriptedView(DATA, subpartitions=(5,)), receiver=2)

    assert one.subpartition == 4
    assert several.subpartition == SEVERAL
    assert several.peek_next_subpartition() == 5


def test_credit_pays_for_data_and_not_for_events(server: ServerSide) -> None:
    """Two data buffers and an event cost two credits."""
    reader = open_reader(server, ScriptedView(DATA, EVENT, DATA), credit=2)

    for _ in range(3):
        present(reader.next_buffer()).buffer.recycle()

    assert reader.credit.available == 0
    assert reader.next_buffer() is None


def test_a_buffer_that_cannot_be_paid_for_is_a_bug_and_no_leak(server: ServerSide) -> None:
    """The view handed it out, so the reader recycles it."""
    view = ScriptedView(DATA)
    reader = open_reader(server, view, credit=0)

    with pytest.raises(LocalProtocolError, match="no credit available"):
        reader.next_buffer()

    assert view.num_out == 0


def test_a_negative_initial_credit_is_refused(server: ServerSide) -> None:
    """The least initial credit is zero, for a receiver with floating buffers only."""
    with pytest.raises(RemoteProtocolError):
        CreditBasedSequenceNumberingViewReader(request(credit=-1), server.queue)


def test_a_barrier_blocks_until_the_resumption(server: ServerSide) -> None:
    """The dump says so."""
    reader = open_reader(server, ScriptedView(BARRIER, DATA))
    present(reader.next_buffer()).buffer.recycle()

    assert reader.is_blocked
    assert reader.availability() == (False, 0)
    reader.resume_consumption()

    assert not reader.is_blocked
    assert reader.availability() == (True, 1)


def test_orders_before_the_partition_is_there_do_nothing(server: ServerSide) -> None:
    """Orders before the partition is there are ignored: there is no view yet."""
    reader = CreditBasedSequenceNumberingViewReader(request(), server.queue)

    reader.resume_consumption()
    reader.acknowledge_all_data_processed()

    assert reader.availability() == (False, 0)
    assert not reader.has_view
    assert reader.open_view is None
    assert "waiting" in repr(reader)


def test_a_released_reader_tells_its_view_nothing_more(server: ServerSide) -> None:
    """A view is released once, however often its reader is."""
    view = ScriptedView(DATA)
    reader = open_reader(server, view)

    reader.release()
    reader.release()

    assert view.num_released == 1
    assert reader.open_view is None
    assert view.orders == []
    assert "released" in repr(reader)


@pytest.mark.parametrize(("credit", "num_expected"), [(0, 1), (1, 0)])
def test_an_empty_buffer_reaches_the_receiver_that_waits_for_it(
    server: ServerSide, credit: int, num_expected: int
) -> None:
    """One without credit of its own; a flushed buffer that a later event finished is empty."""
    partition = server.partition()
    partition.emit_record(b"abc", 0)
    server.receive(request(credit=credit))
    server.receive(AddCredit(receiver_of(1), 2))
    partition.flush(0)
    first = server.data()

    partition.broadcast_event(EndOfData(StopMode.DRAIN))

    assert (first, len(server.data())) == ([(1, 0)], num_expected)
