"""The serializer of values without a declared type: any Python object.

Side:       pure.
Invariants: pickles are opened only if they come from an authenticated peer of the same cluster, or from the task's own
            state.
Format:     i32 size, then the bytes of ``record_pickle.dumps_value``.
Source:     PyFlink ``PickledBytesTypeInfo``: a byte array to Flink.
"""

import copy
from itertools import chain
from typing import Any, Final

from flowlet.errors import SerdeError
from flowlet.serde.pickles.record_pickle import dumps_value, loads_value
from flowlet.serde.types.data_view import DataInput, DataOutput
from flowlet.serde.types.type_serializer import TypeSerializer, ValueMismatchError, preview

# Exact types only: an instance of a subclass may have mutable attributes.
_ATOMS: Final = frozenset({int, str, float, bool, bytes, type(None), complex})


class PickledSerializer(TypeSerializer):
    """Any object that can be pickled.

    Hot path: ``copy_all`` runs between chained operators unless objects are reused.  It looks once at the types of a
        whole list of atoms,
    or of tuples of atoms, and then copies nothing.
    """

    __slots__ = ()
    min_size_bytes = 4

    def serialize(self, value: Any, output: DataOutput) -> None:
        """Functions and classes of the main module are pickled by value."""
        try:
            data = dumps_value(value)
        except SerdeError as error:
            raise ValueMismatchError(f"{preview(value)} cannot be pickled: {error}") from error
        output.write_int(len(data))
        output.write(data)

    def deserialize(self, source: DataInput) -> Any:
        """Unpickle; runs whatever code the value's class defines for it."""
        data = source.read_view(source.read_count("bytes", min_bytes_each=1))
        try:
            return loads_value(data)
        except SerdeError:
            raise
        except Exception as error:
            raise SerdeError(f"a pickle cannot be read: {type(error).__name__}: {error}") from error

    def copy_all(self, values: list[Any]) -> list[Any]:
        """``copy`` of each value; only the list is new if the types show that no value can change."""
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
