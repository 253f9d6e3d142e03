"""Pickles of users' functions and classes by value, whole: with the names of their files, and with the objects that
Python's own tools made of them.

It also names the part of a program's object that cannot be pickled, or that makes it large: the variable, and the
function that refers to it.

cloudpickle 3.1.3 writes ``<dynamic-code>`` in the place of a file's name, so that equal functions of different files
have equal pickles.  A user's traceback would then name no file and show no line.

Side:   pure.
Rules:  cloudpickle's, and more for objects that it does not know.  Classes: see ``class_pickle``.  An object that
        ``functools`` makes of a function of the main module (``cache``, ``lru_cache``, ``singledispatch``,
        ``cached_property``) goes by value; a cache arrives empty.  Names of the main module that are types
        (``NewType``, ``ParamSpec``, ``type X = ...``) go by value.  The generators of random numbers that a process
        shares (of the functions of ``random`` and ``numpy.random``) go by name: each process has its own.  The markers
        with which ``dataclasses`` marks a missing default go by name, so fields of a class by value have the reader's
        own marker.  A file of text is refused as other files are, even if it was opened for reading; cloudpickle would
        send its content.  The standard output and the standard error go by name.  The parts of an object are those in
        its pickle: globals, closure, defaults and attributes of a function by value, attributes of a class by value or
        of an object, items of containers.  Objects of installed packages and of Python are not looked into, but for
        containers.
Absent: speed, where a part is named: each part is pickled again, but only after a failure or for a large object.
"""

import collections
import dataclasses
import functools
import importlib
import io
import sys
import types
import typing
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import cloudpickle

from flowlet.errors import SerdeError
from flowlet.serde.pickles.class_pickle import is_importable, module_name_of, reduce_class, send_programs_by_value
from netstack.late import dataclass

_Reduction = tuple[Callable[..., Any], tuple[Any, ...]]
_reduce_code: Callable[[CodeType], _Reduction] = cloudpickle.Pickler.dispatch_table[CodeType]
_reduce_module: Callable[[ModuleType], _Reduction] = cloudpickle.Pickler.dispatch_table[ModuleType]
_reduce_standard_output: Callable[[io.TextIOWrapper], _Reduction] = cloudpickle.Pickler.dispatch_table[io.TextIOWrapper]
_LRU_CACHE: Final = type(functools.lru_cache(len))
_DISPATCHING: Final = functools.singledispatch(len).__code__  # type: ignore[attr-defined]  # it is a function
_MAIN: Final = "__main__"
_PYTHON: Final = sys.version_info[:2]  # bytecode is of one minor version
_PARTS_BY_VALUE: Final = 6  # of cloudpickle's reduction of a class by value
_MARKERS: Final = {type(getattr(dataclasses, name)): name for name in ("MISSING", "KW_ONLY", "_HAS_DEFAULT_FACTORY")}
# The module and name of each generator whose methods are the functions of a module.
_SHARED_GENERATORS: Final = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    """The code; called by pickles of former versions of flowlet, which do not name the Python that wrote it."""
    return make(*arguments).replace(co_filename=filename)


def _code_of_python(
    version: tuple[int, int], filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]
) -> CodeType:
    """The code; called by pickles.  Raises SerdeError: it was written by another minor version of Python."""
    if version != _PYTHON:
        written, here = (".".join(map(str, each)) for each in (version, _PYTHON))
        raise SerdeError(
            f"a function of {filename} is bytecode of Python {written}, which Python {here} cannot run: use Python "
            f"{written} here, or put what is defined in the main program into a module that both import"
        )
    return _code_of_file(filename, make, arguments)


def _reduce_code_with_file(code: CodeType) -> _Reduction:
    make, arguments = _reduce_code(code)
    return _code_of_python, (_PYTHON, code.co_filename, make, arguments)


def _main_module() -> ModuleType:
    return sys.modules[_MAIN]


def _reduce_module_or_main(module: ModuleType) -> _Reduction:
    return (_main_module, ()) if module is sys.modules.get(_MAIN) else _reduce_module(module)


def _reduce_file(file: io.TextIOWrapper) -> _Reduction:
    if file is sys.stdout or file is sys.stderr:
        return _reduce_standard_output(file)
    raise TypeError("cannot pickle '_io.TextIOWrapper' object")  # in Python's own words for other files


