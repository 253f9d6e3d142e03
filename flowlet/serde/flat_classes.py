"""Finds classes whose instances are only named values, takes such instances apart, and makes them.

Hot path: C code or a generated loop per list of instances.  Writing and reading instances of six fields by columns
costs half of one pickle of the whole list (``bench serde``); classes with pickling methods of their own are left to
pickle.

Side:       pure.
Rules:      instances are made as pickle makes them: without a call of ``__init__``, but with the constructor of a
            ``msgspec.Struct``.  All instances must have equal names of attributes in one order.  A class is not flat if
            it customizes pickling, construction or attribute lookup, or has both slots and a ``__dict__``.
Invariants: ``maker_of`` turns the columns of ``take_apart`` into equal instances, with equal attributes in their order.
"""

import abc
import collections
import copyreg
import dataclasses
import inspect
import keyword
import struct
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from itertools import chain, repeat
from operator import attrgetter
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final

import msgspec

from flowlet.errors import SerdeError
from netstack.late import dataclass

Parts = tuple[tuple[str, ...], list[Sequence[Any]]]
Maker = Callable[[Sequence[Sequence[Any]]], list[Any]]

MAX_FIELDS: Final = 255  # of a record whose fields travel as columns
_MAX_CLASSES: Final = 256
# A class is flat only if it inherits each of these from ``object``, or does not have it.
_OF_OBJECT: Final = (
    "__class__",
    "__del__",
    "__getattr__",
    "__getattribute__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__getstate__",
    "__new__",
    "__reduce__",
    "__reduce_ex__",
    "__setstate__",
)
_STATE: Final = ("__getstate__", "__setstate__")
# The state methods that ``dataclass(slots=True, frozen=True)`` generates.
_GENERATED_STATE: Final = tuple([getattr(dataclasses, f"_dataclass_{name.strip('_')}") for name in _STATE])
_OF_NAMED_TUPLE: Final = ("__getnewargs__", "__new__")
_STRUCT_META: Final = type(msgspec.Struct)
_METACLASSES: Final = frozenset({type, abc.ABCMeta, _STRUCT_META})  # another metaclass may redefine equality of classes
_POINTER_BYTES: Final = struct.calcsize("P")
_MANAGED_DICT: Final = 1 << 4  # Py_TPFLAGS_MANAGED_DICT: the instance has no pointer to its dict
_new: Final = object.__new__


@dataclass(frozen=True, eq=False, slots=True)
class FlatClass:
    """Takes instances of one class apart and makes them.  Threading: any.

    Attributes:
        names: of the fields of all instances; empty: each instance has attributes of its own.
        is_frozen: whether an instance cannot change if its values cannot: the class declares it, and
            ``object.__setattr__`` is not considered.
        take_apart: gives the names of the attributes, and a column of values for each, of instances of exactly this
            class, at least one; None if the instances differ in their names.
        maker: gives the maker for these names, which are those of the class if it has some.
    """

    names: tuple[str, ...]
    is_frozen: bool
    take_apart: Callable[[Sequence[Any]], Parts | None]
    maker: Callable[[tuple[str, ...]], Maker]


def flat_class_of(cls: type) -> FlatClass | None:
    """The ``FlatClass`` of a class; None if its instances must be pickled."""
    return _flat_class_of(cls) if type(cls) in _METACLASSES else None


@lru_cache(_MAX_CLASSES)
def _flat_class_of(cls: Any) -> FlatClass | None:
    if cls in copyreg.dispatch_table:
        return None
    if type(cls) is _STRUCT_META:
        if not _is_plain_struct(cls):
            return None
        names = cls.__struct_fields__
        is_frozen = bool(cls.__struct_config__.frozen)
        return FlatClass(names, is_frozen, _reader_of(names), lambda _: lambda columns: list(map(cls, *columns)))
    if issubclass(cls, tuple):
        return _flat_named_tuple(cls) if _is_plain_named_tuple(cls) else None
    return _flat_object(cls)


