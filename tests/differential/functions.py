"""The users' functions of generated programs, by name.

Rules:      classes of a module travel by name, so the tasks of a job in this process use these very modules.
"""

from collections.abc import Callable
from typing import Any, Final

from tests.differential import record_functions, stream_functions, time_functions

_MODULES: Final = (record_functions, stream_functions, time_functions)


def function(name: str) -> Callable[..., Any]:
    """Return a class of functions, or a key selector.

    Raises:
        KeyError: there is none of that name.
    """
    found: Callable[..., Any]
    for module in _MODULES:
        if name in vars(module):
            found = vars(module)[name]
            return found
    raise KeyError(name)
