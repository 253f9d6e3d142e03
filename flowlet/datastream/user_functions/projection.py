"""``project``: some fields of tuples.

Side:   pure.
Source: Flink ``StreamProjection``; as there, a field may occur twice, and only tuples with a declared type have fields.
"""

from collections.abc import Sequence
from typing import Any

from flowlet.common.checks import is_whole_number
from flowlet.common.typeinfo import TupleTypeInfo, TypeInformation
from flowlet.datastream.user_functions.record_functions import MapFunction
from flowlet.errors import JobGraphError

__all__ = ["Projection", "projected_type"]


class Projection(MapFunction):
    """Makes a tuple of the fields at some positions."""

    def __init__(self, positions: Sequence[int]) -> None:
        self._positions = tuple(positions)

    def map(self, value: Any) -> tuple[Any, ...]:
        """The tuple of these fields."""
        return tuple([value[position] for position in self._positions])


def projected_type(type_info: TypeInformation, positions: Sequence[Any]) -> TupleTypeInfo:
    """The type of the tuples that ``project`` makes.

    Raises JobGraphError: the records are no tuples, or have no such field.
    """
    if not isinstance(type_info, TupleTypeInfo):
        raise JobGraphError(
            f"Only Tuple DataStreams can be projected: declare a type such as Types.TUPLE([...]), this is {type_info!r}"
        )
    types = type_info.get_field_types()
    if not positions:
        raise JobGraphError("project() needs the position of at least one field")
    for position in positions:
        if not is_whole_number(position) or not 0 <= position < len(types):
            raise JobGraphError(f"project() needs positions from 0 to {len(types) - 1}, got {position!r}")
    return TupleTypeInfo([types[position] for position in positions])
