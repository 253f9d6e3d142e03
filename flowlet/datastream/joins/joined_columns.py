"""Joins of two streams of columns by key within windows.

Side:       pure.  Nothing runs before ``execute``.
Source:     PyFlink ``JoinedStreams``; joins other than inner ones are not there.
"""

from typing import TYPE_CHECKING, Any

from flowlet.common.typeinfo import PickledBytesTypeInfo
from flowlet.datastream.formats.arrow_schemas import check_key
from flowlet.datastream.formats.window_checks import checked_joined_columns, checked_key_types, window_shape
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import KeyGroups
from flowlet.graph.transformation import OperatorFactory
from flowlet.kernels.windows.columnar_join import JOIN_KINDS, LEFT, RIGHT, ColumnJoin
from flowlet.kernels.windows.window_shapes import AlignedWindows
from flowlet.keys.column_key import ColumnKey

if TYPE_CHECKING:
    from flowlet.datastream.column_stream import ColumnStream

__all__ = ["JoinedColumnStreams"]


class JoinedColumnStreams:
    """Two streams of columns; ``where``, ``equal_to`` and ``window`` say which rows meet, ``select`` makes the stream.

    Args:
        left: one stream.
        right: the other one.
        how: ``"inner"``, ``"left"``, ``"right"`` or ``"outer"``.
    """

    __slots__ = ("_assigner", "_how", "_keys", "_sides")

    def __init__(self, left: "ColumnStream", right: "ColumnStream", how: str) -> None:
        if how not in JOIN_KINDS:
            raise JobGraphError(f"join(how={how!r}) is not one of {', '.join(map(repr, JOIN_KINDS))}")
        self._sides = (left, right)
        self._how = how
        self._keys: list[str | None] = [None, None]
        self._assigner: Any = None

    def where(self, column: str) -> "JoinedColumnStreams":
        """The key's column on the left side."""
        return self._with_key(LEFT, column)

    def equal_to(self, column: str) -> "JoinedColumnStreams":
        """The key's column on the right side."""
        return self._with_key(RIGHT, column)

    def window(self, window_assigner: Any) -> "JoinedColumnStreams":
        """The windows in which rows meet: tumbling or sliding ones of event time."""
        self._assigner = window_assigner
        return self

    def select(self, **columns: tuple[str, str]) -> "ColumnStream":
        """The key, ``window_start``, ``window_end`` and these columns of each pair of rows.

        Args:
            columns: for each column of results ``("left", column)`` or ``("right", column)``; none: all columns but the
                keys.

        Raises:
            JobGraphError: keys or windows are missing, the keys are of different types, or a column is missing or there
                twice.
        """
        (left, right), (left_key, right_key) = self._sides, self._keys
        if left_key is None or right_key is None or self._assigner is None:
            raise JobGraphError("select() comes after where(column), equal_to(column) and window(...)")
        shape = window_shape(self._assigner)
        if not isinstance(shape, AlignedWindows) or not shape.is_event_time:
            raise JobGraphError(
                f"columns are joined in tumbling or sliding windows of event time, got {self._assigner!r}; call "
                "to_records() before join()"
            )
        key_type = checked_key_types((left.schema, right.schema), (left_key, right_key))
        chosen = checked_joined_columns((left.schema, right.schema), (left_key, right_key), columns)
        sides = []
        for side, stream, key in ((LEFT, left, left_key), (RIGHT, right, right_key)):
            needed = {each.column for each in chosen if each.side == side} | {key}
            sides.append(stream._selected([name for name in stream.schema.names if name in needed]))
        join = ColumnJoin(
            shape, (left_key, right_key), key_type, self._how, chosen, (sides[LEFT].schema, sides[RIGHT].schema)
        )
        factory = OperatorFactory.of("flowlet.windows.window_columns_operator:JoinColumnsOperator", join=join)
        keyed_left, keyed_right = (
            side._partitioned(KeyGroups(ColumnKey(key))) for side, key in zip(sides, (left_key, right_key), strict=True)
        )
        step = keyed_left._step("Join", factory, PickledBytesTypeInfo())
        step.second_input = keyed_right._transformation
        return left._columns(step, join.output_schema())

    def _with_key(self, side: int, column: str) -> "JoinedColumnStreams":
        check_key(self._sides[side].schema, column)
        self._keys[side] = column
        return self
