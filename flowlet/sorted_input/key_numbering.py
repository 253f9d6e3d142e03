"""Numbers the keys of one run in the order in which they come, so that each needs one code however many records have
it.

Hot path, per column: a dictionary's codes are translated in numpy; other keys take one probe each.

Side:       pure.
Invariants: two keys have one number exactly if they are the same key (``flowlet.keys.exact_keys``).
Rules:      integers are not numbered: numpy makes codes of them, and sorts these.  While most keys are different ones,
            it is not settled whether numbers pay.
"""

import sys
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from flowlet.columns import (
    ArrowColumn,
    CodedColumn,
    Column,
    ColumnVisitor,
    ConstantColumn,
    ListColumn,
    NameTable,
    ShortTextColumn,
)
from flowlet.keys.exact_keys import exact_keys
from flowlet.sorted_input.sort_codes import RankedCodes, exact_codes, list_codes
from netstack.late import dataclass

Numbers = NDArray[np.uint32]

_UNKNOWN: Final = (1 << 32) - 1
_MIN_ROWS: Final = 4096  # before it is settled; not measured closely
_KEY_BYTES: Final = 100  # of a key: in the dictionary, in the list of names; not measured closely


def _bytes_of(exact: Any) -> int:
    """Of an exact key with its parts; types are there once."""
    match exact:
        case tuple() | frozenset():
            return sys.getsizeof(exact) + sum(map(_bytes_of, exact))
        case type():
            return 0
        case _:
            return sys.getsizeof(exact)


class _Numbers(dict[Any, int]):
    """Exact key -> number; a new key gets the next one."""

    __slots__ = ("names", "num_bytes")

    def __init__(self, names: list[Any]) -> None:
        super().__init__()
        self.names = names
        self.num_bytes = 0  # of the keys as objects

    def __missing__(self, key: Any) -> int:
        number = self[key] = len(self)
        self.names.append(key)
        self.num_bytes += sys.getsizeof(key) if type(key) is str else _bytes_of(key)
        return number


@dataclass(frozen=True, slots=True)
class Numbered:
    """The numbers of a column of keys; ``are_texts``: whether ``names`` of the numbering may stand in the place of the
    column.
    """

    numbers: Numbers
    are_texts: bool


class KeyNumbering(ColumnVisitor[Numbered | None]):
    """The numbers of the keys of one run.

    Threading: one thread.
    """

    __slots__ = ("_num_rows", "_numbers", "_recodings", "are_texts", "does_pay", "names")

    def __init__(self) -> None:
        self.names = NameTable()
        self.are_texts = True  # all keys so far
        self._numbers = _Numbers(self.names.names)
        self._recodings: WeakKeyDictionary[NameTable, Numbers] = WeakKeyDictionary()
        self._num_rows = 0
        self.does_pay = False  # once there are twice as many records as keys

    def __repr__(self) -> str:
        return f"<KeyNumbering of {len(self._numbers)} keys of {self._num_rows} records>"

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def estimated_bytes(self) -> int:
        """Of its keys."""
        return len(self._numbers) * _KEY_BYTES + self._numbers.num_bytes

    def try_number(self, keys: Column) -> Numbered | None:
        """The number of each key; None if they have none.

        Raises:
            KeyTypeError: something cannot be a key.
        """
        numbered = keys.accept(self)
        if numbered is None:
            return None
        self.are_texts = self.are_texts and numbered.are_texts
        self._num_rows += len(keys)
        self.does_pay = self.does_pay or self._num_rows >= max(_MIN_ROWS, len(self._numbers) * 2)
        return numbered

    def ranking(self) -> RankedCodes:
        """The codes of all keys, by their numbers so far: ``take`` gives those of records."""
        keys = list(self._numbers)
        codes = list_codes(keys) if self.are_texts else exact_codes(keys)
        order = np.argsort(codes, kind="stable")
        ranks = np.empty(len(order), np.uint32)
        ranks[order] = np.arange(len(order), dtype=np.uint32)
        names = self.names.names
        in_order = NameTable([names[number] for number in order.tolist()]) if self.are_texts else None
        return RankedCodes(ranks, codes.take(order), in_order)

    def visit_any(self, column: Column) -> Numbered | None:
        """Anything but integers by its values."""
        numbers = column.numbers()
        if numbers is not None and not numbers.kind.is_instant and numbers.array.dtype.kind == "i":
            return None
        return self._of_values(column.to_list())

    def visit_arrow(self, column: ArrowColumn) -> Numbered | None:
        """As others, but nothing takes the place of the column: it has a type of Arrow's."""
        numbered = self.visit_any(column)
        return None if numbered is None else Numbered(numbered.numbers, are_texts=False)

    def visit_list(self, column: ListColumn) -> Numbered | None:
        """By the values."""
        return self._of_values(column.values, column.value_type)

    def visit_short_texts(self, column: ShortTextColumn) -> Numbered | None:
        """By the texts."""
        return self._of_values(column.to_list(), str)

    def visit_constant(self, column: ConstantColumn) -> Numbered | None:
        """One look at the value."""
        numbered = self._of_values([column.value])
        return None if numbered is None else Numbered(np.repeat(numbered.numbers, len(column)), numbered.are_texts)

    def visit_coded(self, column: CodedColumn) -> Numbered | None:
        """By what is known of each code of the table."""
        known = self._known(column.names)
        numbers = known.take(column.codes)
        is_missing = numbers == _UNKNOWN
        if is_missing.any():
            missing = np.unique(column.codes[is_missing])
            found = self._of_values(column.names.values_of(missing))
            if found is None:
                return None
            known[missing] = found.numbers
            numbers = known.take(column.codes)
        return Numbered(numbers, column.names.types == {str})

    def _known(self, names: NameTable) -> Numbers:
        """Code -> number, as long as the table."""
        known = self._recodings.get(names)
        if known is None or len(known) < len(names):
            grown = np.full(len(names), _UNKNOWN, np.uint32)
            if known is not None:
                grown[: len(known)] = known
            known = self._recodings[names] = grown
        return known

    def _of_values(self, values: list[Any], value_type: type | None = None) -> Numbered | None:
        kinds = set(map(type, values)) if value_type is None else {value_type}
        if kinds == {int}:
            return None
        are_texts = kinds == {str}
        exact = values if are_texts else exact_keys(values)
        return Numbered(np.fromiter(map(self._numbers.__getitem__, exact), np.uint32, len(values)), are_texts)
