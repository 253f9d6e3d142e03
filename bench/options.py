"""Command line options that several cases share.

Side:  any.
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Collection


def choices(known: Collection[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a type for ``add_argument``: some of ``known``, separated by commas."""

    def parse(text: str) -> tuple[str, ...]:
        chosen = tuple(text.split(","))
        if unknown := set(chosen) - set(known):
            raise ArgumentTypeError(f"no such thing: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
        return chosen

    return parse
