"""Keeps records in columns until they are written, and splits them by channel.

Hot path, per chunk: C code per column.
Side:       pure.
Invariants: the records of a lane keep their order, and stay columns.
Source:     hot-path measurements.  For two or three lanes it is cheapest to find the rows of each lane (two columns
            into two lanes: 2.4 ns per row; ``np.compress`` finds them once per column, 3.7).  For more lanes one stable
            sort is (7.5 ns), which is a radix sort for integers of up to 16 bits.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import Columns, try_concatenate
from flowlet.records import Chunk, Int64Array

LaneArray = NDArray[np.uint16]
# Returns the records as they are sent, and the lane of each; takes one chunk, or several joined ones that have the same
# route.
Route = Callable[[Columns], tuple[Columns, LaneArray]]

_MAX_MASKS: Final = 3


class PendingColumns:
    """Waiting chunks of columns, all with timestamps or all without; ``num_lanes`` is at most 65,536."""

    __slots__ = ("_chunks", "_lanes", "_num_lanes", "num_rows")

    def __init__(self, num_lanes: int) -> None:
        self._num_lanes = num_lanes
        self._chunks: list[Chunk] = []
        self._lanes: list[LaneArray | Route | None] = []
        self.num_rows = 0

    def __repr__(self) -> str:
        return f"<PendingColumns: {self.num_rows} rows>"

    def add(self, chunk: Chunk, lanes: LaneArray | Route | None) -> None:
        """Keep a chunk of columns.

        ``lanes``: the lane of each record, or a function that finds it later, for many records at once; None: all go to
            lane 0.
        """
        self._chunks.append(chunk)
        self._lanes.append(lanes)
        self.num_rows += len(chunk)

    def take(self) -> Iterator[tuple[int, Chunk]]:
        """Remove all waiting records: (lane, chunk) pairs, in as few chunks as the columns allow."""
        chunks, lanes = self._chunks, self._lanes
        self._chunks, self._lanes, self.num_rows = [], [], 0
        tables = [chunk.columns for chunk in chunks]
        joined = try_concatenate([table for table in tables if table is not None]) if chunks else None
        if joined is None:
            for chunk, each in zip(chunks, lanes, strict=True):
                yield from self._split(*_routed(each, chunk))
            return
        timestamps = [array for chunk in chunks if (array := chunk.timestamp_array) is not None]
        whole = Chunk.of_columns(joined, np.concatenate(timestamps) if timestamps else None)
        if all(each is lanes[0] for each in lanes):
            yield from self._split(*_routed(lanes[0], whole))
            return
        routed = [_routed(each, chunk) for chunk, each in zip(chunks, lanes, strict=True)]
        if all(chunk.columns is table for (chunk, _), table in zip(routed, tables, strict=True)):
            yield from self._split(whole, np.concatenate([found for _, found in routed if found is not None]))
            return
        for chunk, found in routed:
            yield from self._split(chunk, found)

    def _split(self, chunk: Chunk, lanes: LaneArray | None) -> Iterator[tuple[int, Chunk]]:
        if lanes is None:
            return iter(((0, chunk),))
        assert chunk.columns is not None, "only columns wait here"
        split = _by_masks if self._num_lanes <= _MAX_MASKS else _by_sorting
        # Narrowed before the split, so that the split moves fewer bytes.
        return split(chunk.columns.narrowed(), chunk.timestamp_array, lanes, self._num_lanes)


def _routed(lanes: LaneArray | Route | None, chunk: Chunk) -> tuple[Chunk, LaneArray | None]:
    if not callable(lanes):
        return chunk, lanes
    assert chunk.columns is not None, "only columns wait here"
    columns, found = lanes(chunk.columns)
    return chunk if columns is chunk.columns else Chunk.of_columns(columns, chunk.timestamp_array), found


def _by_masks(
    columns: Columns, timestamps: Int64Array | None, lanes: LaneArray, num_lanes: int
) -> Iterator[tuple[int, Chunk]]:
    for lane in range(num_lanes):
        rows = np.flatnonzero(lanes == lane)
        if len(rows) == len(lanes):
            yield lane, Chunk.of_columns(columns, timestamps)
        elif len(rows):
            yield lane, Chunk.of_columns(columns.take(rows), None if timestamps is None else timestamps.take(rows))


def _by_sorting(
    columns: Columns, timestamps: Int64Array | None, lanes: LaneArray, num_lanes: int
) -> Iterator[tuple[int, Chunk]]:
    order = np.argsort(lanes, kind="stable")
    ends = np.cumsum(np.bincount(lanes, minlength=num_lanes)).tolist()
    columns = columns.take(order)
    timestamps = None if timestamps is None else timestamps.take(order)
    start = 0
    for lane, end in enumerate(ends):
        if start < end:
            yield (
                lane,
                Chunk.of_columns(columns.slice(start, end), None if timestamps is None else timestamps[start:end]),
            )
        start = end


def lanes_of(lanes: Any) -> LaneArray:
    """Any array or list of lanes as a ``LaneArray``."""
    return np.asarray(lanes, np.uint16)
