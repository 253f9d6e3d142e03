"""The messages between JobManager and TaskManagers: all structs and settings that they hold, field by field.

Processes of two versions refuse each other by ``PROTOCOL_VERSION``, so it rises with each change of a message.

Items:  ``CLASS`` with its fields and their types, or the members of an enumeration; ``VERSION all`` with a
        digest of them, so that a message that is added is a change, too.
"""

import dataclasses
import enum
import hashlib
import re
import typing
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from flowlet.messages.control_messages import PROTOCOL_VERSION, ToJobManager, ToTaskManager, kinds_of
from tests.frozen.frozen_list import FrozenList

_MODULE: Final = re.compile(r"\b(?:\w+\.)+(?=\w)")


def control_messages() -> Iterator[str]:
    forms = {cls.__name__: _form_of(cls) for cls in _classes()}
    digest = hashlib.sha256(repr(sorted(forms.items())).encode()).hexdigest()[:16]
    yield f"{PROTOCOL_VERSION} all  {digest}"
    yield from (f"{name}  {form}" for name, form in forms.items())


def _classes() -> set[type]:
    """Return the messages, and all classes of ours in the types of their fields."""
    waiting: list[Any] = [*kinds_of(ToTaskManager), *kinds_of(ToJobManager)]
    found: set[type] = set()
    while waiting:
        hint = waiting.pop()
        waiting += typing.get_args(hint)
        if isinstance(hint, type) and hint.__module__.startswith("flowlet.") and hint not in found:
            found.add(hint)
            waiting += typing.get_type_hints(hint).values()
    return found


def _names_of(cls: Any) -> Sequence[str]:
    """Return the names of the fields of a struct, named tuple or dataclass."""
    if dataclasses.is_dataclass(cls):
        return [each.name for each in dataclasses.fields(cls)]
    names: Sequence[str] = getattr(cls, "__struct_fields__", ()) or getattr(cls, "_fields", ())
    return names


def _form_of(cls: type) -> str:
    if issubclass(cls, enum.Enum):
        return f"members {', '.join(f'{each.name}={each.value!r}' for each in cls)}"
    hints = typing.get_type_hints(cls)
    tag = cls.__struct_config__.tag if issubclass(cls, msgspec.Struct) else None
    shown = ", ".join(f"{name}: {_text_of(hints[name])}" for name in _names_of(cls))
    return f"fields {shown or 'none'}{'' if tag is None else f'; tag {tag}'}"


def _text_of(hint: Any) -> str:
    text = hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)
    return _MODULE.sub("", text)


CONTROL_MESSAGES: Final = FrozenList(
    "control_messages",
    "Messages between JobManager and TaskManagers",
    control_messages,
    "Or let PROTOCOL_VERSION (flowlet/messages/control_messages.py) rise by one: then this list is written anew.",
)


def test_messages_change_with_the_version_of_the_protocol_alone() -> None:
    CONTROL_MESSAGES.check()
