"""An Arrow array as a column.

Side:   pure.
Absent: Arrow's types beyond what ``to_pylist`` says about them: an array is passed on as it is.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeVar

from flowlet.columns.column import Column, ColumnVisitor, IndexArray
from flowlet.columns.numbers import NumberKind, Numbers, wide

_T = TypeVar("_T")
_MOST_BYTES: Final = 1 << 30  # of joined arrays
_UNCHANGING: Final = (
    *("null", "boolean", "integer", "floating", "decimal", "date", "time", "timestamp", "duration"),
    *("string", "large_string", "binary", "large_binary", "fixed_size_binary"),
)


class ArrowColumn(Column):
    """An Arrow array, untouched: texts, instants, nulls, dictionaries.

    Args:
        array: a ``pyarrow.Array``, not chunked; this module imports pyarrow, which takes longer than all of the
            package, when it is asked for something.
    """

    __slots__ = ("array",)

    may_have_nulls: ClassVar[bool] = True

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

    def accept(self, visitor: ColumnVisitor[_T]) -> _T:
        """See ``Column``."""
        return visitor.visit_arrow(self)

    def is_unchanging(self) -> bool:
        """By the type."""
        return _gives_unchanging(self.array.type)

    def arrow_array(self) -> Any:
        """The very array."""
        return self.array

    def concatenate(self, columns: Sequence[Column]) -> "ArrowColumn | None":
        """See ``Column``; of one Arrow type, and not longer than that allows."""
        import pyarrow as pa  # who has Arrow columns has loaded it

        arrays = [column.array for column in columns if isinstance(column, ArrowColumn)]
        if len(arrays) < len(columns) or any(array.type != self.array.type for array in arrays):
            return None
        if sum(array.nbytes for array in arrays) > _MOST_BYTES:  # offsets of texts have 32 bits
            return None
        return ArrowColumn(pa.concat_arrays(arrays))

    def numbers(self) -> Numbers | None:
        """Integers, floats, timestamps, and dates as days."""
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
    """Whether ``to_pylist`` of such an array gives only values that cannot change, and None; nested ones give lists and
    dictionaries.
    """
    from pyarrow import types

    if types.is_dictionary(arrow_type):
        return _gives_unchanging(arrow_type.value_type)
    return any(getattr(types, f"is_{kind}")(arrow_type) for kind in _UNCHANGING)
