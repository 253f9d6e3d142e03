"""Keys that are a column of a columnar stream.

Side:       pure.
Rules:      a missing value is a key, too: ``(None,)``, whose hash is 0, as a null in a tuple has it.  An instant is the number of its
            microseconds since 1970, in UTC or without a time zone; a date that of its days.
Invariants: ``column_key_hashes`` gives for each value the hash of the key that ``ColumnKey`` gives for its record.
"""

import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.key_columns import column_hashes
from flowlet.keys import key_hash

NULL_KEY: Final = (None,)
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
        if key is None:
            return NULL_KEY
        if isinstance(key, datetime.datetime):
            instant = key if key.tzinfo is None else key.astimezone(datetime.UTC).replace(tzinfo=None)
            return (instant - _EPOCH) // _MICROSECOND
        if isinstance(key, datetime.date):
            return (key - _EPOCH.date()).days
        return key


def column_key_hashes(array: Any) -> NDArray[np.int32]:
    """The hash of each key in an Arrow array.

    Raises:
        KeyTypeError: values of its type cannot be keys.
    """
    import pyarrow as pa  # takes long, and who has no Arrow column does not need it

    kinds, kind = pa.types, array.type
    if kinds.is_timestamp(kind):
        array = array.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
    elif kinds.is_date32(kind):
        array = array.view(pa.int32())
    elif kinds.is_dictionary(kind):
        return _of_dictionary(array)
    if not array.null_count:
        return column_hashes(array)
    is_valid = array.is_valid().to_numpy(zero_copy_only=False)
    hashes = np.full(len(array), key_hash(NULL_KEY), np.int32)
    hashes[is_valid] = column_hashes(array.drop_null())
    return hashes


def _of_dictionary(array: Any) -> NDArray[np.int32]:
    of_names = np.append(column_key_hashes(array.dictionary), np.int32(key_hash(NULL_KEY)))
    indices = array.indices.cast("int64").fill_null(len(array.dictionary))
    hashes: NDArray[np.int32] = of_names.take(indices.to_numpy(zero_copy_only=False))
    return hashes
