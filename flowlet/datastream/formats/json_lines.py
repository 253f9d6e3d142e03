"""``JsonLinesEncoder``: a line of JSON per record, for ``FileSink.for_row_format``.

Side:   pure.
Rules:  a row with names of fields is an object, one without names and a tuple are arrays; dictionaries, lists and what JSON has are
        themselves; dates and times are texts in ISO 8601, bytes are in base64; NaN and infinities are null.
Source: JSON Lines (jsonlines.org).  Not in PyFlink.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from flowlet.common.serialization import Encoder
from flowlet.common.types import Row

__all__ = ["JsonLinesEncoder"]


class JsonLinesEncoder(Encoder):
    """A line of JSON per record, in UTF-8.  A value that JSON has no form for fails the job, and the error shows its record."""

    def encode(self, value: Any) -> bytes:
        """One line."""
        return _ENCODER.encode(value) + b"\n"

    def encode_all(self, values: Sequence[Any]) -> bytes:
        """A line for each."""
        return _ENCODER.encode_lines(values)


def _plain(value: Any) -> Any:
    """What stands for a value that JSON does not know."""
    if isinstance(value, Row):
        try:
            return value.as_dict()
        except TypeError:  # it has no names
            return list(value)
    item = getattr(value, "item", None)  # of a numpy scalar
    if callable(item):
        return item()
    raise TypeError(f"JSON has no form for {value!r} of type {type(value).__name__}; convert it in map()")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
