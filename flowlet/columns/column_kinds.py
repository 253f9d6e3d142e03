"""The representations of a column: Python objects, one value many times, codes of a table that it shares with other
columns (``NameTable``), a numpy array, integers above a base, an Arrow array.

Hot path: C code per column.

Side:       pure.
Invariants: a narrow column (``OffsetColumn``) stands for exactly the values of the array that it was made of.
Source:     frame of reference (Goldstein, Ramakrishnan, Shaft: Compressing Relations and Indexes, 1998), as column
            stores have it: values that count upwards, instants above all, have small offsets from the smallest one.
Absent:     a treatment of each Arrow type: an array is passed on as it is, and ``to_pylist`` gives its values.  Short
            texts have a module of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final

from flowlet.columns.column import (
    INSTANT,
    INT64_MAX,
    INT64_MIN,
    UNCHANGING,
    Column,
    IndexArray,
    NumberKind,
    Numbers,
    are_unchanging,
    is_unchanging,
    wide,
)
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class ListColumn(Column):
    """Any values, in a list.

    Ownership: the caller must not change the list afterwards.

    Args:
        values: the values.
        value_type: the exact type of all values, if it is known; saves readers a look at each value.
    """

    __slots__ = ("_value_type", "values")
    visited_as: ClassVar[str] = "list"
    has_objects: ClassVar[bool] = True

    def __init__(self, values: list[Any], value_type: type | None = None) -> None:
        self.values = values
        self._value_type = value_type

    def __repr__(self) -> str:
        return f"<ListColumn of {len(self)} {'values' if self._value_type is None else self._value_type.__name__}>"

    def __len__(self) -> int:
        return len(self.values)

    @property
    def value_type(self) -> type | None:
        """The type that the maker of the column gave."""
        return self._value_type

    def to_list(self) -> list[Any]:
        """A new list of the objects themselves."""
        return self.values.copy()

    def as_list(self) -> list[Any]:
        """The list itself, without a copy."""
        return self.values

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def take(self, indices: IndexArray) -> ListColumn:
        """The values at these positions.  20 ns per value; by an array of objects it takes more than 100."""
        values = self.values
        return ListColumn([values[index] for index in indices.tolist()], self._value_type)

    def slice(self, start: int, stop: int) -> ListColumn:
        """A part, in a list of its own."""
        return ListColumn(self.values[start:stop], self._value_type)

    def is_unchanging(self) -> bool:
        """Whether no value can change; looks at each value if their type is not known."""
        return self._value_type in UNCHANGING or are_unchanging(self.values)

    def concatenate(self, columns: Sequence[Column]) -> ListColumn | None:
        """All values in one list; None if a column is neither a list nor constant."""
        are_alike = all(isinstance(column, ListColumn) or column.is_constant for column in columns)
        return joined(columns) if are_alike else None


def joined(columns: Sequence[Column]) -> ListColumn:
    """All values of columns of any kind, as a list."""
    types = {column.value_type for column in columns}
    return ListColumn(list(chain.from_iterable(columns)), types.pop() if len(types) == 1 else None)


_ARRAY_TYPE_OF: Final[dict[type, str]] = {int: "int64", bool: "bool"}


class ConstantColumn(Column):
    """One value many times; all records share it."""

    __slots__ = ("_num_values", "value")
    visited_as: ClassVar[str] = "constant"
    is_constant: ClassVar[bool] = True

    def __init__(self, value: Any, num_values: int) -> None:
        self.value = value
        self._num_values = num_values

    def __repr__(self) -> str:
        return f"<ConstantColumn of {self._num_values} times {self.value!r:.40}>"

    def __len__(self) -> int:
        return self._num_values

    @property
    def value_type(self) -> type:
        """The type of the value."""
        return type(self.value)

    def to_list(self) -> list[Any]:
        """The one object, as often as there are values."""
        return [self.value] * self._num_values

    def __iter__(self) -> Iterator[Any]:
        return repeat(self.value, self._num_values)

    def take(self, indices: IndexArray) -> ConstantColumn:
        """The value as often as there are positions."""
        return ConstantColumn(self.value, len(indices))

    def slice(self, start: int, stop: int) -> ConstantColumn:
        """A part."""
        return ConstantColumn(self.value, len(range(self._num_values)[start:stop]))

    def is_unchanging(self) -> bool:
        """Whether the value cannot change."""
        return is_unchanging(self.value)

    def as_array(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """An array of this type, for an int within 64 bits or a truth value; else None."""
        kind = type(self.value)
        # Two tests, not one comparison with ``get``: to numpy, None means float64.
        if (
            kind not in _ARRAY_TYPE_OF
            or _ARRAY_TYPE_OF[kind] != dtype
            or (kind is int and not self._is_within_64_bits())
        ):
            return None
        return np.full(self._num_values, self.value, dtype)

    def numbers(self) -> Numbers | None:
        """An array of the value, for an int within 64 bits or a float; else None."""
        if type(self.value) is int and self._is_within_64_bits():
            return Numbers(np.full(self._num_values, self.value, np.int64))
        return Numbers(np.full(self._num_values, self.value)) if type(self.value) is float else None

    def concatenate(self, columns: Sequence[Column]) -> Column:
        """The value more often if all columns have it; else a list of all values."""
        constants = [column for column in columns if isinstance(column, ConstantColumn)]
        assert len(constants) == len(columns), "a constant column is asked if all are constant"
        if all(_is_same(column.value, self.value) for column in constants):
            return ConstantColumn(self.value, sum(map(len, columns)))
        return joined(columns)

    def _is_within_64_bits(self) -> bool:
        return bool(INT64_MIN <= self.value <= INT64_MAX)


def _is_same(value: Any, other: Any) -> bool:
    """Whether one value may stand for the other: equal ones may only if their type gives no way to tell them apart."""
    return value is other or (type(value) is type(other) and type(value) in (int, str, bool) and value == other)


class NameTable:
    """The values that dictionary codes stand for: code ``n`` is ``names[n]``.  It only grows.

    The object is the identity of one generation of one dictionary.  Code that keeps a value per code keeps an array per
    table (in a weak dictionary, if need be), and finds new names by the table's length.

    Ownership: the maker of the table appends to ``names``; all others only read.
    """

    __slots__ = ("__weakref__", "_objects", "_typed", "names")

    def __init__(self, names: list[Any] | None = None) -> None:
        self.names: list[Any] = [] if names is None else names
        self._objects = (_objects([]), 0)  # the names for numpy, with room for others, and how many are there
        self._typed: tuple[int, frozenset[type]] = (0, frozenset())  # how many names have known types, and these types

    def __repr__(self) -> str:
        return f"<NameTable of {len(self.names)} values>"

    def __len__(self) -> int:
        return len(self.names)

    @property
    def types(self) -> frozenset[type]:
        """The exact types of the values."""
        # No lock: if two threads ask at once, each finds all types itself, and either result may be kept.
        num_typed, types = self._typed
        num_names = len(self.names)
        if num_typed < num_names:
            types = types.union(map(type, self.names[num_typed:num_names]))
            self._typed = num_names, types
        return types

    def values_of(self, codes: NDArray[Any]) -> list[Any]:
        """The value that each code stands for.

        One numpy ``take`` of objects: 7 ns per code, a loop in C over a list 25.
        """
        objects, num_objects = self._objects  # one read: a thread that grows them replaces the pair
        if num_objects < len(self.names):
            objects = self._grown(objects, num_objects)
        values: list[Any] = objects.take(codes).tolist()
        return values

    def _grown(self, objects: NDArray[np.object_], num_objects: int) -> NDArray[np.object_]:
        """The names so far as an array.  The array doubles when it is full, so each name is copied about twice, however
        few names are added at once.
        """
        new = _objects(self.names[num_objects:])
        size = num_objects + len(new)
        if size > len(objects):
            grown = np.empty(max(size, 2 * len(objects)), np.object_)
            grown[:num_objects] = objects[:num_objects]
            objects = grown
        objects[num_objects:size] = new
        self._objects = objects, size
        return objects


def _objects(values: list[Any]) -> NDArray[np.object_]:
    """An array of the objects themselves (``np.array`` would look into sequences)."""
    return np.fromiter(values, np.object_, len(values))


class CodedColumn(Column):
    """Values as codes of a table that they share with other columns.

    Args:
        codes: uint16 or uint32, each less than the table's length.
        names: the table of the values.
    """

    __slots__ = ("codes", "names")
    visited_as: ClassVar[str] = "coded"

    def __init__(self, codes: NDArray[Any], names: NameTable) -> None:
        assert codes.dtype in (np.uint16, np.uint32), f"codes of type {codes.dtype}"
        self.codes = codes
        self.names = names

    def __repr__(self) -> str:
        return f"<CodedColumn of {len(self)} {self.codes.dtype} codes of {self.names!r}>"

    def __len__(self) -> int:
        return len(self.codes)

    def to_list(self) -> list[Any]:
        """The objects of the table."""
        return self.names.values_of(self.codes)

    def take(self, indices: IndexArray) -> CodedColumn:
        """The values at these positions, as codes of this table."""
        return CodedColumn(self.codes.take(indices), self.names)

    def slice(self, start: int, stop: int) -> CodedColumn:
        """A part that shares the memory of the codes, and the table."""
        return CodedColumn(self.codes[start:stop], self.names)

    @property
    def value_type(self) -> type | None:
        """The type of all values of the table; None if there are several, or no values."""
        types = self.names.types
        return next(iter(types)) if len(types) == 1 else None

    def is_unchanging(self) -> bool:
        """Whether no value of the whole table can change, by its type."""
        return self.names.types <= UNCHANGING

    def concatenate(self, columns: Sequence[Column]) -> CodedColumn | None:
        """Join columns of one table; None: one has another table."""
        coded = [column for column in columns if isinstance(column, CodedColumn) and column.names is self.names]
        if len(coded) < len(columns):
            return None
        return CodedColumn(np.concatenate([column.codes for column in coded]), self.names)

    def detached(self) -> ListColumn:
        """The values in a list, without the table."""
        return ListColumn(self.to_list())


# Types that ``tolist`` turns into int, float and bool; and instants in microseconds, which become datetimes (NaT:
# None).  Native byte order.
_ORDER: Final = "<" if sys.byteorder == "little" else ">"
_TYPE_OF_KIND: Final[dict[str, type]] = {"i": int, "u": int, "f": float, "b": bool}
# The names that ``dtype.str`` gives.
_ARRAY_TYPES: Final = frozenset(
    ["|b1", "|i1", "|u1", *(_ORDER + each for each in ("i2", "i4", "i8", "u2", "u4", "u8", "f2", "f4", "f8", "M8[us]"))]
)


class ArrayColumn(Column):
    """Numbers, truth values or instants (microseconds) in a numpy array of one dimension.

    Ownership: the caller must not change the array afterwards.
    """

    __slots__ = ("array",)
    visited_as: ClassVar[str] = "array"
    never_has_nulls: ClassVar[bool] = True

    def __init__(self, array: NDArray[Any]) -> None:
        assert array.ndim == 1, f"a column has one dimension, got shape {array.shape}"
        assert array.dtype.str in _ARRAY_TYPES, f"an array column of {array.dtype}"
        self.array = array

    def __repr__(self) -> str:
        return f"<ArrayColumn of {len(self)} {self.array.dtype}>"

    def __len__(self) -> int:
        return len(self.array)

    def to_list(self) -> list[Any]:
        """The values as int, float, bool or datetime."""
        values: list[Any] = self.array.tolist()
        return values

    def take(self, indices: IndexArray) -> ArrayColumn:
        """The values at these positions."""
        return ArrayColumn(self.array.take(indices))

    def slice(self, start: int, stop: int) -> ArrayColumn:
        """A part that shares the memory of the array."""
        return ArrayColumn(self.array[start:stop])

    @property
    def value_type(self) -> type | None:
        """The type of numbers and truth values; None for instants, which may be None, too."""
        return _TYPE_OF_KIND.get(self.array.dtype.kind)

    def narrowed(self) -> Column:
        """Integers of 64 bits in fewer bytes; other arrays without a change."""
        return narrowed(self.array) if self.array.dtype == np.int64 else self

    def as_array(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The array itself, if it has this type; else None."""
        return self.array if self.array.dtype == dtype else None

    def numbers(self) -> Numbers | None:
        """The numbers or instants; None for truth values, and for integers beyond 63 bits."""
        if self.array.dtype == INSTANT:
            is_valid = ~np.isnat(self.array)
            return Numbers(self.array.view(np.int64), None if is_valid.all() else is_valid, NumberKind(is_instant=True))
        numbers = wide(self.array)
        return None if numbers is None else Numbers(numbers)

    def arrow_array(self) -> Any:
        """An Arrow array of the type of the numpy array; NaN stays NaN."""
        import pyarrow as pa  # here, because it takes longer than this whole package, and most jobs do without it

        return pa.array(self.array, from_pandas=False)

    def concatenate(self, columns: Sequence[Column]) -> ArrayColumn | None:
        """All values in one array; None if a column is no array of this type."""
        arrays = [column.as_array(self.array.dtype) for column in columns]
        known = [array for array in arrays if array is not None]
        return ArrayColumn(np.concatenate(known)) if len(known) == len(arrays) else None


