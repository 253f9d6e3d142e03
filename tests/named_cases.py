"""Cases of one test, for what is dear to prepare: a failure says which case it was."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Add the names of the case to whatever is raised inside."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(map(str, names))}")
        raise
