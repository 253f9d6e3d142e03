"""The public names of a package that has PyFlink's modules, with their parameters and defaults.

Side:   any; also a script for the Python of ``.venv-flink``, which has no package of this repository:
        ``python surface.py pyflink`` writes all names that the modules of PyFlink define, as JSON.
Names:  ``module Class.member``, the module without the root's name: ``common.time Time.seconds``.
Values: parameters as text, ``(milliseconds, offset=None)``, behind ``static`` or ``class`` where the member is called
        on the class; empty for a member that is no function.  Parameters that are Java objects (``j_...``) are left
        out: no program passes one.
"""

import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

PARTS: Final = ("common", "datastream", "metrics")
# What every class has by ``object``.
_FROM_OBJECT: Final = ("__hash__", "__init__", "__str__")


class AbsentError(Exception):
    """An error for a missing name; ``reason`` is the text of the error that an import or an access gives, if it says
    more than that.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def find(root: str, module: str, name: str) -> str:
    """The parameters of ``root.module``'s ``name``; empty if it is no function.  Raises AbsentError."""
    owner, _, member = name.rpartition(".")
    holder = _resolve(root, module, owner)
    if not inspect.isclass(holder):
        value = _attribute(holder, member)
        return _parameters(value, is_bound=True) if inspect.isfunction(value) else ""
    for each in holder.__mro__:
        if member in vars(each) and (each is not object or member in _FROM_OBJECT):
            return "()" if each is object and member == "__init__" else _text(vars(each)[member])
    if any(member in _instance_attributes(each) for each in holder.__mro__):
        return ""
    raise AbsentError


def _resolve(root: str, module: str, name: str) -> Any:
    try:
        value: Any = importlib.import_module(f"{root}.{module}")
    except ImportError as error:
        raise AbsentError(_explanation(error)) from None
    for part in name.split(".") if name else []:
        value = _attribute(value, part)
    return value


def _attribute(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)
    except ImportError as error:
        raise AbsentError(_explanation(error)) from None
    except AttributeError:
        raise AbsentError from None


def _explanation(error: ImportError) -> str:
    """Return the text of an error of the package's own; Python's text says only that the name is missing."""
    return "" if type(error) in (ImportError, ModuleNotFoundError) else str(error)


def surface(root: str) -> dict[str, str]:
    """Return every public name that a module below ``root`` defines."""
    found: dict[str, str] = {}
    for module in _modules(root):
        tail = module.__name__.removeprefix(f"{root}.")
        for name, value in vars(module).items():
            if name.startswith("_") or not _is_defined_in(module, getattr(value, "__module__", None)):
                continue
            if inspect.isclass(value):
                found.update((f"{tail} {member}", text) for member, text in _members(value, name))
            elif inspect.isfunction(value):
                found[f"{tail} {name}"] = _parameters(value, is_bound=True)
    return found


def _is_defined_in(module: ModuleType, owner: str | None) -> bool:
    """Whether ``module`` defines what ``owner`` does; PyFlink's metrics are known by the name of their package."""
    return owner in (module.__name__, f"{module.__name__}.metricbase")


def _modules(root: str) -> Iterator[ModuleType]:
    for part in PARTS:
        package = importlib.import_module(f"{root}.{part}")
        yield package
        for each in pkgutil.walk_packages(getattr(package, "__path__", []), f"{root}.{part}."):
            if ".tests" not in each.name:
                yield importlib.import_module(each.name)


def _members(owner: type, name: str) -> Iterator[tuple[str, str]]:
    yield name, ""
    for attribute in _instance_attributes(owner):
        yield f"{name}.{attribute}", ""
    for member, value in vars(owner).items():
        if member.startswith("_") and not (member.startswith("__") and inspect.isroutine(value)):
            continue
        if inspect.isclass(value) and value.__qualname__ == f"{owner.__qualname__}.{member}":
            yield from _members(value, f"{name}.{member}")
        else:
            yield f"{name}.{member}", _text(value)
    if issubclass(owner, enum.Enum):
        yield from ((f"{name}.{member}", "") for member in owner.__members__)


@lru_cache(maxsize=1_000)
def _instance_attributes(owner: type) -> frozenset[str]:
    names = {*getattr(owner, "__slots__", ()), *vars(owner).get("__annotations__", ())}
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):
        source = ""
    return frozenset(
        name for name in names | set(re.findall(r"self\.(\w+)(?::[^=]+)? = ", source)) if not name.startswith("_")
    )


def _text(value: Any) -> str:
    if isinstance(value, staticmethod):
        return f"static {_parameters(value.__func__, is_bound=True)}"
    if isinstance(value, classmethod):
        return f"class {_parameters(value.__func__, is_bound=False)}"
    return _parameters(value, is_bound=False) if inspect.isroutine(value) else ""


def _parameters(function: Any, *, is_bound: bool) -> str:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "(*args, **kwargs)"
    return f"({', '.join(_parameter(each) for each in parameters[0 if is_bound else 1 :] if not each.name.startswith('j_'))})"  # noqa: E501


def _parameter(parameter: inspect.Parameter) -> str:
    stars: dict[object, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
        inspect.Parameter.KEYWORD_ONLY: "/",
    }
    name = f"{stars.get(parameter.kind, '')}{parameter.name}"
    if parameter.default is inspect.Parameter.empty:
        return name
    default = parameter.default
    return (
        f"{name}={default!r}"
        if isinstance(default, (str, int, float, type(None)))
        else f"{name}={type(default).__name__}"
    )


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        json.dump(surface(sys.argv[1]), sys.stdout)
