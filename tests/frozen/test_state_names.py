"""The names of our classes and functions that savepoints, checkpoints and the states of users hold, and the fields of
these classes.

A pickle names a class by its module.  One that has moved or was renamed is found by ``flowlet.former_names.RENAMED``.

Items:  ``MODULE:NAME`` as state has it, with the fields of the class, or the members of an enumeration with their
        values.
Found:  public classes and functions, which users' classes may name; the classes of the fields of classes in the list;
        and what ``tests/integration/test_savepoints.py`` finds in savepoints of programs of many kinds.  Other names
        are put into the list by hand.
"""

import dataclasses
import enum
import importlib
import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

import flowlet.connectors
from flowlet.former_names import FIRST_NAMES, RENAMED, first_names, present_name
from tests.frozen.frozen_list import FrozenList
from tests.frozen.test_public_names import PUBLIC_NAMES

_OURS: Final = ("flowlet.", "netstack.")
# Instances of users' own classes know names of these packages.
# Of connectors, which public packages have by another path.
_APIS: Final = Path(flowlet.connectors.__file__).parent.glob("*/api.py")
_DESCRIPTIONS: Final = tuple(sorted(f"flowlet.connectors.{each.parent.name}.api" for each in _APIS))
_PUBLIC: Final = ("flowlet.common", "flowlet.datastream", "flowlet.errors", "flowlet.metrics", "flowlet.records")
# Classes of which users, or an operator of ours, keep instances: their fields stay, too.
_VALUES: Final = frozenset(
    (
        *("Row", "Duration", "Instant", "Time", "MemorySize", "JobID", "OutputTag", "KafkaTopicPartition"),
        *("TimeWindow", "CountWindow", "GlobalWindow", "TimestampedValue"),
        *("Chunk", "PickledRecord", "Watermark", "WatermarkStatus", "LatencyMarker", "RecordAttributes"),
        "InternalWatermark",
    )
)


def state_names() -> Iterator[str]:
    """Yield the items; of the list those that are found and still have this name, by ``RENAMED`` at least."""
    waiting = [
        found for name in STATE_NAMES.read() if (found := _resolved(name)) is not None and _stored_name(found) == name
    ]
    waiting += _public_names()
    seen: dict[str, Any] = {}
    while waiting:
        each = waiting.pop()
        if seen.setdefault(_stored_name(each), each) is each and isinstance(each, type):
            waiting += [part for part in _parts_of(each) if _stored_name(part) not in seen]
    yield from (f"{name}  {_form_of(each)}" for name, each in seen.items())


def _resolved(name: str) -> Any:
    module, qualname = present_name(*name.split(":"))
    try:
        found: Any = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def _stored_name(found: Any) -> str:
    name = f"{found.__module__}:{found.__qualname__}"
    return FIRST_NAMES.get(name, name)


def _public_names() -> Iterator[Any]:
    """Yield classes of all kinds, and functions: a class that goes by value brings the names of its methods and
    annotations.
    """
    for key in PUBLIC_NAMES.read():
        module, _, name = key.partition(":")
        if name and any(module == each or module.startswith(f"{each}.") for each in _PUBLIC):
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = (
                    inspect.getattr_static(found, part, None) if isinstance(found, type) else getattr(found, part, None)
                )
            if isinstance(found, type) or ("." not in name and inspect.isfunction(found)):
                yield from (found,) if found.__module__.startswith(_OURS) else ()


def _parts_of(cls: type) -> Iterator[type]:
    """Yield our classes in the types of its fields."""
    if not (dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct) or hasattr(cls, "_fields")):
        return
    try:
        hints = typing.get_type_hints(cls)
    except NameError:  # a name for type checkers alone
        return
    waiting = list(hints.values())
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and hint.__module__.startswith(_OURS) and not getattr(hint, "_is_protocol", False):
            yield hint


def _form_of(found: Any) -> str:
    if not isinstance(found, type):
        return f"function ({', '.join(inspect.signature(found).parameters)})"
    if issubclass(found, enum.Enum):
        return f"members {', '.join(f'{name}={_plain(member.value)}' for name, member in found.__members__.items())}"
    if found.__module__.startswith((*_PUBLIC, *_DESCRIPTIONS)) and found.__name__ not in _VALUES:
        return "class"
    if issubclass(found, msgspec.Struct):
        tag = found.__struct_config__.tag
        return f"fields {', '.join(found.__struct_fields__)}{'' if tag is None else f'; tag {tag}'}"
    if dataclasses.is_dataclass(found):
        return f"fields {', '.join(each.name for each in dataclasses.fields(found))}"
    if issubclass(found, tuple) and hasattr(found, "_fields"):
        return f"fields {', '.join(found._fields)}"
    slots = [name for base in reversed(found.__mro__) for name in _slots_of(base)]
    return f"slots {', '.join(slots)}" if slots and found.__reduce__ is object.__reduce__ else "class"


def _slots_of(cls: type) -> tuple[str, ...]:
    slots = vars(cls).get("__slots__", ())
    return () if not cls.__module__.startswith(_OURS) else (slots,) if isinstance(slots, str) else tuple(slots)


def _plain(value: Any) -> str:
    return repr(value) if isinstance(value, (int, str)) else type(value).__name__


STATE_NAMES: Final = FrozenList(
    "state_names",
    "Names in stored state",
    state_names,
    "A class that has moved or was renamed gets a row in flowlet/former_names.py; one with other fields must still "
    "read the former ones.",
)


@pytest.mark.slow
def test_names_in_stored_state_are_found() -> None:
    STATE_NAMES.check()


def test_former_names_lead_to_something_and_are_given_to_nothing_else() -> None:
    for former, today in RENAMED.items():
        assert today not in RENAMED, f"{former} leads to {today}, which was renamed itself: name its present place"
        assert _resolved(former) is not None, f"{former} leads to {today}, which is not there"
        assert ":" in former
        module, _, name = former.partition(":")
        try:
            found = inspect.getattr_static(importlib.import_module(module), name, None)
        except ImportError:
            found = None
        assert found in (None, _resolved(former)), (
            f"{former} is the name of something else now: old state would get that"
        )
    assert first_names(RENAMED) == FIRST_NAMES
