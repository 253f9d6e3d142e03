"""``KeyedStream``: what can be done per key.

Side:   pure.
Source: PyFlink ``pyflink.datastream.data_stream``, which exports it, too.
"""

import copy
from collections.abc import Callable
from enum import Enum
from typing import Any

from flowlet.common.checks import is_name, is_whole_number
from flowlet.common.typeinfo import PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from flowlet.common.types import Row
from flowlet.datastream.closeable_iterator import CloseableIterator
from flowlet.datastream.data_stream import DataStream, partition
from flowlet.datastream.functions import (
    Function,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from flowlet.datastream.joins.interval_join import IntervalJoin
from flowlet.datastream.user_functions.aggregations import Aggregation, extreme_of
from flowlet.datastream.user_functions.argument_checks import checked_function, checked_object, result_type
from flowlet.datastream.window.window_assigners import WindowAssigner
from flowlet.datastream.windowed_stream import WindowedStream, count_windows
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import KeyGroups
from flowlet.graph.partitioner import Partitioner as StreamPartitioner
from flowlet.graph.transformation import GraphValue, OperatorFactory, OperatorTransformation
from flowlet.keys.column_key import ColumnKey

__all__ = ["EMIT_BATCHES", "EMIT_ROWS", "KeyedStream"]

# What keyed aggregations emit: a result per record, or one per key and chunk.
EMIT_ROWS, EMIT_BATCHES = "row", "batch"


class KeyedStream(DataStream):
    """A stream whose records with the same key are in the same subtask; made by ``key_by``.

    It is no operator: it has no name, parallelism or other settings, and its partitioning is fixed.
    """

    __slots__ = ("_key_type", "_origin")

    class AccumulateType(Enum):
        """The aggregations of a field."""

        MIN = 1
        MAX = 2
        MIN_BY = 3
        MAX_BY = 4
        SUM = 5

    def __init__(self, origin: DataStream, key_selector: Any, key_type: TypeInformation | None = None) -> None:
        super().__init__(origin._environment, partition(origin, KeyGroups(key_selector)))
        self._origin = origin
        self._key_type = key_type

    def reduce(self, func: Callable[[Any, Any], Any] | ReduceFunction) -> DataStream:
        """Combine the records of each key: a result per record, or in BATCH mode one per key at the end."""
        function = checked_function(func, ReduceFunction, "reduce", 2)
        return self._then(self._reduced("Reduce", function, self.get_type(), emits_batches=False))

    def sum(self, position_to_sum: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the sum so far.

        Args:
            position_to_sum: position or name of the field; for records that are numbers, 0.
            emit: ``"row"``: one result per record; ``"batch"``: one per key and chunk.  The size of chunks depends on
                the network; the last result of each key does not.
        """
        _check_position("sum", position_to_sum)
        emits_batches = emits_batches_of("sum", emit)
        factory = OperatorFactory.of(
            "flowlet.operators.keyed_sum_operator:KeyedSumOperator",
            key_selector=self._key_selector,
            position=position_to_sum,
            emit_on_finish=GraphValue.IS_BATCH,
            emits_batches=GraphValue.IS_STREAMING if emits_batches else False,
        )
        return self._then(self._step("Sum", factory, self.get_type()))

    def count(self, *, emit: str = EMIT_ROWS) -> DataStream:
        """Pairs of each key and the number of its records so far; ``emit``: see ``sum``.  Not in PyFlink."""
        return self._then(self._counted(None, emit))

    def min(self, position_to_min: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the lowest value so far; arguments as for ``sum``."""
        return self._extreme("min", position_to_min, emit)

    def max(self, position_to_max: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The first record of each key, its field replaced by the highest value so far; arguments as for ``sum``."""
        return self._extreme("max", position_to_max, emit)

    def min_by(self, position_to_min_by: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The record of each key with the lowest value so far in a field, of equal ones the first; arguments as for
        ``sum``.
        """
        return self._extreme("min_by", position_to_min_by, emit)

    def max_by(self, position_to_max_by: int | str = 0, *, emit: str = EMIT_ROWS) -> DataStream:
        """The record of each key with the highest value so far in a field, of equal ones the first; arguments as for
        ``sum``.
        """
        return self._extreme("max_by", position_to_max_by, emit)

    def process(
        self, func: KeyedProcessFunction | ProcessFunction, output_type: TypeInformation | None = None
    ) -> DataStream:
        """As for any stream, with keys and timers."""
        function = checked_object(func, "process", KeyedProcessFunction, ProcessFunction)
        has_timers = getattr(type(function), "on_timer", None) not in (None, KeyedProcessFunction.on_timer)
        results = result_type(output_type, func, "process_element", is_iterated=True)
        return self._processed("KeyedProcess", function, results, has_timers=has_timers)

    def window(self, window_assigner: WindowAssigner[Any, Any]) -> WindowedStream:
        """Put the records of each key into windows."""
        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> WindowedStream:
        """Windows of ``size`` records of a key; with ``slide`` a new one begins at every ``slide``-th record."""
        return WindowedStream(self, count_windows(size, slide))

    def interval_join(self, other_stream: "KeyedStream") -> IntervalJoin:
        """Join with the records of another keyed stream whose timestamps lie close by: ``.between(...).process(...)``.

        Not in PyFlink.
        """
        self._check_companion(other_stream, "interval_join")
        if not isinstance(other_stream, KeyedStream):
            raise JobGraphError("interval_join() needs a second stream that is keyed; call key_by(...) on it")
        return IntervalJoin(self, other_stream)

    def key_by(
        self, key_selector: Callable[[Any], Any] | KeySelector, key_type: TypeInformation | None = None
    ) -> "KeyedStream":
        """The records keyed in another way, which replaces this key."""
        return self._origin.key_by(key_selector, key_type)

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator | list[Any]:
        """As for any stream, but as in PyFlink each result is a ``Row`` of the key, ``f0``, and the record, ``f1``; not
        of columns.
        """
        selector = self._key_selector
        if isinstance(selector, ColumnKey):
            return super().execute_and_collect(job_execution_name, limit)
        pairs = RowTypeInfo([self._key_type or PickledBytesTypeInfo(), self.get_type()])
        return self.map(_WithKey(selector), pairs).execute_and_collect(job_execution_name, limit)

    def _extreme(self, method: str, position: int | str, emit: str) -> DataStream:
        _check_position(method, position)
        function = extreme_of(method, position)
        name, emits_batches = method.replace("_", " ").title(), emits_batches_of(method, emit)
        return self._then(self._reduced(name, function, self.get_type(), emits_batches=emits_batches))

    def _reduced(
        self, name: str, function: Any, output_type: TypeInformation, *, emits_batches: bool
    ) -> OperatorTransformation:
        is_declared = isinstance(function, Aggregation)
        factory = OperatorFactory.of(
            "flowlet.operators.keyed_reduce_operator:KeyedReduceOperator",
            key_selector=self._key_selector,
            reduce_function=function,
            emit_on_finish=GraphValue.IS_BATCH,
            emits_batches=GraphValue.IS_STREAMING if emits_batches else False,
            # As in PyFlink the result so far is kept in its declared type: the function sees its names, for example.
            result_type=None if is_declared else output_type,
        )
        return self._step(name, factory, output_type, takes_single_records=not (emits_batches or is_declared))

    def _counted(self, field_names: tuple[str, str] | None, emit: str) -> OperatorTransformation:
        factory = OperatorFactory.of(
            "flowlet.operators.keyed_sum_operator:KeyedCountOperator",
            key_selector=self._key_selector,
            field_names=field_names,
            emit_on_finish=GraphValue.IS_BATCH,
            emits_batches=GraphValue.IS_STREAMING if emits_batches_of("count", emit) else False,
        )
        return self._step("Count", factory, PickledBytesTypeInfo())

    def _partitioned(self, partitioner: StreamPartitioner) -> DataStream:
        raise JobGraphError(
            f"a keyed stream keeps its partitioning, it cannot become {partitioner.ship_strategy}: "
            "partition before key_by(), or behind the next operator"
        )


class _WithKey(MapFunction):
    """Makes rows of key and record."""

    def __init__(self, selector: Any) -> None:
        self._selector = _own(selector)
        self._select: Callable[[Any], Any] = getattr(self._selector, "get_key", self._selector)

    def open(self, runtime_context: RuntimeContext) -> None:
        if isinstance(self._selector, Function):
            self._selector.open(runtime_context)

    def close(self) -> None:
        if isinstance(self._selector, Function):
            self._selector.close()

    def map(self, value: Any) -> Row:
        return Row(self._select(value), value)


def _own(selector: Any) -> Any:
    """A selector to be opened for itself: that of the ``key_by`` is opened where the records are sent, which may be the
    same task.
    """
    return copy.copy(selector) if isinstance(selector, Function) else selector


def emits_batches_of(method: str, emit: Any) -> bool:
    if emit not in (EMIT_ROWS, EMIT_BATCHES):
        raise JobGraphError(f"{method}() emits {EMIT_ROWS!r} or {EMIT_BATCHES!r}, got emit={emit!r}")
    return bool(emit == EMIT_BATCHES)


def _check_position(method: str, position: Any) -> None:
    if not is_whole_number(position) and not is_name(position):
        raise JobGraphError(f"{method}() needs the position or the name of a field, got {position!r}")
