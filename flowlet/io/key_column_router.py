"""The channels of the keys in a column.

Hashes of short texts as keys, many at once.

Hot path: fixed arithmetic on two integers for each text, 10 ns; by characters it takes 60 (``key_columns``).

Hot path, per chunk: a text key is turned into a code, and numpy does the rest.

Side:       task.
Invariants: every result equals ``flowlet.keys.exact_keys.key_hash`` of the text.  a key goes to the channel to which it
            would go by itself; the dictionary is bounded.
Source:     Java's ``String.hashCode``, a polynomial in 31; several characters at a time in one integer (SIMD within a
            register: Warren, Hacker's Delight).  ``key_dictionary``, ``key_columns``.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ColumnVisitor,
    ConstantColumn,
    ListColumn,
    ShortTextColumn,
)
from flowlet.columns.short_text_column import PACKED16_BYTES, Packed16Array, try_short_texts
from flowlet.errors import KeyTypeError
from flowlet.io.key_dictionary import MAX_CHUNK_KEYS, DictionaryBypass, KeyDictionary
from flowlet.io.record_writer import LaneArray, Route
from flowlet.keys.column_key import column_key_hashes
from flowlet.keys.key_columns import ChannelTable, column_hashes, try_hashes

Int32Array = NDArray[np.int32]

_MODULUS: Final = 1 << 32
_SHIFTS: Final = tuple(map(np.uint64, (8, 16, 32)))
_MASKS: Final = tuple(map(np.uint64, (0x00FF00FF00FF00FF, 0x0000FFFF0000FFFF, 0x00000000FFFFFFFF)))
_POWERS: Final = tuple(np.uint64(31**count) for count in (1, 2, 4))
_HALF_POWER: Final = np.uint64(31**8)
# A text is as if it had 16 characters: that many powers are taken away again.
_SURPLUS: Final = np.array(
    [pow(31, length - PACKED16_BYTES, _MODULUS) for length in range(PACKED16_BYTES + 1)], np.uint32
)


def short_text_hashes(packed16: Packed16Array) -> Int32Array:
    """The hash of each text."""
    sums = packed16 if sys.byteorder == "little" else packed16.byteswap()
    # Neighbours are added up: characters, then pairs, then fours; the earlier one is in the lower bits.
    for shift, mask, power in zip(_SHIFTS, _MASKS, _POWERS, strict=True):
        later = sums >> shift
        later &= mask
        sums = sums & mask
        sums *= power
        sums += later
    whole = sums[:, 0] * _HALF_POWER
    whole += sums[:, 1]
    lengths = np.char.str_len(packed16.view(f"S{PACKED16_BYTES}")[:, 0])
    return (whole.astype(np.uint32) * _SURPLUS.take(lengths)).view(np.int32)


_NUMBERS: Final = frozenset({int, float, bool})
_INSTANT: Final = "M"  # a numpy kind that cannot be a key

KeyedColumn = tuple[Column, LaneArray | Route]


class KeyColumnRouter(ColumnVisitor[KeyedColumn | None]):
    """Finds the channel of each key, and the representation in which the keys are sent.

    Ownership: the task's thread; the dictionary is shared with the codes of each channel.

    Args:
        channels: of the consumers.
        dictionary: of text keys.
        channel_of: the channel of one key.
        is_column_key: whether nulls and instants are keys, too (``ColumnKey``).
    """

    def __init__(
        self,
        channels: ChannelTable,
        dictionary: KeyDictionary,
        channel_of: Callable[[Any], int],
        *,
        is_column_key: bool,
    ) -> None:
        self._channels = channels
        self.dictionary = dictionary
        self._channel_of = channel_of
        self._is_column_key = is_column_key
        self.bypass = DictionaryBypass(is_patient=True)
        self._position = 0  # of the key among the fields, while a column is visited
        self._routes: dict[Any, Route] = {}  # by the position of the key, and how

    def try_route(self, column: Column, position: int) -> KeyedColumn | None:
        """The keys as they are to be sent, and the channel of each; None if keys of this kind are looked at one by one.

        Args:
            column: the keys.
            position: of the field that has them.
        """
        self._position = position
        return column.accept(self)

    def visit_any(self, column: Column) -> None:
        """One by one."""

    def visit_constant(self, column: ConstantColumn) -> KeyedColumn | None:
        """One look at the key."""
        value = column.value
        if type(value) is str:
            codes = np.full(len(column), self._usable_dictionary().encode([value])[0], np.uint16)
            return self._with_codes(codes, column)
        return (column, np.full(len(column), self._channel_of(value), np.uint16)) if type(value) in _NUMBERS else None

    def visit_coded(self, column: CodedColumn) -> KeyedColumn | None:
        """By the codes of this writer's dictionary."""
        recoded = self._usable_dictionary().try_recode(column)
        return None if recoded is None else self._with_codes(recoded, column)

    def visit_list(self, column: ListColumn) -> KeyedColumn | None:
        """Of texts."""
        return self._of_texts(column.values) if column.value_type is str else None

    def visit_short_texts(self, column: ShortTextColumn) -> KeyedColumn | None:
        """As other texts."""
        return self._of_texts(column.to_list())

    def visit_array(self, column: ArrayColumn) -> KeyedColumn | None:
        """Of numbers, later: many at once are cheaper."""
        return None if column.array.dtype.kind == _INSTANT else (column, self._route_by(_lanes_of_numbers))

    def visit_arrow(self, column: ArrowColumn) -> KeyedColumn | None:
        """By hashes."""
        try:
            hashes = column_key_hashes(column.array) if self._is_column_key else column_hashes(column.array)
            return column, self._channels.of_hashes(hashes)
        except KeyTypeError:
            return None  # looked at one by one, the record is found

    def _of_texts(self, keys: Sequence[str]) -> KeyedColumn:
        """As codes, or past the dictionary."""
        if len(keys) > MAX_CHUNK_KEYS or self.bypass.is_taken():
            return self._past_dictionary(keys)
        dictionary = self._usable_dictionary()
        num_known = len(dictionary)
        codes = dictionary.encode(keys)
        self.bypass.judge(len(keys), len(dictionary) - num_known, is_full=dictionary.is_full)
        return self._with_codes(codes, keys)

    def _past_dictionary(self, keys: Sequence[str]) -> KeyedColumn:
        short = try_short_texts(keys)
        if short is not None:
            return short, self._route_by(_lanes_of_short_texts)
        hashes = try_hashes(keys)
        assert hashes is not None, "texts have a way past the dictionary"
        return ListColumn(list(keys), str), self._channels.of_hashes(hashes)

    def _usable_dictionary(self) -> KeyDictionary:
        """The dictionary, with room for the keys of one more chunk."""
        dictionary = self.dictionary
        if dictionary.is_full:
            dictionary.restart()
        return dictionary

    def _with_codes(self, codes: LaneArray, keys: Column | Sequence[str]) -> KeyedColumn:
        """The keys by these codes; by themselves if they are too large to be kept on both sides."""
        lanes = self.dictionary.channels_of(codes)
        if not self.dictionary.is_too_large:
            return CodedColumn(codes, self.dictionary.table), lanes
        self.dictionary.restart()
        return keys if isinstance(keys, Column) else ListColumn(list(keys), str), lanes

    def _route_by(self, lanes_of: Callable[[ChannelTable, Any], LaneArray]) -> Route:
        """The same one for the same arguments."""
        found = self._routes.get((self._position, lanes_of))
        if found is None:
            found = self._routes[self._position, lanes_of] = partial(
                _with_lanes, self._channels, self._position, lanes_of
            )
        return found


def _with_lanes(
    channels: ChannelTable, position: int, lanes_of: Callable[[ChannelTable, Any], LaneArray], columns: Columns
) -> tuple[Columns, LaneArray]:
    return columns, lanes_of(channels, columns.fields[position])


def _lanes_of_numbers(channels: ChannelTable, key: ArrayColumn) -> LaneArray:
    return channels.of_keys(key.array)


def _lanes_of_short_texts(channels: ChannelTable, key: ShortTextColumn) -> LaneArray:
    return channels.of_hashes(short_text_hashes(key.packed16))
