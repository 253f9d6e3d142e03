"""What the records look like that a loop emits, and the look at each whether it does, too.

Hot path: what is written here runs per record that leaves a chain.  A pair of a str and an int costs 35 ns, a dict of six values 250
(bench: wordcount, programs).

Side:       task.
Invariants: a record that passes the look holds nothing that can change, in exactly the named fields, of exactly the types; the columns made
            of such records stand for records equal in everything, attributes and their order included.
"""

import enum
import sys
from dataclasses import dataclass
from typing import Any, Final

from flowlet.columns import Column, Columns, Shape
from flowlet.columns.unchanging import UNCHANGING, is_unchanging
from flowlet.common.types import Row, RowKind
from flowlet.operators.loop_code import LoopCode
from flowlet.operators.settling import ALONE, ALONE_DICT, holder_of
from flowlet.serde.flat_classes import dict_maker, flat_class_of

MAX_FIELDS: Final = 16  # of records that are looked at field by field


@dataclass(frozen=True)
class RecordShape:
    """One look.

    ``kind``: the exact type.  ``field_types``: of records whose fields become columns, the type of each, or None for any that cannot
    change; None for other records.  ``names``: of the fields, if they have any.
    """

    kind: Any
    field_types: tuple[type | None, ...] | None = None
    names: tuple[str, ...] | None = None

    @property
    def is_scalar(self) -> bool:
        """Whether the record is a value that cannot change."""
        return self.kind in UNCHANGING

    @property
    def is_plain(self) -> bool:
        """Whether every reader of columns knows such records: values, tuples, rows."""
        return self.is_scalar or self.kind is tuple or self.kind is Row

    def joined(self, other: "RecordShape") -> "RecordShape":
        """A shape that has room for records of both, if they have the same fields; else this one."""
        types, others = self.field_types, other.field_types
        is_same = self.kind is other.kind and self.names == other.names
        if not is_same or types is None or others is None or len(types) != len(others):
            return self
        return RecordShape(self.kind, tuple(each if each is its else None for each, its in zip(types, others, strict=True)), self.names)

    # ---------------------------------------------------------------- the text of the loop

    def type_test(self, code: LoopCode, record: str) -> str:
        """Whether the variable ``record`` has the exact type, and as many fields."""
        test = f"type({record}) is {code.bind(self.kind, 'kind')}"
        if self.field_types is None:
            return test
        size = len(self.field_types)
        if self.kind is Row:
            names = code.bind_new(None if self.names is None else list(self.names), "names")
            insert = code.bind(RowKind.INSERT, "INSERT")
            return f"{test} and {record}._fields == {names} and {record}._row_kind is {insert} and len({record}._values) == {size}"
        return f"{test} and len({record}{'.__dict__' if self._has_attributes else ''}) == {size}"

    def write_fields(self, code: LoopCode, record: str) -> tuple[list[str], list[str]]:
        """The statements that take a record of that type apart; returns the variables of the fields, and tests of names and types."""
        if self.field_types is None:
            return [], []
        fields = [code.variable("f") for _ in self.field_types]
        tests: list[str] = []
        named, values = record, record
        if self.kind is Row:
            values = f"{record}._values"
        elif self._has_attributes:
            named = code.variable("d")
            code.line(f"{named} = {record}.__dict__")
        if self.kind is dict or self._has_attributes:
            values = f"{code.bind(tuple, 'tuple')}({named}.values())"
            keys = [code.variable("k") for _ in fields]
            # By way of tuples: C takes these apart, and a dict or its values only item by item (9 fields: 250 ns instead of 450).
            code.line(f"{', '.join(keys)}, = {code.bind(tuple, 'tuple')}({named})")
            tests += [self._name_test(code, key, name) for key, name in zip(keys, self.names or (), strict=True)]
        code.line(f"{', '.join(fields)}, = {values}")
        unchanging = code.bind(UNCHANGING, "unchanging")
        tests += [
            f"type({field}) in {unchanging}" if each is None else f"type({field}) is {code.bind(each, 'kind')}"
            for field, each in zip(fields, self.field_types, strict=True)
        ]
        return fields, tests

    def _name_test(self, code: LoopCode, key: str, name: str) -> str:
        expected = code.bind(name, "name")
        if self._has_attributes:
            return f"{key} is {expected}"  # names of attributes are interned
        return f"({key} is {expected} or type({key}) is {code.bind(str, 'kind')} and {key} == {expected})"

    @property
    def _has_attributes(self) -> bool:
        return self.names is not None and self.kind is not dict and self.kind is not Row and not issubclass(self.kind, tuple)

    def flat_test(self, code: LoopCode, record: str) -> str | None:
        """Of a record without columns: whether it holds nothing that can change."""
        holder = holder_of(self.kind)
        if holder is None:
            return None if self.is_scalar else f"{code.bind(is_unchanging, 'is_unchanging')}({record})"
        values = holder.text.format(v=record, values=code.bind(holder.values, "values"))
        test = f"{code.bind(UNCHANGING.issuperset, 'are_unchanging')}(map(type, {values}))"
        return f"{record}.__weakref__ is None and {test}" if holder.has_weak_references else test

    def owned(self, code: LoopCode, record: str) -> str:
        """Of a record without columns: the record, or a copy if somebody else holds it."""
        holder = holder_of(self.kind)
        if holder is None:
            return record
        refs, copy = code.bind(sys.getrefcount, "refs"), code.bind(holder.copy, "copy")
        is_alone = f"{refs}({record}) <= {ALONE}"
        if holder.has_dict:
            is_alone += f" and {refs}({record}.__dict__) <= {ALONE_DICT}"
        return f"({record} if {is_alone} else {copy}({record}))"

    # ---------------------------------------------------------------- columns

    def columns(self, fields: list[Column], key_position: int | None) -> Columns:
        """Records of this shape."""
        num_rows = len(fields[0])
        if self.is_scalar:
            return Columns(num_rows, tuple(fields), Shape.SCALAR, key_position=key_position)
        if self.kind is tuple:
            return Columns(num_rows, tuple(fields), Shape.TUPLE, key_position=key_position)
        assert self.names is not None, "other records have names"
        if self.kind is Row:
            return Columns(num_rows, tuple(fields), Shape.ROW, self.names, key_position)
        if self.kind is dict:
            maker = dict_maker(self.names)
        else:
            flat_class = flat_class_of(self.kind)
            assert flat_class is not None, "looked at when the shape was made"
            maker = flat_class.maker(self.names)
        return Columns(num_rows, tuple(fields), Shape.OBJECT, self.names, key_position, self.kind, maker)


