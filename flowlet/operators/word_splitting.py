"""Lines into columns of words, where a flat_map function does nothing else.

Hot path, per chunk: all lines are split as one text, 6 ns per word instead of 40, and 90 with a pair for each (``bench wordcount``).

Side:       task.
Invariants: what goes out are the records that the function would give, with their types, order and timestamps.  Lines that are no exact
            str, or not ASCII, are left to the function.
Units:      characters.
"""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Final

import numpy as np

from flowlet.columns import Columns, ConstantColumn, Shape, WordColumn
from flowlet.fusing.word_split import WordSplit, word_split
from flowlet.records import Chunk, Int64Array

# Fewer are split one by one: some forty numpy calls for the words of a chunk take as long.  Not measured closely.
MIN_CHARACTERS: Final = 2_048
# A text has at most half as many words, and the writer takes 49,151 in one go.
MAX_CHARACTERS: Final = 96 * 1024
_NUL: Final = "\0"


class WordSplitter:
    """A function that splits lines, in columns.

    Args:
        split: what it does.
    """

    __slots__ = ("_split",)

    def __init__(self, split: WordSplit) -> None:
        self._split = split

    def __repr__(self) -> str:
        return f"<WordSplitter {self._split!r}>"

    @classmethod
    def of(cls, function: Any) -> "WordSplitter | None":
        """For a function; None if it does something else, or nobody can tell."""
        split = word_split(function)
        return None if split is None else cls(split)

    def try_split(self, lines: list[Any], timestamps: list[int] | None) -> Iterator[Chunk] | None:
        """The words of all lines, in chunks; None if the function must be called."""
        if list(map(type, lines)).count(str) != len(lines):
            return None
        sizes = list(map(len, lines))
        if sum(sizes) < MIN_CHARACTERS or max(sizes) > MAX_CHARACTERS:
            return None
        separator = self._split.separator or " "
        texts = [separator.join(lines[start:stop]) for start, stop in _parts(sizes)]
        # Before their case is changed: the upper case of some other characters is ASCII.
        if not all(text.isascii() and _NUL not in text for text in texts):
            return None
        return self._chunks(texts, sizes, timestamps)

    def _in_case(self, text: str) -> str:
        for case in self._split.cases:
            text = getattr(text, case)()
        return text

    def _chunks(self, texts: list[str], sizes: list[int], timestamps: list[int] | None) -> Iterator[Chunk]:
        for text, (start, stop) in zip(texts, _parts(sizes), strict=True):
            words = WordColumn(self._in_case(text), self._split.separator)
            if len(words):
                stamps = None if timestamps is None else _spread(words, sizes[start:stop], timestamps[start:stop])
                yield Chunk.of_columns(self._columns(words), stamps)

    def _columns(self, words: WordColumn) -> Columns:
        if not self._split.other:
            return Columns(len(words), (words,), Shape.SCALAR)
        return Columns(len(words), (words, ConstantColumn(self._split.other[0], len(words))), Shape.TUPLE)


def _parts(sizes: list[int]) -> list[tuple[int, int]]:
    """First lines, and those behind the last ones, of texts that are not too long."""
    parts = []
    start = size = 0
    if sum(sizes) + len(sizes) <= MAX_CHARACTERS:
        return [(0, len(sizes))]
    for index, each in enumerate(sizes):
        size += each + 1
        if size > MAX_CHARACTERS + 1:
            parts.append((start, index))
            start, size = index, each + 1
    return [*parts, (start, len(sizes))]


def _spread(words: WordColumn, sizes: list[int], timestamps: list[int]) -> Int64Array:
    """The timestamp of the line of each word."""
    ends = np.fromiter(accumulate(size + 1 for size in sizes), np.int64, len(sizes))
    num_words = np.diff(np.searchsorted(words.starts, ends), prepend=0)
    return np.repeat(np.array(timestamps, np.int64), num_words)
