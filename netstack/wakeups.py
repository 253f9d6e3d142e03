"""Calls that were decided under a lock and are carried out after it.

Side:       shared.
Invariants: every call is made, in order, even if an earlier one raises, so nobody is left asleep because somebody else's callback was
            broken (FLINK-9755); an error is raised once all calls were made, an earlier one as its context.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack


def run_all(calls: Sequence[Callable[[], object]]) -> None:
    """Make every call, first to last, then raise what the last failing one raised."""
    for position, call in enumerate(calls):
        try:
            call()
        except BaseException:
            with ExitStack() as others:  # no recursion: any number of them may fail
                for other in reversed(calls[position + 1 :]):
                    others.callback(other)
                raise
