"""``Admission``: the oldest stranger is cut first, and authenticated connections stay."""

from hypothesis import given
from hypothesis import strategies as st

from netstack.flow.admission import Admission, AdmissionStatistics

LOOPBACK = "127.0.0.1"


def make(max_connections: int = 10, max_unauthenticated: int = 3, per_host: int = 2) -> Admission[int]:
    return Admission(
        max_connections=max_connections, max_unauthenticated=max_unauthenticated, max_unauthenticated_per_host=per_host
    )


def test_the_oldest_unauthenticated_one_makes_room() -> None:
    book = make()
    for number in range(3):
        assert book.arrive(number, LOOPBACK) == []
    book.authenticate(0)

    assert book.arrive(3, LOOPBACK) == []
    assert book.arrive(4, LOOPBACK) == [1]
    assert [book.is_authenticated(number) for number in range(5)] == [True, False, False, False, False]
    assert book.statistics() == AdmissionStatistics(
        num_connections=4, num_unauthenticated=3, num_evicted=1, num_refused=0
    )


def test_one_address_cannot_use_up_what_is_for_all() -> None:
    """The number of strangers per address is bounded, except on loopback, where every client has this machine's
    address.
    """
    book = make(max_unauthenticated=5)
    for number in range(2):
        assert book.arrive(number, "192.0.2.1") == []
    assert book.arrive(2, "192.0.2.2") == []

    assert book.arrive(3, "192.0.2.1") == [0]
    assert book.arrive(4, LOOPBACK) == []
    assert book.arrive(5, LOOPBACK) == []


def test_a_full_house_of_known_ones_refuses_the_next() -> None:
    book = make(max_connections=2)
    for number in range(2):
        book.arrive(number, LOOPBACK)
        book.authenticate(number)

    assert book.arrive(2, LOOPBACK) is None
    assert book.statistics().num_refused == 1
    book.leave(0)
    book.leave(0)
    assert book.arrive(3, LOOPBACK) == []


def test_a_stranger_makes_room_in_a_full_house() -> None:
    book = make(max_connections=2)
    book.arrive(0, LOOPBACK)
    book.authenticate(0)
    book.arrive(1, LOOPBACK)

    assert book.arrive(2, LOOPBACK) == [1]


def test_one_that_was_cut_is_not_known_any_more() -> None:
    """A stranger that was cut is not authenticated by a proof that was on its way."""
    book = make(max_unauthenticated=1)
    book.arrive(0, LOOPBACK)
    assert book.arrive(1, LOOPBACK) == [0]

    book.authenticate(0)

    assert not book.is_authenticated(0)
    assert "1 connections, 1 unauthenticated" in repr(book)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrive", "authenticate", "leave"]),
            st.integers(0, 9),
            st.sampled_from(["127.0.0.1", "a", "b"]),
        )
    )
)
def test_no_limit_is_ever_exceeded(steps: list[tuple[str, int, str]]) -> None:
    book, known = make(max_connections=5), set[int]()
    for kind, number, host in steps:
        if kind == "leave":
            book.leave(number)
            known.discard(number)
        elif kind == "authenticate":
            book.authenticate(number)
        elif number not in known:
            evicted = book.arrive(number, host)
            known -= set(evicted or ())
            if evicted is not None:
                known.add(number)
        book.check_invariants()
        assert book.statistics().num_connections == len(known)
