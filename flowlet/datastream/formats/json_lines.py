"""``JsonLinesEncoder``: a line of JSON per record, for ``FileSink.for_row_format``.

Side:   pure.
Rules:  a row with names of fields is an object, a row without names and a tuple are arrays; dictionaries, lists and
        values of JSON are themselves; dates and times are texts in ISO 8601, bytes are in base64, decimals texts; NaN
        and infinities are the texts "NaN", "Infinity" and "-Infinity", as Jackson writes them.
Source: JSON Lines (jsonlines.org).  Not in PyFlink.
"""

import datetime
import decimal
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec

from flowlet.common.serialization import Encoder
from flowlet.common.types import Row
from flowlet.common.written_values import java_name

__all__ = ["JsonLinesEncoder"]


class JsonLinesEncoder(Encoder):
    """A line of JSON per record, in UTF-8.

    A value that JSON has no form for fails the job, and the error shows its record.
    """

    def encode(self, value: Any) -> bytes:
        """The line of one record."""
        return self.encode_all((value,))

    def encode_all(self, values: Sequence[Any]) -> bytes:
        """The lines of records, one for each."""
        data = _ENCODER.encode_lines(values)
        if _NULL(data) is not None and _may_have_no_numbers(values):
            texts = _with_texts(msgspec.to_builtins(values, enc_hook=_plain, str_keys=True))
            return data if texts is None else _ENCODER.encode_lines(texts)
        return data


def encoded_json(value: Any, *, is_checked: bool) -> bytes:
    """The JSON of one value, without a line end; decimals are numbers, which must be finite.

    ``is_checked``: whether the value is known to have no NaN and no infinity.
    """
    data = _NUMBERS.encode(value)
    if is_checked or _NULL(data) is None:
        return data
    text = _with_texts(msgspec.to_builtins(value, enc_hook=_plain, str_keys=True, builtin_types=_KEPT))
    return data if text is None else _NUMBERS.encode(text)


def _may_have_no_numbers(values: Iterable[Any]) -> bool:
    """Whether there may be a NaN or an infinity among the values or in them, which the encoder
    writes as null, as None.
    """
    known = list(values)
    kinds = set(map(type, known))
    if kinds == {tuple} and len(set(map(len, known))) == 1:
        return any(
            not _is_quickly_known(column) and _may_have_no_numbers(column) for column in zip(*known, strict=True)
        )
    if float in kinds and not all(map(math.isfinite, [each for each in known if type(each) is float])):
        return True
    kinds -= _NO_FLOATS
    if kinds <= _GROUPS.keys():
        return any(
            _may_have_no_numbers(chain.from_iterable(map(_GROUPS[kind], [v for v in known if type(v) is kind])))
            for kind in kinds
        )
    return True


def _is_quickly_known(column: Sequence[Any]) -> bool:
    """Whether the values are all finite numbers, or all texts; None is left out.

    Two calls into C, no loop over the values.
    """
    try:
        return math.isfinite(sum(filter(None, column)))
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return isinstance("".join(filter(None, column)), str)
    except (TypeError, ValueError):
        return False


def _with_texts(value: Any) -> Any:
    """A value of lists and dicts, with texts in place of NaN and infinities, which the encoder would write as null.

    None: the value has no such float.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return java_name(value)
    if not isinstance(value, dict | list | tuple):
        return None
    places: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else enumerate(value)
    changed: Any = dict(value) if isinstance(value, dict) else list(value)
    found = [(place, text) for place, each in places if (text := _with_texts(each)) is not None]
    for place, text in found:
        changed[place] = text
    return changed if found else None


def _plain(value: Any) -> Any:
    """The value to write in place of one that JSON does not know."""
    if isinstance(value, Row):
        try:
            return value.as_dict()
        except TypeError:  # it has no names
            return list(value)
    item = getattr(value, "item", None)  # of a numpy scalar
    if callable(item) and (plain := item()) is not None:  # which numpy.datetime64("NaT") is
        return plain
    raise TypeError(f"JSON has no form for {value!r} of type {type(value).__name__}; convert it in map()")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
_NUMBERS = msgspec.json.Encoder(enc_hook=_plain, decimal_format="number")
_NULL = re.compile(rb"null").search  # of 25 kB: 13 us, ``in`` takes 90
_KEPT = (decimal.Decimal,)
_NO_FLOATS = {
    str,
    int,
    float,
    bool,
    type(None),
    bytes,
    decimal.Decimal,
    datetime.date,
    datetime.datetime,
    datetime.time,
}
_GROUPS: dict[type, Callable[[Any], Iterable[Any]]] = {tuple: iter, list: iter, Row: iter, dict: dict.values}
