"""Encodes text keys as codes, for all channels of one writer, while that pays.

Keys bypass a dictionary when so many of them are new that looking them up costs more than it saves.

Hot path, per chunk: one dictionary probe per key, in C; Python code only for new keys.

Side:       pure.
Invariants: within a generation, a code means one text and one channel.  A channel gets its texts in the order of its
            codes, each no later than the first code that needs it.  Codes fit into 16 bits.  Every bypass ends; then
            the dictionary gets another chance.
Units:      lengths of a bypass in chunks.
Rules:      a text has two codes.  The writer's code routes records; the channel's own code is sent.  So a channel's
            dictionary has no gaps and holds only texts of that channel.  A full dictionary is emptied, which starts the
            next generation of all channels.
Source:     hot-path measurements: a dictionary is slow once it leaves the cache, from about 16,384 entries.
"""

import struct
from collections.abc import Sequence
from enum import Enum
from operator import itemgetter
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import CodedColumn, NameTable
from flowlet.keys.key_columns import ChannelTable, try_hashes
from flowlet.serde.column_writer import encode_codes

# If more than one key in this many is missing in the dictionary, hashing the whole column is cheaper (hot-path
# measurements).
_TOLERATED_MISSES = 16
# Fewer keys give no hint of the number of distinct keys.  Not measured.
_MIN_JUDGED_KEYS = 256
# How many chunks bypass the dictionary before its next chance; doubled after each failure.  With 10^6 distinct keys a
# chance costs 600 ns per key and the bypass 100, so one chance in 256 chunks costs 2 %.
_MIN_BYPASS = 4
_MAX_BYPASS = 256


class BypassState(Enum):
    """The way of the next chunk: through the dictionary, or past it."""

    LEARNING = "learning"
    """Through the dictionary, whose misses do not count before it is full."""
    JUDGED = "judged"
    """Through the dictionary, whose misses count."""
    BYPASSING = "bypassing"
    """Past the dictionary."""


class DictionaryBypass:
    """Decides chunk by chunk whether keys go through a dictionary, from its recent misses.

    Misses do not count until the dictionary is full.  After a failure they count at once, until a chunk has few.
    """

    __slots__ = ("_length", "_num_left", "_state")

    def __init__(self) -> None:
        self._state = BypassState.LEARNING
        self._length = _MIN_BYPASS  # length of the next bypass
        self._num_left = 0  # chunks left of the present bypass

    def __repr__(self) -> str:
        return f"<DictionaryBypass {self._state.value}, {self._num_left} chunks left, the next one for {self._length}>"

    def is_taken(self) -> bool:
        """Whether the next chunk bypasses the dictionary."""
        if self._state is not BypassState.BYPASSING:
            return False
        self._num_left -= 1
        if not self._num_left:
            self._state = BypassState.JUDGED
        return True

    def judge(self, num_keys: int, num_misses: int, *, is_full: bool) -> None:
        """Judge the dictionary by the misses of a chunk that went through it."""
        if num_keys < _MIN_JUDGED_KEYS:
            return
        if num_misses * _TOLERATED_MISSES <= num_keys:
            self._length = _MIN_BYPASS
            self._state = BypassState.LEARNING
        elif self._state is not BypassState.LEARNING or is_full:
            self._state = BypassState.BYPASSING
            self._num_left = self._length
            self._length = min(2 * self._length, _MAX_BYPASS)


CodeArray = NDArray[np.uint16]

MAX_KEYS: Final = 16_384
UNKNOWN: Final = (1 << 16) - 1  # never a code
# One chunk may add this many keys to a dictionary that is almost full: with them all but one of the 16-bit codes are
# used.
MAX_CHUNK_KEYS: Final = (1 << 16) - 1 - MAX_KEYS
# Far more than 16,384 words need: the limit only keeps long texts from filling the memory of both sides.  Not measured.
MAX_CHARACTERS: Final = 4 << 20


class _Codes(dict[str, int]):
    """The codes of texts; a look-up of a new text gives it the next code."""

    __slots__ = ("names", "num_characters")

    def __init__(self, names: list[Any]) -> None:
        super().__init__()
        self.names = names
        self.num_characters = 0

    def __missing__(self, key: str) -> int:
        code = self[key] = len(self)
        self.names.append(key)
        self.num_characters += len(key)
        return code


