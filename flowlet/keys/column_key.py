"""Keys that are a column of a columnar stream.

Side:       pure.
Rules:      a missing value is a key, too: None, as in a record that is no column.  For routing and aggregations an
            instant is the number of its microseconds since 1970, in UTC or without a time zone; a date that of its
            days: an index of such keys holds numbers.  Users' functions are given the value itself (``ColumnValue``).
Invariants: ``column_key_hashes`` gives for each value the hash of the key that ``ColumnKey`` gives for its record.
"""

import datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - instants without a time zone have it, too
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class ColumnKey:
    """A key selector: the value of one column.

    Args:
        name: of the column.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ColumnKey({self.name!r})"

    def get_key(self, value: Any) -> Any:
        """The key of a ``Row``, or of anything else that gives its fields by name."""
        key = value[self.name]
        if isinstance(key, datetime.datetime):
            instant = key if key.tzinfo is None else key.astimezone(datetime.UTC).replace(tzinfo=None)
            return (instant - _EPOCH) // _MICROSECOND
        if isinstance(key, datetime.date):
            return (key - _EPOCH.date()).days
        return key


class ColumnValue:
    """The key selector of functions that see the key: the value of one column, as the row has it.

    Args:
        name: of the column.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"ColumnValue({self.name!r})"

    def get_key(self, value: Any) -> Any:
        """The value of the column in a ``Row``; it has the hash of the key that ``ColumnKey`` gives."""
        return value[self.name]


def column_key_hashes(array: Any) -> "NDArray[np.int32]":
    """The hash of each key in an Arrow array.

    Raises:
        KeyTypeError: values of its type cannot be keys.
    """
    # Here: programs name columns before, or without, having any numpy.
    from flowlet.keys.key_columns import column_hashes

    # An instant and the number of its microseconds have one hash, and so have a date and the number of its days.
    return column_hashes(array)
