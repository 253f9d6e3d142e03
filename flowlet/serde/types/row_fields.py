"""The fields of rows by name or by position.

Side: pure.
"""

from collections.abc import Sequence
from typing import Any

from flowlet.common.types import Row, RowFieldsError, are_positions, field_names_of, fields_by_name
from flowlet.serde.types.type_serializer import ValueMismatchError, preview

__all__ = ["are_positions", "fields_in_order"]


def fields_in_order(value: Any, names: list[str]) -> Sequence[Any]:
    """The fields of a row in the order of these names, as ``fields_by_name``: a ``Row`` of ours or of Spark's has names
    of its own.

    Where the names are but positions (f0, f1, ...), those of Spark do not count.

    Raises:
        ValueMismatchError: it lacks one, or has another one; names it.
    """
    try:
        if isinstance(value, Row):
            return fields_by_name(field_names_of(value), list(value), names)
        return fields_by_name(None if are_positions(names) else getattr(value, "__fields__", None), value, names)
    except RowFieldsError as error:
        raise ValueMismatchError(f"{preview(value)} is {error}") from None
