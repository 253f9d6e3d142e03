"""The records of one side of an interval join, beside plain lists."""

import random
from typing import Any

import pytest

from flowlet.joins import interval_join_operator as join
from flowlet.joins.interval_join_operator import JoinSide


class Entries(dict[Any, Any]):
    """A ``MapState`` of one key."""

    put = dict.__setitem__
    remove = dict.__delitem__


def side_of(records: Any) -> JoinSide:
    side = JoinSide(0, (0, 0), None)
    side.records = records
    return side


def test_a_record_copies_no_other_however_many_have_its_timestamp() -> None:
    side = side_of(Entries())
    side.add(0, 7)
    side.add(1, 7)
    ((_, kept),) = side.near(7, 7)

    for number in range(2, 1_000):
        side.add(number, 7)

    assert side.near(7, 7) == [(7, list(range(1_000)))]
    assert side.near(7, 7)[0][1] is kept


def test_records_come_out_by_timestamp_and_in_their_order() -> None:
    """Asked for one by one and among all."""
    rng, plain = random.Random(0), dict[int, list[int]]()
    entries = Entries()
    side = side_of(entries)
    for number in range(300):
        timestamp = rng.randrange(20)
        if rng.random() < 0.05 and timestamp in plain:
            entries.remove(timestamp)
            del plain[timestamp]
        plain.setdefault(timestamp, []).append(number)
        side.add(number, timestamp)
        low = rng.randrange(20)
        for high in (low + 3, low + join._NARROW):
            expected = [(each, plain[each]) for each in range(low, high + 1) if each in plain]
            assert [(at, list(records)) for at, records in side.near(low, high)] == expected


@pytest.mark.parametrize("more", [{}, {0: (0, (32, 33))}, {0: (2, (6,)), 1: (32, 33), 2: (4, 5)}], ids=str)
def test_a_state_of_an_earlier_flowlet_goes_on(more: dict[int, tuple[Any, ...]]) -> None:
    """Its entries have all records of a timestamp, or the first ones, and others have blocks of the rest."""
    side = side_of(Entries({7: tuple(range(32))}))
    rest: Any = Entries({(7, number): kept for number, kept in more.items()})
    expected = [*range(32), *more.get(1, ()), *more.get(2, ()), *(more[0][1] if more else ())]

    side.put_back(rest)
    side.add("new", 7)

    assert side.near(0, 9) == [(7, [*expected, "new"])]
    assert not rest
