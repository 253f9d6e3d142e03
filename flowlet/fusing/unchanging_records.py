"""Records that nobody can change, so that nobody has to copy them.

Hot path: one look at each type per list, in C or in a loop made for these types; nothing where columns know their types.

Side:   pure.
Source: ``unchanging``.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import chain
from typing import Any, Final

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    Shape,
    ShortTextColumn,
    WordColumn,
)
from flowlet.fusing.generated import GeneratedFunction
from flowlet.fusing.unchanging import UNCHANGING
from flowlet.records import Chunk

_MAX_FIELDS: Final = 16  # of tuples with a check of their own
_UNCHANGING_ARROW: Final = (
    *("null", "boolean", "integer", "floating", "decimal", "date", "time", "timestamp", "duration"),
    *("string", "large_string", "binary", "large_binary", "fixed_size_binary"),
)


def chunk_is_unchanging(chunk: Chunk) -> bool:
    """Whether no record of a chunk can change."""
    return chunk.is_unchanging or has_unchanging_columns(chunk) or are_unchanging(chunk.values)


def has_unchanging_columns(chunk: Chunk) -> bool:
    """Whether a chunk's columns say that no record can change; False also where only a look at the values can tell."""
    columns = chunk.columns
    return columns is not None and columns.shape is not Shape.ROW and has_unchanging_fields(columns)


def has_unchanging_fields(columns: Columns) -> bool:
    """Whether no value of any field can change; rows made of them still can."""
    return all(map(_is_column_unchanging, columns.fields))


def are_unchanging(values: list[Any]) -> bool:
    """Whether no value of a list can change."""
    if not values:
        return True
    first = values[0]
    kind = type(first)
    if kind in UNCHANGING and list(map(type, values)).count(kind) == len(values):
        return True
    if kind is tuple and 0 < len(first) <= _MAX_FIELDS:
        types = tuple(map(type, first))
        if UNCHANGING.issuperset(types) and _check_of(types)(values):
            return True
    kinds = set(map(type, values))
    return kinds <= UNCHANGING or (kinds == {tuple} and UNCHANGING.issuperset(map(type, chain.from_iterable(values))))


def _is_column_unchanging(column: Column) -> bool:
    if isinstance(column, ListColumn):
        return column.value_type in UNCHANGING or (column.value_type is None and UNCHANGING.issuperset(map(type, column.values)))
    if isinstance(column, CodedColumn):
        return column.names.types <= UNCHANGING
    if isinstance(column, ConstantColumn):
        return type(column.value) in UNCHANGING
    if isinstance(column, ArrowColumn):
        return _gives_unchanging(column.array.type)
    return isinstance(column, ArrayColumn | ShortTextColumn | WordColumn)


@lru_cache(maxsize=256)
def _gives_unchanging(arrow_type: Any) -> bool:
    """Whether ``to_pylist`` of such an array gives only values that cannot change, and None; nested ones give lists and dictionaries."""
    from pyarrow import types  # who has no Arrow column does not need it

    if types.is_dictionary(arrow_type):
        return _gives_unchanging(arrow_type.value_type)
    return any(getattr(types, f"is_{kind}")(arrow_type) for kind in _UNCHANGING_ARROW)


@lru_cache(maxsize=64)
def _check_of(types: tuple[type, ...]) -> Callable[[list[Any]], bool]:
    """Whether all values are tuples of exactly these types: pairs take 37 ns, a set of the types of all their fields 78 ns."""
    generated = GeneratedFunction(f"tuples of {', '.join(each.__name__ for each in types)}")
    fields = [f"f{index}" for index in range(len(types))]
    tests = [f"type({field}) is not {generated.value(each)}" for field, each in zip(fields, types, strict=True)]
    text = f"""
    def check(values):
        for {", ".join(fields)}, in values:
            if {" or ".join(tests)}:
                return False
        return True
    """
    check = generated.define(text)

    def is_of_types(values: list[Any]) -> bool:
        try:
            return list(map(type, values)).count(tuple) == len(values) and bool(check(values))
        except ValueError:  # another number of fields
            return False

    return is_of_types
