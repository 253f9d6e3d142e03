"""Takes classes apart that a reader cannot import, and makes them again.

Side:       pure.
Rules:      a class goes by name if another process can import it by this name.  A class of the main module, of any
            other module that was run as a program or executes a job while it is imported, or one that is not found
            under its name, goes by value.  A class by value is made again in two steps, because its methods may refer
            to it: first the parts that decide the layout of its objects (slots, fields, members), then all its
            attributes.  Code of the program that ran when the class was made does not run again: neither the
            ``__new__`` and ``__init__`` of a metaclass nor ``__init_subclass__``, whose keywords are lost, nor the
            constructors of members of an enumeration; their effects are among the attributes.  Such code of importable
            classes does run, because it may register the class.  Reading changes a class that the program made itself
            only in a block of ``program_classes_change``, whose caller puts the class back: tasks in the program's
            process have methods with globals of their own, and the program has its class again afterwards.
Source:     cloudpickle, which finds out what a class consists of and whether a process has it already.  It knows
            neither slots nor the structs of msgspec, and makes members of enumerations of their values alone.
"""

import contextlib
import enum
import functools
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar
from weakref import WeakSet

import cloudpickle
import msgspec

# For its tracker, by which a class is one object in a process, however many pickles have it.
from cloudpickle import cloudpickle as _cloudpickle

MULTIPROCESSING_MAIN: Final = "__mp_main__"
"""The main module's name in a process that multiprocessing has spawned; there, the module is ``__main__``, too."""
_MAIN: Final = "__main__"
_STRUCT_META: Final = type(msgspec.Struct)
_find_or_track: Final[Callable[[str, type], type]] = _cloudpickle._lookup_class_or_track
_MEMBER_PARTS: Final = ("_value_", "_name_", "__objclass__", "_sort_order_")  # the enumeration sets them itself
_DATA_TYPES: Final = (int, str, bytes, float, complex, tuple, frozenset)
_PROTOCOL: Final = 5
_made: Final[WeakSet[type]] = WeakSet()  # classes that came from pickles.  Any thread; single operations.
_unfinished: Final[WeakSet[type]] = WeakSet()  # of ``_made``, the classes that still lack attributes; threads as there
_keeps_classes: ContextVar[bool] = ContextVar("whether classes that are here already stay as they are", default=False)

T = TypeVar("T")
Reduction = tuple[Any, ...]
Replaced = dict[type, dict[str, tuple[Any, Any]]]
"""Attributes of a program's classes that reading has replaced: the former value and the one that was set, by name."""
_MISSING: Final = object()
_replaced: ContextVar[Replaced | None] = ContextVar(
    "where replaced attributes of a program's own classes are noted", default=None
)


def module_name_of(thing: Any) -> str | None:
    """The name of the module of a class or function; None if it has none, or another object in its place."""
    try:
        name = vars(type)["__module__"].__get__(thing) if issubclass(type(thing), type) else thing.__module__
    except Exception:  # noqa: BLE001 - a program's own attribute may raise anything
        return None
    return name if isinstance(name, str) else None


def is_run_as_program(module_name: str) -> bool:
    """Whether a module is a program that runs, which no other process can import by this name.

    Such a module is the main module, its copy in a process that multiprocessing has spawned, a module that runpy runs,
    or a module that executes a job while it is imported: an import would wait for the end of the job in this process,
    and execute the job again in another one.
    """
    if module_name == _MAIN or _is_being_imported(module_name):
        return True
    attributes = getattr(sys.modules.get(module_name), "__dict__", {})
    spec = attributes.get("__spec__")
    return isinstance(attributes.get("__file__"), str) and (
        spec is None or getattr(spec, "name", module_name) != module_name
    )


def _is_being_imported(module_name: str) -> bool:
    """Whether the import of a module, or of a package around it, has begun and not ended."""
    while module_name:
        # Look at no other attribute: a lazy module may raise.  Python's import system sets this mark.
        attributes = getattr(sys.modules.get(module_name), "__dict__", {})
        if getattr(attributes.get("__spec__"), "_initializing", False):
            return True
        module_name = module_name.rpartition(".")[0]
    return False


def is_sent_by_value(module_name: str) -> bool:
    """Whether the program has registered the module, or a package around it, with cloudpickle."""
    registered = cloudpickle.list_registry_pickle_by_value()
    return bool(registered) and any(module_name == name or module_name.startswith(name + ".") for name in registered)


