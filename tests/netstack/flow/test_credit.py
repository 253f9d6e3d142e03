"""``SenderCredit``: no data buffer without credit, no credit that makes no sense."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.flow.credit import MAX_CREDIT, SenderCredit


def test_what_is_granted_can_be_spent_and_no_more() -> None:
    """Two credits pay for two buffers; a third buffer is a bug of ours."""
    credit = SenderCredit(2)

    credit.spend()
    credit.spend()

    assert credit.available == 0
    with pytest.raises(LocalProtocolError, match="2 buffers sent, 2 credits granted"):
        credit.spend()
    assert credit.available == 0, "a failed transition changes nothing"


@pytest.mark.parametrize("bad", [0, -1, -(2**31)])
def test_a_grant_below_one_is_the_peers_error(bad: int) -> None:
    """An AddCredit of less than one is an error of the peer."""
    credit = SenderCredit(1)

    with pytest.raises(RemoteProtocolError, match=f"granted {bad} credits"):
        credit.grant(bad)

    assert credit.available == 1


def test_resuming_takes_back_what_was_not_spent() -> None:
    """CreditBasedSequenceNumberingViewReaderTest: resume resets the credit of one that started with none."""
    credit = SenderCredit(0)
    credit.grant(3)
    credit.spend()

    credit.reset()

    assert (credit.available, credit.granted, credit.spent) == (0, 1, 1)
    credit.check_invariants()
    credit.grant(2)
    assert credit.available == 2


def test_credit_has_an_upper_bound() -> None:
    """A receiver cannot ask for more than an i32 can count; a refused grant changes nothing."""
    credit = SenderCredit(MAX_CREDIT - 1)
    credit.grant(1)

    assert credit.available == MAX_CREDIT
    with pytest.raises(RemoteProtocolError, match=f"1 credits on top of {MAX_CREDIT}: more than {MAX_CREDIT}"):
        credit.grant(1)

    credit.spend()
    credit.grant(1)
    assert credit.available == MAX_CREDIT
    for bad in (-1, MAX_CREDIT + 1):
        with pytest.raises(RemoteProtocolError, match=f"starts with {bad} credits"):
            SenderCredit(bad)


@given(st.lists(st.one_of(st.integers(1, 5), st.none()), max_size=50))
def test_granted_is_spent_plus_available(steps: list[int | None]) -> None:
    """In any order of grants (a number) and sends (None), granted is spent plus available."""
    credit, granted, spent = SenderCredit(1), 1, 0

    for step in steps:
        if step is not None:
            credit.grant(step)
            granted += step
        elif credit.available:
            credit.spend()
            spent += 1
        credit.check_invariants()

    assert (credit.granted, credit.spent, credit.available) == (granted, spent, granted - spent)


def test_the_limit_is_on_what_is_available_not_on_the_sum_of_a_life() -> None:
    """A long-lived channel is granted more than an i32 in total."""
    credit = SenderCredit(MAX_CREDIT)
    credit.spend()

    credit.grant(1)

    assert credit.granted == MAX_CREDIT + 1
