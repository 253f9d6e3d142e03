"""Gathers what users' process functions give, and passes it on in chunks.

Hot path.  Per result: one look at its type, or at those of a pair, which says whether it may be a side output's and whether it must be
copied; one append.

Side:       task.
Invariants: a chunk has timestamps for all of its records or for none; no more than ``FLAT_MAP_CHUNK_RECORDS`` results wait.
Source:     Flink ``TimestampedCollector``; PyFlink: results are yielded, ``(OutputTag, value)`` for side outputs.
"""

from collections.abc import Iterable
from itertools import repeat
from typing import Any

from flowlet.datastream.output_tag import OutputTag
from flowlet.fusing.unchanging import UNCHANGING
from flowlet.operators.base import Output
from flowlet.operators.copying import copy_value
from flowlet.operators.transform import FLAT_MAP_CHUNK_RECORDS
from flowlet.operators.user_function import preview
from flowlet.records import Chunk


class Collector:
    """The results of one operator that wait to be emitted.

    Args:
        output: where they go.
        copies: whether a function may change what it gave before (object reuse is off).
    """

    def __init__(self, output: Output, *, copies: bool) -> None:
        self._output = output
        self._copies = copies
        self._main = _Pending()
        self._sides: dict[str, _Pending] = {}
        self._num_pending = 0

    def collect(self, results: Iterable[Any] | None, timestamp: int | None) -> None:
        """Take all results of one call.

        Raises:
            TypeError: they are neither None nor iterable.
        """
        if results is None:
            return
        copies, main = self._copies, self._main
        if main.has_timestamps is (timestamp is None):
            main.turn()
        values = main.values
        room = FLAT_MAP_CHUNK_RECORDS - self._num_pending
        try:
            records = iter(results)
        except TypeError:
            if hasattr(type(results), "__iter__"):
                raise  # the user's own __iter__ failed
            raise _advice(results) from None
        for result in records:
            # Copied here, not when the chunk is emitted: a function may yield the same object again, changed.
            if type(result) is tuple and len(result) == 2:
                first, second = result
                if type(first) not in UNCHANGING and isinstance(first, OutputTag):
                    self._side(first.tag_id).add(copy_value(second) if copies else second, timestamp)
                elif copies and (type(first) not in UNCHANGING or type(second) not in UNCHANGING):
                    values.append(copy_value(result))
                else:
                    values.append(result)
            elif copies and type(result) not in UNCHANGING:
                values.append(copy_value(result))
            else:
                values.append(result)
            room -= 1
            if not room:
                main.stamp(timestamp)
                self.flush()
                values = main.values
                room = FLAT_MAP_CHUNK_RECORDS
        if timestamp is not None:
            main.stamp(timestamp)
        self._num_pending = FLAT_MAP_CHUNK_RECORDS - room

    def flush(self) -> None:
        """Emit what was gathered."""
        self._num_pending = 0
        for chunk in self._main.take():
            self._output.collect(chunk)
        for tag_id, pending in self._sides.items():
            for chunk in pending.take():
                self._output.collect_side(tag_id, chunk)

    def _side(self, tag_id: str) -> "_Pending":
        pending = self._sides.get(tag_id)
        if pending is None:
            pending = self._sides[tag_id] = _Pending()
        return pending


def _advice(results: Any) -> TypeError:
    what = f"{preview(results)} of type {type(results).__name__}"
    return TypeError(f"a process function yields its results or returns a list of them ([] or None for none, [x] for one); got {what}")


class _Pending:
    """Records of one output that wait to be emitted."""

    __slots__ = ("_chunks", "_timestamps", "has_timestamps", "values")

    def __init__(self) -> None:
        self._chunks: list[Chunk] = []  # whole ones
        self.values: list[Any] = []  # of the chunk in the making
        self._timestamps: list[int] = []
        self.has_timestamps = False

    def add(self, value: Any, timestamp: int | None) -> None:
        """One record."""
        if self.has_timestamps is (timestamp is None):
            self.turn()
        self.values.append(value)
        self.stamp(timestamp)

    def stamp(self, timestamp: int | None) -> None:
        """The timestamp of all records that came since the last time."""
        if timestamp is not None:
            self._timestamps += repeat(timestamp, len(self.values) - len(self._timestamps))

    def turn(self) -> None:
        """From now on, records have timestamps; or no timestamps any more."""
        if self.values:
            self._end_chunk()
        self.has_timestamps = not self.has_timestamps

    def take(self) -> list[Chunk]:
        """The records, in order."""
        if self.values:
            self._end_chunk()
        chunks, self._chunks = self._chunks, []
        return chunks

    def _end_chunk(self) -> None:
        self._chunks.append(Chunk(self.values, self._timestamps if self.has_timestamps else None))
        self.values, self._timestamps = [], []