def is_importable(thing: Any) -> bool:
    """Whether another process can import this class or function by its name.

    Called for each class in a record that has one by value.
    """
    try:
        module_name: Any = thing.__module__ if type(thing) is type else module_name_of(thing)
        module = sys.modules[module_name]  # of None, too, there is no module
        if functools.reduce(getattr, thing.__qualname__.split("."), module) is not thing or module_name == _MAIN:
            return False
        spec = module.__spec__
        may_be_program = spec is None or spec.name != module_name or _is_being_imported(module_name)
        is_program = may_be_program and is_run_as_program(module_name)
    except Exception:  # noqa: BLE001 - there is no such module, or an object of the program raises when it is asked
        return False
    return not (is_program or is_sent_by_value(module_name))


def send_programs_by_value(thing: Any) -> None:
    """Have cloudpickle send the module of ``thing`` by value if it is a program that was not started as the main
    module.
    """
    module_name = module_name_of(thing)
    if module_name is not None and module_name != _MAIN and is_run_as_program(module_name):
        module = sys.modules[module_name]
        if getattr(module, "__name__", None) == module_name:
            cloudpickle.register_pickle_by_value(module)


@contextlib.contextmanager
def value_in_block(variable: ContextVar[T], value: T) -> Iterator[None]:
    """Give a variable of this context another value in the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def classes_stay() -> contextlib.AbstractContextManager[None]:
    """Leave the classes of this process unchanged while pickles are read in the block: results are no newer than these
    classes.
    """
    return value_in_block(_keeps_classes, value=True)


def program_classes_change(replaced: Replaced) -> contextlib.AbstractContextManager[None]:
    """Let the reading of a class of the program set its attributes in the block; ``replaced`` takes the former ones,
    for ``put_back``.
    """
    return value_in_block(_replaced, replaced)


def put_back(replaced: Replaced) -> None:
    """Give classes their former attributes, but for those that the program has set anew, and empty ``replaced``."""
    while replaced:
        cls, attributes = replaced.popitem()
        for name, (former, value) in attributes.items():
            if vars(cls).get(name, _MISSING) is not value:
                continue
            if former is _MISSING:
                type.__delattr__(cls, name)
            else:
                _setter_of(cls)(cls, name, former)
        _restore_line(cls, {name: former for name, (former, _) in attributes.items()})


def reduce_class(cls: type, reduction: Reduction) -> Reduction:
    """The reduction from which ``cls`` is made again; ``reduction`` is cloudpickle's."""
    tracker_id, (attributes, _) = reduction[1][-2], reduction[2]
    skeleton: _Skeleton | _StructSkeleton | _EnumSkeleton
    members, made_already = {}, set()
    if issubclass(cls, enum.Enum):
        skeleton = _enum_skeleton(cls)
        members, made_already = _attributes_of_members(cls), set(cls.__members__)
    elif issubclass(type(cls), _STRUCT_META):
        skeleton, made_already = _struct_skeleton(cls), {"__slots__"}
    else:
        skeleton = _class_skeleton(cls)
    state = {
        name: value for name, value in attributes.items() if name not in made_already and not _is_slot_of(cls, value)
    }
    if isinstance(skeleton, _StructSkeleton):
        state["__annotations__"] = _types_of_fields(cls)
    return _make, (tracker_id, skeleton), (state, members), None, None, _set_attributes


class _Skeleton(NamedTuple):
    """A class without its attributes; ``hooks``: whether the ``__init_subclass__`` of its bases may run again."""

    metaclass: type
    name: str
    bases: tuple[type, ...]
    namespace: dict[str, Any]
    hooks: bool

    def make(self) -> type:
        metaclass = self.metaclass
        if self.hooks:
            # A hook of an importable class may need keywords, or attributes that come later.
            with contextlib.suppress(Exception):
                return _new(metaclass, self.name, self.bases, self.namespace)
        return _new_without_hook(metaclass, self.name, self.bases, self.namespace)


class _StructSkeleton(NamedTuple):
    """A struct of msgspec: its fields, with their defaults or factories of defaults, and its options."""

    metaclass: type
    name: str
    bases: tuple[type, ...]
    namespace: dict[str, Any]
    fields: tuple[str, ...]
    defaults: dict[str, Any]
    factories: dict[str, Any]
    options: dict[str, Any]

    def make(self) -> type:
        fields = {name: msgspec.field(default=value) for name, value in self.defaults.items()}
        fields |= {name: msgspec.field(default_factory=factory) for name, factory in self.factories.items()}
        # The types of the fields follow with the attributes: they may name the class itself.
        namespace = self.namespace | fields | {"__annotations__": dict.fromkeys(self.fields, Any)}
        return types.new_class(
            self.name, self.bases, {"metaclass": self.metaclass, **self.options}, lambda made: made.update(namespace)
        )


