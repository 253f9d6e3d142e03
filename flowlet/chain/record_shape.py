"""The shape of emitted records, and the test whether a record has it; and the protection of emitted records: the sender
may change a record afterwards, and the consumer must not see that.

A record is not copied if it cannot change, or if no other reference to it or its parts exists.  A flat record is
copied.  Any other record is pickled when it is emitted.

Hot path: the generated test runs once per record that leaves a chain.  A pair of a str and an int costs 35 ns, a dict
    of six values 250 (bench: wordcount, programs).  The protection of a record of another shape takes 300 ns, with a
    pickle 1,000 and more.
Side:       task.
Invariants: a record that passes the test has no mutable part, or (``is_nested``) holds the only reference to each
            mutable part.  A record that is tested by field has exactly that number of fields, of exactly those types.
            Names and order of fields are checked when columns are made (``flowlet.io.record_writer``).  The consumer
            gets a record in its state at the time when it was emitted, with exact types.
Source:     Flink serializes each record when it is emitted; PyFlink pickles it then.
"""

import copyreg
import dataclasses
import enum
import gc
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from operator import attrgetter, methodcaller
from typing import Any, Final, cast

import msgspec

from flowlet.chain.loop_code import LoopCode
from flowlet.columns import Column, Columns, Shape
from flowlet.columns.column import UNCHANGING, is_unchanging
from flowlet.common.types import Row, RowKind
from flowlet.records import PickledRecord
from flowlet.serde.flat_classes import flat_class_of, instance_maker, is_attribute, slot_names_of
from flowlet.serde.pickles.record_pickle import dumps_record, loads_record
from netstack.late import dataclass


def copy_if_mutable(record: Any) -> Any:
    """The record if it cannot change; else a copy of its present value, or its pickle as a ``PickledRecord``."""
    if type(record) in UNCHANGING or is_unchanging(record):
        return record
    holder = holder_of(type(record))
    if holder is not None and UNCHANGING.issuperset(map(type, holder.values(record))):
        return holder.copy(record)
    return PickledRecord(dumps_record(record))


def apart(record: Any) -> Any:
    """The record if it cannot change, else an equal new record; the two share no object that can change."""
    copy = copier_of(record)
    return record if copy is None else copy(record)


def copier_of(record: Any) -> Callable[[Any], Any] | None:
    """The function that copies this record; None: the record cannot change.

    Copies of a flat record have its value at the time of the call, other copies its present value.
    """
    kind = type(record)
    if kind in UNCHANGING or (kind is tuple and UNCHANGING.issuperset(map(type, record))):
        return None
    holder = holder_of(kind)
    if holder is not None and UNCHANGING.issuperset(map(type, holder.values(record))):
        return holder.copy
    if is_unchanging(record):
        return None
    data = dumps_record(record)
    return lambda _: loads_record(data)


def unpickled(records: list[Any]) -> list[Any]:
    """The records with every ``PickledRecord`` unpickled; the list itself if there is none."""
    if PickledRecord not in set(map(type, records)):
        return records
    return [loads_record(record.data) if type(record) is PickledRecord else record for record in records]


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """How to read and copy instances of a mutable class that hold only their field values.

    ``values``: returns all values of an instance.  ``copy``: returns a new instance with these value objects.
        ``text``: the expression of ``values``, for an instance in ``{v}``.
    """

    values: Callable[[Any], Any]
    copy: Callable[[Any], Any]
    text: str
    has_weak_references: bool
    has_dict: bool = False


def _made_holder(kind: Any) -> Holder | None:
    known = _HOLDERS.get(kind)
    if known is not None or flat_class_of(kind) is None or issubclass(kind, tuple):
        return known
    return _holder_of_instances(kind)


def _keys_and_values(items: dict[Any, Any]) -> tuple[Any, ...]:
    return *items, *items.values()


_HOLDERS: Final[dict[type, Holder]] = {
    dict: Holder(_keys_and_values, dict.copy, "(*{v}, *{v}.values())", has_weak_references=False),
    list: Holder(list.__iter__, list.copy, "{v}", has_weak_references=False),
    set: Holder(set.__iter__, set.copy, "{v}", has_weak_references=False),
    bytearray: Holder(lambda _: (), bytearray.copy, "()", has_weak_references=False),
    Row: Holder(attrgetter("_values"), Row.__copy__, "{v}._values", has_weak_references=False),
}
# How to read and copy instances of a class; None where only pickle can.
holder_of: Final[Callable[[Any], Holder | None]] = lru_cache(maxsize=1024)(_made_holder)


