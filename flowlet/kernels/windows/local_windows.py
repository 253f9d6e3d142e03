"""Rows of one chunk as parts of windows, before they travel to the subtask that has their key.

Hot path, per chunk: one grouping of the rows and one call per aggregation, as in ``pane_windows``.

Side:       pure.
Invariants: nothing is kept from one chunk to the next but keys and their numbers, which nobody sees.  The parts of a
            chunk give the results that its rows give, and where a row is too late, its part is, too: all rows of a pane
            belong to the same windows.
Source:     the local half of Flink SQL's two-phase aggregation (``LocalWindowAggregate``).
"""

from typing import Any, Final

import numpy as np
import pyarrow as pa

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, Shape
from flowlet.columns.arrow_batches import column_of_array
from flowlet.kernels.grouping import IndexArray
from flowlet.kernels.windows.columnar_windows import WindowedAggregation
from flowlet.kernels.windows.window_keys import WindowKeys, try_group_cells
from flowlet.kernels.windows.window_partials import (
    ColumnInputs,
    CountPartial,
    Part,
    Partial,
    distinct_partials,
)
from flowlet.kernels.windows.window_shapes import MAX_WINDOW_TIMESTAMP, AlignedWindows
from flowlet.records import Chunk
from netstack.late import dataclass

# More keys are forgotten, so that those of long ago cost neither memory nor empty places in the arrays of a chunk.
_MAX_SLOTS: Final = 1 << 14
_MAX_KEY_BYTES: Final = 4 << 20
_NUM_ROWS: Final = CountPartial(None)


@dataclass(frozen=True, slots=True)
class ReceivedPartial(Partial):
    """A part that was made of rows elsewhere and came in columns.

    ``names``: of the columns, which are its arrays in their order.  ``are_numbers``: whether each is an array of
        numpy's.
    """

    partial: Partial
    names: tuple[str, ...]
    are_numbers: tuple[bool, ...]

    def of_rows(self, inputs: ColumnInputs) -> Part:
        """The columns."""
        return tuple(
            [
                inputs.numbers(name).array if is_number else inputs.array(name)
                for name, is_number in zip(self.names, self.are_numbers, strict=True)
            ]
        )

    def combined(self, part: Part, codes: IndexArray, num_groups: int) -> Part:
        """As parts of rows."""
        return self.partial.combined(part, codes, num_groups)

    def kinds(self, schema: Any) -> tuple[Any, ...]:
        """As of parts of rows."""
        return self.partial.kinds(schema)


class PartsLayout:
    """How parts travel: a column of keys, if there is one, and those of the parts; each part counts its rows.

    Args:
        aggregation: what is computed.
        schema: of the rows, a ``pyarrow.Schema``.
    """

    def __init__(self, aggregation: WindowedAggregation, schema: Any) -> None:
        self.partials = tuple(dict.fromkeys((*distinct_partials(aggregation.aggregates), _NUM_ROWS)))
        self.received: dict[Partial, ReceivedPartial] = {}
        fields = [] if aggregation.key is None else [pa.field(aggregation.key, aggregation.key_type)]
        for number, partial in enumerate(self.partials):
            kinds = partial.kinds(schema)
            are_numbers = tuple([isinstance(kind, np.dtype) for kind in kinds])
            # Longer than the key, so not its name.
            names = tuple([f"{aggregation.key}.{number}.{place}" for place in range(len(kinds))])
            types = [
                pa.from_numpy_dtype(kind) if is_number else kind
                for kind, is_number in zip(kinds, are_numbers, strict=True)
            ]
            fields += [pa.field(name, each) for name, each in zip(names, types, strict=True)]
            self.received[partial] = ReceivedPartial(partial, names, are_numbers)
        self.schema = pa.schema(fields)

    def num_rows(self, parts: ColumnInputs, chosen: IndexArray) -> int:
        """Of how many rows the parts at these positions are."""
        (counts,) = self.received[_NUM_ROWS].of_rows(parts)
        return int(counts.take(chosen).sum())


class LocalWindows:
    """Makes parts of rows."""

    def __init__(self, aggregation: WindowedAggregation, layout: PartsLayout) -> None:
        assert isinstance(aggregation.shape, AlignedWindows), "rows of a session have no pane"
        self._shape = aggregation.shape
        self._key = aggregation.key
        self._layout = layout
        self._key_type = aggregation.key_type
        self._keys = WindowKeys(self._key, self._key_type)

    def __repr__(self) -> str:
        return f"<LocalWindows of {self._keys!r}>"

    def combined(self, inputs: ColumnInputs) -> Chunk | None:
        """A part for each key and pane; None: they may be so many that the rows would have to be sorted.

        Raises:
            TypeError: see ``WindowKeys.slots``.
            OverflowError: a number or a sum is too large; names the column.
        """
        panes = self._shape.panes(inputs.timestamps)
        if self._keys.num_slots > _MAX_SLOTS or self._keys.num_bytes > _MAX_KEY_BYTES:
            self.forget_keys()
        slots = self._keys.slots(inputs)
        groups = try_group_cells(panes, slots, self._keys.num_slots)
        if groups is None:
            return None
        parts = [partial.of_groups(inputs, groups.codes, len(groups)) for partial in self._layout.partials]
        keys = []
        if self._key is not None:
            keys = [column_of_array(self._keys.array().take(pa.array(groups.slots)))]
        # A time in the pane that windows can hold.
        stamps = np.maximum(self._shape.start_ms(groups.windows), -MAX_WINDOW_TIMESTAMP)
        return Chunk.of_columns(self._columns(len(groups), keys, parts), stamps)

    def forget_keys(self) -> None:
        """Begin anew."""
        if self._keys.num_bytes:
            self._keys = WindowKeys(self._key, self._key_type)

    def single(self, inputs: ColumnInputs) -> Chunk:
        """A part for each row; raises as ``combined``."""
        parts = [partial.of_rows(inputs) for partial in self._layout.partials]
        keys = [] if self._key is None else [inputs.column(self._key)]
        return Chunk.of_columns(self._columns(len(inputs), keys, parts), inputs.timestamps)

    def _columns(self, num_parts: int, keys: list[Column], parts: list[Part]) -> Columns:
        arrays = [array for part in parts for array in part]
        fields = (*keys, *[ArrayColumn(each) if isinstance(each, np.ndarray) else ArrowColumn(each) for each in arrays])
        return Columns(num_parts, fields, Shape.ROW, tuple(self._layout.schema.names))
