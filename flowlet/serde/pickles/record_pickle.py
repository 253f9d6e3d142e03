"""Pickles single values of any type, the fastest way that is exact; serializes classes, so that a process makes each
class once.

Hot path: one call of C's pickler if the reader can import all classes.  If it cannot (a class is of the main module),
C's pickler asks about each object, and the classes are kept beside the pickle, so that a column of records sends each
class once.

Side:       pure.
Invariants: reading gives the value that pickle gives, with identity within the value.  Equal bytes give one class for
            all records of a process, unless its module is reloaded.
Rules:      stored state may name our classes by former names (``flowlet.former_names``).  A class that other processes
            can import is sent by name.  A class of the main module, or one that is not found under its name, is sent by
            value, as cloudpickle does, always in its state of the first time: later changes to a class stay in its
            process.
Format:     a pickle, which begins with 0x80; or 0, u32 size of a class table, the table, a pickle.  A class table has
            for each class a u32 size and the bytes (``class_reference``); the pickle refers to a class by its place in
            the table.
Units:      each cache of classes holds ``MAX_CLASSES``.
"""

import io
import pickle
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import lru_cache
from types import FunctionType
from typing import Any, Final

import cloudpickle

from flowlet.errors import SerdeError
from flowlet.former_names import present_name
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.class_pickle import classes_stay, is_importable, value_in_block
from flowlet.serde.pickles.program_pickle import describe_unpicklable

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
        return pickle.loads(data)  # noqa: S301 - from an authenticated peer of this cluster
    except NAME_ERRORS:
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
        # If two threads read equal bytes at once, both must get one class.
        cls = _classes.setdefault(reference, cls)
    return cls


PROTOCOL: Final = 5
_WITH_CLASSES: Final = 0
_HEADER: Final = struct.Struct(">BI")
_SIZE: Final = struct.Struct(">I")
_loads: Final = pickle.loads  # of an authenticated peer of this cluster
_MAIN: Final = b"_main__"  # of __main__, and of __mp_main__ in a process that multiprocessing has spawned
_MAX_KINDS: Final = 256
# Names of modules that the program wants to send by value.
_registered: Final = cloudpickle.list_registry_pickle_by_value
# Whether the main module is the user's: then a pickle may name a class of it, which the reader does not have, and must
# be searched for such names; that takes a fifth of its time.  If the main module is ours, C's pickler fails on such
# classes by itself.
_is_program: Final = (getattr(sys.modules.get("__main__"), "__package__", None) or "").partition(".")[0] != "flowlet"
# Types of records whose last pickle had classes by value: they skip the first attempt.  Any thread; single set
# operations.
_with_classes: Final[set[type]] = set()
# The function that finds a class of a class table: the sent class, unless another program has written the pickle.
_find_class: ContextVar[Callable[[bytes], Any]] = ContextVar("what finds classes of class tables", default=class_of)
_classes_at_hand: ContextVar[tuple[type, ...]] = ContextVar("classes of the pickle that is being read", default=())


class PickleWithClasses(bytes):
    """A pickle that refers to classes sent by value.

    Attributes:
        table: its class table; one object for all records with equal class tables.
    """

    table: bytes


def dumps_record(value: Any) -> bytes:
    """Pickle a value; the result may be a ``PickleWithClasses``.

    Raises:
        SerdeError: the value cannot be pickled; the message names its type.
    """
    if type(value) not in _with_classes:
        try:
            data = pickle.dumps(value, PROTOCOL)
        except Exception:  # noqa: BLE001 - the next attempts report what they cannot pickle
            return _dumps_with_classes(value)
        if not _is_program or not names_what_goes_by_value(data):
            return data
    return _dumps_with_classes(value)


def loads_record(data: bytes) -> Any:
    """The value that ``dumps_record`` was given.

    Raises:
        Exception: whatever rebuilding the value raises.
    """
    return _load(data, data.table) if type(data) is PickleWithClasses else loads(data)


def dumps_value(value: Any) -> bytes:
    """The value as bytes, with its class table in front.  Raises SerdeError: as ``dumps_record``."""
    data = dumps_record(value)
    if type(data) is not PickleWithClasses:
        return data
    return b"".join((_HEADER.pack(_WITH_CLASSES, len(data.table)), data.table, data))


def classes_found_by(find_class: Callable[[bytes], Any]) -> AbstractContextManager[None]:
    """Let ``find_class`` give the classes of all class tables that this thread reads meanwhile."""
    return value_in_block(_find_class, find_class)


def is_of_another_program() -> bool:
    """Whether ``classes_found_by`` is in force: this thread reads pickles that another program wrote."""
    return _find_class.get(class_of) is not class_of