# With fewer values a base costs more bytes than it saves.
MIN_BASED: Final = 16
_INT64_BYTES: Final = 8
_BITS_PER_BYTE: Final = 8


class OffsetColumn(Column):
    """Integers, each as its offset above a base.

    Args:
        base: 0, or a lower bound of the integers.
        offsets: of one, two or four bytes; unsigned if the base is not 0.  The array must not be changed any more.
    """

    __slots__ = ("base", "offsets")
    visited_as: ClassVar[str] = "offsets"
    never_has_nulls: ClassVar[bool] = True

    def __init__(self, base: int, offsets: NDArray[Any]) -> None:
        self.base = base
        self.offsets = offsets

    def __repr__(self) -> str:
        return f"<OffsetColumn of {len(self)} {self.offsets.dtype} above {self.base}>"

    def __len__(self) -> int:
        return len(self.offsets)

    def to_array(self) -> NDArray[np.int64]:
        """The values, in an array of the caller's own."""
        values = self.offsets.astype(np.int64)
        if self.base:
            values += self.base
        return values

    def to_list(self) -> list[int]:
        """The values as ints."""
        values: list[int] = self.to_array().tolist()
        return values

    def take(self, indices: IndexArray) -> OffsetColumn:
        """The values at these positions."""
        return OffsetColumn(self.base, self.offsets.take(indices))

    def slice(self, start: int, stop: int) -> OffsetColumn:
        """A part that shares the memory of the offsets."""
        return OffsetColumn(self.base, self.offsets[start:stop])

    def widened(self) -> ArrayColumn:
        """The values in an array of int64."""
        return ArrayColumn(self.to_array())


