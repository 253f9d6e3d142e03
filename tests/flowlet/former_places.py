"""Classes and functions under another name for a while: what is pickled meanwhile is state of a former version.

Side:   any.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Final

FORMER_PLACE: Final = "flowlet.former_place"
"""A module that does not exist."""


@contextmanager
def under_former_names(*things: Any) -> Iterator[dict[str, str]]:
    """Let each thing lie in ``FORMER_PLACE`` within the block; yield the lines of ``RENAMED`` for them."""
    module = ModuleType(FORMER_PLACE)
    renamed = {}
    with ExitStack() as stack:
        sys.modules[FORMER_PLACE] = module
        stack.callback(sys.modules.pop, FORMER_PLACE)
        for thing in things:
            today, name = (thing.__module__, thing.__qualname__), f"Former{thing.__name__}"
            renamed[f"{FORMER_PLACE}:{name}"] = ":".join(today)
            setattr(module, name, thing)
            stack.callback(_call_it, thing, *today)
            _call_it(thing, FORMER_PLACE, name)
        yield renamed


def _call_it(thing: Any, module: str, name: str) -> None:
    thing.__module__, thing.__qualname__ = module, name
