"""One field of many records, in the representation that costs least.

Hot path: C code per column, nothing per value.

Side:       pure.
Invariants: ``to_list`` gives the exact Python values that the column stands for, a new list each time; columns never change, and share
            memory with the parts that ``slice`` makes of them.
Units:      positions count from 0.
Absent:     Arrow's types beyond what ``to_pylist`` says about them: an Arrow column is passed on as it is.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

IndexArray = NDArray[np.intp]
MaskArray = NDArray[np.bool_]

# What ``tolist`` turns into int, float and bool; and instants in microseconds, which become datetimes (NaT: None).  Native byte order.
_ARRAY_TYPES = frozenset(map(np.dtype, ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "datetime64[us]"]))


class Column(Protocol):
    """What all columns can do."""

    def __len__(self) -> int:
        """How many values there are."""

    def to_list(self) -> list[Any]:
        """The values as Python objects, in a list of the caller's own."""

    def take(self, indices: IndexArray) -> "Column":
        """The values at these positions, in this order."""

    def slice(self, start: int, stop: int) -> "Column":
        """The values from ``start`` up to ``stop``; what is beyond the end is left out."""


class ArrayColumn:
    """Numbers, truth values or instants (microseconds) in a numpy array of one dimension.

    Ownership: nobody writes into the array any more.
    """

    __slots__ = ("array",)

    def __init__(self, array: NDArray[Any]) -> None:
        assert array.ndim == 1, f"a column has one dimension, got shape {array.shape}"
        assert array.dtype in _ARRAY_TYPES, f"an array column of {array.dtype}"
        self.array = array

    def __repr__(self) -> str:
        return f"<ArrayColumn of {len(self)} {self.array.dtype}>"

    def __len__(self) -> int:
        return len(self.array)

    def to_list(self) -> list[Any]:
        """int, float, bool, or datetime."""
        values: list[Any] = self.array.tolist()
        return values

    def take(self, indices: IndexArray) -> "ArrayColumn":
        """The values at these positions."""
        return ArrayColumn(self.array.take(indices))

    def slice(self, start: int, stop: int) -> "ArrayColumn":
        """A part, in the same memory."""
        return ArrayColumn(self.array[start:stop])


class ListColumn:
    """Any values, in a list.

    Ownership: nobody changes the list any more.

    Args:
        values: the values.
        value_type: their exact type, if it is known that they all have it; saves others a look.
    """

    __slots__ = ("value_type", "values")

    def __init__(self, values: list[Any], value_type: type | None = None) -> None:
        self.values = values
        self.value_type = value_type

    def __repr__(self) -> str:
        return f"<ListColumn of {len(self)} {'values' if self.value_type is None else self.value_type.__name__}>"

    def __len__(self) -> int:
        return len(self.values)

    def to_list(self) -> list[Any]:
        """The very objects."""
        return self.values.copy()

    def take(self, indices: IndexArray) -> "ListColumn":
        """The values at these positions.  20 ns per value; by an array of objects it takes more than 100."""
        values = self.values
        return ListColumn([values[index] for index in indices.tolist()], self.value_type)

    def slice(self, start: int, stop: int) -> "ListColumn":
        """A part, in a list of its own."""
        return ListColumn(self.values[start:stop], self.value_type)


class ConstantColumn:
    """One value many times; all records share it."""

    __slots__ = ("_num_values", "value")

    def __init__(self, value: Any, num_values: int) -> None:
        self.value = value
        self._num_values = num_values

    def __repr__(self) -> str:
        return f"<ConstantColumn of {self._num_values} times {self.value!r:.40}>"

    def __len__(self) -> int:
        return self._num_values

    def to_list(self) -> list[Any]:
        """The very object, each time."""
        return [self.value] * self._num_values

    def take(self, indices: IndexArray) -> "ConstantColumn":
        """As many times as there are positions."""
        return ConstantColumn(self.value, len(indices))

    def slice(self, start: int, stop: int) -> "ConstantColumn":
        """A part."""
        return ConstantColumn(self.value, len(range(self._num_values)[start:stop]))


