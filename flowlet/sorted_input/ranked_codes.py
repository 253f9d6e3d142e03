"""Codes of keys as their ranks among the codes that occur: many records of few keys.

Hot path, per block: ranks are sorted, compared and moved as integers; codes themselves only once per key.

Side:       pure.
Invariants: the table rises; each rank is the place of a record's code in it, so ranks are in the order of the codes.
"""

import sys
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import NameTable
from netstack.late import dataclass

_MAX_SHORT: Final = 1 << 16  # ranks below take two bytes
_POINTER_BYTES: Final = 8
# Of blocks with different tables: fewer are sorted by the codes themselves; not measured closely.
_MIN_ROWS: Final = 4096


@dataclass(frozen=True, slots=True, eq=False)
class RankedCodes:
    """The codes of many records.

    ``ranks``: uint16 or uint32.  ``table``: the codes as bytes of one width.  ``names``: the keys that they stand for,
        if all of these are
    exactly texts, and keys that are a field are wanted as codes, too; else None.
    """

    ranks: NDArray[Any]
    table: NDArray[Any]
    names: NameTable | None = None

    def __len__(self) -> int:
        return len(self.ranks)

    @property
    def nbytes(self) -> int:
        """Of the ranks; the table is not counted."""
        return self.ranks.nbytes

    def bytes_of_keys(self) -> NDArray[np.int64]:
        """Of each code of the table: its own, and those of its name."""
        own = self.table.itemsize
        if self.names is None:
            return np.full(len(self.table), own, np.int64)
        return np.fromiter(map(sys.getsizeof, self.names.names), np.int64, len(self.table)) + (own + _POINTER_BYTES)

    def __getitem__(self, rows: slice) -> "RankedCodes":
        return RankedCodes(self.ranks[rows], self.table, self.names)

    def take(self, rows: NDArray[np.intp]) -> "RankedCodes":
        """The codes of these rows, in this order."""
        return RankedCodes(self.ranks.take(rows), self.table, self.names)

    def to_bytes_array(self) -> NDArray[Any]:
        """Each code."""
        return self.table.take(self.ranks)

    def trimmed(self) -> "RankedCodes":
        """The same without what is in the table before the first and behind the last one that occurs; there is at least
        one.
        """
        low, stop = int(self.ranks.min()), int(self.ranks.max()) + 1
        is_short = stop - low <= _MAX_SHORT
        if stop - low == len(self.table) and is_short == (self.ranks.dtype == np.uint16):
            return self
        ranks = (self.ranks - self.ranks.dtype.type(low)).astype(np.uint16 if is_short else np.uint32)
        return RankedCodes(
            ranks, self.table[low:stop], None if self.names is None else NameTable(self.names.names[low:stop])
        )

    def is_worthwhile(self) -> bool:
        """Whether records share codes."""
        return len(self.table) * 2 <= len(self.ranks)


def try_unify(codes: Sequence[RankedCodes]) -> list[RankedCodes] | None:
    """The same codes with one table; None if that does not pay.  There is at least one, none empty."""
    first = codes[0]
    if all(each.table is first.table for each in codes):
        return list(codes)
    if sum(map(len, codes)) < _MIN_ROWS:
        return None
    codes = [each.trimmed() for each in codes]
    sizes = [len(each.table) for each in codes]
    if sum(sizes) * 2 > sum(map(len, codes)):
        return None
    table, places, ranks = np.unique(
        np.concatenate([each.table for each in codes]), return_index=True, return_inverse=True
    )
    tables = [each.names for each in codes if each.names is not None]
    names = None
    if len(tables) == len(codes):
        all_names = list(chain.from_iterable(each.names for each in tables))
        names = NameTable([all_names[place] for place in places.tolist()])
    ranks = ranks.astype(np.uint32)
    starts = [0, *accumulate(sizes)]
    return [
        RankedCodes(ranks[start:].take(each.ranks), table, names) for start, each in zip(starts, codes, strict=False)
    ]
