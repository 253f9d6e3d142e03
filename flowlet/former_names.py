"""Former names of our classes, which state, savepoints and checkpoints go on naming when a class has moved or was
renamed.

Internal: not a public API, and may change with any version.

Side:       pure.
Rules:      a pickle names classes and functions by their module and qualified name.  One that state can hold
            (``tests/frozen/lists/state_names.txt`` has them all) gets a line in ``RENAMED`` when it moves, and so does
            each class inside of it.  A former name is never given to anything else.  A key keeps the hash that its
            class's first name gave it: key groups of stored state go by it (``first_name``).
Absent:     classes of users, which ``serde/pickles/former_classes.py`` finds.
"""

from typing import Final

RENAMED: Final[dict[str, str]] = {
    "flowlet.common.settings.tuning_options:IgnoredOptionWarning": (
        "flowlet.common.flinks_options:IgnoredOptionWarning"
    ),
}
"""From each former name to today's, both as ``module:qualified name``; of several former names of one class the first
one comes first.
"""


def first_names(renamed: dict[str, str]) -> dict[str, str]:
    """From today's names to the first ones."""
    return {today: former for former, today in reversed(renamed.items())}


FIRST_NAMES: Final = first_names(RENAMED)


def present_name(module: str, name: str) -> tuple[str, str]:
    """The module and the name today of a class or function that stored state names."""
    today = RENAMED.get(f"{module}:{name}")
    if today is None:
        return module, name
    module, _, name = today.partition(":")
    return module, name


def first_name(module: str, name: str) -> str:
    """The first name of a class or function, with dots: what a key of this class is known by in every version."""
    return FIRST_NAMES.get(f"{module}:{name}", f"{module}.{name}").replace(":", ".")