class _EnumSkeleton(NamedTuple):
    """An enumeration: the values of its members by their names, and, if its members are texts, numbers, ... as well,
    the arguments of which each member is made (``data``).
    """

    metaclass: Any
    name: str
    bases: tuple[type, ...]
    namespace: dict[str, Any]
    values: dict[str, Any]
    data_type: type
    data: dict[str, tuple[Any, ...]]
    boundary: Any

    def make(self) -> type:
        """The enumeration with all its members."""
        names = iter(self.values)

        def new(made: type, *_arguments: Any) -> Any:
            name = next(names)
            member: Any = self.data_type.__new__(made, *self.data[name])
            member._value_ = self.values[name]
            return member

        namespace: Any = enum.EnumType.__prepare__(self.name, self.bases)
        for name, value in {**self.namespace, "__new__": new, "__init__": _initialize_nothing}.items():
            namespace[name] = value
        for name, value in self.values.items():
            namespace[name] = enum.member(value)
        options = {} if self.boundary is None else {"boundary": self.boundary}
        made: type = enum.EnumType.__new__(self.metaclass, self.name, self.bases, namespace, **options)
        for name in ("__init__", "__new_member__"):
            if name in vars(made):
                type.__delattr__(made, name)
        return made


def _initialize_nothing(_member: Any, *_arguments: Any) -> None:
    """Stands in for the constructor of members, whose attributes follow."""


def _is_slot_of(cls: type, value: object) -> bool:
    return isinstance(value, types.MemberDescriptorType) and value.__objclass__ is cls


def _names_of(cls: type) -> dict[str, Any]:
    namespace = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    attributes = vars(cls)
    if "__orig_bases__" in attributes:
        namespace["__orig_bases__"] = attributes["__orig_bases__"]
    return namespace


def _class_skeleton(cls: type) -> _Skeleton:
    namespace, attributes = _names_of(cls), vars(cls)
    if isinstance(attributes.get("__dict__"), property):
        namespace["__dict__"] = attributes["__dict__"]
    elif "__slots__" in attributes:
        slots = [name for name, value in attributes.items() if _is_slot_of(cls, value)]
        namespace["__slots__"] = (*slots, *(name for name in ("__dict__", "__weakref__") if name in attributes))
    hook = next((base for base in cls.__mro__[1:] if "__init_subclass__" in vars(base)), object)
    # A TypedDict is a plain dict; only its original bases say that it is a TypedDict.
    bases = namespace["__orig_bases__"] if typing.is_typeddict(cls) else cls.__bases__
    return _Skeleton(type(cls), cls.__name__, bases, namespace, is_importable(hook))


def _struct_skeleton(cls: Any) -> _StructSkeleton:
    attributes, fields, config = vars(cls), cls.__struct_fields__, cls.__struct_config__
    inherited = {name for base in cls.__bases__ for name in getattr(base, "__struct_fields__", ())}
    annotations = attributes.get("__annotations__") or {}
    own = [name for name in fields if name not in inherited or name in annotations]
    namespace = _names_of(cls)
    if "__post_init__" in attributes:
        namespace["__post_init__"] = attributes["__post_init__"]  # msgspec asks for it once
    known = dict(zip(fields[len(fields) - len(cls.__struct_defaults__) :], cls.__struct_defaults__, strict=True))
    known = {name: value for name, value in known.items() if name in own and value is not msgspec.NODEFAULT}
    is_factory = {name: type(value).__name__ == "Factory" for name, value in known.items()}
    options = {name: getattr(config, name) for name in dir(config) if not name.startswith("_")}
    options = {name: value for name, value in options.items() if value is not None}
    encoded = dict(zip(fields, cls.__struct_encode_fields__, strict=True))
    options["rename"] = {name: encoded[name] for name in own}
    options["kw_only"] = not set(own) <= set(cls.__match_args__)
    return _StructSkeleton(
        type(cls),
        cls.__name__,
        cls.__bases__,
        namespace,
        tuple(own),
        {name: value for name, value in known.items() if not is_factory[name]},
        {name: value.factory for name, value in known.items() if is_factory[name]},
        options,
    )


def _types_of_fields(cls: Any) -> dict[str, Any]:
    """The annotations of a struct.

    Texts are evaluated, where they can be: msgspec would look for their names in the main module.
    """
    annotations = dict(cls.__annotations__)
    names = vars(sys.modules.get(cls.__module__, types))
    for field, annotation in annotations.items():
        if isinstance(annotation, str):
            with contextlib.suppress(Exception):  # a name that only type checkers see
                annotations[field] = eval(annotation, dict(names), dict(vars(cls)))  # noqa: S307 - the program's own text
    return annotations


