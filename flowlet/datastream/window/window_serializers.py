"""Serializers of windows, for assigners of users that name one.

flowlet itself pickles windows: ``get_window_serializer`` of an assigner is never called.

Side:   pure.
Source: PyFlink ``pyflink.datastream.window``; the bytes are those of Flink ``TimeWindow.Serializer``,
        ``GlobalWindow.Serializer``.
"""

import struct
from io import BytesIO
from typing import Final

from flowlet.common.serializer import TypeSerializer
from flowlet.datastream.window.windows import CountWindow, GlobalWindow, TimeWindow

__all__ = ["CountWindowSerializer", "GlobalWindowSerializer", "TimeWindowSerializer"]

_PAIR: Final = struct.Struct(">qq")
_NUMBER: Final = struct.Struct(">q")


class TimeWindowSerializer(TypeSerializer[TimeWindow]):
    """Writes start and end, 8 bytes each."""

    def serialize(self, element: TimeWindow, stream: BytesIO) -> None:
        """Append a window to the stream."""
        stream.write(_PAIR.pack(element.start, element.end))

    def deserialize(self, stream: BytesIO) -> TimeWindow:
        """Read the next window of the stream."""
        return TimeWindow(*_PAIR.unpack(stream.read(_PAIR.size)))


class CountWindowSerializer(TypeSerializer[CountWindow]):
    """Writes the number, 8 bytes."""

    def serialize(self, element: CountWindow, stream: BytesIO) -> None:
        """Append a window to the stream."""
        stream.write(_NUMBER.pack(element.id))

    def deserialize(self, stream: BytesIO) -> CountWindow:
        """Read the next window of the stream."""
        return CountWindow(*_NUMBER.unpack(stream.read(_NUMBER.size)))


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    """Writes one byte: there is only one such window."""

    def serialize(self, element: GlobalWindow, stream: BytesIO) -> None:
        """Append the window to the stream."""
        stream.write(b"\0")

    def deserialize(self, stream: BytesIO) -> GlobalWindow:
        """Read the window from the stream."""
        stream.read(1)
        return GlobalWindow.get()
