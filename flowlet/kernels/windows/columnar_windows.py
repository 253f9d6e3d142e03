"""Aggregations over windows of columns: keys, windows and results.

Hot path, per chunk and per watermark.

Side:       pure.
Units:      milliseconds.
Invariants: the state is bounded by the keys and panes of windows that have not ended.
Absent:     other functions than ``AGGREGATES``, and triggers: rows have to be records for them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa

from flowlet.kernels.windows.column_sessions import ColumnSessions
from flowlet.kernels.windows.pane_windows import AddedRows, EmittedWindows, PaneWindows
from flowlet.kernels.windows.window_keys import WindowKeys
from flowlet.kernels.windows.window_partials import (
    ColumnInputs,
    Int64Array,
    Partial,
    WindowAggregate,
    distinct_partials,
)
from flowlet.kernels.windows.window_shapes import AlignedWindows, Progress, Run, SessionWindows, WindowShape
from netstack.late import dataclass

WINDOW_START: Final = "window_start"
WINDOW_END: Final = "window_end"
WINDOW_TIME_TYPE: Final = pa.timestamp("ms")


@dataclass(frozen=True, slots=True)
class WindowedAggregation:
    """What is computed.

    Args:
        shape: of the windows.
        aggregates: the results.
        key: the key's column; None: all rows have one key.
        key_type: its Arrow type, of plain values.
        lateness_ms: how long after its end a window takes rows.
    """

    shape: WindowShape
    aggregates: tuple[WindowAggregate, ...]
    key: str | None = None
    key_type: Any = None
    lateness_ms: int = 0

    @property
    def can_be_local(self) -> bool:
        """Whether parts of rows can be made before the rows are where their key is: if all windows of a row are known
        from its time.
        """
        return (
            isinstance(self.shape, AlignedWindows) and self.shape.is_event_time and self.shape.slide <= self.shape.size
        )

    def output_schema(self) -> Any:
        """The ``pyarrow.Schema`` of the results."""
        keys = [] if self.key is None else [pa.field(self.key, self.key_type)]
        times = [pa.field(name, WINDOW_TIME_TYPE, nullable=False) for name in (WINDOW_START, WINDOW_END)]
        results = [pa.field(each.name, each.output_type, nullable=each.is_nullable) for each in self.aggregates]
        return pa.schema([*keys, *times, *results])


@dataclass(frozen=True, slots=True)
class WindowsState:
    """The state at one moment, which nobody changes.

    ``keys``: of each slot; None: there are none.  ``floors``: by slot, how far its windows were emitted, if not as
        ``emitted`` says.
    ``tables``: of the windows; of a join, for each side.
    """

    keys: Any
    emitted: int
    floors: Int64Array | None
    tables: tuple[tuple[Run, ...], ...]


class ColumnarWindows:
    """The state and the results of one subtask.

    Args:
        aggregation: what is computed.
        received: where the parts come from, if they were made of rows elsewhere.
    """

    def __init__(self, aggregation: WindowedAggregation, received: Mapping[Partial, Partial] | None = None) -> None:
        self._aggregation = aggregation
        self._partials = distinct_partials(aggregation.aggregates)
        self._kept = self._partials if received is None else tuple([received[partial] for partial in self._partials])
        self._keys = WindowKeys(aggregation.key, aggregation.key_type)
        self._progress = Progress()
        self._windows = self._new_windows(aggregation.shape)

    def __repr__(self) -> str:
        return f"<ColumnarWindows {self._windows!r} of {self._keys!r}>"

    @property
    def emitted(self) -> int:
        """The watermark up to which windows were emitted."""
        return self._progress.emitted

    def latest_emitted(self) -> int:
        """The latest watermark up to which windows of any key were emitted."""
        return self._progress.latest()

    def add(self, inputs: ColumnInputs) -> AddedRows:
        """Take rows, of which there is at least one.

        Raises:
            TypeError: see ``WindowKeys.slots``.
            OverflowError: a number or a sum is too large; names the column.
        """
        slots = self._keys.slots(inputs)
        return self._windows.add(slots, inputs, self._keys.num_slots)

    def fire(self, watermark: int) -> Iterator[EmittedWindows]:
        """The windows that end at or before a watermark, in the order of their ends.

        Raises:
            OverflowError: as ``add``.
        """
        yield from self._windows.fire(watermark, self._keys.num_slots)
        if self._keys.are_sparse(self._windows.num_rows):
            self._forget_keys()

    def next_end(self) -> int | None:
        """The last timestamp of the next window to end; None: there is none."""
        return self._windows.next_end()

    def results(self, emitted: EmittedWindows) -> Any:
        """A ``pyarrow.RecordBatch`` of the output schema."""
        aggregation = self._aggregation
        arrays = [] if aggregation.key is None else [self._keys.array().take(pa.array(emitted.slots))]
        arrays += [pa.array(each).view(WINDOW_TIME_TYPE) for each in (emitted.starts_ms, emitted.ends_ms)]
        parts = dict(zip(self._partials, emitted.parts, strict=True))
        arrays += [each.results([parts[partial] for partial in each.partials()]) for each in aggregation.aggregates]
        return pa.RecordBatch.from_arrays(arrays, schema=aggregation.output_schema())

    # -- snapshots

    def state(self) -> WindowsState:
        """What a snapshot needs."""
        keys = pa.nulls(1) if self._aggregation.key is None else self._keys.array()
        floors = None if self._progress.floors is None else self._progress.of(np.arange(self._keys.num_slots))
        return WindowsState(keys, self._progress.emitted, floors, (self._windows.runs,))

    def load(self, state: WindowsState) -> None:
        """Go on from there; before the first rows.

        Raises:
            TypeError: the keys are not those of this aggregation.
        """
        if state.keys is not None:
            self._keys.load(state.keys)
        self._progress.emitted = state.emitted
        self._progress.floors = state.floors
        for table in state.tables:
            for run in table:
                self._windows.load(run)

    def _new_windows(self, shape: WindowShape) -> PaneWindows | ColumnSessions:
        lateness_ms = self._aggregation.lateness_ms
        match shape:
            case AlignedWindows():
                return PaneWindows(shape, self._kept, lateness_ms, self._progress)
            case SessionWindows():
                return ColumnSessions(shape, self._kept, lateness_ms, self._progress)

    def _forget_keys(self) -> None:
        is_live = np.zeros(self._keys.num_slots, np.bool_)
        for run in self._windows.runs:
            is_live[run.slots] = True
        self._progress.keep(is_live.nonzero()[0])
        self._windows.replace_slots(self._keys.keep(is_live))
