"""Serializes classes; a process makes each class once.

Side:       pure.
Rules:      stored state may name our classes by former names (``flowlet.former_names``).  A class that other processes
            can import is sent by name.  A class of the main module, or one that is not found under its name, is sent by
            value, as cloudpickle does.  It is sent as it was the first time: later changes to a class stay in its
            process.
Invariants: the same bytes give the same class for all records of a process, unless its module is reloaded.
Units:      each cache holds ``MAX_CLASSES``.
"""

import io
import pickle
from functools import lru_cache
from typing import Any, Final

from flowlet.errors import SerdeError
from flowlet.former_names import RENAMED, present_name
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.class_pickle import classes_stay, is_importable
from flowlet.serde.pickles.pickle_parts import describe_unpicklable

MAX_CLASSES: Final = 256
NAME_ERRORS: Final = (AttributeError, ImportError)
"""Errors that unpickling raises for a name that does not exist."""
_by_value: Final[set[type]] = set()  # Any thread; single set operations.
_classes: Final[dict[bytes, type]] = {}  # Any thread; single dict operations.


@lru_cache(MAX_CLASSES)
def class_reference(cls: type) -> bytes:
    """The bytes of a class.  Raises SerdeError: the class cannot be pickled; the message names it."""
    try:
        return program_pickle.dumps(cls, 5)
    except Exception as error:
        raise SerdeError(
            f"class {cls.__qualname__} cannot be pickled to be sent: {describe_unpicklable(cls, error)}"
        ) from error


def reference_by_value(cls: type) -> bytes | None:
    """The bytes of a class that must be sent by value; None if its name will do.

    Raises SerdeError: as ``class_reference``.
    """
    if cls not in _by_value:
        if cls.__module__ == "builtins" or is_importable(cls):
            return None
        if len(_by_value) >= MAX_CLASSES:
            _by_value.clear()
        _by_value.add(cls)
    return class_reference(cls)


class PresentUnpickler(pickle.Unpickler):
    """Reads pickles in which our classes may have former names."""

    def find_class(self, module: str, name: str) -> Any:
        """The class or function."""
        return super().find_class(*present_name(module, name))


def loads(data: bytes | memoryview) -> Any:
    """The value of a pickle, in which our classes may have former names.  Raises what rebuilding it raises.

    Pickles of this version stay with C's unpickler alone.
    """
    try:
        return pickle.loads(data)  # noqa: S301 - from an authenticated peer of the same cluster
    except NAME_ERRORS:
        if not RENAMED:
            raise
        return PresentUnpickler(io.BytesIO(data)).load()


def class_of(reference: bytes) -> type:
    """The class in ``reference``.  Raises SerdeError: it holds no class."""
    cls = _classes.get(reference)
    if cls is None:
        try:
            with classes_stay():
                cls = loads(reference)
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
