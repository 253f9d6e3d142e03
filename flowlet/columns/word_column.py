"""Words by their places in one text: what ``text.split`` gives, without an object per word as long as nobody asks for one.

Hot path: C code per column, and nothing before somebody asks for places (``bench wordcount``).

Side:       pure.
Invariants: the text is ASCII, and no word has a NUL: so places count characters and bytes alike, and a word that is filled up with NULs is
            like no other; ``to_list`` gives what ``str.split`` does.
Units:      places and lengths in characters.
Absent:     texts beyond ASCII: who makes columns leaves them to ``str.split``.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.column import IndexArray, ListColumn, MaskArray
from flowlet.columns.short_texts import HEAD, HEAD_BYTES, HeadArray, ShortTextColumn

NUL: Final = "\0"
_SPACE: Final = 0x20
# str.isspace of ASCII: tab to carriage return, and the four separators before the space.
_CONTROLS: Final = (np.uint8(0x09), np.uint8(0x0D - 0x09))
_SEPARATORS: Final = (np.uint8(0x1C), np.uint8(_SPACE - 0x1C))


def _head_masks() -> NDArray[Any]:
    """By the length of a word: ones where the first bytes are its own."""
    masks = np.zeros((HEAD_BYTES + 1, HEAD_BYTES), np.uint8)
    for length in range(HEAD_BYTES + 1):
        masks[length, :length] = 0xFF
    return masks.view(HEAD)[:, 0]


_HEAD_MASKS: Final = _head_masks()


class WordColumn:
    """``text.split(separator)``.

    Args:
        text: of ASCII characters, without NUL but as separator.
        separator: one character; None: any white space.
        num_words: how many there are, if that is known.
    """

    def __init__(self, text: str, separator: str | None = None, num_words: int | None = None) -> None:
        assert text.isascii(), "places are those of bytes"
        self.text = text
        self.separator = separator
        self._num_words = num_words

    @classmethod
    def joined(cls, texts: Sequence[str]) -> "WordColumn | None":
        """All these texts; None if one is not ASCII, or has a NUL.  There is at least one."""
        text = NUL.join(texts)
        return cls(text, NUL, len(texts)) if text.isascii() and text.count(NUL) == len(texts) - 1 else None

    def __repr__(self) -> str:
        return f"<WordColumn of {len(self)} words>"

    def __len__(self) -> int:
        if self._num_words is None:
            self._num_words = len(self.starts)
        return self._num_words

    def to_list(self) -> list[Any]:
        """The words, as new objects."""
        return list[Any](self.text.split(self.separator))

    def take(self, indices: IndexArray) -> ListColumn | ShortTextColumn:
        """The words at these positions."""
        return self._in_pieces.take(indices)

    def slice(self, start: int, stop: int) -> ListColumn | ShortTextColumn:
        """A part."""
        return self._in_pieces.slice(start, stop)

    def words_at(self, positions: IndexArray) -> list[str]:
        """The words at these positions; for a few of them."""
        text = self.text
        starts = self.starts[positions]
        ends = starts + self.lengths[positions]
        return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each word begins."""
        return self._places[0]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How long each word is."""
        return self._places[1]

    @cached_property
    def short(self) -> ShortTextColumn | None:
        """All words, if none is longer than a short text."""
        return None if self.lengths.max(initial=0) > HEAD_BYTES else ShortTextColumn(self.heads)

    @cached_property
    def heads(self) -> HeadArray:
        """The first ``HEAD_BYTES`` bytes of each word, NULs behind its end, as two integers."""
        buffer = self.text.encode() + bytes(HEAD_BYTES)
        anywhere: NDArray[Any] = np.ndarray(len(self.text) + 1, HEAD, buffer, strides=(1,))
        heads = anywhere[self.starts].view(np.uint64)
        heads &= _HEAD_MASKS.take(self.lengths, mode="clip").view(np.uint64)
        return heads.reshape(-1, 2)

    @cached_property
    def _in_pieces(self) -> ListColumn | ShortTextColumn:
        return self.short or ListColumn(self.to_list(), str)

    @cached_property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        units = np.frombuffer(self.text.encode(), np.uint8)
        is_between = _is_space(units) if self.separator is None else units == ord(self.separator)
        between = np.flatnonzero(is_between)
        starts = np.zeros(len(between) + 1, np.int64)
        np.add(between, 1, out=starts[1:])
        lengths = np.append(between, len(self.text)) - starts
        if self.separator is None and not lengths.all():
            is_word = lengths > 0  # white space next to white space, or at an end
            starts, lengths = starts[is_word], lengths[is_word]
        return starts, lengths


def _is_space(units: NDArray[np.uint8]) -> MaskArray:
    """Whether a character is white space for ``str.split``; differences below zero are large numbers."""
    is_space: MaskArray = units - _SEPARATORS[0] <= _SEPARATORS[1]
    is_space |= units - _CONTROLS[0] <= _CONTROLS[1]
    return is_space