def _enum_skeleton(cls: Any) -> _EnumSkeleton:
    members = cls.__members__
    plain = next((base for base in cls.__mro__ if base in _DATA_TYPES), None)
    data_type: type = object
    data: dict[str, tuple[Any, ...]] = dict.fromkeys(members, ())
    if plain is not None:
        data_type = plain
        data = {name: (str.__str__(member) if plain is str else plain(member),) for name, member in members.items()}
    elif is_importable(cls._member_type_) and cls._member_type_.__new__ is not object.__new__:
        data_type = cls._member_type_
        data = {name: _arguments_of(member.value, data_type) for name, member in members.items()}
    return _EnumSkeleton(
        type(cls),
        cls.__name__,
        cls.__bases__,
        _names_of(cls),
        {name: member.value for name, member in members.items()},
        data_type,
        data,
        getattr(cls, "_boundary_", None),
    )


def _arguments_of(value: Any, data_type: type) -> tuple[Any, ...]:
    """The arguments of which ``data_type``, a date for instance, makes a member of this value."""
    if type(value) is data_type:
        reduction = value.__reduce_ex__(_PROTOCOL)
        if isinstance(reduction, tuple) and reduction[0] is data_type:
            return tuple(reduction[1])
    return value if isinstance(value, tuple) else (value,)


def _attributes_of_members(cls: Any) -> dict[str, dict[str, Any]]:
    """The attributes that members have besides their values: their constructors may have set it."""
    found = {}
    for name, member in cls.__members__.items():
        attributes = {key: value for key, value in getattr(member, "__dict__", {}).items() if key not in _MEMBER_PARTS}
        if attributes:
            found[name] = attributes
    return found


def _make(tracker_id: str, skeleton: Any) -> type:
    """The class of this number, which this process may have; called by pickles."""
    found: type | None = _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID.get(tracker_id)
    if found is not None:
        return found
    made: type = skeleton.make()
    _made.add(made)
    _unfinished.add(made)
    return _find_or_track(tracker_id, made)  # another thread may have been first


def _set_attributes(cls: Any, state: tuple[dict[str, Any], dict[str, dict[str, Any]]]) -> None:
    """Set the attributes of a class that ``_make`` returned, and of its members; called by pickles."""
    if _keeps_classes.get() and cls not in _unfinished:
        return
    attributes, members = state
    if cls not in _made:
        replaced = _replaced.get()
        if replaced is None:
            return
        _note_former(cls, attributes, replaced.setdefault(cls, {}))
        members = {}  # the program's own members stay
    set_attribute = _setter_of(cls)
    for name, value in attributes.items():
        if name != "_abc_impl":
            set_attribute(cls, name, value)
    _restore_line(cls, attributes)
    for registered in attributes.get("_abc_impl", ()):
        cls.register(registered)
    for name, values in members.items():
        vars(cls.__members__[name]).update(values)
    _unfinished.discard(cls)


def _note_former(cls: type, attributes: Mapping[str, Any], replaced: dict[str, tuple[Any, Any]]) -> None:
    for name, value in attributes.items():
        former = vars(cls).get(name, _MISSING)
        if name in replaced and replaced[name][1] is former:  # another task has set it
            former = replaced[name][0]
        replaced[name] = (former, value)


def _setter_of(cls: type) -> Callable[[type, str, Any], None]:
    # A class of the program may forbid changes, and an enumeration does.
    is_open = is_importable(type(cls)) and not issubclass(type(cls), enum.EnumType)
    return setattr if is_open else type.__setattr__


def _restore_line(cls: type, attributes: Mapping[str, Any]) -> None:
    if attributes.get("__firstlineno__", _MISSING) is not _MISSING:  # setting __module__ deletes it
        type.__setattr__(cls, "__firstlineno__", attributes["__firstlineno__"])


def _new(metaclass: Any, name: str, bases: tuple[type, ...], namespace: Mapping[str, Any]) -> type:
    """A class whose metaclass runs if it is importable."""
    if is_importable(metaclass):
        made: type = metaclass(name, types.resolve_bases(bases), dict(namespace))
        return made
    base: Any = next(each for each in metaclass.__mro__ if is_importable(each))
    return base.__new__(metaclass, name, bases, dict(namespace))  # type: ignore[no-any-return]


class _Silent:
    """A base that runs no hook of the other bases, for the moment when a class is made."""

    def __init_subclass__(cls, **_: Any) -> None:
        """Run no hook."""


class _SilentWithoutDict:
    """``_Silent`` for classes whose objects have slots only."""

    __slots__ = ()

    def __init_subclass__(cls, **_: Any) -> None:
        """Run no hook."""


def _new_without_hook(metaclass: type, name: str, bases: tuple[type, ...], namespace: Mapping[str, Any]) -> type:
    for silent in (_Silent, _SilentWithoutDict):
        with contextlib.suppress(TypeError):  # the layouts differ
            made = _new(metaclass, name, (silent, *bases), namespace)
            type.__setattr__(made, "__bases__", bases)
            return made
    return _new(metaclass, name, bases, namespace)