class KeyDictionary:
    """The codes and channels of text keys; ``channels`` maps their hashes to ``num_channels`` consumers."""

    def __init__(self, channels: ChannelTable, num_channels: int) -> None:
        self._channels = channels
        self._num_channels = num_channels
        self.generation = -1  # how many times it was emptied
        self.restart()

    def __repr__(self) -> str:
        return f"<KeyDictionary, generation {self.generation}: {len(self._codes)} keys>"

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def is_full(self) -> bool:
        """Whether the dictionary must be emptied before it encodes another chunk."""
        return len(self._codes) >= MAX_KEYS

    @property
    def is_too_large(self) -> bool:
        """Whether all texts together have too many characters: then the dictionary must be emptied, and the last chunk
        is sent without codes.
        """
        return self._codes.num_characters > MAX_CHARACTERS

    def restart(self) -> None:
        """Empty the dictionary and start the next generation; columns encoded before are sent as texts."""
        self.generation += 1
        self.table = NameTable()
        self.texts_of_channel: list[list[str]] = [[] for _ in range(self._num_channels)]
        self._codes = _Codes(self.table.names)
        # By code: the channel, and the counterpart in the dictionary of that channel.
        self.channel_of = np.empty(0, np.uint16)
        self.local_of = np.empty(0, np.uint16)
        self._recodings: WeakKeyDictionary[NameTable, CodeArray] = WeakKeyDictionary()

    def encode(self, keys: Sequence[str]) -> CodeArray:
        """The code of each key; takes 1 to ``MAX_CHUNK_KEYS`` keys, all exactly str."""
        codes = self._codes
        # ``itemgetter`` costs 10 ns per key less than ``np.fromiter`` over ``map``.
        found = itemgetter(*keys)(codes) if len(keys) > 1 else (codes[keys[0]],)
        array = np.frombuffer(struct.pack(f"={len(keys)}H", *found), np.uint16)
        if len(self.channel_of) < len(codes):
            self._route_new()
        return array

    def try_recode(self, column: CodedColumn) -> CodeArray | None:
        """This dictionary's codes for keys with codes of another table; None if a key is not exactly a str, or too many
        are new.
        """
        known = self._recodings.get(column.names)
        if known is None or len(known) < len(column.names):
            grown = np.full(len(column.names), UNKNOWN, np.uint16)
            grown[: 0 if known is None else len(known)] = () if known is None else known
            known = self._recodings[column.names] = grown
        recoded = known.take(column.codes)
        if len(recoded) and int(recoded.max()) == UNKNOWN:
            missing = np.unique(column.codes[recoded == UNKNOWN])
            texts = column.names.values_of(missing)
            if len(texts) > MAX_CHUNK_KEYS or list(map(type, texts)).count(str) != len(texts):
                return None
            known[missing] = self.encode(texts)
            recoded = known.take(column.codes)
        return recoded

    def _route_new(self) -> None:
        new = self.table.names[len(self.channel_of) :]
        hashes = try_hashes(new)
        assert hashes is not None, "all keys are texts"
        channels = self._channels.of_hashes(hashes)
        local_codes = []
        for text, channel in zip(new, channels.tolist(), strict=True):
            texts = self.texts_of_channel[channel]
            local_codes.append(len(texts))
            texts.append(text)
        self.channel_of = np.concatenate((self.channel_of, channels))
        self.local_of = np.concatenate((self.local_of, np.array(local_codes, np.uint16)))


class ChannelCodes:
    """The part of a writer's dictionary that one channel has received."""

    __slots__ = ("_channel", "_dictionary", "_generation", "_num_encoded", "_num_sent")

    def __init__(self, dictionary: KeyDictionary, channel: int) -> None:
        self._dictionary = dictionary
        self._channel = channel
        self._generation = -1
        self._num_sent = 0
        self._num_encoded = 0

    def __repr__(self) -> str:
        return f"<ChannelCodes of channel {self._channel}, generation {self._generation}: {self._num_sent} texts sent>"

    def try_encode(self, column: CodedColumn) -> bytes | None:
        """The column serialized, with the texts that the channel lacks; None if it is empty or has codes of another
        table.

        Only ``commit`` marks the texts as sent.
        """
        dictionary = self._dictionary
        if column.names is not dictionary.table or not len(column):
            return None  # codes of another table: the key is another field of these records
        if self._generation != dictionary.generation:
            self._generation, self._num_sent = dictionary.generation, 0
        codes = dictionary.local_of.take(column.codes)
        self._num_encoded = int(codes.max()) + 1
        new = dictionary.texts_of_channel[self._channel][self._num_sent : self._num_encoded]
        return encode_codes(self._generation, self._num_sent, new, codes)

    def commit(self) -> None:
        """Mark the texts of the last ``try_encode`` as sent."""
        self._num_sent, self._num_encoded = max(self._num_sent, self._num_encoded), 0