# ---------------------------------------------------------------- objects that functools makes


def _reduce_cache(cache: Any) -> Any:
    if is_importable(cache):
        return cache.__qualname__
    parameters = cache.cache_parameters()
    attributes = {name: value for name, value in vars(cache).items() if name != "cache_parameters"}
    return _make_cache, (cache.__wrapped__, parameters["maxsize"], parameters["typed"]), attributes


def _make_cache(function: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:  # noqa: FBT001 - called by pickles
    return functools.lru_cache(maxsize, typed)(function)


def _reduce_dispatching(function: Any) -> Any:
    attributes = {
        name: value
        for name, value in vars(function).items()
        if name not in ("registry", "dispatch", "register", "_clear_cache")
    }
    return (
        _make_dispatching,
        (),
        (dict(function.registry), attributes, function.__qualname__),
        None,
        None,
        _fill_dispatching,
    )


def _make_dispatching() -> Any:
    return functools.singledispatch(lambda *_: None)


def _fill_dispatching(dispatching: Any, state: tuple[Mapping[type, Callable[..., Any]], dict[str, Any], str]) -> None:
    registry, attributes, qualname = state
    functools.update_wrapper(dispatching, registry[object])
    for cls, function in registry.items():
        dispatching.register(cls, function)
    vars(dispatching).update(attributes)
    dispatching.__qualname__ = qualname


def _reduce_descriptor(descriptor: Any) -> Any:
    # Python 3.11 keeps a lock in a cached_property, Python 3.13 weak references in a singledispatchmethod.
    state = {name: value for name, value in vars(descriptor).items() if name not in ("func", "lock", "_method_cache")}
    return type(descriptor), (descriptor.func,), state


# ---------------------------------------------------------------- names that are types


def _by_name_or(reduce: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A reducer that names an object if another process finds it under its name, and else calls ``reduce``."""

    def reduced(each: Any) -> Any:
        module_name = getattr(each, "__module__", None)
        module = sys.modules.get(module_name) if isinstance(module_name, str) else None
        is_found = module is not None and module_name != _MAIN and getattr(module, each.__name__, None) is each
        return each.__name__ if is_found else reduce(each)

    return reduced


@functools.cache
def _make_param_spec(name: str) -> Any:
    return typing.ParamSpec(name)


@functools.cache
def _make_type_var_tuple(name: str) -> Any:
    return typing.TypeVarTuple(name)


def _make_type_alias(name: str, value: Any, type_params: tuple[Any, ...]) -> Any:
    return typing.TypeAliasType(name, value, type_params=type_params)  # type: ignore[attr-defined, unused-ignore]  # Python 3.12


# ---------------------------------------------------------------- objects that a module has once


def _reduce_marker(marker: Any) -> Any:
    name = _MARKERS[type(marker)]
    if marker is getattr(dataclasses, name):
        return name
    # Older versions of flowlet wrote markers as objects: a class from their checkpoints has its own marker, no global.
    return _find_shared, ("dataclasses", name)


def _find_shared(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


_REDUCERS: Final[dict[Any, Callable[[Any], Any]]] = {
    CodeType: _reduce_code_with_file,
    ModuleType: _reduce_module_or_main,
    io.TextIOWrapper: _reduce_file,
    _LRU_CACHE: _reduce_cache,
    functools.cached_property: _reduce_descriptor,
    functools.singledispatchmethod: _reduce_descriptor,
    typing.NewType: _by_name_or(lambda each: (typing.NewType, (each.__name__, each.__supertype__), vars(each))),
    typing.ParamSpec: _by_name_or(lambda each: (_make_param_spec, (each.__name__,))),
    typing.TypeVarTuple: _by_name_or(lambda each: (_make_type_var_tuple, (each.__name__,))),
}
_REDUCERS.update(dict.fromkeys(_MARKERS, _reduce_marker))
if sys.version_info >= (3, 12):
    _REDUCERS[typing.TypeAliasType] = _by_name_or(
        lambda alias: (_make_type_alias, (alias.__name__, alias.__value__, alias.__type_params__))
    )


class ProgramPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no types
    """cloudpickle's pickler, for whole programs.

    Attributes:
        generators: the generators of random numbers that are in the pickle with their states: all copies give equal
            numbers.
    """

    dispatch_table = ChainMap(_REDUCERS, cloudpickle.Pickler.dispatch_table)

    def __init__(
        self, file: Any, protocol: int | None = None, buffer_callback: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(file, protocol, buffer_callback)
        self.generators: list[Any] = []
        self._generator_types = _types_of("random", "Random") | _types_of("numpy.random", "Generator", "RandomState")
        self._stateless_types = _types_of("random", "SystemRandom")

    def reducer_override(self, obj: Any) -> Any:
        """The reduction of an object; NotImplemented: pickle's own."""
        cls = type(obj)
        if issubclass(cls, type):
            send_programs_by_value(obj)
            reduction = super().reducer_override(obj)
            is_by_value = isinstance(reduction, tuple) and len(reduction) == _PARTS_BY_VALUE
            return reduce_class(obj, reduction) if is_by_value else reduction
        if cls is FunctionType:
            if obj.__code__ is _DISPATCHING and not is_importable(obj):
                return _reduce_dispatching(obj)
            send_programs_by_value(obj)
        elif cls in self._generator_types:
            for module, name in _SHARED_GENERATORS:
                if obj is getattr(sys.modules.get(module), name, None):
                    return _find_shared, (module, name)
            self.generators.append(obj)
        elif cls in self._stateless_types:
            return cls, ()
        return super().reducer_override(obj)


class PickleWriter:
    """A file that collects a pickle."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        """The pickle, in order: frames, and large values by themselves."""

    def write(self, piece: Any) -> int:
        """Keep a frame, or one large value."""
        self.pieces.append(bytes(piece))  # no copy if it is bytes
        return len(self.pieces[-1])


def _types_of(module: str, *names: str) -> frozenset[type]:
    """Classes of a module, if the program has imported it; else none, for then there are no objects of them."""
    attributes = getattr(sys.modules.get(module), "__dict__", {})
    return frozenset(each for name in names if isinstance(each := attributes.get(name), type))


def dumps(value: object, protocol: int | None = None) -> bytes:
    """The pickle of ``value``.  Raises whatever pickling raises."""
    file = io.BytesIO()
    ProgramPickler(file, protocol).dump(value)
    return file.getvalue()


_PROTOCOL: Final = 5
_PLACE_OF_STATE: Final = 2  # in a reduction
_MAX_DEPTH: Final = 50
_MAX_ITEMS: Final = 10_000  # of one container
_SHOWN_KEY_CHARS: Final = 30
_PLAIN: Final = (str, int, float, bytes, bool, type(None))  # pickle takes them itself
_OURS: Final = ("flowlet", "netstack")


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of an object.

    ``suffix`` follows the name of the variable that has the object; without a suffix, or such a variable, the part is
    called ``name``, at ``place``.
    """

    value: Any
    suffix: str = ""
    name: str = ""
    place: str = ""


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A part of an object.

    Attributes:
        where: such as "`lock`, in the closure of `f`"; empty: it is the object itself.
        value: the part.
        num_bytes: the size of its pickle; 0: it cannot be pickled.
        error: why it cannot be pickled.
    """

    where: str
    value: Any
    num_bytes: int = 0
    error: Exception | None = None

    def __str__(self) -> str:
        kind = type(self.value)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return f"{self.where or 'it'} ({name})"


def describe_unpicklable(value: object, error: Exception, name: str = "") -> str:
    """Name the part of ``value`` that cannot be pickled, and the reason.

    ``error``: pickling all of ``value`` raised it.  ``name``: of ``value``.
    """
    found = FoundPart("", value, 0, _pickle(value)[1])
    if found.error is not None:
        found = _innermost(found, _Trail(name), lambda _owner, part: part.error is not None, skipped=_PLAIN)
    if found.error is None or not found.where:
        return f"{type(error).__name__}: {error}"
    return f"{found}: {type(found.error).__name__}: {found.error}"


def find_largest(value: object) -> FoundPart:
    """The innermost part that has more than half of the bytes of ``value`` in a pickle."""
    whole = FoundPart("", value, _pickle(value)[0])
    return _innermost(whole, _Trail(), lambda owner, part: 2 * part.num_bytes > owner.num_bytes)


def _innermost(
    found: FoundPart,
    trail: "_Trail",
    is_wanted: Callable[[FoundPart, FoundPart], bool],
    *,
    skipped: tuple[type, ...] = (),
) -> FoundPart:
    """Go from a part to one of its own parts while one ``is_wanted``; parts of ``skipped`` types are not pickled."""
    seen = {id(found.value)}
    for _ in range(_MAX_DEPTH):
        for part in _parts_of(found.value):
            if id(part.value) in seen or isinstance(part.value, skipped):
                continue
            seen.add(id(part.value))
            step = trail.to(part)
            candidate = FoundPart(str(step), part.value, *_pickle(part.value))
            if is_wanted(found, candidate):
                trail = step
                found = candidate
                break
        else:
            break
    return found


def find_objects(value: object, wanted: Sequence[object]) -> list[FoundPart]:
    """The place in ``value`` of each of the ``wanted`` objects."""
    found: dict[int, FoundPart] = {}
    ids = {id(each) for each in wanted}
    waiting, seen = collections.deque([(value, _Trail())]), {id(value)}
    while waiting and len(found) < len(ids):
        owner, trail = waiting.popleft()
        for part in _parts_of(owner):
            if id(part.value) in seen or isinstance(part.value, _PLAIN):
                continue
            seen.add(id(part.value))
            step = trail.to(part)
            if id(part.value) in ids:
                found[id(part.value)] = FoundPart(str(step), part.value)
            waiting.append((part.value, step))
    return [found.get(id(each), FoundPart("", each)) for each in wanted]


@dataclass(frozen=True, slots=True)
class _Trail:
    """The way to a part: the variable, with the attribute or item of it, and the place of the variable."""

    name: str = ""
    place: str = ""

    def to(self, part: _Part) -> "_Trail":
        if part.suffix and self.name:
            return _Trail(self.name + part.suffix, self.place)
        return _Trail(part.name, part.place) if part.name else self

    def __str__(self) -> str:
        return ", ".join(filter(None, (f"`{self.name}`" if self.name else "", self.place)))


def _pickle(value: object) -> tuple[int, Exception | None]:
    file = PickleWriter()
    try:
        ProgramPickler(file, _PROTOCOL).dump(value)
    except Exception as error:  # noqa: BLE001 - the caller asks for it
        return 0, error
    return sum(map(len, file.pieces)), None


def _parts_of(value: Any) -> Iterator[_Part]:
    kind = type(value)
    if kind is types.FunctionType:
        if not is_importable(value):
            yield from _parts_of_function(value)
    elif issubclass(kind, type):
        if not is_importable(value):
            yield from _parts_of_class(value)
    elif kind is types.MethodType:
        yield _Part(value.__self__)
        yield _Part(value.__func__)
    elif kind is types.BuiltinMethodType:
        if not isinstance(value.__self__, types.ModuleType):
            yield _Part(value.__self__, suffix=".__self__")
    elif isinstance(value, functools.partial):
        yield _Part(value.func)
        arguments = {f"args[{place}]": each for place, each in enumerate(value.args)} | value.keywords
        yield from (
            _Part(each, f".{name}", name, "an argument of a `functools.partial`") for name, each in arguments.items()
        )
    elif isinstance(value, property):
        yield from (_Part(each) for each in (value.fget, value.fset, value.fdel) if each is not None)
    elif isinstance(value, staticmethod | classmethod):
        yield _Part(value.__func__)
    elif kind is _LRU_CACHE:
        yield _Part(value.__wrapped__)
    elif issubclass(kind, Mapping | types.MappingProxyType):
        yield from _parts_of_mapping(value)
    elif issubclass(kind, tuple | list | set | frozenset | collections.deque):
        yield from _parts_of_collection(value)
    if _is_looked_into(kind):
        yield from _parts_of_object(value)


def _parts_of_function(function: types.FunctionType) -> Iterator[_Part]:
    name = _short(function)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield _Part(cell.cell_contents, "", variable, f"in the closure of `{name}`")
        except ValueError:  # it has no value yet
            continue
    for variable, value in _globals_sent_with(function).items():
        yield _Part(value, "", variable, f"a global of `{name}`")
    code = function.__code__
    positional = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    of_positional = zip(positional[len(positional) - len(defaults) :], defaults, strict=True)
    for variable, default in (dict(of_positional) | (function.__kwdefaults__ or {})).items():
        yield _Part(default, "", variable, f"a default argument of `{name}`")
    for variable, attribute in vars(function).items():
        yield _Part(attribute, "", f"{name}.{variable}", "an attribute of the function")
    for variable, annotation in function.__annotations__.items():
        yield _Part(annotation, "", variable, f"an annotation of `{name}`")


def _globals_sent_with(function: types.FunctionType) -> dict[str, Any]:
    """The globals that travel with a function, by name, as the pickler itself says."""
    reduction = ProgramPickler(PickleWriter(), _PROTOCOL).reducer_override(function)
    match reduction:
        case (_, _, (_, {"__globals__": dict(found)}), *_):
            return found
        case _:
            return {}


def _parts_of_class(cls: type) -> Iterator[_Part]:
    for base in (*cls.__bases__, type(cls)):
        yield _Part(base)
    for name, attribute in list(vars(cls).items()):
        if not isinstance(attribute, types.MemberDescriptorType | types.GetSetDescriptorType):
            yield _Part(attribute, "", f"{_short(cls)}.{name}", "an attribute of the class")


def _parts_of_mapping(value: Mapping[Any, Any]) -> Iterator[_Part]:
    for _, (key, item) in zip(range(_MAX_ITEMS), list(value.items()), strict=False):
        shown = repr(key) if isinstance(key, str | int | bytes | bool | None) else "..."
        yield _Part(item, suffix=f"[{shown if len(shown) <= _SHOWN_KEY_CHARS else '...'}]")
        yield _Part(key, suffix=".keys()")


def _parts_of_collection(value: Any) -> Iterator[_Part]:
    fields = getattr(type(value), "_fields", ())
    is_ordered = isinstance(value, tuple | list)
    for place, item in zip(range(_MAX_ITEMS), list(value), strict=False):
        if place < len(fields):
            yield _Part(item, suffix=f".{fields[place]}")
        else:
            yield _Part(item, suffix=f"[{place if is_ordered else '...'}]")


def _is_looked_into(kind: type) -> bool:
    module_name = module_name_of(kind) or ""
    top = module_name.partition(".")[0]
    if top in _OURS or not is_importable(kind):
        return True
    if top == "builtins" or top in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return isinstance(file, str) and "site-packages" not in file and "dist-packages" not in file


def _parts_of_object(value: Any) -> Iterator[_Part]:
    kind = type(value)
    is_ours = (module_name_of(kind) or "").partition(".")[0] in _OURS
    for name, attribute in _attributes_of(value).items():
        if is_ours:
            yield _Part(attribute)  # unnamed: the attributes of our own objects mean nothing to users
        else:
            yield _Part(attribute, f".{name}", name, f"an attribute of a `{_short(kind)}`")
    yield _Part(kind)


def _attributes_of(value: Any) -> dict[str, Any]:
    """The parts that a pickle of the object has in it, by name where it has one."""
    try:
        reduction = value.__reduce_ex__(_PROTOCOL)
    except Exception:  # noqa: BLE001 - a program's own
        return {}
    if not isinstance(reduction, tuple):
        return {}
    arguments, state = reduction[1], reduction[2] if len(reduction) > _PLACE_OF_STATE else None
    found: dict[str, Any] = {}
    for each in state if isinstance(state, tuple) else (state,):
        if isinstance(each, dict):
            found |= {str(name): attribute for name, attribute in each.items()}
        elif isinstance(each, list) and dataclasses.is_dataclass(value):
            found |= zip((field.name for field in dataclasses.fields(value)), each, strict=False)
        elif each is not None:
            found["__getstate__()"] = each
    return found | {
        f"__reduce__()[1][{place}]": each for place, each in enumerate(arguments) if not isinstance(each, type)
    }


def _short(thing: Any) -> str:
    name: str = thing.__qualname__
    return name.rpartition("<locals>.")[2]
