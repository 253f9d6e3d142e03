"""Places that break a rule of the house today: lists in ``lists/``, one key per line, that only get shorter.

Rules:  a place that is found and not listed is new, and refused.  A place that is listed and no longer found comes off
        the list, so that it cannot come back.  A place may end with its line, which is for people: no list has it.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "lists"
COMMAND: Final = "python -m tests.house"
_LINE: Final = re.compile(r", line \d+$")


def path_of(rule: str) -> Path:
    return FOLDER / f"{rule}.txt"


def known(rule: str) -> set[str]:
    path = path_of(rule)
    if not path.exists():
        return set()
    return {line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")}


def key_of(place: str) -> str:
    """The place without its line."""
    return _LINE.sub("", place)


def write(rule: str, keys: Iterable[str]) -> None:
    """Make these the list of a rule; no list without keys."""
    lines = sorted(keys)
    if lines:
        path_of(rule).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    else:
        path_of(rule).unlink(missing_ok=True)


def complaint(rule: str, found: set[str]) -> str:
    """Return what to do about a rule; empty: nothing."""
    listed = known(rule)
    new = sorted(place for place in found if key_of(place) not in listed)
    mended = sorted(listed - set(map(key_of, found)))
    told = [f"breaks the rule {rule}, see CONTRIBUTING.md: {place}" for place in new]
    told += [f"is mended and comes off its list by {COMMAND} --write: {key}" for key in mended]
    return "\n".join(told)