def _holder_of_instances(kind: Any) -> Holder:
    """The holder of a class that leaves pickling to Python, or of a ``msgspec.Struct``."""
    has_weak_references = bool(kind.__weakrefoffset__)
    if issubclass(kind, msgspec.Struct):
        return Holder(msgspec.structs.astuple, methodcaller("__copy__"), "{values}({v})", has_weak_references)
    slots: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]  # what pickle itself asks
    if not slots:
        return Holder(_attributes, _copy_instance, "{v}.__dict__.values()", has_weak_references, has_dict=True)
    get = _slots_getter(slots)
    return Holder(get, _slots_copier(kind, slots), "{values}({v})", has_weak_references)


def _attributes(instance: Any) -> Any:
    return instance.__dict__.values()


def _slots_getter(slots: list[str]) -> Callable[[Any], Any]:
    get = attrgetter(*slots, slots[0])  # the first one twice: for a single name ``attrgetter`` would return no tuple

    def values(instance: Any) -> Any:
        try:
            return get(instance)
        except AttributeError:  # a slot was never set: the record is pickled
            return (_UNSET,)

    return values


_UNSET: Final = object()


def _copy_instance(instance: Any) -> Any:
    copied: Any = object.__new__(type(instance))
    copied.__dict__.update(instance.__dict__)
    return copied


def _slots_copier(kind: type, slots: list[str]) -> Callable[[Any], Any]:
    setters = [(name, getattr(kind, name).__set__) for name in slots]

    def copy(instance: Any) -> Any:
        copied: Any = object.__new__(kind)
        for name, set_value in setters:
            set_value(copied, getattr(instance, name))
        return copied

    return copy


def owns_parts(record: Any, depth: int = 8) -> bool:
    """Whether the record holds the only reference to each of its mutable parts, at any depth.

    If the caller holds the only reference to the record, no other code can change it, and it needs no pickle.
    """
    parts = _parts_to_own(record)
    if parts is None:
        return False
    for part in parts:
        if type(part) in UNCHANGING:
            continue
        if (_refs(part) > _ALONE_PART or not depth or not owns_parts(part, depth - 1)) and not is_unchanging(part):
            return False
    return True


def can_own_parts(kind: Any) -> bool:
    """Whether ``owns_parts`` can list the parts of such a record."""
    return kind in _OWNERS or (issubclass(kind, tuple) and not kind.__dictoffset__ and flat_class_of(kind) is not None)


def _parts_to_own(record: Any) -> Iterable[Any] | None:
    """The parts of the record; None if they cannot be listed, or if there is a second reference to their container."""
    kind = type(record)
    if kind is list:
        return cast(Iterable[Any], record)
    if kind is dict:
        return cast(Iterable[Any], record.values()) if UNCHANGING.issuperset(map(type, record)) else None
    if kind is Row:
        return record._values if _refs(record._values) <= ALONE_VALUES else None
    return cast(Iterable[Any], record) if can_own_parts(kind) else None


_OWNERS: Final = frozenset({list, dict, Row, tuple})
_refs: Final = sys.getrefcount


def _count_of_part(parts: Iterable[Any]) -> int:
    # Counts as ``owns_parts`` does.
    for part in parts:
        if type(part) in UNCHANGING:
            continue
        return _refs(part)
    raise AssertionError("there is one")


class _Probe:
    def __init__(self) -> None:
        self.attribute = None


def _count(expression: str, make: Callable[[], Any] = _Probe) -> int:
    # Counts as generated loops do: interpreters differ in whether a variable counts as a reference.
    namespace: dict[str, Any] = {"refs": sys.getrefcount, "make": make}
    exec(f"def run():\n    v = make()\n    return refs({expression})\n", namespace)  # noqa: S102 - text of ours
    count: int = namespace["run"]()
    return count


