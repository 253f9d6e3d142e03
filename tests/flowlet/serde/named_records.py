"""Records with a name and a value, of the kinds that users make."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from flowlet.common.types import Row, RowKind
from tests.flowlet.serde.exact import Name


@dataclasses.dataclass
class Event:
    name: Any
    value: Any


@dataclasses.dataclass
class WithDefaults:
    name: Any = "default"
    value: Any = 0


@dataclasses.dataclass(slots=True)
class Slots:
    name: Any
    value: Any


class Pair(NamedTuple):
    name: Any
    value: Any


class Struct(msgspec.Struct):
    name: Any
    value: Any


def with_other_order(name: Any, value: Any) -> Event:
    event: Event = object.__new__(Event)
    event.value, event.name = value, name
    return event


def with_more(name: Any, value: Any) -> Event:
    event = Event(name, value)
    event.more = 1  # type: ignore[attr-defined]  # that is the point
    return event


MAKERS: dict[str, Callable[[Any, Any], Any]] = {
    "dict": lambda name, value: {"name": name, "value": value},
    "dict in another order": lambda name, value: {"value": value, "name": name},
    "dict with another kind of name": lambda name, value: {Name("name"): name, "value": value},
    "tuple": lambda name, value: (name, value),
    "row": lambda name, value: Row(name=name, value=value),
    "row without names": lambda name, value: Row(name, value),
    "deleted row": lambda name, value: Row.of_kind(RowKind.DELETE, name=name, value=value),
    "dataclass with more": with_more,
    **{kind.__name__: kind for kind in (Event, WithDefaults, Slots, Pair, Struct)},
}