def slot_names_of(cls: type) -> tuple[str, ...] | None:
    """The names of all fields of a flat class without ``__dict__``; None for any other class."""
    flat_class = flat_class_of(cls)
    return None if flat_class is None or issubclass(cls, tuple) else flat_class.names or None


def parts_of_dicts(dicts: Sequence[dict[Any, Any]], *, are_keys_checked: bool) -> Parts | None:
    """The keys and a column of values for each; None unless all dicts have equal keys, exactly ``str``, in one order.

    ``dicts``: at least one.  ``are_keys_checked``: whether the types of all keys are checked, or only those of the
        first dict's keys.
    """
    names, keys = list(dicts[0]), list(chain.from_iterable(dicts))
    # A dict has no key twice: if all keys in a row are the first dict's keys repeated, every dict has just these.
    if not 0 < len(names) <= MAX_FIELDS or keys != names * len(dicts):
        return None
    types = list(map(type, keys if are_keys_checked else names))
    if types.count(str) != len(types):
        return None
    values = list(chain.from_iterable(map(dict.values, dicts)))
    return tuple(names), [values[place :: len(names)] for place in range(len(names))]


@lru_cache(_MAX_CLASSES)
def maker_of(kind: Any, names: tuple[str, ...]) -> Maker:
    """A function that makes instances of a flat class, or dicts, from a column for each field.

    Raises:
        SerdeError: the class is not flat, or has other fields.
    """
    if kind is dict:
        items = ", ".join(f"{name!a}: v{place}" for place, name in enumerate(names))
        return _maker(f" return [{{{items}}} for {_variables(names)} in zip(*columns, strict=True)]")
    flat_class = flat_class_of(kind)
    if flat_class is None:
        raise SerdeError(
            f"objects of class {kind.__qualname__} by fields, which is another class here: it is pickled in its own way"
        )
    if flat_class.names not in ((), names):
        raise SerdeError(
            f"instances of {kind.__qualname__} with the fields {', '.join(names)}, here it has "
            f"{', '.join(flat_class.names)}"
        )
    return flat_class.maker(names)


@lru_cache(_MAX_CLASSES)
def instance_maker(cls: type, names: tuple[str, ...]) -> Callable[..., Any] | None:
    """A function that makes one instance from a value for each attribute; None if an assignment might call code of the
    class.

    Seven attributes take 200 ns.  Copying ``__dict__`` takes 470 ns and creates dicts for both instances, which stay.
    """
    if not _are_plain(names) or not _can_assign(cls, names):
        return None
    steps = "\n".join([f" instance.{name} = v{place}" for place, name in enumerate(names)])
    return _maker(f" instance = new(cls)\n{steps}\n return instance", _variables(names), cls=cls, new=_new)


def _can_assign(cls: type, names: tuple[str, ...]) -> bool:
    """Whether assigning these attributes only stores them in ``__dict__``, without a call of the class's code."""
    if _inherited(cls, "__setattr__") is not _inherited(object, "__setattr__"):
        return False
    # A data descriptor, such as a property, would be called.
    kinds = [type(_inherited(cls, name)) for name in names]
    return not any(hasattr(kind, "__set__") or hasattr(kind, "__delete__") for kind in kinds)


