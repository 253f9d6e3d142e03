"""The receiver's dictionary of one channel: the texts that dictionary codes stand for.

``RecordFormat``: how the records of a chunk become bytes if both sides know more about them than that they are objects.

Hot path, per column.

Side:       pure.
Rules:      a sender numbers texts from 0 and sends each text once, in front of the first codes that need it.  When its
            dictionary is full, it starts a new generation with an empty one.  A column that refers to another
            generation, or to more or fewer texts than were sent, is corrupt.
Invariants: every decoded code has a text in its table; tables only grow, and a new generation gets a new table.
Units:      codes are u16; text sizes in characters.
Absent:     the sender's side, ``flowlet/io/key_dictionary.py``: it must also know the channel of each text.
Raises:     decoding corrupt bytes raises SerdeError, ValueError or struct.error; ``ElementDeserializer`` turns all into
            SerdeError.
"""

import struct
from typing import Any, Final, Protocol

import numpy as np

from flowlet.columns import CodedColumn, Columns, NameTable
from flowlet.errors import SerdeError
from flowlet.records import Chunk
from flowlet.serde.column_format import CODES, Kind, check_end, framed, raw
from flowlet.serde.columns import decode_texts, encode_column

MAX_TEXTS: Final = 1 << 16  # codes have 16 bits
MAX_CHARACTERS: Final = 16 << 20  # four times the limit of our senders
_HEADER: Final = struct.Struct(">III")
_DEFINITION: Final = struct.Struct(">II")


def encode_codes(
    generation: int, num_known: int, new_texts: list[str], codes: "np.ndarray[tuple[int], np.dtype[np.uint16]]"
) -> bytes:
    """A column of codes, preceded by the texts that the receiver does not know yet.

    Args:
        generation: of the sender's dictionary, counted from 0.
        num_known: how many texts of this generation the receiver knows.
        new_texts: the texts that follow these.
        codes: one per value.
    """
    texts = encode_column(new_texts) if new_texts else b""
    return framed(Kind.CODED, _HEADER.pack(generation, num_known, len(new_texts)), texts, raw(codes, CODES))


class ChannelDictionary:
    """The dictionary of one receiver; initially empty.  Threading: one thread."""

    __slots__ = ("_generation", "_num_characters", "_table")

    def __init__(self) -> None:
        self._generation = 0
        self._num_characters = 0
        self._table = NameTable()

    def __repr__(self) -> str:
        return f"<ChannelDictionary, generation {self._generation}: {len(self._table)} texts>"

    def read(self, payload: memoryview, num_values: int) -> CodedColumn:
        """Decode a column of codes, and add the texts that precede them.

        Raises:
            SerdeError, ValueError, struct.error: the column is corrupt, or not the next one of its channel.
        """
        generation, num_known, num_new = _HEADER.unpack_from(payload)
        start = self._learn(payload, _HEADER.size, generation, num_known, num_new) if num_new else _HEADER.size
        if generation != self._generation or num_known + num_new != len(self._table):
            raise SerdeError(f"codes for {num_known} texts of generation {generation}, known are {self!r}")
        codes = np.frombuffer(payload[start:], CODES).astype(np.uint16)
        if len(codes) != num_values:
            raise SerdeError(f"{len(codes)} codes in a chunk of {num_values} records")
        if num_values and int(codes.max()) >= len(self._table):
            raise SerdeError(f"code {int(codes.max())} of {self!r}")
        return CodedColumn(codes, self._table)

    def define(self, payload: memoryview) -> None:
        """Replace the whole dictionary by a definition."""
        generation, num_texts = _DEFINITION.unpack_from(payload)
        check_end(self._learn(payload, _DEFINITION.size, generation, 0, num_texts), payload)

    def definition(self) -> bytes | None:
        """The bytes from which ``define`` makes an equal dictionary; None while this one is empty."""
        texts = self._table.names
        return _DEFINITION.pack(self._generation, len(texts)) + encode_column(texts) if texts else None

    def _learn(self, payload: memoryview, offset: int, generation: int, num_known: int, num_new: int) -> int:
        if num_known and (generation != self._generation or num_known != len(self._table)):
            raise SerdeError(f"texts that follow the first {num_known} of generation {generation}, known are {self!r}")
        if num_known + num_new > MAX_TEXTS:
            raise SerdeError(f"a dictionary of {num_known + num_new} texts, at most {MAX_TEXTS} can be told apart")
        texts, end = decode_texts(payload, offset, num_new)
        if not num_known:
            self._generation, self._table, self._num_characters = generation, NameTable(), 0
        self._num_characters += sum(map(len, texts))
        if self._num_characters > MAX_CHARACTERS:
            raise SerdeError(f"a dictionary of {self._num_characters} characters, at most {MAX_CHARACTERS} are kept")
        self._table.names += texts
        return end


class ElementTooLargeError(SerdeError):
    """Several records stand for more values than a reader accepts at once; fewer records may do."""


class RecordFormat(Protocol):
    """Writes and reads the column of the records in a chunk."""

    def encode(self, chunk: Chunk) -> bytes:
        """The records of a chunk, at least one, as one column.  Raises SerdeError, ElementTooLargeError."""

    def decode(self, view: memoryview, offset: int, num_records: int) -> tuple[Columns | list[Any], int]:
        """Read the records at ``offset``; return them and the offset after them.  Raises SerdeError."""
