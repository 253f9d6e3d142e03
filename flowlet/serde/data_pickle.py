"""Pickles of values, and of plain values alone where the sender is not to be trusted with more.

Side:       pure.
Invariants: under ``plain_values_alone`` nothing is imported and nothing is called but the constructors in ``_PLAIN``, which make values.
Source:     ``pickle.Unpickler.find_class``, "Restricting Globals" in Python's documentation.
"""

import io
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from flowlet.errors import SerdeError

# Nothing here looks anything up by a name that it is given (as ``getattr`` would, or numpy's scalars of dtype object).
_PLAIN: Final = frozenset(
    {
        ("builtins", "bytearray"),
        ("builtins", "complex"),
        ("builtins", "frozenset"),
        ("builtins", "set"),
        ("collections", "OrderedDict"),
        ("datetime", "date"),
        ("datetime", "datetime"),
        ("datetime", "time"),
        ("datetime", "timedelta"),
        ("datetime", "timezone"),
        ("decimal", "Decimal"),
        ("flowlet.common.time", "Instant"),
        ("flowlet.common.types", "RowKind"),
        ("flowlet.common.types", "_restore"),
        ("uuid", "UUID"),
    }
)
_are_plain_alone: ContextVar[bool] = ContextVar("plain_values_alone", default=False)


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _PLAIN:
            raise SerdeError(f"{module}.{name} is no plain value, and this sender may send nothing else")
        return super().find_class(module, name)


@contextmanager
def plain_values_alone() -> Iterator[None]:
    """What ``load_values`` reads inside, on this thread, may hold plain values and nothing else."""
    token = _are_plain_alone.set(True)
    try:
        yield
    finally:
        _are_plain_alone.reset(token)


def load_values(payload: memoryview) -> Any:
    """What was pickled.

    Raises:
        SerdeError: it holds something that it may not hold.
        Exception: whatever rebuilding the values raises.
    """
    if _are_plain_alone.get():
        return _PlainUnpickler(io.BytesIO(payload)).load()
    return pickle.loads(payload)  # noqa: S301 - from an authenticated peer of the same cluster
