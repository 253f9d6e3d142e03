"""The public exception classes, and what ``except`` catches them by.

Items:  ``MODULE:NAME`` for each public path, with the names of its base classes in the order in which Python looks them
        up.
"""

import importlib
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.frozen.frozen_list import FrozenList
from tests.frozen.test_public_names import NEED_PYSPARK, PUBLIC_NAMES


def error_classes() -> Iterator[str]:
    """Yield the items; for modules that this environment cannot import, the stored ones."""
    stored = ERROR_CLASSES.read()
    for module in sorted({key.partition(":")[0] for key in PUBLIC_NAMES.read()}):
        try:
            found: Any = importlib.import_module(module)
        except ImportError:
            if module not in NEED_PYSPARK:
                raise
            yield from (f"{key}  {value}" for key, value in stored.items() if key.startswith(f"{module}:"))
            continue
        names = [key.partition(":")[2] for key in PUBLIC_NAMES.read() if key.startswith(f"{module}:")]
        for name in names:
            each = getattr(found, name, None) if "." not in name else None
            if isinstance(each, type) and issubclass(each, BaseException):
                yield f"{module}:{name}  {', '.join(base.__name__ for base in each.__mro__[1:-1])}"


ERROR_CLASSES: Final = FrozenList(
    "error_classes", "Public exception classes and their bases", error_classes, "Programs catch them."
)


@pytest.mark.slow
def test_error_classes_keep_their_bases() -> None:
    ERROR_CLASSES.check()


@pytest.mark.parametrize("path", ["flowlet.errors:FlowletError", "netstack.errors:NetstackError"])
def test_both_trees_have_their_roots(path: str) -> None:
    """Both roots are in the list; almost every other class is below one of them."""
    root = path.partition(":")[2]

    below = [key for key, bases in ERROR_CLASSES.read().items() if root in bases.split(", ")]
    assert ERROR_CLASSES.read()[path] == "Exception, BaseException"
    assert len(below) > 10
