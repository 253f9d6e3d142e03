"""Words by their places in one text: what ``text.split`` gives, without an object per word as long as nobody asks for one.

Hot path: C code per column (``bench wordcount``).

Side:       pure.
Invariants: the text is ASCII without NUL, so places count characters and bytes alike, and a word that is filled up with NULs is like no
            other; ``to_list`` gives what ``str.split`` does.
Units:      places and lengths in characters.
Absent:     texts beyond ASCII: who makes columns leaves them to ``str.split``.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns.column import IndexArray, ListColumn, MaskArray

HEAD_BYTES: Final = 16
_HEAD: Final = np.dtype(np.complex128)  # numpy moves its 16 bytes at once; nobody computes with it
_SPACE: Final = 0x20
# str.isspace of ASCII: tab to carriage return, and the four separators before the space.
_CONTROLS: Final = (np.uint8(0x09), np.uint8(0x0D - 0x09))
_SEPARATORS: Final = (np.uint8(0x1C), np.uint8(_SPACE - 0x1C))


def _head_masks() -> NDArray[Any]:
    """By the length of a word: ones where the first bytes are its own."""
    masks = np.zeros((HEAD_BYTES + 1, HEAD_BYTES), np.uint8)
    for length in range(HEAD_BYTES + 1):
        masks[length, :length] = 0xFF
    return masks.view(_HEAD)[:, 0]


_HEAD_MASKS: Final = _head_masks()


class WordColumn:
    """``text.split(separator)``.

    Args:
        text: of ASCII characters, without NUL.
        separator: one character; None: any white space.
    """

    __slots__ = ("_separator", "_text", "lengths", "starts")

    def __init__(self, text: str, separator: str | None = None) -> None:
        assert text.isascii(), "places are those of bytes"
        self._text = text
        self._separator = separator
        units = np.frombuffer(text.encode(), np.uint8)
        is_between = _is_space(units) if separator is None else units == ord(separator)
        between = np.flatnonzero(is_between)
        starts = np.zeros(len(between) + 1, np.int64)
        np.add(between, 1, out=starts[1:])
        lengths = np.append(between, len(text)) - starts
        if separator is None and not lengths.all():
            is_word = lengths > 0  # white space next to white space, or at an end
            starts, lengths = starts[is_word], lengths[is_word]
        self.starts = starts
        self.lengths = lengths

    def __repr__(self) -> str:
        return f"<WordColumn of {len(self)} words>"

    def __len__(self) -> int:
        return len(self.starts)

    def to_list(self) -> list[Any]:
        """The words, as new objects."""
        return list[Any](self._text.split(self._separator))

    def take(self, indices: IndexArray) -> ListColumn:
        """The words at these positions."""
        return self._listed().take(indices)

    def compress(self, mask: MaskArray) -> ListColumn:
        """The words where the mask is true."""
        return self._listed().compress(mask)

    def slice(self, start: int, stop: int) -> ListColumn:
        """A part."""
        return self._listed().slice(start, stop)

    def words_at(self, positions: IndexArray) -> list[str]:
        """The words at these positions; for a few of them."""
        text = self._text
        starts = self.starts[positions]
        ends = starts + self.lengths[positions]
        return [text[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]

    def heads(self) -> NDArray[np.uint64]:
        """The first ``HEAD_BYTES`` bytes of each word, NULs behind its end, as two integers."""
        buffer = self._text.encode() + bytes(HEAD_BYTES)
        anywhere: NDArray[Any] = np.ndarray(len(self._text) + 1, _HEAD, buffer, strides=(1,))
        heads = anywhere[self.starts].view(np.uint64)
        heads &= _HEAD_MASKS.take(self.lengths, mode="clip").view(np.uint64)
        return heads.reshape(-1, 2)

    def _listed(self) -> ListColumn:
        return ListColumn(self.to_list(), str)


def _is_space(units: NDArray[np.uint8]) -> MaskArray:
    """Whether a character is white space for ``str.split``; differences below zero are large numbers."""
    is_space: MaskArray = units - _SEPARATORS[0] <= _SEPARATORS[1]
    is_space |= units - _CONTROLS[0] <= _CONTROLS[1]
    return is_space
