"""``count``: each key with the number of its records so far.

Hot path.  In columns nothing is done per record (see ``keyed_aggregation_operator``).

Side:       task.
Invariants: counting is adding up a column of ones, in every representation.
Absent:     in PyFlink it is ``map`` to pairs, ``key_by`` and ``sum``.
"""

from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from flowlet.chain.key_extractor import field_selected_by
from flowlet.columns import Column, Columns, ConstantColumn, Shape
from flowlet.common.types import Row
from flowlet.kernels.columnar_reduction import Aggregate, ColumnarReduction, Layout
from flowlet.keys.column_key import ColumnKey
from flowlet.operators.keyed_operator import KeyedInput
from flowlet.operators.keyed_sum_operator import KeyedSumOperator
from flowlet.records import Chunk

_ONE: Final = 1


class KeyedCountOperator(KeyedSumOperator):
    """Keys and counts, as pairs, or as rows with names.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        field_names: those of the rows; None: pairs come out.
        emit_on_finish: only the last count of each key, at the end (``RuntimeExecutionMode.BATCH``).
        emits_batches: only the last count of each key in a chunk.
        name: for people.
    """

    def __init__(
        self,
        key_selector: Any,
        *,
        field_names: tuple[str, str] | None = None,
        emit_on_finish: bool = False,
        emits_batches: bool = False,
        name: str = "Keyed Count",
    ) -> None:
        key = itemgetter(0) if field_names is None else ColumnKey(field_names[0])
        super().__init__(key, 1, emit_on_finish=emit_on_finish, emits_batches=emits_batches, name=name)
        self._columnar = ColumnarReduction(Aggregate.SUM, 1, skips_nulls=field_names is not None)
        self._counted = KeyedInput(self, key_selector)
        self._counted_field = field_selected_by(key_selector)
        self._field_names = field_names

    def set_key_context(self, record: object) -> None:
        """Make the record's key the current one."""
        self.ctx.key_context.current_key = self._counted.keys([record])[0]

    def process_chunk(self, chunk: Chunk) -> None:
        """Count the records of each key."""
        if not len(chunk):
            return
        key = None if chunk.columns is None else self._column_to_count(chunk.columns)
        super().process_chunk(self._pairs(chunk) if key is None else self._pairs_in_columns(chunk, key))

    def _column_to_count(self, columns: Columns) -> Column | None:
        if columns.key_position is not None:
            return columns.fields[columns.key_position]
        if columns.shape is Shape.SCALAR:
            return None
        position = None if self._counted_field is None else Layout.of(columns).position(self._counted_field)
        return None if position is None else columns.fields[position]

    def _pairs_in_columns(self, chunk: Chunk, key: Column) -> Chunk:
        ones = ConstantColumn(_ONE, len(chunk))
        shape = Shape.TUPLE if self._field_names is None else Shape.ROW
        return Chunk.of_columns(Columns(len(chunk), (key, ones), shape, self._field_names or ()), chunk.timestamp_array)

    def _pairs(self, chunk: Chunk) -> Chunk:
        keys = self._counted.keys_of(chunk)
        if self._field_names is None:
            pairs = Chunk(list(zip(keys, repeat(_ONE))), chunk.timestamps)
            pairs.keys = keys
            return pairs
        # Of rows the field itself, which may be None.
        make = Row(*self._field_names)
        name = self._field_names[0]
        return Chunk([make(record[name], _ONE) for record in chunk.values], chunk.timestamps)
