"""Blocks of records, beside plain lists."""

import random
from typing import Any

import pytest

from flowlet.joins import interval_join_operator as join_buffer
from flowlet.joins.interval_join_operator import JoinBuffer


class Entries:
    """A ``MapState`` of one key that notes how many records its largest entry had."""

    def __init__(self) -> None:
        self.entries: dict[Any, Any] = {}
        self.largest = 0

    def get(self, key: Any) -> Any:
        return self.entries.get(key)

    def put(self, key: Any, value: Any) -> None:
        self.largest = max(self.largest, sum(len(each) if isinstance(each, tuple) else 1 for each in value))
        self.entries[key] = value

    def remove(self, key: Any) -> None:
        del self.entries[key]

    def items(self) -> list[tuple[Any, Any]]:
        return list(self.entries.items())


def buffer_of(first: Any, more: Any) -> JoinBuffer:
    return JoinBuffer(first, more)


def test_a_record_copies_no_more_than_a_block() -> None:
    """A timestamp may have many records."""
    first, more = Entries(), Entries()
    buffer = buffer_of(first, more)

    for number in range(1_000):
        buffer.add(number, 7)

    assert list(buffer.near(7, 7)) == [(7, tuple(range(1_000)))]
    assert max(first.largest, more.largest) <= join_buffer._BLOCK_SIZE
    buffer.remove(7)
    assert (first.entries, more.entries) == ({}, {})


def test_records_come_out_by_timestamp_and_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records come out of whole blocks, half ones and none, asked for one by one and among all."""
    monkeypatch.setattr(join_buffer, "_BLOCK_SIZE", 3)
    rng, plain = random.Random(0), dict[int, list[int]]()
    first, more = Entries(), Entries()
    buffer = buffer_of(first, more)
    for number in range(300):
        timestamp = rng.randrange(20)
        if rng.random() < 0.05 and timestamp in plain:
            buffer.remove(timestamp)
            del plain[timestamp]
        plain.setdefault(timestamp, []).append(number)
        buffer.add(number, timestamp)
        low = rng.randrange(20)
        for high in (low + 3, low + join_buffer._NARROW):
            expected = [(each, tuple(plain[each])) for each in range(low, high + 1) if each in plain]
            assert list(buffer.near(low, high)) == expected

    for timestamp in plain:
        buffer.remove(timestamp)
    assert (first.entries, more.entries) == ({}, {})


def test_a_state_from_before_there_were_blocks_goes_on() -> None:
    """The entries of such a state have all records of a timestamp."""
    first, more = Entries(), Entries()
    first.entries[7] = tuple(range(100))
    buffer = buffer_of(first, more)

    buffer.add(100, 7)

    assert list(buffer.near(0, 9)) == [(7, tuple(range(101)))]
