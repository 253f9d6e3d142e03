"""Makes calls that were decided under a lock, after the lock was released.

Side:       shared.
Invariants: every call is made, in order, even if an earlier one raises.  Otherwise a broken callback would leave
            another thread asleep (FLINK-9755).
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack


def run_all(calls: Sequence[Callable[[], object]]) -> None:
    """Make every call, then raise the error of the last failing one, with earlier errors as its context."""
    for position, call in enumerate(calls):
        try:
            call()
        except BaseException:
            with ExitStack() as others:  # not recursion: any number of calls may fail
                for other in reversed(calls[position + 1 :]):
                    others.callback(other)
                raise
