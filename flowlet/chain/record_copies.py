"""Protects emitted records: the sender may change a record afterwards, and the consumer must not see that.

A record that cannot change stays as it is.  So does one if nothing else refers to it or its parts.  A flat record is
copied.  Any other record is pickled when it is emitted.

Hot path, per emitted record of a shape that the loop does not test for (``record_shape``): 300 ns, a pickle 1,000 and
more.
Side:       task.
Invariants: the consumer gets the record as it was when it was emitted, with exact types.
Source:     Flink serializes each record when it is emitted; PyFlink pickles it then.
"""

import copyreg
import dataclasses
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from operator import attrgetter, methodcaller
from typing import Any, Final, cast

import msgspec

from flowlet.columns.column import UNCHANGING, is_unchanging
from flowlet.common.types import Row
from flowlet.records import PickledRecord
from flowlet.serde.flat_classes import flat_class_of
from flowlet.serde.pickles.record_pickle import dumps_record, loads_record


def copy_if_mutable(record: Any) -> Any:
    """The record if it cannot change; else a copy of it as it is now, or its pickle as a ``PickledRecord``."""
    if type(record) in UNCHANGING or is_unchanging(record):
        return record
    holder = holder_of(type(record))
    if holder is not None and UNCHANGING.issuperset(map(type, holder.values(record))):
        return holder.copy(record)
    return PickledRecord(dumps_record(record))


def apart(record: Any) -> Any:
    """The record if it cannot change, else an equal new one that shares nothing with it that can change."""
    copy = copier_of(record)
    return record if copy is None else copy(record)


def copier_of(record: Any) -> Callable[[Any], Any] | None:
    """Makes copies of this very record, as it is now or, if it is flat, when it is called; None: the record cannot
    change.
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
    """The records with every ``PickledRecord`` unpickled; the same list if there is none."""
    if PickledRecord not in set(map(type, records)):
        return records
    return [loads_record(record.data) if type(record) is PickledRecord else record for record in records]


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """How to read and copy instances of a mutable class that hold only their field values.

    ``values``: returns all values of an instance.  ``copy``: returns a new instance with the very same values.
        ``text``: the expression of
    ``values``, for an instance in ``{v}``.
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
    """For a class that leaves pickling to Python, or a ``msgspec.Struct``."""
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

    If the caller holds the only reference to the record, nothing else can change it, and it needs no pickle.
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
    """The parts of the record; None if they cannot be listed, or if their container has a second reference."""
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


# What ``getrefcount`` returns for an object that only a variable of a loop holds, for its ``__dict__``, and for the
# values of a ``Row``.
ALONE: Final = _count("v")
ALONE_DICT: Final = _count("v.__dict__")
_ALONE_PART: Final = _count_of_part([[]])
ALONE_VALUES: Final = _count("v._values", partial(Row, None))