# The results of ``getrefcount`` for an object that only a variable of a loop holds, for its ``__dict__``, and for the
# values of a ``Row``.
ALONE: Final = _count("v")
ALONE_DICT: Final = _count("v.__dict__")
_ALONE_PART: Final = _count_of_part([[]])
ALONE_VALUES: Final = _count("v._values", partial(Row, None))


MAX_FIELDS: Final = 16  # records with more fields are not tested by field
# After this many records of another shape, the loop is generated again for that shape.
MIN_OTHERS: Final = 16
_VALUES_OF: Final[dict[type, str]] = {Row: "._values", dict: ".values()"}
# A loop is generated again at most this often; after that every record goes through a function.
_MAX_SHAPES: Final = 8


@dataclass(frozen=True)
class RecordShape:
    """The shape that a loop tests records for.

    ``kind``: the exact type.  ``field_types``: the exact type of each field, None for a field that may have any
        immutable type; None in place of the tuple for records that are not tested by field.  ``names``: of the fields,
        if they have any.  ``is_nested``: the record has mutable parts, to which it holds the only references.
    """

    kind: Any
    field_types: tuple[type | None, ...] | None = None
    names: tuple[str, ...] | None = None
    is_nested: bool = False

    @property
    def is_scalar(self) -> bool:
        """Whether the record is an immutable value, without fields."""
        return self.kind in UNCHANGING

    @property
    def is_by_column(self) -> bool:
        """Whether waiting records are kept by field.

        Others wait as objects: a reader in this process needs no columns.
        """
        return self.is_scalar or (self.kind is tuple and self.field_types is not None)

    def joined(self, other: "RecordShape") -> "RecordShape":
        """A shape that covers records of both shapes, if they are of one kind; else this shape."""
        types, others = self.field_types, other.field_types
        if self.kind is not other.kind or self.is_nested:
            return self
        if other.is_nested:
            return other
        if types is None:
            return self
        if others is None or len(types) != len(others) or self._names_read != other._names_read:
            return self if self.kind is tuple else RecordShape(self.kind)
        return RecordShape(
            self.kind, tuple(each if each is its else None for each, its in zip(types, others, strict=True)), self.names
        )

    @property
    def _names_read(self) -> tuple[str, ...] | None:
        """The names of attributes, which the loop looks up; fields of dicts and rows are counted instead."""
        return self.names if self._has_attributes else None

    def key_field(self, position: int | None) -> int | str | None:
        """The name or position by which a field is found in any record of the shape: the name of an attribute, as the
        order of attributes may differ, else the position.
        """
        if position is None or self.names is None or not self._has_attributes:
            return position
        return self.names[position] if self._is_counted or not self.kind.__dictoffset__ else position

    # ---------------------------------------------------------------- the text of the loop

    def type_test(self, code: LoopCode, record: str) -> str:
        """The expression that tests whether the variable ``record`` is of the exact type."""
        return f"type({record}) is {code.bind(self.kind, 'kind')}"

    def write_fields(self, code: LoopCode, record: str) -> tuple[list[str], list[str]]:
        """Generate the statements that read the fields of a record of that type; returns their variables, and the tests
        of their types.
        """
        if self.field_types is None:
            return [], []
        fields = [code.variable("f") for _ in self.field_types]
        tests: list[str] = []
        if self._has_attributes:
            tests += self._write_attributes(code, record, fields)
            holder = None if self._is_frozen else holder_of(self.kind)
            if holder is not None and holder.has_weak_references:
                # Through a weak reference, others could find the waiting record and change it.
                tests.append(f"{record}.__weakref__ is None")
        else:
            if self.kind is dict:
                tracked, are_plain = (
                    code.bind(gc.is_tracked, "is_tracked"),
                    code.bind(UNCHANGING.issuperset, "are_unchanging"),
                )
                # An untracked dict holds no object that the garbage collector tracks, hence no mutable key either.
                tests.append(f"(not {tracked}({record}) or {are_plain}(map(type, {record})))")
            values = f"{record}{_VALUES_OF.get(self.kind, '')}"
            # Another number of fields raises ValueError: a try is free, a test of the length takes 12 ns.
            code.line(f"try: {', '.join(fields)}, = {values}")
            code.line(f"except ValueError: {fields[0]} = {code.bind(_NOTHING, 'NOTHING')}")
        unchanging = code.bind(UNCHANGING, "unchanging")
        tests += [
            f"type({field}) in {unchanging}" if each is None else f"type({field}) is {code.bind(each, 'kind')}"
            for field, each in zip(fields, self.field_types, strict=True)
        ]
        return fields, tests

    def _write_attributes(self, code: LoopCode, record: str, fields: list[str]) -> list[str]:
        """Generate the statements that read the attributes; returns tests that there are no others."""
        assert self.names is not None, "attributes have names"
        has_dict = bool(self.kind.__dictoffset__)
        if has_dict and not self._is_counted:
            attributes = code.variable("d")
            code.line(f"{attributes} = {record}.__dict__")
            # Through a tuple: C unpacks it at once, but the values of a dict item by item.
            code.line(
                f"if len({attributes}) == {len(fields)}: {', '.join(fields)}, = "
                f"{code.bind(tuple, 'tuple')}({attributes}.values())"
            )
            return [f"len({attributes}) == {len(fields)}"]
        code.line("try:")
        for field, name in zip(fields, self.names, strict=True):
            code.line(f"    {field} = {record}.{name}")
        code.line(f"except AttributeError: {fields[0]} = {code.bind(_NOTHING, 'NOTHING')}")
        return [f"len({code.bind(gc.get_referents, 'referents')}({record})) == {len(fields) + 1}"] if has_dict else []

    @property
    def _has_attributes(self) -> bool:
        return (
            self.names is not None
            and self.kind is not dict
            and self.kind is not Row
            and not issubclass(self.kind, tuple)
        )

    def flat_test(self, code: LoopCode, record: str) -> str | None:
        """The expression that tests whether a record that is not kept by field has no part that others can change; None
        if the type guarantees it.
        """
        if self.is_nested:
            if code.is_shared(record):
                return "False"
            return (
                f"{code.bind(sys.getrefcount, 'refs')}({record}) <= {ALONE} and "
                f"{code.bind(owns_parts, 'owns_parts')}({record})"
            )
        holder = holder_of(self.kind)
        if holder is None:
            return None if self.is_scalar else f"{code.bind(is_unchanging, 'is_unchanging')}({record})"
        values = holder.text.format(v=record, values=code.bind(holder.values, "values"))
        test = f"{code.bind(UNCHANGING.issuperset, 'are_unchanging')}(map(type, {values}))"
        return f"{record}.__weakref__ is None and {test}" if holder.has_weak_references else test

    def owned(self, code: LoopCode, record: str, fields: Sequence[str] = ()) -> str:
        """The expression for a record that waits as an object: the record itself if its variable holds the only
        reference, else a copy.

        ``fields`` are the variables that ``write_fields`` returned.
        """
        holder = None if self._is_frozen or self.is_nested else holder_of(self.kind)
        if holder is None:
            return record
        refs = code.bind(sys.getrefcount, "refs")
        make = self._maker if fields else None
        copied = (
            f"{code.bind(holder.copy, 'copy')}({record})"
            if make is None
            else f"{code.bind(make, 'make')}({', '.join(fields)})"
        )
        if code.is_shared(record):
            return copied
        is_alone = f"{refs}({record}) <= {ALONE}"
        if holder.has_dict and not self._is_counted:
            # The variable through which the fields were read holds the ``__dict__``, too.
            is_alone += f" and {refs}({record}.__dict__) <= {ALONE_DICT + (self.field_types is not None)}"
        if self.kind is Row:  # an iterator may hold the values
            is_alone += f" and {refs}({record}._values) <= {ALONE_VALUES}"
        return f"({record} if {is_alone} else {copied})"

    @property
    def _maker(self) -> Callable[..., Any] | None:
        """The function that makes a record from its fields, if that costs less than copying its ``__dict__``."""
        if self.names is None or not self._has_attributes or not self._is_counted:
            return None
        return instance_maker(self.kind, self.names)

    @property
    def _is_counted(self) -> bool:
        """Whether the number of referents tells that an instance has no ``__dict__`` yet, and no other attributes."""
        return self.field_types is not None and self.names is not None and _can_count_attributes(self.kind, self.names)

    @property
    def _is_frozen(self) -> bool:
        """Whether an instance of immutable values is immutable itself."""
        flat_class = None if self.kind in (dict, list, Row) else flat_class_of(self.kind)
        return flat_class is not None and flat_class.is_frozen

    # ---------------------------------------------------------------- columns

    def columns(self, fields: list[Column], key_position: int | None) -> Columns:
        """The columns of records of this shape."""
        num_rows = len(fields[0])
        shape = Shape.SCALAR if self.is_scalar else Shape.TUPLE
        return Columns(num_rows, tuple(fields), shape, key_position=key_position)


