"""Quick imports for our modules: ``dataclass`` whose methods are made late, and names and numpy that are imported late.

Side:       pure.
Invariants: a class has the fields, parameters, methods and pickles that ``dataclasses.dataclass`` would give it.  Each
            method is made at its first call.  A package has the names, and the ``dir()``, that it would have with plain
            imports.
Rules:      ``dataclass`` is for our own classes; late names are for packages that no program needs as a whole; the late
            ``numpy`` is for modules that each program loads, and may not be used while such a module is imported.
            The stubs of these packages (``__init__.pyi``) are data of the program, which reads them as it runs: each
            wheel, archive or frozen program must ship them with it.
Figure:     the standard library compiles up to six methods per class, 0.8 ms on Python 3.11.  A local job imports 390
            classes of ours and calls a quarter of them: 0.3 s of CPU, of the 1.4 s to its first result
            (``bench/startup.py``).  Late: 0.1 ms per class.
Delete it:  when the oldest supported Python makes a class in 0.1 ms.
"""

import dataclasses
import functools
import gc
import importlib.util
import os
import re
import reprlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar

K = TypeVar("K")
_COMPARISONS: Final = {"__eq__": "==", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">="}
_OURS: Final = frozenset({"flowlet", "netstack"})
_NAME_IN_STUB: Final = re.compile(r"^from (\S+) import \(?\s*(\w+) as \w+", re.MULTILINE)
_FACTORY: Final = object()  # no argument was given: the field's factory makes the value

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass

    import numpy as numpy
else:

    def dataclass(cls: type | None = None, /, **parameters: bool) -> Any:
        """Make the class with fields for its annotations; ``parameters`` are those of ``dataclasses.dataclass``."""
        return (lambda each: _with_fields(each, parameters)) if cls is None else _with_fields(cls, parameters)


class _LateModule(ModuleType):
    """A third-party module that is imported when an attribute of it is first asked for.

    Then each name that stood for this object in one of our modules is set to the real module, so that hot paths pay
    nothing.
    """

    def __getattr__(self, attribute: str) -> Any:
        real = importlib.import_module(self.__name__)
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in _OURS:
                for key, value in list(vars(module).items()):
                    if value is self:
                        setattr(module, key, real)
        return getattr(real, attribute)


if not TYPE_CHECKING:
    numpy = _LateModule("numpy")  # for modules in which a job of plain records runs no line that needs numpy