def narrowed(array: NDArray[np.int64]) -> ArrayColumn | ConstantColumn | OffsetColumn:
    """A column with the values of the array, at least one, in as few bytes as they need."""
    low, high = int(array.min()), int(array.max())
    if low == high and len(array) > 1:
        return ConstantColumn(low, len(array))
    size = _bytes_for(max(high, ~low).bit_length() + 1)
    based_size = _bytes_for((high - low).bit_length())
    if based_size < size and len(array) >= MIN_BASED:
        # The upper bits are cut off before the subtraction: the differences are below 2**bits, so modulo 2**bits they
        # are right.
        offsets = array.astype(f"u{based_size}")
        offsets -= offsets.dtype.type(low % (1 << _BITS_PER_BYTE * based_size))
        return OffsetColumn(low, offsets)
    return ArrayColumn(array) if size == _INT64_BYTES else OffsetColumn(0, array.astype(f"i{size}"))


def _bytes_for(num_bits: int) -> int:
    return next(size for size in (1, 2, 4, 8) if num_bits <= _BITS_PER_BYTE * size)


_MOST_BYTES: Final = 1 << 30  # of joined arrays
_UNCHANGING: Final = (
    *("null", "boolean", "integer", "floating", "decimal", "date", "time", "timestamp", "duration"),
    *("string", "large_string", "binary", "large_binary", "fixed_size_binary"),
)