def _flat_object(cls: type) -> FlatClass | None:
    is_generated = tuple([_inherited(cls, name) for name in _STATE]) == _GENERATED_STATE
    if not _is_pickled_as(cls, object, but=_STATE if is_generated else ()):
        return None
    slots = copyreg._slotnames(cls)  # type: ignore[attr-defined]  # pickle itself calls it
    if bool(slots) == bool(cls.__dictoffset__) or not _is_without_state_in_c(cls, len(slots)):
        return None
    if not slots:
        has_own_dict = isinstance(_inherited(cls, "__dict__"), GetSetDescriptorType)
        return _flat_attributes(cls) if has_own_dict else None
    # The fields that pickle takes.
    names = tuple([field.name for field in dataclasses.fields(cls)] if is_generated else slots)
    if not _are_plain(names) or not all(isinstance(_inherited(cls, name), MemberDescriptorType) for name in names):
        return None
    # Pickle sets slots with ``setattr``, the generated ``__setstate__`` with ``object.__setattr__``.
    if not is_generated and _inherited(cls, "__setattr__") is not _inherited(object, "__setattr__"):
        return None
    return _flat_slots(cls, names)


def _is_pickled_as(cls: type, base: type, but: Sequence[str] = ()) -> bool:
    """Whether the class inherits all of its pickling from ``base``, except for the methods in ``but``."""
    return all(_inherited(cls, name) is _inherited(base, name) for name in _OF_OBJECT if name not in but)


def _is_without_state_in_c(cls: type, num_slots: int) -> bool:
    """Whether instances can be created, and hold only attributes, as CPython's ``object_getstate_default`` checks."""
    num_pointers = (
        num_slots + (cls.__weakrefoffset__ > 0) + bool(cls.__dictoffset__ and not cls.__flags__ & _MANAGED_DICT)
    )
    if cls.__itemsize__ or cls.__basicsize__ > object.__basicsize__ + num_pointers * _POINTER_BYTES:
        return False
    try:
        _new(cls)
    except TypeError:  # an abstract class, or one implemented in C
        return False
    return True


def _is_plain_named_tuple(cls: type) -> bool:
    names = getattr(cls, "_fields", None)
    if type(names) is not tuple or not _are_plain(names) or any(name.startswith("_") for name in names):
        return False
    if cls.__mro__[-2] is not tuple or _inherited(cls, "__iter__") is not _inherited(tuple, "__iter__"):
        return False
    if not _is_pickled_as(cls, tuple, but=_OF_NAMED_TUPLE):
        return False
    # Compare with the code that ``namedtuple`` generates for these names: the code of a class that was pickled by value
    # is equal to it, but another object.
    template = collections.namedtuple("_", names)  # type: ignore[misc]  # the names are those of a class
    return all(_code(cls, name) == _code(template, name) for name in _OF_NAMED_TUPLE)


def _is_plain_struct(cls: Any) -> bool:
    """Whether pickle calls the constructor with all fields in order."""
    if not _is_pickled_as(cls, msgspec.Struct) or cls.__dictoffset__ or not _are_plain(cls.__struct_fields__):
        return False
    parameters = inspect.signature(cls).parameters
    return tuple(parameters) == cls.__struct_fields__ and all(
        each.kind is each.POSITIONAL_OR_KEYWORD for each in parameters.values()
    )