class NameTable:
    """The values that dictionary codes stand for: code ``n`` is ``names[n]``.  It only grows.

    The object is the identity of one generation of one dictionary: who keeps something per code keeps it per table (weakly, if need
    be), and looks at ``version`` for what came in since.

    Ownership: who made the table appends to ``names``; everybody else only looks.
    """

    __slots__ = ("__weakref__", "_objects", "_typed", "names")

    def __init__(self, names: list[Any] | None = None) -> None:
        self.names: list[Any] = [] if names is None else names
        self._objects = _objects([])  # the first of the names, for numpy
        self._typed: tuple[int, frozenset[type]] = (0, frozenset())  # of so many names, the first ones

    def __repr__(self) -> str:
        return f"<NameTable of {len(self.names)} values>"

    def __len__(self) -> int:
        return len(self.names)

    @property
    def version(self) -> int:
        """Grows with every value."""
        return len(self.names)

    @property
    def types(self) -> frozenset[type]:
        """The exact types of the values."""
        num_typed, types = self._typed  # of two threads that ask at the same time each finds all, whichever keeps what it found
        num_names = len(self.names)
        if num_typed < num_names:
            types = types.union(map(type, self.names[num_typed:num_names]))
            self._typed = num_names, types
        return types

    def values_of(self, codes: NDArray[Any]) -> list[Any]:
        """The value that each code stands for.  One numpy ``take`` of objects: 7 ns per code, a loop in C over a list 25."""
        objects = self._objects  # of two threads that ask at the same time each finds enough of them
        if len(objects) < len(self.names):
            objects = self._objects = np.concatenate((objects, _objects(self.names[len(objects) :])))
        values: list[Any] = objects.take(codes).tolist()
        return values


class CodedColumn:
    """Values as codes of a table that they share with other columns.

    Args:
        codes: uint16 or uint32, each less than the table's length.
        names: what they stand for.
    """

    __slots__ = ("codes", "names")

    def __init__(self, codes: NDArray[Any], names: NameTable) -> None:
        assert codes.dtype in (np.uint16, np.uint32), f"codes of type {codes.dtype}"
        self.codes = codes
        self.names = names

    def __repr__(self) -> str:
        return f"<CodedColumn of {len(self)} {self.codes.dtype} codes of {self.names!r}>"

    def __len__(self) -> int:
        return len(self.codes)

    def to_list(self) -> list[Any]:
        """The table's objects."""
        return self.names.values_of(self.codes)

    def take(self, indices: IndexArray) -> "CodedColumn":
        """The values at these positions, in the same table."""
        return CodedColumn(self.codes.take(indices), self.names)

    def slice(self, start: int, stop: int) -> "CodedColumn":
        """A part, in the same memory and table."""
        return CodedColumn(self.codes[start:stop], self.names)


class ArrowColumn:
    """An Arrow array, untouched: texts, instants, nulls, dictionaries.

    Args:
        array: a ``pyarrow.Array``, not chunked; nothing here imports pyarrow, which takes longer than all of this package.
    """

    __slots__ = ("array",)

    def __init__(self, array: Any) -> None:
        self.array = array

    def __repr__(self) -> str:
        return f"<ArrowColumn of {len(self)} {self.array.type}>"

    def __len__(self) -> int:
        return len(self.array)

    def to_list(self) -> list[Any]:
        """What ``to_pylist`` makes of them; nulls become None."""
        values: list[Any] = self.array.to_pylist()
        return values

    def take(self, indices: IndexArray) -> "ArrowColumn":
        """The values at these positions."""
        return ArrowColumn(self.array.take(indices))

    def slice(self, start: int, stop: int) -> "ArrowColumn":
        """A part, in the same memory."""
        return ArrowColumn(self.array[start:stop])


def _objects(values: list[Any]) -> NDArray[np.object_]:
    """An array of the very objects, whatever they are (``np.array`` would look into sequences)."""
    return np.fromiter(values, np.object_, len(values))
