"""The serializer of values whose type nobody declared: any Python object.

Side:       pure.
Invariants: pickles are opened only where the bytes come from: an authenticated peer of the same cluster, or the task's own state.
Format:     i32 size, then what ``record_pickle`` makes of the value: a pickle, unless a class goes by value.
Source:     PyFlink ``PickledBytesTypeInfo``: a byte array to Flink.
"""

import copy
from itertools import chain
from typing import Any, Final

from flowlet.errors import SerdeError
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.serde.types.data_view import DataInput, DataOutput
from flowlet.serde.types.type_serializer import TypeSerializer, ValueMismatchError, preview

# Exact types only: a subclass may carry anything.
_ATOMS: Final = frozenset({int, str, float, bool, bytes, type(None), complex})


class PickledSerializer(TypeSerializer):
    """Any object that can be pickled.

    Hot path: ``copy_all`` runs between chained operators unless objects are reused.  Columns of atoms, and of tuples of atoms, are looked
    at once per list and shared.
    """

    __slots__ = ()

    @property
    def min_size_bytes(self) -> int:
        """4."""
        return 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Functions and classes of the main module travel by value."""
        try:
            data = dumps_value(value)
        except SerdeError as error:
            raise ValueMismatchError(f"{preview(value)} cannot be pickled: {error}") from error
        output.write_int(len(data))
        output.write(data)

    def deserialize(self, source: DataInput) -> Any:
        """Whatever its class does when it is unpickled."""
        data = source.read_view(source.read_count("bytes", min_bytes_each=1))
        try:
            return loads_value(data)
        except SerdeError:
            raise
        except Exception as error:
            raise SerdeError(f"a pickle cannot be read: {type(error).__name__}: {error}") from error

    def copy_all(self, values: list[Any]) -> list[Any]:
        """``copy`` for each, unless one look at their types shows that nothing in them can change."""
        types = set(map(type, values))
        if types <= _ATOMS or (types == {tuple} and _ATOMS.issuperset(map(type, chain.from_iterable(values)))):
            return values[:]
        return [self.copy(value) for value in values]

    def _copy(self, value: Any) -> Any:
        if type(value) in _ATOMS or (type(value) is tuple and _ATOMS.issuperset(map(type, value))):
            return value
        try:
            return copy.deepcopy(value)
        except Exception as error:
            reason = f"cannot be copied ({type(error).__name__}: {error}): enable object reuse, or pass something else"
            raise ValueMismatchError(f"{preview(value)} {reason}") from error