def _inherited(cls: type, name: str) -> Any:
    """The attribute of the first class in the MRO that has it, without calling descriptors; None if there is none."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def _code(cls: type, name: str) -> Any:
    found = _inherited(cls, name)
    return getattr(getattr(found, "__func__", found), "__code__", found)


def _flat_attributes(cls: type) -> FlatClass:
    """The ``FlatClass`` of a class whose instances have a ``__dict__`` and no slots."""

    def maker(names: tuple[str, ...]) -> Maker:
        if _are_plain(names) and _can_assign(cls, names):
            steps = [f"instance.{name} = v{place}" for place, name in enumerate(names)]
        else:
            # Through __dict__, as pickle does; it takes 200 ns more per instance.
            steps = ["attributes = instance.__dict__"] + [
                f"attributes[{name!a}] = v{place}" for place, name in enumerate(names)
            ]
        return _instances_maker(cls, names, steps)

    def take_apart(values: Sequence[Any]) -> Parts | None:
        # Not checked: an attribute whose name is of a subclass of str is found under the equal str, too.
        return parts_of_dicts([value.__dict__ for value in values], are_keys_checked=False)

    return FlatClass((), _is_frozen_dataclass(cls), take_apart, maker)


def _flat_slots(cls: type, names: tuple[str, ...]) -> FlatClass:
    """The ``FlatClass`` of a class whose instances have slots and no ``__dict__``."""

    def maker(_: tuple[str, ...]) -> Maker:
        if _inherited(cls, "__setattr__") is _inherited(object, "__setattr__"):
            return _instances_maker(cls, names, [f"instance.{name} = v{place}" for place, name in enumerate(names)])
        setters = [_inherited(cls, name).__set__ for name in names]

        def make(columns: Sequence[Sequence[Any]]) -> list[Any]:
            """Set one field of all instances after the other: 60 ns per field; a loop over the instances takes 85."""
            made: list[Any] = list(map(_new, repeat(cls, len(columns[0]))))
            for set_field, column in zip(setters, columns, strict=True):
                collections.deque(map(set_field, made, column), 0)
            return made

        return make

    return FlatClass(names, _is_frozen_dataclass(cls), _reader_of(names), maker)


def _flat_named_tuple(cls: Any) -> FlatClass:
    """The ``FlatClass`` of a class made by ``NamedTuple`` or ``namedtuple``, or of a subclass with methods."""
    names = cls._fields
    make = partial(tuple.__new__, cls)

    def take_apart(values: Sequence[Any]) -> Parts | None:
        if cls.__dictoffset__ and any(map(attrgetter("__dict__"), values)):
            return None
        try:
            columns: list[Sequence[Any]] = list(zip(*values, strict=True))
        except ValueError:
            return None
        return (names, columns) if len(columns) == len(names) else None

    return FlatClass(names, True, take_apart, lambda _: lambda columns: list(map(make, zip(*columns, strict=True))))  # noqa: FBT003


def _reader_of(names: tuple[str, ...]) -> Callable[[Sequence[Any]], Parts | None]:
    """The ``take_apart`` for instances with attributes of these names."""
    read = _maker(f" return [{', '.join([f'[instance.{name} for instance in columns]' for name in names])}]")

    def take_apart(values: Sequence[Any]) -> Parts | None:
        try:
            return names, read(values)
        except AttributeError:  # an attribute of an instance was never set, or was deleted
            return None

    return take_apart


def _is_frozen_dataclass(cls: type) -> bool:
    """Whether this class itself, not only a base, is a frozen dataclass."""
    parameters = vars(cls).get("__dataclass_params__")
    return bool(getattr(parameters, "frozen", False))


def _are_plain(names: Sequence[str]) -> bool:
    """Whether generated code may use the names.  ASCII only, because Python normalizes other identifiers (NFKC)."""
    return 0 < len(names) <= MAX_FIELDS and all(type(name) is str and is_attribute(name) for name in names)


def is_attribute(name: str) -> bool:
    """Whether generated code may use the name of an attribute."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "__debug__"


def _variables(names: Sequence[str]) -> str:
    """The variables for the values of one instance, each followed by a comma."""
    return "".join([f"v{place}, " for place in range(len(names))])


def _instances_maker(cls: type, names: Sequence[str], steps: Sequence[str]) -> Maker:
    """A function that makes instances, each by these steps with the variables of its values."""
    lines = [
        " made = []",
        f" for {_variables(names)} in zip(*columns, strict=True):",
        *[f"  {step}" for step in ["instance = new(cls)", *steps, "made.append(instance)"]],
        " return made",
    ]
    return _maker("\n".join(lines), cls=cls, new=_new)


def _maker(body: str, parameters: str = "columns", **names: Any) -> Callable[..., Any]:
    """Compile a function.

    The body contains no input but attribute names, which are identifiers, and text literals.
    """
    exec(f"def generated({parameters}):\n{body}\n", names)  # noqa: S102
    maker: Callable[..., Any] = names["generated"]
    return maker