class ArrowColumn(Column):
    """An Arrow array, untouched: texts, instants, nulls, dictionaries.

    Args:
        array: a ``pyarrow.Array``, not chunked.  This module imports pyarrow only in methods: its import takes longer
            than the import of this whole package.
    """

    __slots__ = ("array",)
    visited_as: ClassVar[str] = "arrow"
    may_have_nulls: ClassVar[bool] = True

    def __init__(self, array: Any) -> None:
        self.array = array

    def __repr__(self) -> str:
        return f"<ArrowColumn of {len(self)} {self.array.type}>"

    def __len__(self) -> int:
        return len(self.array)

    def to_list(self) -> list[Any]:
        """The values as ``to_pylist`` gives them; nulls become None."""
        values: list[Any] = self.array.to_pylist()
        return values

    def take(self, indices: IndexArray) -> ArrowColumn:
        """The values at these positions."""
        return ArrowColumn(self.array.take(indices))

    def slice(self, start: int, stop: int) -> ArrowColumn:
        """A part that shares the memory of the array."""
        return ArrowColumn(self.array[start:stop])

    def is_unchanging(self) -> bool:
        """Whether no value can change, by the Arrow type."""
        return _gives_unchanging(self.array.type)

    def arrow_array(self) -> Any:
        """The array itself."""
        return self.array

    def concatenate(self, columns: Sequence[Column]) -> ArrowColumn | None:
        """All values in one array; None if the Arrow types differ, or the array would be too large for its offsets."""
        import pyarrow as pa  # a process with Arrow columns has loaded it

        arrays = [column.array for column in columns if isinstance(column, ArrowColumn)]
        if len(arrays) < len(columns) or any(array.type != self.array.type for array in arrays):
            return None
        if sum(array.nbytes for array in arrays) > _MOST_BYTES:  # offsets of texts have 32 bits
            return None
        return ArrowColumn(pa.concat_arrays(arrays))

    def numbers(self) -> Numbers | None:
        """The integers, floats, timestamps, or dates as days; None for other types."""
        import pyarrow as pa

        array = self.array
        kinds, kind = pa.types, array.type
        is_instant = kinds.is_timestamp(kind) or kinds.is_date32(kind)
        if not (is_instant or kinds.is_integer(kind) or kinds.is_floating(kind)):
            return None
        is_valid = None if not array.null_count else array.is_valid().to_numpy(zero_copy_only=False)
        plain = array
        if is_instant:
            plain = array.view(pa.int32() if kinds.is_date32(kind) else pa.int64())
        numbers = wide((plain if is_valid is None else plain.fill_null(0)).to_numpy(zero_copy_only=False))
        if numbers is None:
            return None
        return Numbers(numbers, is_valid, NumberKind(is_instant=True, arrow_type=kind) if is_instant else NumberKind())


@lru_cache(maxsize=256)
def _gives_unchanging(arrow_type: Any) -> bool:
    """Whether ``to_pylist`` of an array of this type gives only None and values that cannot change; nested types give
    lists and dictionaries.
    """
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return _gives_unchanging(arrow_type.value_type)
    return any(getattr(types, f"is_{kind}")(arrow_type) for kind in _UNCHANGING)
