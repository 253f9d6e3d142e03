"""The classes and functions that pickles name."""

import pickletools
from collections.abc import Iterator
from typing import Final

_START: Final = b"\x80\x05"  # of a pickle of protocol 5; one may lie inside of another, as bytes


def names_in(data: bytes) -> set[str]:
    """Return ``module:qualified name`` of all names in the pickles in these bytes, wherever they begin."""
    found: set[str] = set()
    start = data.find(_START)
    while start >= 0:
        found.update(_names_of(data[start:]))
        start = data.find(_START, start + 1)
    return found


def _names_of(pickled: bytes) -> Iterator[str]:
    texts: list[str] = []
    memo: list[str | None] = []
    last: str | None = None  # the last pushed object, if it is a text
    try:
        for code, argument, _ in pickletools.genops(pickled):
            match code.name:
                case "SHORT_BINUNICODE" | "BINUNICODE" | "BINUNICODE8":
                    last = str(argument)
                    texts.append(last)
                case "MEMOIZE":
                    memo.append(last)
                case "BINGET" | "LONG_BINGET":
                    last = memo[int(str(argument))]
                    texts += [] if last is None else [last]
                case "STACK_GLOBAL":
                    yield ":".join(texts[-2:])
                    last = None
                case "PROTO" | "FRAME":
                    pass
                case _:
                    last = None
    except (ValueError, IndexError, UnicodeDecodeError):
        return  # it only looked like a pickle, or was cut off