class _Nothing:
    """The type of a missing field: it fails every test, because it is not immutable."""


_NOTHING: Final = _Nothing()


@lru_cache(maxsize=1024)
def _can_count_attributes(kind: Any, names: tuple[str, ...]) -> bool:
    """Whether counting referents proves that an instance with these attributes has no others.

    On Python 3.11 and 3.12 ``gc.get_referents`` returns the class and the attribute values, or the class and the
    ``__dict__`` once that was read.  On 3.13 it returns the values in both cases, so the dict itself must be read.  A
    name that the class defines, too, would be found there, so it rules counting out.
    """
    if len(names) < _MIN_COUNTED or any(hasattr(kind, name) for name in names) or not all(map(is_attribute, names)):
        return False
    probe: Any = object.__new__(kind)
    for name in names:
        object.__setattr__(probe, name, _NOTHING)
    is_counted = len(gc.get_referents(probe)) == len(names) + 1
    vars(probe)
    return is_counted and len(gc.get_referents(probe)) != len(names) + 1


_MIN_COUNTED: Final = 2  # with one attribute, one value and one ``__dict__`` give equal counts


class ShapeWatch:
    """Chooses the shape to test for from the records that lately had another shape; task thread only."""

    def __init__(self) -> None:
        self.num_others = 0  # records of another shape since this one was chosen; ``MIN_OTHERS`` pay for a new loop
        self._num_shapes = 0
        self.last: Any = None  # the last record that ``note`` got

    def note(self, record: Any) -> None:
        """Note a record of another shape."""
        self.num_others += 1
        self.last = record

    def chosen(self, shape: RecordShape | None) -> RecordShape | None:
        """The shape to test for from now on; ``shape`` is the present one."""
        if self.num_others < MIN_OTHERS:
            return shape
        record, self.last, self.num_others = self.last, None, 0
        self._num_shapes += 1
        if self._num_shapes > _MAX_SHAPES:
            return None
        found = shape_of(record)
        return found if found is None or shape is None else found.joined(shape)