def is_instance_of_late(value: object, module: str, name: str) -> bool:
    """Whether a value is an instance of a class whose module may not be loaded; until it is, no instance exists."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def import_many(module: str) -> ModuleType:
    """Import a module that imports hundreds of others, without a search for garbage among the hundred thousand objects
    that they make.

    The search would take a sixth of the time, and find nothing.  When all objects are there, they are marked
    as old at once: otherwise the collector would soon look at all objects of the program, because there are so many new
    ones.  No garbage of the program escapes: an old object is collected, too.
    """
    if module in sys.modules or not gc.isenabled():
        return importlib.import_module(module)
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if gc.get_freeze_count() == 0:  # else the program has frozen objects, which are not to be thawed
            gc.freeze()
            gc.unfreeze()
        gc.enable()


def by_name(names: Mapping[K, str]) -> dict[str, K]:
    """Return the key of each name; ``names`` holds, by key, texts of names with spaces between."""
    return {name: key for key, texts in names.items() for name in texts.split()}


def make_constructors(places: Mapping[str, str]) -> None:
    """Make the ``__init__`` of classes now, so that the processes that are forked from this one share them.

    ``places``: the modules, which are loaded, and the names of classes in them with spaces between.  Raises
        AttributeError: one is missing.
    """
    for name, module in by_name(places).items():
        make = getattr(vars(getattr(sys.modules[module], name))["__init__"], "make", None)
        if make is not None:  # else it is made
            make()


def late_names(package: str, otherwise: Callable[[str], Any] | None = None) -> tuple[Any, Any, list[str]]:
    """Make the ``__getattr__``, ``__dir__`` and ``__all__`` of a package: each name is imported when it is first asked
    for, and so is each module in it.

    The names, and where they are, stand in the stub beside it, ``__init__.pyi``, which type checkers read, too.

    Args:
        package: its ``__name__``.
        otherwise: the ``__getattr__`` for any other name.
    """
    module: Any = sys.modules[package]
    stub = module.__spec__.loader.get_data(os.path.join(module.__path__[0], "__init__.pyi")).decode()
    found = {name: place for place, name in _NAME_IN_STUB.findall(stub)}

    def get(name: str) -> Any:
        if name in found:
            value = getattr(importlib.import_module(found[name]), name)
            setattr(sys.modules[package], name, value)
            return value
        if _has_module(package, name):  # plain imports of the names would have imported it
            return importlib.import_module(f"{package}.{name}")
        if otherwise is not None:
            return otherwise(name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def names_of_package() -> list[str]:
        return sorted({*vars(sys.modules[package]), *found})

    return get, names_of_package, sorted(found)


def _has_module(package: str, name: str) -> bool:
    if name.startswith("_"):
        return False
    try:
        return importlib.util.find_spec(f"{package}.{name}") is not None
    except ModuleNotFoundError:  # a hook for modules that other systems have explains what to use instead
        return False


def _with_fields(cls: type, parameters: dict[str, bool]) -> Any:
    is_frozen, has_eq = parameters.get("frozen", False), parameters.get("eq", True)
    late = [name for name in _names_of_methods(parameters) if name not in vars(cls)]
    has_hash = vars(cls).get("__hash__") is not None or ("__hash__" in vars(cls) and "__eq__" not in vars(cls))
    # The standard library checks that frozen classes have frozen bases; it makes two more methods for that, so it is
    # asked if there is one.
    freezes = is_frozen and not any(dataclasses.is_dataclass(base) for base in cls.__mro__[1:])
    asked = parameters | {"init": False, "repr": False, "eq": False, "order": False, "unsafe_hash": False}
    made: Any = dataclasses.dataclass(cls, **asked | {"frozen": is_frozen and not freezes})
    made.__dataclass_params__ = _noted_parameters(frozenset(parameters.items()))
    if parameters.get("unsafe_hash") or (has_eq and is_frozen and not has_hash):
        late.append("__hash__")
    elif has_eq and not has_hash:
        made.__hash__ = None
    if freezes:
        _freeze(made, has_slots=parameters.get("slots", False))
    for name in late:
        setattr(made, name, _stand_in(made, name, parameters))
    if "__init__" in late and "__signature__" not in vars(made):
        made.__signature__ = _LateSignature()
    return made


def _names_of_methods(parameters: dict[str, bool]) -> list[str]:
    wanted = [name for name in ("init", "repr", "eq") if parameters.get(name, True)]
    return [f"__{name}__" for name in wanted] + [*_COMPARISONS][1:] * parameters.get("order", False)


@functools.cache
def _noted_parameters(parameters: frozenset[tuple[str, bool]]) -> Any:
    """Return the flags that the standard library notes in a class that gets these parameters."""
    make: Any = dataclasses.make_dataclass  # type checkers do not see that only its flags are given
    return make("Empty", (), **dict(parameters)).__dataclass_params__


def _stand_in(cls: Any, name: str, parameters: dict[str, bool]) -> Callable[..., Any]:
    """Make the function in the place of a method; its first call makes the method."""
    make = functools.partial(_make, cls, name, parameters)

    def first_call(*arguments: Any, **named: Any) -> Any:
        return make()(*arguments, **named)

    first_call.__dict__["make"] = make
    first_call.__name__ = name
    first_call.__qualname__ = f"{cls.__qualname__}.{name}"
    first_call.__module__ = cls.__module__
    return first_call


class _LateSignature:
    """The signature that ``inspect.signature`` finds in a class, and in classes derived from it: that of ``__init__``,
    which is made at that moment.
    """

    def __get__(self, instance: object, owner: type) -> Any:
        import inspect  # here: it takes longer to import than all of this module

        init = owner.__init__  # type: ignore[misc]
        found = inspect.signature(getattr(init, "make", lambda: init)())
        return found.replace(parameters=list(found.parameters.values())[1:])


def _make(cls: Any, name: str, parameters: dict[str, bool]) -> Any:
    """Make one method for the fields of a class; a second call, on another thread too, does no harm."""
    every = [each for each in cls.__dataclass_fields__.values() if not _is_of_kind(each, "_FIELD_CLASSVAR")]
    fields = [each for each in every if not _is_of_kind(each, "_FIELD_INITVAR")]
    scope: dict[str, Any] = {"_set": object.__setattr__, "_FACTORY": _FACTORY}
    if name == "__init__":
        text = _text_of_init(cls, every, scope, parameters)
    elif name == "__repr__":
        shown = ", ".join(f"{each.name}={{self.{each.name}!r}}" for each in fields if each.repr)
        text = f"def __repr__(self):\n return f'{{self.__class__.__qualname__}}({shown})'\n"
    elif name == "__hash__":
        hashed = [each.name for each in fields if (each.compare if each.hash is None else each.hash)]
        text = f"def __hash__(self):\n return hash({_tuple_of('self', hashed)})\n"
    else:
        compared = [each.name for each in fields if each.compare]
        text = f"def {name}(self, other):\n if other.__class__ is self.__class__:\n  "
        text += (
            f"return {_tuple_of('self', compared)} {_COMPARISONS[name]} {_tuple_of('other', compared)}\n return "
            "NotImplemented\n"
        )
    # A code object: Python forgets that Ctrl-C has ended a program where a text is executed after it.
    exec(compile(text, "<string>", "exec"), scope)  # noqa: S102 - made of the names of fields
    method = scope[name]
    method.__qualname__ = f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    if name == "__init__":
        method.__annotations__ = {each.name: each.type for each in every if each.init} | {"return": None}
    if name == "__repr__":
        method = reprlib.recursive_repr()(method)
    setattr(cls, name, method)
    return method


def _text_of_init(cls: Any, fields: list[Any], scope: dict[str, Any], parameters: dict[str, bool]) -> str:
    positional = ["self"]
    named: list[str] = []
    lines: list[str] = []
    passed: list[str] = []
    for each in fields:
        name, default = each.name, ""
        value = name
        if each.default is not dataclasses.MISSING:
            scope[f"_default_{name}"], default = each.default, f"=_default_{name}"
        elif each.default_factory is not dataclasses.MISSING:
            scope[f"_factory_{name}"], default = each.default_factory, "=_FACTORY"
            value = f"_factory_{name}() if {name} is _FACTORY else {name}" if each.init else f"_factory_{name}()"
        if each.init:
            (named if each.kw_only else positional).append(name + default)
        elif each.default is not dataclasses.MISSING:
            value = f"_default_{name}"
        if _is_of_kind(each, "_FIELD_INITVAR"):
            passed.append(name)
        # Else the class has the value, or nobody.
        elif each.init or (value != name and (parameters.get("slots") or not value.startswith("_default_"))):
            lines.append(f"_set(self, {name!r}, {value})" if parameters.get("frozen") else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        lines.append(f"self.__post_init__({', '.join(passed)})")
    taken = [*positional, *(["*", *named] if named else [])]
    return f"def __init__({', '.join(taken)}):\n " + "\n ".join(lines or ["pass"]) + "\n"


def _tuple_of(owner: str, names: Iterable[str]) -> str:
    return f"({''.join(f'{owner}.{name},' for name in names)})"


def _is_of_kind(field: Any, kind: str) -> bool:
    return field._field_type is getattr(dataclasses, kind)


def _freeze(cls: Any, *, has_slots: bool) -> None:
    names = frozenset(each.name for each in dataclasses.fields(cls))

    def set_attribute(self: object, name: str, value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: object, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    for method, name in ((set_attribute, "__setattr__"), (delete_attribute, "__delattr__")):
        method.__qualname__, method.__name__ = f"{cls.__qualname__}.{name}", name
        setattr(cls, name, method)
    if not has_slots:
        return
    for name, state in (("__getstate__", _state_of), ("__setstate__", _set_state)):
        if name not in vars(cls):
            setattr(cls, name, state)


def _state_of(instance: Any) -> list[Any]:
    return [getattr(instance, each.name) for each in dataclasses.fields(instance)]


def _set_state(instance: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(instance), state, strict=False):
        object.__setattr__(instance, field.name, value)
