"""What one subtask of a gate takes, refuses and counts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.flow import offer_book
from netstack.flow.offer_book import GateShape, OfferBook, OfferCounts, Refusal
from netstack.wire.offer_messages import PartitionOffer, RefusalCode
from tests.netstack.wire.samples import PARTITION

TYPE = b"T" * 16
SHAPE = GateShape("clicks", "Long", TYPE, 2, 3)


def offer_of(partition: int, attempt: int = 0, *, epoch: int = 0, job: str = "job", number: int | None = None) -> PartitionOffer:
    nonce = (hash((job, epoch, partition, attempt)) if number is None else number) % 2**64
    return PartitionOffer(nonce.to_bytes(16, "big"), PARTITION, 0, 2, 3, job, epoch, partition, attempt, TYPE)


def code_of(refusal: Refusal | None) -> RefusalCode | None:
    return None if refusal is None else refusal.code


def test_a_repeated_attempt_is_refused_whatever_became_of_the_first() -> None:
    book = OfferBook(SHAPE)
    for partition, is_complete in ((0, True), (1, False)):
        assert book.admit(offer_of(partition)) is None
        assert code_of(book.admit(offer_of(partition, number=7))) is RefusalCode.REPEATED_ATTEMPT
        book.end(offer_of(partition), is_complete=is_complete)
        assert code_of(book.admit(offer_of(partition))) is RefusalCode.REPEATED_ATTEMPT
        assert book.admit(offer_of(partition, 1)) is None
    assert book.counts() == OfferCounts(num_open=2, num_completed=1, num_aborted=1, num_refused=4)


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
    """Fewer producers than the gate waits for are fine: another job may bring the rest."""
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


def test_a_crowd_is_refused_until_one_of_it_has_ended() -> None:
    """What was refused for want of room may come again as it is; what is wrong in itself is told first."""
    book = OfferBook(SHAPE, max_open=2)
    for partition in range(2):
        assert book.admit(offer_of(partition)) is None

    refusal = book.admit(offer_of(2))

    assert code_of(refusal) is RefusalCode.BUSY
    assert refusal is not None
    assert "2 producers at once" in refusal.reason
    assert "max_producers_per_gate" in refusal.reason
    assert code_of(book.admit(offer_of(1))) is RefusalCode.REPEATED_ATTEMPT
    book.end(offer_of(0), is_complete=True)
    assert book.admit(offer_of(2)) is None
    assert book.counts() == OfferCounts(num_open=2, num_completed=1, num_refused=2)


def test_what_is_taken_back_was_never_there() -> None:
    book = OfferBook(SHAPE)
    assert book.admit(offer_of(0)) is None

    book.take_back(offer_of(0))

    assert book.counts() == OfferCounts(num_refused=1)
    assert book.admit(offer_of(0)) is None


def test_no_more_partitions_are_remembered_than_the_gate_waits_for() -> None:
    """A crowd goes on to push while the JobManager does not seal the gate: exact up to the number, and nothing grows behind it."""
    book = OfferBook(SHAPE)
    for partition in range(100):
        for attempt in range(2):
            offer = offer_of(partition, attempt, epoch=partition % 2, job=f"job {partition % 3}")
            assert book.admit(offer) is None
            book.end(offer, is_complete=True)
        assert book.counts().num_completed == min(partition + 1, 3)

    assert sum(map(len, book._completed.values())) == 3
    assert len(book._completed) <= 3


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.booleans())))
def test_a_partition_counts_once_and_every_attempt_is_taken_once(tries: list[tuple[int, int, bool]]) -> None:
    """Whatever is offered in whatever order."""
    book = OfferBook(SHAPE)
    admitted: set[tuple[int, int]] = set()
    completed: set[int] = set()
    num_aborted = 0
    for partition, attempt, is_complete in tries:
        refusal = book.admit(offer_of(partition, attempt))
        assert (refusal is None) is ((partition, attempt) not in admitted)
        if refusal is None:
            admitted.add((partition, attempt))
            book.end(offer_of(partition, attempt), is_complete=is_complete)
            num_aborted += not is_complete
            completed |= {partition} if is_complete else set()
    assert book.counts() == OfferCounts(0, len(completed), num_aborted, len(tries) - len(admitted))
