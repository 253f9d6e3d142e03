"""Arrow arrays as columns of declared types.

Side:       pure.
Invariants: an array that was read has exactly the Arrow type of the declared one, is validated, and all its values are
            Python values: a point in time beyond the year 9999, which ``to_pylist`` could not make, is refused.
Absent:     arrays of rows and maps: they are checked value by value.
"""

from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flowlet.columns import ArrowColumn
from flowlet.common.typeinfo import RowTypeInfo, TypeInformation
from flowlet.errors import SerdeError
from flowlet.serde.arrow_serializer import num_values, parts_of_array
from flowlet.serde.declared.cell_budget import MAX_MICROS, MIN_MICROS, CellBudget
from flowlet.serde.table_reader import decode_arrow_array
from flowlet.serde.type_serializer import ValueMismatchError, preview
from flowlet.serde.types.arrow_types import arrow_type_of

_MICROS_PER_DAY: Final = 24 * 3600 * 1_000_000
# The integers that are values of a type, where not all are.
_RANGES: Final = {
    pa.date32(): (pa.int32(), MIN_MICROS // _MICROS_PER_DAY, MAX_MICROS // _MICROS_PER_DAY),
    pa.time64("us"): (pa.int64(), 0, _MICROS_PER_DAY - 1),
    pa.timestamp("us"): (pa.int64(), MIN_MICROS, MAX_MICROS),
}
_INTEGERS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
# Types whose values are those of the other type, too.
_SAME_VALUES: Final = frozenset(
    {
        *((narrow, wide) for index, wide in enumerate(_INTEGERS) for narrow in _INTEGERS[:index]),
        (pa.float32(), pa.float64()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
    }
)


def python_values(array: pa.Array) -> list[Any]:
    """The values as Python objects, maps as dicts.  Raises ValueMismatchError: a map has a key twice."""
    try:
        values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
    except TypeError:  # before pyarrow 19
        return list(array.to_pylist())
    except KeyError as error:
        raise ValueMismatchError(f"a map with the key {error} twice") from error
    return values


def _has_rows(type_info: TypeInformation) -> bool:
    inner = getattr(type_info, "elem_type", None)
    return isinstance(type_info, RowTypeInfo) or (inner is not None and _has_rows(inner))


def fitting_array(array: pa.Array, type_info: TypeInformation) -> pa.Array | None:
    """The same values in the Arrow type of the declared one; None: it has none, or one that is not sent.

    Raises:
        ValueMismatchError: the array is of another type.
    """
    declared = arrow_type_of(type_info)
    if declared is None or _has_rows(type_info):
        return None
    found = array.type
    if found == declared or (
        pa.types.is_list(found) and pa.types.is_list(declared) and found.value_type == declared.value_type
    ):
        fitting = array
    elif (found, declared) in _SAME_VALUES:
        fitting = array.cast(declared)
    else:
        values = preview(array.slice(0, 3).to_pylist())
        raise ValueMismatchError(f"{values} of Arrow's type {found}, declared is {type_info!r}: cast it to {declared}")
    _check_values(fitting)
    return fitting


def decode_arrow(payload: memoryview, num_values: int, type_info: TypeInformation, cells: CellBudget) -> ArrowColumn:
    """Read an Arrow array.  Raises SerdeError: it is corrupt, or of another type."""
    declared = arrow_type_of(type_info)
    if declared is None or _has_rows(type_info):
        raise SerdeError(f"an Arrow array, which is no form of {type_info!r}")
    array = decode_arrow_array(payload)
    is_list = (
        pa.types.is_list(array.type) and pa.types.is_list(declared) and array.type.value_type == declared.value_type
    )
    if array.type != declared and not is_list:
        raise SerdeError(f"an Arrow array of {array.type}, declared is {type_info!r}")
    if len(array) != num_values:
        raise SerdeError(f"an Arrow array of {len(array)} values in a chunk of {num_values} records")
    _check_values(array, cells)
    return ArrowColumn(array)


def _check_values(array: pa.Array, cells: CellBudget | None = None) -> None:
    parts = parts_of_array(array)
    if cells is not None:
        cells.take(sum(map(num_values, parts)))
    for part in parts:
        _check_values(part)
    if array.type in _RANGES:
        plain, low, high = _RANGES[array.type]
        found = pc.min_max(array.view(plain)).as_py()
        if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
            raise ValueMismatchError(f"{found} in an array of {array.type}, Python has values from {low} to {high}")
