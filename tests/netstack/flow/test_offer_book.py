"""The offers that one subtask of a gate takes, refuses and counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.flow import offer_book
from netstack.flow.offer_book import GateShape, OfferBook, OfferCounts, Refusal
from netstack.wire.offer_messages import RefusalCode, SubpartitionOffer
from tests.netstack.wire.samples import PARTITION

TYPE = b"T" * 16
SHAPE = GateShape("clicks", "Long", TYPE, 2, 3)


def offer_of(
    partition: int, attempt: int = 0, *, epoch: int = 0, job: str = "job", number: int | None = None
) -> SubpartitionOffer:
    nonce = (hash((job, epoch, partition, attempt)) if number is None else number) % 2**64
    return SubpartitionOffer(nonce.to_bytes(16, "big"), PARTITION, 0, 2, 3, job, epoch, partition, attempt, TYPE)


def code_of(refusal: Refusal | None) -> RefusalCode | None:
    return None if refusal is None else refusal.code


def test_a_repeated_attempt_is_refused_unless_the_first_was_aborted() -> None:
    """An attempt that was open or completed is refused when it is offered again; an aborted one is admitted, because an
    offer that another subtask had no room for is repeated with its number.
    """
    book = OfferBook(SHAPE)
    for partition, is_complete in ((0, True), (1, False)):
        assert book.admit(offer_of(partition)) is None
        assert code_of(book.admit(offer_of(partition, number=7))) is RefusalCode.REPEATED_ATTEMPT
        book.end(offer_of(partition), is_complete=is_complete)
    assert code_of(book.admit(offer_of(0))) is RefusalCode.REPEATED_ATTEMPT
    assert book.admit(offer_of(1)) is None
    assert book.counts() == OfferCounts(num_open=1, num_completed=1, num_aborted=1, num_refused=3)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"fingerprint": b"t" * 16}, RefusalCode.WRONG_TYPE),
        ({"num_subtasks": 3}, RefusalCode.WRONG_SHAPE),
        ({"num_producers": 4}, RefusalCode.WRONG_SHAPE),
        ({"num_producers": 0}, None),
        ({"num_producers": 2}, None),
    ],
)
def test_an_offer_has_to_agree_with_the_gate(change: dict[str, object], code: RefusalCode | None) -> None:
    """It may announce fewer producers: another job may bring the rest."""
    assert code_of(OfferBook(SHAPE).admit(replace(offer_of(0), **change))) is code  # type: ignore[arg-type]  # one field each


def test_a_sealed_book_is_finished_when_its_last_offer_has_ended() -> None:
    book = OfferBook(SHAPE)
    assert book.admit(offer_of(0)) is None
    assert not book.is_finished
    book.seal()
    assert code_of(book.admit(offer_of(1))) is RefusalCode.GATE_ENDED
    assert not book.is_finished
    book.end(offer_of(0), is_complete=False)
    book.end(offer_of(0), is_complete=True)  # it ended before
    assert book.is_finished
    assert book.counts() == OfferCounts(num_aborted=1, num_refused=1)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest attempts are forgotten first."""
    monkeypatch.setattr(offer_book, "MAX_REMEMBERED", 3)
    book = OfferBook(replace(SHAPE, num_producers=None))
    for partition in range(4):
        assert book.admit(offer_of(partition)) is None
        book.end(offer_of(partition), is_complete=True)

    assert book.admit(offer_of(0)) is None
    assert code_of(book.admit(offer_of(3))) is RefusalCode.REPEATED_ATTEMPT
    assert book.counts().num_completed == 4


def test_a_crowd_waits_in_the_order_of_its_arrival() -> None:
    """Even when there is room; an offer that is wrong in itself is refused for that reason first."""
    book = OfferBook(SHAPE, max_open=2)
    for partition in range(2):
        assert book.admit(offer_of(partition)) is None

    refusals = [book.admit(offer_of(partition)) for partition in (2, 3)]

    assert [code_of(refusal) for refusal in refusals] == [RefusalCode.QUEUED] * 2
    assert refusals[1] is not None
    assert "2 producers at once" in refusals[1].reason
    assert "1 are before it" in refusals[1].reason
    assert code_of(book.admit(offer_of(1))) is RefusalCode.REPEATED_ATTEMPT
    assert code_of(book.admit(offer_of(2, number=7))) is RefusalCode.REPEATED_ATTEMPT
    assert book.next_waiting() is None
    book.end(offer_of(0), is_complete=True)
    assert code_of(book.admit(offer_of(4))) is RefusalCode.QUEUED
    assert book.next_waiting() == offer_of(2)
    assert book.next_waiting() is None
    assert book.counts() == OfferCounts(num_open=2, num_completed=1, num_refused=2)


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer_book, "MAX_WAITING", 1)
    book = OfferBook(SHAPE, max_open=1)

    assert [code_of(book.admit(offer_of(partition))) for partition in range(3)] == [
        None,
        RefusalCode.QUEUED,
        RefusalCode.BUSY,
    ]


def test_a_sealed_book_gives_out_those_that_wait() -> None:
    """The waiting offers are refused when the book is sealed; the open one goes on."""
    book = OfferBook(SHAPE, max_open=1)
    for partition in range(3):
        book.admit(offer_of(partition))

    waiting, refusal = book.seal()

    assert waiting == [offer_of(1), offer_of(2)]
    assert refusal.code is RefusalCode.GATE_ENDED
    assert book.seal()[0] == []
    book.end(offer_of(0), is_complete=True)
    assert book.next_waiting() is None
    assert book.is_finished


def test_what_is_taken_back_was_never_there() -> None:
    book = OfferBook(SHAPE)
    assert book.admit(offer_of(0)) is None

    book.take_back(offer_of(0))

    assert book.counts() == OfferCounts(num_refused=1)
    assert book.admit(offer_of(0)) is None


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans())))
def test_every_attempt_is_complete_once(tries: list[tuple[int, int, bool]]) -> None:
    """No order of offers completes an attempt twice."""
    book = OfferBook(SHAPE)
    completed: set[tuple[int, int]] = set()
    num_aborted = num_refused = 0
    for partition, attempt, is_complete in tries:
        refusal = book.admit(offer_of(partition, attempt))
        assert (refusal is None) is ((partition, attempt) not in completed)
        if refusal is None:
            book.end(offer_of(partition, attempt), is_complete=is_complete)
            num_aborted += not is_complete
            completed |= {(partition, attempt)} if is_complete else set()
        num_refused += refusal is not None
    assert book.counts() == OfferCounts(0, len(completed), num_aborted, num_refused)