def of_running_program(values: Iterable[Any]) -> list[Any]:
    """Turn values of another program's classes into instances of the running program's.  Raises as ``loads_value``."""
    return [loads_value(dumps_value(value)) for value in values]


def has_class_table(data: bytes | memoryview) -> bool:
    """Whether bytes of ``dumps_value`` bring classes along."""
    return data[:1] == _HEADER.pack(_WITH_CLASSES, 0)[:1]


def loads_value(data: bytes | memoryview, find_class: Callable[[bytes], Any] | None = None) -> Any:
    """The value that ``dumps_value`` was given; ``find_class`` gives the classes of the class table (None: see
    ``classes_found_by``).

    Raises:
        SerdeError: the bytes are corrupt.
        Exception: whatever rebuilding the value raises.
    """
    if not data or data[0] != _WITH_CLASSES:
        return loads(data)
    size = _HEADER.unpack_from(data)[1] if len(data) >= _HEADER.size else len(data)
    end = _HEADER.size + size
    if end > len(data):
        raise SerdeError(f"a class table of {size} bytes in a pickle of {len(data)}")
    return _load(data[end:], bytes(data[_HEADER.size : end]), find_class)


def loads_all(pickles: Sequence[memoryview], tables: Sequence[bytes], places: Sequence[int]) -> list[Any]:
    """Unpickle many records; raises as ``loads_record``.

    ``places``: for each record the 1-based place of its class table in ``tables``, or 0 if it has none; empty: no
        record has one.
    """
    if not places:
        try:
            return list(map(_loads, pickles))
        except NAME_ERRORS:
            return list(map(loads, pickles))
    find_class = _find_class.get(class_of)
    classes = [(), *[tuple(map(find_class, _references_in(table))) for table in tables]]
    values = []
    token = _classes_at_hand.set(())
    try:
        for place, pickled in zip(places, pickles, strict=True):
            _classes_at_hand.set(classes[place])
            values.append(loads(pickled))
    finally:
        _classes_at_hand.reset(token)
    return values


def _load(pickled: bytes | memoryview, table: bytes, find_class: Callable[[bytes], Any] | None = None) -> Any:
    token = _classes_at_hand.set(tuple(map(find_class or _find_class.get(class_of), _references_in(table))))
    try:
        return loads(pickled)
    finally:
        _classes_at_hand.reset(token)


def _dumps_with_classes(value: Any) -> bytes:
    file = io.BytesIO()
    pickler = _ClassPickler(file)
    try:
        pickler.dump(value)
    except Exception:  # noqa: BLE001 - for example a lambda: cloudpickle can pickle it, or says why not
        try:
            return program_pickle.dumps(value, PROTOCOL)
        except Exception as error:
            reason = describe_unpicklable(value, error, "value")
            raise SerdeError(f"a value of type {type(value).__name__} cannot be pickled: {reason}") from error
    references = pickler.references
    if not references:
        _with_classes.discard(type(value))
        return file.getvalue()
    if len(_with_classes) >= _MAX_KINDS:
        _with_classes.clear()
    _with_classes.add(type(value))
    data = PickleWithClasses(file.getbuffer())
    data.table = _table_of(*references)
    return data


@lru_cache(_MAX_KINDS)
def _table_of(*references: bytes) -> bytes:
    return b"".join([part for reference in references for part in (_SIZE.pack(len(reference)), reference)])


def names_what_goes_by_value(data: bytes) -> bool:
    """Whether a pickle may name the main module, which differs at the reader, or a module
    registered with cloudpickle.
    """
    return _MAIN in data or any(name.encode() in data for name in _registered())


class _ClassPickler(pickle.Pickler):
    """C's pickler, which collects classes that must be sent by value."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, PROTOCOL)
        self.references: dict[bytes, int] = {}  # class reference -> place in the table

    def reducer_override(self, obj: Any) -> Any:
        if obj is _class_at:
            return NotImplemented
        if issubclass(type(obj), type):  # not isinstance: an object can lie about its __class__
            reference = reference_by_value(obj)
            if reference is None:
                return NotImplemented
            return _class_at, (self.references.setdefault(reference, len(self.references)),)
        if isinstance(obj, FunctionType) and not is_importable(obj):
            raise pickle.PicklingError(f"function {obj.__qualname__} goes by value")
        return NotImplemented


def _class_at(place: int) -> type:
    """The class at this place of the table; called only by pickles."""
    return _classes_at_hand.get()[place]


def _references_in(table: bytes) -> Iterator[bytes]:
    position = 0
    while position < len(table):
        size = _SIZE.unpack_from(table, position)[0] if position + _SIZE.size <= len(table) else len(table)
        position += _SIZE.size
        if position + size > len(table):
            raise SerdeError(f"a class of {size} bytes in a class table of {len(table)}")
        yield table[position : position + size]
        position += size