def fields_of(record: Any, shape: RecordShape) -> tuple[Any, ...]:
    """The fields of a record of a shape, in order; the record itself if it is a plain value."""
    if shape.is_scalar:
        return (record,)
    taken = _taken_apart(record)
    return () if taken is None else taken[1]


def shape_of(record: Any) -> RecordShape | None:
    """The shape of a record; None if loops cannot test for it: the record is pickled, or rare."""
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
    if holder is not None and UNCHANGING.issuperset(map(type, holder.values(record))):
        return RecordShape(kind)
    has_keys = kind is not dict or UNCHANGING.issuperset(map(type, record))
    return RecordShape(kind, is_nested=True) if can_own_parts(kind) and has_keys else None


def _is_flat(kind: type) -> bool:
    return kind in UNCHANGING or issubclass(kind, enum.Enum)


def _taken_apart(record: Any) -> tuple[tuple[str, ...] | None, tuple[Any, ...]] | None:
    """Names and values of the fields; None for a record without fields, or one whose class only pickle can read."""
    kind: Any = type(record)
    if kind is tuple:
        return None, record
    if kind is dict:
        names = tuple(record)
        return (names, tuple(record.values())) if all(type(name) is str for name in names) else None
    if kind is Row:
        names = record._fields
        return (
            None if names is None or record._row_kind is not RowKind.INSERT else (tuple(names), tuple(record._values))
        )
    if flat_class_of(kind) is None:
        return None
    if issubclass(kind, tuple):
        return None if kind.__dictoffset__ else (kind._fields, tuple(record))
    if kind.__dictoffset__:
        return tuple(record.__dict__), tuple(record.__dict__.values())
    slots = slot_names_of(kind)
    if slots is None or not all(hasattr(record, name) for name in slots):
        return None
    return slots, tuple([getattr(record, name) for name in slots])
