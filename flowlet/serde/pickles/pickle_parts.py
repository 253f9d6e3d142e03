"""Names the part of a program's object that cannot be pickled, or that makes it large: the variable, and the function
that refers to it.

Side:   pure.
Rules:  a part is what a pickle of the object has in it: globals, closure, defaults and attributes of a function by
        value, attributes of a class by value or of an object, items of containers.  Objects of installed packages and
        of Python are not looked into, but for containers.
Absent: speed.  Each part is pickled again, and only when something is wrong.
"""

import collections
import dataclasses
import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from flowlet.serde.pickles.class_pickle import is_importable, module_name_of
from flowlet.serde.pickles.program_pickle import PickleWriter, ProgramPickler
from netstack.late import dataclass

_PROTOCOL: Final = 5
_PLACE_OF_STATE: Final = 2  # in a reduction
_MAX_DEPTH: Final = 50
_MAX_ITEMS: Final = 10_000  # of one container
_SHOWN_KEY_CHARS: Final = 30
_LRU_CACHE: Final = type(functools.lru_cache(len))
_PLAIN: Final = (str, int, float, bytes, bool, type(None))  # pickle takes them itself
_OURS: Final = ("flowlet", "netstack")


@dataclass(frozen=True, slots=True)
class _Part:
    """``suffix`` follows the name of the variable that its owner is in; without one the part is
    ``name``, at ``place``.
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
    """Which part of ``value``, which is called ``name``, cannot be pickled, and why; ``error`` is what pickling all of
    it raised.
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
    """Go from a part to a part of it as long as there is one that ``is_wanted``; parts of ``skipped`` types are not
    pickled.
    """
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
    """The place of each of the ``wanted`` objects is in ``value``."""
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
    """The variable that leads to a part, with what of it, and where the variable is."""

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
            yield _Part(attribute)  # how we keep it is no business of the user's
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