def fields_of(record: Any, shape: RecordShape) -> tuple[Any, ...]:
    """The fields of a record of a shape, in order; the record itself if it is a value."""
    if shape.is_scalar:
        return (record,)
    taken = _taken_apart(record)
    return () if taken is None else taken[1]


def shape_of(record: Any) -> RecordShape | None:
    """The shape of a record for which a loop can look; None for one that is pickled or rare."""
    kind = type(record)
    if kind in UNCHANGING:
        return RecordShape(kind)
    taken = _taken_apart(record)
    if taken is not None:
        names, fields = taken
        if 0 < len(fields) <= MAX_FIELDS and all(_is_flat(type(field)) for field in fields):
            return RecordShape(kind, tuple(map(type, fields)), names)
    if is_unchanging(record):
        return RecordShape(kind)
    holder = holder_of(kind)
    return RecordShape(kind) if holder is not None and UNCHANGING.issuperset(map(type, holder.values(record))) else None


def _is_flat(kind: type) -> bool:
    return kind in UNCHANGING or issubclass(kind, enum.Enum)


def _taken_apart(record: Any) -> tuple[tuple[str, ...] | None, tuple[Any, ...]] | None:
    """Names and values of the fields; None for a record that has none, or whose class only its pickle knows."""
    kind: Any = type(record)
    if kind is tuple:
        return None, record
    if kind is dict:
        names = tuple(record)
        return (names, tuple(record.values())) if all(type(name) is str for name in names) else None
    if kind is Row:
        names = record._fields
        return None if names is None or record._row_kind is not RowKind.INSERT else (tuple(names), tuple(record._values))
    if flat_class_of(kind) is None:
        return None
    if issubclass(kind, tuple):
        return None if kind.__dictoffset__ else (kind._fields, tuple(record))
    if kind.__dictoffset__:
        return tuple(record.__dict__), tuple(record.__dict__.values())
    return None
