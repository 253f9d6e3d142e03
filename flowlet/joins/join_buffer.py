"""The records of one side of an interval join, by timestamp.

The first records of a timestamp are the entry of that timestamp in the state, which for most timestamps is all.  The
others follow in blocks of the same size, each an entry of its own, so that a record never copies more than one block.

Hot path, per record: one access of the state to look and one to add.
Side:       task.
Invariants: a tuple in the state never changes: a snapshot that is being written must not see it grow.  A timestamp has
            blocks only if its first records are a whole block.  Records come out in the order in which they were added.
"""

from collections.abc import Iterator
from typing import Any, Final

from flowlet.datastream.state import MapState

# Records per entry: the more, the more a record copies, and the fewer entries there are.  On the heap 8 to 64 cost the
# same.
_BLOCK_SIZE: Final = 32
_TAIL: Final = 0  # the number of the entry that has the number of whole blocks and the records behind them

Records = tuple[Any, ...]


class JoinBuffer:
    """The records of the current key.

    Args:
        first: by timestamp its first records.
        more: the rest by timestamp and number: 1, 2, ... are whole blocks, 0 says how many these are, and has the
            newest records.
    """

    __slots__ = ("_first", "_more")

    def __init__(self, first: MapState[int, Any], more: MapState[tuple[int, int], Any]) -> None:
        self._first = first
        self._more = more

    def add(self, record: Any, timestamp: int) -> None:
        """Keep a record."""
        first = self._first.get(timestamp)
        if first is None:
            self._first.put(timestamp, (record,))
        elif len(first) < _BLOCK_SIZE:
            self._first.put(timestamp, (*first, record))
        else:
            self._add_more(record, timestamp)

    def remove(self, timestamp: int) -> None:
        """Forget the records of a timestamp."""
        first: Records | None = self._first.get(timestamp)
        self._first.remove(timestamp)
        tail = None if first is None or len(first) < _BLOCK_SIZE else self._more.get((timestamp, _TAIL))
        if tail is not None:
            for number in range(tail[0] + 1):
                self._more.remove((timestamp, number))

    def each(self, first: int, last: int) -> Iterator[tuple[int, Records]]:
        """The records of the timestamps from ``first`` to ``last``, each asked for."""
        for timestamp in range(first, last + 1):
            records = self._first.get(timestamp)
            if records is not None:
                yield timestamp, records if len(records) < _BLOCK_SIZE else self._with_more(timestamp, records)

    def between(self, first: int, last: int) -> Iterator[tuple[int, Records]]:
        """The same, found among all timestamps."""
        found = [entry for entry in self._first.items() if first <= entry[0] <= last]
        found.sort(key=_timestamp_of)
        for timestamp, records in found:
            yield timestamp, records if len(records) < _BLOCK_SIZE else self._with_more(timestamp, records)

    def _add_more(self, record: Any, timestamp: int) -> None:
        tail = self._more.get((timestamp, _TAIL))
        num_blocks, newest = (0, ()) if tail is None else tail
        newest = (*newest, record)
        if len(newest) == _BLOCK_SIZE:
            num_blocks += 1
            self._more.put((timestamp, num_blocks), newest)
            newest = ()
        self._more.put((timestamp, _TAIL), (num_blocks, newest))

    def _with_more(self, timestamp: int, first: Records) -> Records:
        tail = self._more.get((timestamp, _TAIL))
        if tail is None:
            return first
        num_blocks, newest = tail
        records = list(first)
        for number in range(1, num_blocks + 1):
            records += self._more.get((timestamp, number))
        return (*records, *newest)


def _timestamp_of(entry: tuple[int, Records]) -> int:
    return entry[0]
