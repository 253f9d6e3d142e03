"""Pickles of users' functions and classes by value, whole: with the names of their files, and with what Python's own
tools made of them.

cloudpickle 3.1.3 writes ``<dynamic-code>`` in the place of a file's name, so that equal functions of different files
have equal pickles.  A user's traceback would then name no file and show no line.

Side:  pure.
Rules: cloudpickle's, and for what it does not know: classes: ``class_pickle``. what ``functools`` makes of a function
       of the main module (``cache``, ``lru_cache``, ``singledispatch``, ``cached_property``) goes by value; a cache
       arrives empty. names of the main module that are types (``NewType``, ``ParamSpec``, ``type X = ...``) go by
       value. the generators of random numbers that a process shares (of the functions of ``random`` and
       ``numpy.random``) go by name: each process has its own. what ``dataclasses`` marks the absence of a default with
       goes by name: fields of a class by value have the very object. a file of text is refused as other files are, even
       if it was opened for reading; cloudpickle would send its content.  The standard output and the standard error go
       by name.
"""

import dataclasses
import functools
import importlib
import io
import sys
import typing
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CodeType, FunctionType, ModuleType
from typing import Any, Final

import cloudpickle

from flowlet.errors import SerdeError
from flowlet.serde.pickles.class_pickle import is_importable, reduce_class, send_programs_by_value

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
# That the functions of these modules belong to.
_SHARED_GENERATORS: Final = (("random", "_inst"), ("numpy.random.mtrand", "_rand"))


def _code_of_file(filename: str, make: Callable[..., CodeType], arguments: tuple[Any, ...]) -> CodeType:
    """The code; called by pickles of flowlets that did not say which Python wrote it."""
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


# ---------------------------------------------------------------- what functools makes


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
    """The reducer of what goes by name if another process finds it under its name."""

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


# ---------------------------------------------------------------- what a module has once


def _reduce_marker(marker: Any) -> Any:
    name = _MARKERS[type(marker)]
    if marker is getattr(dataclasses, name):
        return name
    # Older flowlets wrote markers as objects: a class of their checkpoints has a marker of its own, which is no global.
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
        generators: the generators of random numbers that are in the pickle with their states: all copies give the same
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
        """How to take an object apart; NotImplemented: as pickle does it."""
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
        self.pieces.append(bytes(piece))  # of bytes, this is the same object
        return len(self.pieces[-1])


def _types_of(module: str, *names: str) -> frozenset[type]:
    """Classes of a module that the program has imported: if it has not, there are no objects of them."""
    attributes = getattr(sys.modules.get(module), "__dict__", {})
    return frozenset(each for name in names if isinstance(each := attributes.get(name), type))


def dumps(value: object, protocol: int | None = None) -> bytes:
    """The pickle of ``value``.  Raises whatever pickling raises."""
    file = io.BytesIO()
    ProgramPickler(file, protocol).dump(value)
    return file.getvalue()
