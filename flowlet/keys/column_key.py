"""Keys that are a column of a columnar stream.

Side:       pure.
Rules:      a missing value is a key, too: None, as in a record that is no column.  For routing and aggregations an
            instant is the number of its microseconds since 1970, in UTC or without a time zone; a date is the number
            of its days: an index of such keys holds numbers.  Users' functions get the value itself (``ColumnValue``).
Invariants: the hash of each value (``column_hashes``) is that of the key that ``ColumnKey`` gives for its record: an
            instant and the number of its microseconds have one hash, and so have a date and the number of its days.
"""

import datetime
from typing import Any, Final

_EPOCH: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - instants without a time zone have it, too
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class _OfColumn:
    """A key selector of the column ``name``."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ColumnKey(_OfColumn):
    """A key selector: the value of one column."""

    def get_key(self, value: Any) -> Any:
        """The key of a ``Row``, or of another record that gives its fields by name."""
        key = value[self.name]
        if isinstance(key, datetime.datetime):
            instant = key if key.tzinfo is None else key.astimezone(datetime.UTC).replace(tzinfo=None)
            return (instant - _EPOCH) // _MICROSECOND
        if isinstance(key, datetime.date):
            return (key - _EPOCH.date()).days
        return key


class ColumnValue(_OfColumn):
    """The key selector of functions that see the key: the value of one column, as the row has it."""

    def get_key(self, value: Any) -> Any:
        """The value of the column in a ``Row``; it has the hash of the key that ``ColumnKey`` gives."""
        return value[self.name]
