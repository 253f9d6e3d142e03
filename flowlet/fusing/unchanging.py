"""Values that nobody can change, so that nobody has to copy them.

Side:   pure.
Rules:  exact types only: a subclass can do anything.  Constants of generated code may be tuples in tuples, records are looked at one deep.
"""

import datetime
import decimal
import uuid
from types import NoneType
from typing import Any, Final

UNCHANGING: Final = frozenset(
    {str, int, float, bool, bytes, complex, NoneType, decimal.Decimal, uuid.UUID}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta}
)


def can_change(value: Any) -> bool:
    """Whether the value, or a field of it, might change."""
    kind = type(value)
    return kind not in UNCHANGING and not (kind is tuple and UNCHANGING.issuperset(map(type, value)))


def is_unchanging(value: Any) -> bool:
    """Whether a value cannot change, however deep its tuples are."""
    return type(value) in UNCHANGING or (type(value) is tuple and all(map(is_unchanging, value)))
