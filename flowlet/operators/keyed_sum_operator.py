"""``sum`` and ``count`` per key, record by record; in columns where the records are columns.

Hot path, where records are summed one by one: the loop of ``keyed_aggregation_operator``, into which the addition is
written for tuples.

Side:       task.
Invariants: records are not changed.  A record that is emitted for a key has the fields of the key's first record,
            except for the summed one.  Counting is adding up a column of ones, in every representation.
Source:     Flink ``SumAggregator``; PyFlink ``KeyedStream.sum``.  Plain loops with ``get``: no C-level pipeline and no
            other form of dictionary beats them by more than a few per cent (hot-path measurements, 1.4).
Absent:     ``count`` in PyFlink, where it is ``map`` to pairs, ``key_by`` and ``sum``.
"""

from itertools import repeat
from operator import itemgetter
from typing import Any, Final

from flowlet.chain.chunking_output import field_selected_by
from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.columns import Column, Columns, ConstantColumn, Shape
from flowlet.common.types import Row
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.keys.column_key import ColumnKey
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator, column_of_key
from flowlet.operators.user_function import KeyedInput
from flowlet.records import Chunk

_PAIR: Final = 2


class KeyedSumOperator(KeyedReduceOperator):
    """``sum``: the first record of a key, with the sum of one field so far.

    Records are tuples, lists, rows, or plain numbers (position 0).

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        position: of the field; a name for rows and named tuples.
        skips_nulls: see ``Aggregation``.
        options: ``emit_on_finish``, ``emits_batches`` and ``name``, as of ``KeyedReduceOperator``.
    """

    def __init__(
        self, key_selector: Any, position: int | str = 0, *, skips_nulls: bool = False, **options: Any
    ) -> None:
        self._sum = Aggregation("sum", position, skips_nulls=skips_nulls)
        super().__init__(key_selector, self._sum, **options)

    def _write_first(self, code: LoopCode, result: str, record: str) -> None:
        code.line(f"{code.bind(self._sum.number, 'number')}({record})", self._blame(record))
        super()._write_first(code, result, record)

    def _write_next(self, code: LoopCode, result: str, so_far: str, record: str) -> None:
        position = self._sum.position
        blame = self._blame(record)
        kind = code.bind(tuple, "tuple")
        are_tuples = f"type({so_far}) is {kind} and type({record}) is {kind} and {type(position) is int}"
        with code.block(f"if {are_tuples} and len({so_far}) == {_PAIR} and {position == 1}:"):  # 90 ns less than below
            code.line(f"{result} = ({so_far}[0], {so_far}[1] + {record}[1])", blame)
        with code.block(f"elif {are_tuples}:"):
            fields = code.variable("fields")
            code.line(f"{fields} = {code.bind(list, 'list')}({so_far})")
            code.line(f"{fields}[{position!r}] += {record}[{position!r}]", blame)
            code.line(f"{result} = {kind}({fields})")
        with code.block("else:"):
            code.line(f"{result} = {code.bind(self._sum.added, 'added')}({so_far}, {record})", blame)

    def _blame(self, record: str) -> Blame:
        return Blame(self.name, self.ctx.subtask, record, cause=self._cause)

    def _cause(self, record: Any, error: BaseException) -> BaseException:
        """The error that names the fault of a record: one text for all generated statements that can fail."""
        try:
            self._sum.number(record)
        except Exception as clearer:  # noqa: BLE001 - raised by the caller
            clearer.__context__ = None  # it would be ``error``, which tells that fault in other words
            return clearer
        return error


_ONE: Final = 1


class KeyedCountOperator(KeyedSumOperator):
    """Keys and counts, as pairs, or as rows with names.

    Args:
        key_selector: a callable, or an object with ``get_key(value)``.
        field_names: those of the rows; None: pairs come out.
        options: as of ``KeyedSumOperator``.
    """

    def __init__(self, key_selector: Any, *, field_names: tuple[str, str] | None = None, **options: Any) -> None:
        key = itemgetter(0) if field_names is None else ColumnKey(field_names[0])
        super().__init__(key, 1, skips_nulls=field_names is not None, **options)
        self._counted = KeyedInput(self, key_selector)
        self._counted_field = field_selected_by(key_selector)
        self._field_names = field_names

    def _taken(self, chunk: Chunk) -> Chunk:
        """A pair of the key and 1 for each record; there is at least one record."""
        key = None if chunk.columns is None else column_of_key(chunk.columns, self._counted_field)
        return super()._taken(self._pairs(chunk) if key is None else self._pairs_in_columns(chunk, key))

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
        # Rows are grouped by the field itself, whose value may be None.
        make = Row(*self._field_names)
        name = self._field_names[0]
        return Chunk([make(record[name], _ONE) for record in chunk.values], chunk.timestamps)
