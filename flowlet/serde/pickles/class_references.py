"""Serializes classes; a process makes each class once.

Side:       pure.
Rules:      a class that other processes can import is sent by name.  A class of the main module, or one that is not found under its name,
            is sent by value, as cloudpickle does.  It is sent as it was the first time: later changes to a class stay in its process.
Invariants: the same bytes give the same class for all records of a process, unless its module is reloaded.
Units:      each cache holds ``MAX_CLASSES`` and is cleared when it is full.
"""

import functools
import pickle
import sys
from typing import Any, Final

import cloudpickle

from flowlet.errors import SerdeError
from flowlet.serde.pickles import program_pickle

MAX_CLASSES: Final = 256
_MAIN: Final = "__main__"
_references: Final[dict[type, bytes]] = {}  # Any thread; single dict operations.
_by_value: Final[set[type]] = set()  # Any thread; single set operations.
_classes: Final[dict[bytes, type]] = {}  # Any thread; single dict operations.


def is_importable(thing: Any) -> bool:
    """Whether another process can import this class or function by its name."""
    module_name, qualified_name = getattr(thing, "__module__", None), thing.__qualname__
    if module_name is None or module_name == _MAIN or is_sent_by_value(module_name):
        return False
    try:
        return functools.reduce(getattr, qualified_name.split("."), sys.modules[module_name]) is thing
    except (AttributeError, KeyError):
        return False


def is_sent_by_value(module_name: str) -> bool:
    """Whether the program has registered the module, or a package around it, with cloudpickle."""
    registered = cloudpickle.list_registry_pickle_by_value()
    return bool(registered) and any(module_name == name or module_name.startswith(name + ".") for name in registered)


def class_reference(cls: type) -> bytes:
    """The bytes of a class.  Raises SerdeError: the class cannot be pickled; the message names it."""
    reference = _references.get(cls)
    if reference is None:
        try:
            reference = program_pickle.dumps(cls, 5)
        except Exception as error:
            raise SerdeError(f"class {cls.__qualname__} cannot be pickled to be sent: {type(error).__name__}: {error}") from error
        if len(_references) >= MAX_CLASSES:
            _references.clear()
        _references[cls] = reference
    return reference


def reference_by_value(cls: type) -> bytes | None:
    """The bytes of a class that must be sent by value; None if its name will do.  Raises SerdeError: as ``class_reference``."""
    if cls not in _by_value:
        if cls.__module__ == "builtins" or is_importable(cls):
            return None
        if len(_by_value) >= MAX_CLASSES:
            _by_value.clear()
        _by_value.add(cls)
    return class_reference(cls)


def class_of(reference: bytes) -> type:
    """The class in ``reference``.  Raises SerdeError: it holds no class."""
    cls = _classes.get(reference)
    if cls is None:
        try:
            cls = pickle.loads(reference)  # noqa: S301 - from an authenticated peer of the same cluster
        except Exception as error:
            raise SerdeError(f"a class cannot be read: {type(error).__name__}: {error}") from error
        if not isinstance(cls, type):
            raise SerdeError(f"a {type(cls).__name__} instead of a class")
        if is_importable(cls):
            return cls  # not cached: its module may be reloaded
        if len(_classes) >= MAX_CLASSES:
            _classes.clear()
        # If two threads read the same bytes at once, both must keep the same class.
        cls = _classes.setdefault(reference, cls)
    return cls
