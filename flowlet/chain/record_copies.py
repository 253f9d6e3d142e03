"""Records on their way out of a chain: whoever emitted them may change them afterwards, and the consumer must not see that.

A record that cannot change stays as it is.  So does one to which, with all its parts, there is no other reference, and a copy of a flat
one.  Anything else is pickled when it is emitted.

Hot path: per record that leaves a chain and has no shape for which the loop looks (``record_shape``): 300 ns, a pickle 1,000 and more.

Side:       task.
Invariants: what the consumer gets is the record as it was when it was emitted, whatever happens to it later; types are exact.
Source:     Flink serializes each record when it is emitted; PyFlink pickles it then.
"""

import copyreg
import dataclasses
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from flowlet.columns.unchanging import UNCHANGING, is_unchanging
from flowlet.common.types import Row
from flowlet.records import PickledRecord
from flowlet.serde.flat_classes import flat_class_of
from flowlet.serde.pickles.record_pickle import dumps_record, loads_record


def copy_if_mutable(record: Any) -> Any:
    """The record, or what stands for it as it is now."""
    if type(record) in UNCHANGING or is_unchanging(record):
        return record
    holder = holder_of(type(record))
    if holder is not None and UNCHANGING.issuperset(map(type, holder.values(record))):
        return holder.copy(record)
    return PickledRecord(dumps_record(record))


def unpickled(records: list[Any]) -> list[Any]:
    """The records that ``copy_if_mutable`` was given; the list itself if none was pickled."""
    if PickledRecord not in set(map(type, records)):
        return records
    return [loads_record(record.data) if type(record) is PickledRecord else record for record in records]


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """How to look at, and copy, an instance of a class that can change, but holds nothing but its values.

    ``values``: gives all of them.  ``copy``: another instance with the very values.  ``text``: the first one as an expression of ``{v}``.
    """

    values: Callable[[Any], Any]
    copy: Callable[[Any], Any]
    text: str
    has_weak_references: bool
    has_dict: bool = False


def holder_of(kind: Any) -> Holder | None:
    """How to hold an instance of a class; None where only pickle knows."""
    return _holder_of(kind)


@lru_cache(maxsize=1024)
def _holder_of(kind: Any) -> Holder | None:
    if kind is dict:
        return Holder(_keys_and_values, dict.copy, "(*{v}, *{v}.values())", has_weak_references=False)
    if kind is list:
        return Holder(list.__iter__, list.copy, "{v}", has_weak_references=False)
    if kind is set:
        return Holder(set.__iter__, set.copy, "{v}", has_weak_references=False)
    if kind is bytearray:
        return Holder(_nothing, bytearray.copy, "()", has_weak_references=False)
    if kind is Row:
        return Holder(_row_values, Row.__copy__, "{v}._values", has_weak_references=False)
    return None if flat_class_of(kind) is None or issubclass(kind, tuple) else _holder_of_instances(kind)


def _holder_of_instances(kind: Any) -> Holder:
    """Of a class that leaves pickling to Python, or of a ``msgspec.Struct``."""
    has_weak_references = bool(kind.__weakrefoffset__)
    if issubclass(kind, msgspec.Struct):
        return Holder(msgspec.structs.astuple, _copy_struct, "{values}({v})", has_weak_references)
    slots: list[str] = copyreg._slotnames(kind)  # type: ignore[attr-defined]  # what pickle itself asks
    if not slots:
        return Holder(_attributes, _copy_instance, "{v}.__dict__.values()", has_weak_references, has_dict=True)
    get = _slots_getter(slots)
    return Holder(get, _slots_copier(kind, slots), "{values}({v})", has_weak_references)


def _keys_and_values(items: dict[Any, Any]) -> tuple[Any, ...]:
    return *items, *items.values()


def _nothing(_: Any) -> tuple[Any, ...]:
    return ()


def _row_values(row: Row) -> list[Any]:
    return row._values


def _attributes(instance: Any) -> Any:
    return instance.__dict__.values()


def _slots_getter(slots: list[str]) -> Callable[[Any], Any]:
    get = attrgetter(*slots, slots[0])  # one more, so that a single one is in a tuple, too

    def values(instance: Any) -> Any:
        try:
            return get(instance)
        except AttributeError:  # one was never set: pickle knows what to do
            return (_UNSET,)

    return values


_UNSET: Final = object()


def _copy_struct(struct: Any) -> Any:
    return struct.__copy__()


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
    """Whether the record has the only reference to each part of it that can change, at any depth.

    If the caller has the only reference to the record, too, nothing can change it, and it needs no pickle.
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
    """Whether ``owns_parts`` knows what an instance of a class holds."""
    return kind in _OWNERS or (issubclass(kind, tuple) and not kind.__dictoffset__ and flat_class_of(kind) is not None)


def _parts_to_own(record: Any) -> Iterable[Any] | None:
    """The parts of the record; None if they cannot be listed, or if another reference to their container exists."""
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
    # As ``owns_parts`` looks at them.
    for part in parts:
        if type(part) in UNCHANGING:
            continue
        return _refs(part)
    raise AssertionError("there is one")


class _Probe:
    def __init__(self) -> None:
        self.attribute = None


def _new_row() -> Row:
    return Row(None)


def _count(expression: str, make: Callable[[], Any] = _Probe) -> int:
    # As in the loops: interpreters differ in what they count for a variable.
    namespace: dict[str, Any] = {"refs": sys.getrefcount, "make": make}
    exec(f"def run():\n    v = make()\n    return refs({expression})\n", namespace)  # noqa: S102 - text of ours
    count: int = namespace["run"]()
    return count


# What ``getrefcount`` says of an object that nothing but a variable of a loop holds, of the dict of its attributes, and of the values of a
# row.
ALONE: Final = _count("v")
ALONE_DICT: Final = _count("v.__dict__")
_ALONE_PART: Final = _count_of_part([[]])
ALONE_VALUES: Final = _count("v._values", _new_row)
