"""Checks schemas and columns while a program is built.

Side:  pure.
Rules: every function raises JobGraphError if its demands are not met.  The message names the call, the column, its type
       and the remedy.  Only programs with a schema import pyarrow.
"""

from typing import Any, Final

import pyarrow as pa
from pyarrow import types as kinds

from flowlet.common.checks import check_kind
from flowlet.common.typeinfo import InferredTypeInfo, TypeInformation, Types, named_fields
from flowlet.common.values.conversion import field_form
from flowlet.common.values.time_values import LOCAL_DATE_TIME, LOCAL_TIME
from flowlet.errors import JobGraphError
from flowlet.types.leaf_forms import arrow_type_of

# Arrow has them; a declared type alone makes no columns of them.
_NOT_INFERRED: Final = (Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.SQL_TIME(), LOCAL_TIME, LOCAL_DATE_TIME)
_TEXTS: Final = (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
# Kinds of columns of which Arrow cannot select rows, or that cannot be sent.
_UNSENDABLE: Final = (kinds.is_string_view, kinds.is_binary_view, kinds.is_run_end_encoded, kinds.is_interval)
# Kinds with an order, but texts.
_ORDERED: Final = (kinds.is_integer, kinds.is_boolean, kinds.is_temporal, kinds.is_decimal, kinds.is_floating)


def check_schema(schema: Any, method: str) -> Any:
    """The schema itself; it must have fields, no name twice, and only types whose rows can be distributed."""
    check_kind(schema, pa.Schema, f"{method}() needs a pyarrow.Schema")
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if twice or not schema.names:
        raise JobGraphError(
            f"{method}() needs columns, each with a name of its own: {', '.join(twice) or 'there is none'}"
        )
    for field in schema:
        if not _has_rows_to_take(field.type):
            raise JobGraphError(
                f"{method}(): Arrow cannot select rows of {field.name!r}, a {field.type}; cast it, for example to a "
                "string"
            )
    return schema


def _has_rows_to_take(kind: Any) -> bool:
    """Whether Arrow can select rows of this type, and they can be sent."""
    if any(is_kind(kind) for is_kind in _UNSENDABLE):
        return False
    return all(_has_rows_to_take(kind.field(index).type) for index in range(kind.num_fields))


def arrow_data(source: Any, schema: Any) -> tuple[Any, Any]:
    """The table or function that a source reads, and its schema; a list of batches must make a table."""
    if callable(source) and not hasattr(source, "__arrow_c_stream__"):
        if schema is None:
            raise JobGraphError(
                "from_arrow() needs the schema of the batches that its function will give: from_arrow(function, schema)"
            )
        return source, check_schema(schema, "from_arrow")
    try:
        table = _table(source, schema)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise JobGraphError(
            "from_arrow() needs a pyarrow.Table, record batches, a reader of such, anything with __arrow_c_stream__ (a "
            f"DataFrame), or a function that gives record batches, got {type(source).__name__}: {error}"
        ) from error
    return table, check_schema(table.schema, "from_arrow")


def _table(source: Any, schema: Any) -> Any:
    if isinstance(source, pa.RecordBatch):
        source = [source]
    if isinstance(source, pa.RecordBatchReader):
        table = source.read_all()
    elif isinstance(source, pa.Table):
        table = source
    elif hasattr(source, "__arrow_c_stream__"):
        table = _without_views(pa.RecordBatchReader.from_stream(source).read_all())
    else:
        table = pa.Table.from_batches(list(source), schema)
    return table if schema is None else table.cast(schema)


def _without_views(table: Any) -> Any:
    """The table with plain columns in place of views (the texts of polars), of which Arrow cannot select rows."""
    schema = table.schema
    for index, field in enumerate(schema):
        if kinds.is_string_view(field.type):
            schema = schema.set(index, field.with_type(pa.string()))
        elif kinds.is_binary_view(field.type):
            schema = schema.set(index, field.with_type(pa.binary()))
    return table if schema is table.schema else table.cast(schema)


def column_of(schema: Any, column: Any, method: str) -> str:
    """The name of the column with this name or position."""
    if type(column) is int and -len(schema) <= column < len(schema):
        column = schema.names[column]
    if column not in schema.names:
        raise JobGraphError(
            f"{method}({column!r}): there is no such column, there are {', '.join(map(repr, schema.names))}"
        )
    return str(column)


def check_key(schema: Any, column: str) -> None:
    """Check that there is such a column, and that its values can be keys."""
    kind = schema.field(column_of(schema, column, "key_by")).type
    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    if kinds.is_timestamp(plain) and plain.unit == "ns":
        raise JobGraphError(
            f"key_by({column!r}): a {kind} cannot be a key, Python's instants have microseconds; cast it to "
            "timestamp('us')"
        )
    is_key = kinds.is_integer(plain) or kinds.is_boolean(plain) or plain in _TEXTS
    is_key = is_key or (
        not kinds.is_dictionary(kind) and (kinds.is_timestamp(kind) or kinds.is_date32(kind) or kinds.is_floating(kind))
    )
    if not is_key:
        raise JobGraphError(
            f"key_by({column!r}): a {kind} cannot be a key; keys are integers, floats, booleans, strings, bytes, "
            "timestamps and dates"
        )


def check_summable(schema: Any, column: Any) -> str:
    """The name of a column, which must hold numbers."""
    name = column_of(schema, column, "sum")
    kind = schema.field(name).type
    if not (kinds.is_integer(kind) or kinds.is_floating(kind)):
        raise JobGraphError(
            f"sum({name!r}) adds integers or floats, the column is a {kind}; cast it by map_batches(...)"
        )
    return name


def check_comparable(schema: Any, column: Any, method: str) -> str:
    """The name of a column, whose values must have an order."""
    name = column_of(schema, column, method)
    kind = schema.field(name).type
    plain = kind.value_type if kinds.is_dictionary(kind) else kind
    if not (plain in _TEXTS or any(is_kind(plain) for is_kind in _ORDERED)):
        raise JobGraphError(f"{method}({name!r}) needs values that have an order; those of a {kind} have none")
    return name


def check_time(schema: Any, column: Any) -> str:
    """The name of a column, which must hold times."""
    name = column_of(schema, column, "with_event_time")
    kind = schema.field(name).type
    if not (kinds.is_integer(kind) or kinds.is_timestamp(kind) or kinds.is_date(kind)):
        raise JobGraphError(
            f"with_event_time({name!r}): the column is a {kind}; a time is a timestamp, a date or milliseconds since "
            "1970 as integers: cast it by map_batches(...)"
        )
    return name


def schema_with_sum(schema: Any, column: str) -> Any:
    """The schema after a sum, whose column is int64 or float64."""
    index = schema.get_field_index(column)
    kind = pa.int64() if kinds.is_integer(schema.field(index).type) else pa.float64()
    return schema.set(index, schema.field(index).with_type(kind))


def declared_schema(declared: TypeInformation) -> Any:
    """The schema of a declared type, which must be of rows, tuples or single values."""
    declared = declared.inferred if isinstance(declared, InferredTypeInfo) else declared
    return pa.schema([pa.field(name, _arrow_type(each, declared)) for name, each in named_fields(declared)])


def _arrow_type(declared: TypeInformation, whole: TypeInformation) -> Any:
    form = field_form(declared)
    if form is not None and form.arrow is not None and declared not in _NOT_INFERRED:
        return arrow_type_of(declared)
    raise JobGraphError(
        f"to_arrow() finds no schema in the declared type {whole}; give it one, as in to_arrow(pa.schema([('word', "
        "pa.string())])), or declare a row or tuple of simple types where the records are made"
    )
