"""Events that travel between the buffers of a subpartition.

Side:   pure.
Source: Flink ``EventSerializer``: i32 type, then the fields, big endian.
Absent: checkpoint barriers and everything that belongs to them; watermark events.
"""

from dataclasses import dataclass
from enum import IntEnum, unique
from struct import Struct
from typing import TypeAlias, assert_never

from netstack.errors import RemoteProtocolError
from netstack.wire.messages import DataType

_TYPE = Struct(">i")
_TYPE_AND_MODE = Struct(">iB")
_END_OF_PARTITION = 0
_END_OF_DATA = 8


@unique
class StopMode(IntEnum):
    """Whether windows and timers are fired at the end of the data."""

    DRAIN = 0
    NO_DRAIN = 1


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """Nothing follows; the channel can be released."""


@dataclass(frozen=True, slots=True)
class EndOfData:
    """The last record was sent; other events may follow."""

    mode: StopMode


Event: TypeAlias = EndOfPartition | EndOfData


def serialize_event(event: Event) -> bytes:
    """The bytes of ``event``, in Flink's layout."""
    match event:
        case EndOfPartition():
            return _TYPE.pack(_END_OF_PARTITION)
        case EndOfData(mode):
            return _TYPE_AND_MODE.pack(_END_OF_DATA, mode)
        case _:
            assert_never(event)


def deserialize_event(view: memoryview) -> Event:
    """The event in ``view``.

    Raises:
        RemoteProtocolError: the type or the stop mode is unknown, or bytes are missing or left over.
    """
    if len(view) < _TYPE.size:
        raise RemoteProtocolError(f"an event of {len(view)} bytes has no type")
    (kind,) = _TYPE.unpack_from(view)
    if kind == _END_OF_PARTITION:
        _check_length("EndOfPartition", view, _TYPE.size)
        return EndOfPartition()
    if kind == _END_OF_DATA:
        _check_length("EndOfData", view, _TYPE_AND_MODE.size)
        mode = view[_TYPE.size]
        if mode > StopMode.NO_DRAIN:
            raise RemoteProtocolError(f"EndOfData with the unknown stop mode {mode}")
        return EndOfData(StopMode(mode))
    raise RemoteProtocolError(f"unknown event type {kind}")


def event_data_type(event: Event) -> DataType:
    """How the buffer of ``event`` is marked, so that it is understood without being parsed."""
    match event:
        case EndOfPartition():
            return DataType.END_OF_PARTITION
        case EndOfData():
            return DataType.END_OF_DATA
        case _:
            assert_never(event)


def _check_length(name: str, view: memoryview, expected: int) -> None:
    if len(view) != expected:
        raise RemoteProtocolError(f"{name} has {len(view)} bytes, expected {expected}")
