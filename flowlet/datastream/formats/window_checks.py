"""Checks what windows of columns are given while a program is built.

Side:  pure.
Rules: as ``arrow_schemas``.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from flowlet.common.checks import is_name
from flowlet.datastream.formats.arrow_schemas import check_comparable, column_of
from flowlet.errors import JobGraphError
from flowlet.kernels.windows.columnar_join import LEFT, RIGHT, JoinedColumn
from flowlet.kernels.windows.columnar_windows import WINDOW_END, WINDOW_START
from flowlet.kernels.windows.window_partials import AGGREGATES, WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows, SessionWindows, WindowShape

_SUPPORTED: Final = "tumbling, sliding and session windows of event or processing time"


def window_shape(assigner: Any) -> WindowShape:
    """The windows of an assigner.

    Raises:
        JobGraphError: its windows are not computed on columns.
    """
    from flowlet.datastream import window

    match assigner:
        case window.TumblingEventTimeWindows() | window.TumblingProcessingTimeWindows():
            return AlignedWindows(
                assigner._size, assigner._size, assigner._offset, is_event_time=assigner.is_event_time()
            )
        case window.SlidingEventTimeWindows() | window.SlidingProcessingTimeWindows():
            return AlignedWindows(
                assigner._size, assigner._slide, assigner._offset, is_event_time=assigner.is_event_time()
            )
        case window.EventTimeSessionWindows() | window.ProcessingTimeSessionWindows():
            return SessionWindows(assigner._session_gap, is_event_time=assigner.is_event_time())
        case _:
            raise JobGraphError(
                f"columns have {_SUPPORTED}, got {assigner!r}; call to_records() before key_by() and window() for "
                "other windows"
            )


def checked_aggregates(schema: Any, named: Mapping[str, Any], taken: Iterable[str]) -> tuple[WindowAggregate, ...]:
    """The aggregations of ``agg(...)``.

    Args:
        schema: of the rows.
        named: for each result ``(column, kind)``, or ``"count"``.
        taken: names that the results have besides.

    Raises:
        JobGraphError: there is none, or one of them cannot be computed.
    """
    if not named:
        raise JobGraphError('agg() needs at least one aggregation, such as total=("amount", "sum") or n="count"')
    for name in named:
        if name in taken:
            raise JobGraphError(f"agg(): the results have a column {name!r} already; give the aggregation another name")
    return tuple(_checked(schema, name, wanted) for name, wanted in named.items())


def _checked(schema: Any, name: str, wanted: Any) -> WindowAggregate:
    if wanted == "count":
        return WindowAggregate(name, "count")
    if not (isinstance(wanted, tuple) and len(wanted) == 2 and is_name(wanted[1])):
        raise JobGraphError(
            f'agg({name}=...) needs a column and an aggregation, such as ("amount", "sum"), or "count", got {wanted!r}'
        )
    column, kind = wanted
    method = f"agg({name}=({column!r}, {kind!r})): {kind}"
    if kind not in AGGREGATES:
        raise JobGraphError(f"{method} is not one of {', '.join(AGGREGATES)}")
    column = column_of(schema, column, kind)
    column_type = schema.field(column).type
    if kind in ("sum", "mean"):
        _check_number(method, column, column_type)
    elif kind in ("min", "max"):
        check_comparable(schema, column, kind)
    return WindowAggregate(name, kind, column, column_type)


def _check_number(method: str, column: str, kind: Any) -> None:
    import pyarrow as pa

    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise JobGraphError(
            f"{method} needs integers or floats, column {column!r} is a {kind}; cast it to float64 by map_batches(...)"
        )


def checked_key_types(schemas: tuple[Any, Any], keys: tuple[str, str]) -> Any:
    """The Arrow type of the keys of a join, which must be of one kind on both sides; that of plain values on the left
    one.

    Raises:
        JobGraphError: the kinds differ.
    """
    import pyarrow as pa

    types = [schema.field(key).type for schema, key in zip(schemas, keys, strict=True)]
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in types]
    if _key_kind(plain[0]) != _key_kind(plain[1]):
        raise JobGraphError(
            f"where({keys[0]!r}) is a {types[0]} and equal_to({keys[1]!r}) a {types[1]}: their values never are the "
            "same key; "
            "cast one of them by map_batches(...)"
        )
    return pa.int64() if pa.types.is_integer(plain[0]) and plain[0] != plain[1] else plain[0]


def _key_kind(kind: Any) -> str:
    import pyarrow as pa

    for name in ("integer", "floating", "boolean", "timestamp", "date"):
        if getattr(pa.types, f"is_{name}")(kind):
            return f"{name} {kind.tz}" if name == "timestamp" else name
    return "text" if pa.types.is_string(kind) or pa.types.is_large_string(kind) else "bytes"


def checked_joined_columns(
    schemas: tuple[Any, Any], keys: tuple[str, str], chosen: Mapping[str, Any]
) -> tuple[JoinedColumn, ...]:
    """The columns of ``select(...)``.

    Raises:
        JobGraphError: a column is missing, or its name is taken.
    """
    if not chosen:
        found = [(name, side, name) for side in (LEFT, RIGHT) for name in schemas[side].names if name != keys[side]]
    else:
        found = [(name, *_checked_side(name, wanted)) for name, wanted in chosen.items()]
    names = [keys[LEFT], WINDOW_START, WINDOW_END, *[name for name, _, _ in found]]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise JobGraphError(
            f"the results of the join would have several columns {', '.join(map(repr, twice))}; "
            'choose their names, as in select(page=("left", "url"), target=("right", "url"))'
        )
    return tuple(_joined_column(schemas, *each) for each in found)


def _joined_column(schemas: tuple[Any, Any], name: str, side: int, column: Any) -> JoinedColumn:
    import pyarrow as pa

    found = column_of(schemas[side], column, "select")
    kind = schemas[side].field(found).type
    return JoinedColumn(name, side, found, kind.value_type if pa.types.is_dictionary(kind) else kind)


def _checked_side(name: str, wanted: Any) -> tuple[int, Any]:
    if not (isinstance(wanted, tuple) and len(wanted) == 2 and wanted[0] in ("left", "right")):
        raise JobGraphError(f'select({name}=...) needs ("left", column) or ("right", column), got {wanted!r}')
    return (LEFT if wanted[0] == "left" else RIGHT), wanted[1]
