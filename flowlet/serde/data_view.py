"""``DataOutput`` and ``DataInput``: serializers write numbers and bytes to the one and read them from the other.

Side:       pure.
Invariants: a failed write appends nothing; a failed read does not move the position.
Units:      positions and sizes in bytes; numbers big-endian.
Source:     Flink ``DataOutputView``, ``DataInputView``, ``DataOutputSerializer``.
Absent:     reading across buffers: an element is assembled before it is read.
"""

import struct
from typing import Final

from flowlet.errors import SerdeError

_SHORT: Final = struct.Struct(">h")
_CHAR: Final = struct.Struct(">H")
_INT: Final = struct.Struct(">i")
_LONG: Final = struct.Struct(">q")
_FLOAT: Final = struct.Struct(">f")
_DOUBLE: Final = struct.Struct(">d")
_MAX_VARINT_BYTES: Final = 5  # of 7 bits each: Flink's varints have at most 32 bits
_MAX_EMPTY: Final = 1 << 20  # limit for a count of things that take no bytes
_MAX_VARINT: Final = (1 << 32) - 1


class DataOutput:
    """A growing array of bytes.  Threading: one thread.  Ownership: copy ``buffer`` before the next write."""

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        self.buffer = bytearray()

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"<DataOutput of {len(self.buffer)} bytes>"

    def clear(self) -> None:
        """Start again with a new buffer, so that a large one is freed (Flink's ``pruneBuffer``)."""
        self.buffer = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """The bytes as they are."""
        self.buffer += data

    def write_byte(self, value: int) -> None:
        """8 bits, signed."""
        self.buffer.append(value & 0xFF)

    def write_boolean(self, *, value: bool) -> None:
        """One byte, 0 or 1."""
        self.buffer.append(value)

    def write_short(self, value: int) -> None:
        """16 bits, signed."""
        self.buffer += _SHORT.pack(value)

    def write_char(self, code_unit: int) -> None:
        """16 bits, unsigned: a UTF-16 code unit."""
        self.buffer += _CHAR.pack(code_unit)

    def write_int(self, value: int) -> None:
        """32 bits, signed."""
        self.buffer += _INT.pack(value)

    def write_long(self, value: int) -> None:
        """64 bits, signed."""
        self.buffer += _LONG.pack(value)

    def write_float(self, value: float) -> None:
        """32 bits, rounded.  Raises OverflowError: the value does not fit."""
        self.buffer += _FLOAT.pack(value)

    def write_double(self, value: float) -> None:
        """64 bits."""
        self.buffer += _DOUBLE.pack(value)

    def write_varint(self, value: int) -> None:
        """An unsigned number of up to 32 bits, 7 bits per byte, lowest first."""
        assert 0 <= value <= _MAX_VARINT, f"{value} is no number of 32 bits"
        while value > 0x7F:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)


class DataInput:
    """Reads what a ``DataOutput`` wrote.

    Threading: one thread.  Ownership: the bytes stay the caller's; only ``read_view`` returns a reference to them.

    Raises:
        SerdeError: too few bytes are left; from every method that reads.
    """

    __slots__ = ("_view", "position")

    def __init__(self, view: bytes | bytearray | memoryview, position: int = 0) -> None:
        self._view = memoryview(view)
        self.position = position

    def __repr__(self) -> str:
        return f"<DataInput at byte {self.position} of {len(self._view)}>"

    @property
    def remaining(self) -> int:
        """How many bytes are left to read."""
        return len(self._view) - self.position

    def read_view(self, num_bytes: int) -> memoryview:
        """The next bytes without a copy; valid as long as the bytes given to this object."""
        start = self.position
        if not 0 <= num_bytes <= len(self._view) - start:
            raise SerdeError(f"{num_bytes} bytes are expected, {self.remaining} are left")
        self.position = start + num_bytes
        return self._view[start : self.position]

    def read(self, num_bytes: int) -> bytes:
        """A copy of the next bytes."""
        return bytes(self.read_view(num_bytes))

    def read_byte(self) -> int:
        """8 bits, signed."""
        value = self._read_unsigned_byte()
        return value - 256 if value > 127 else value

    def read_boolean(self) -> bool:
        """One byte; refuses any but 0 and 1."""
        value = self._read_unsigned_byte()
        if value > 1:
            self.position -= 1
            raise SerdeError(f"a truth value is 0 or 1, found {value}")
        return value == 1

    def read_short(self) -> int:
        """16 bits, signed."""
        return int(self._read(_SHORT))

    def read_char(self) -> int:
        """16 bits, unsigned."""
        return int(self._read(_CHAR))

    def read_int(self) -> int:
        """32 bits, signed."""
        return int(self._read(_INT))

    def read_long(self) -> int:
        """64 bits, signed."""
        return int(self._read(_LONG))

    def read_float(self) -> float:
        """32 bits."""
        return float(self._read(_FLOAT))

    def read_double(self) -> float:
        """64 bits."""
        return float(self._read(_DOUBLE))

    def read_varint(self) -> int:
        """The reverse of ``write_varint``."""
        start, value = self.position, 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self._read_unsigned_byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80 and value <= _MAX_VARINT:
                return value
        self.position = start
        raise SerdeError("a number of variable length has more than 32 bits")

    def read_count(self, what: str, *, min_bytes_each: int) -> int:
        """The number of ``what`` that follow (32 bits); refused if the bytes that are left cannot hold so many."""
        count = self.read_int()
        most = self.remaining // min_bytes_each if min_bytes_each else _MAX_EMPTY
        if not 0 <= count <= most:
            self.position -= _INT.size
            raise SerdeError(f"{count} {what}, at most {most} can be in the bytes that are left")
        return count

    def _read_unsigned_byte(self) -> int:
        if self.position >= len(self._view):
            raise SerdeError("1 byte is expected, 0 are left")
        value = self._view[self.position]
        self.position += 1
        return value

    def _read(self, layout: struct.Struct) -> float:
        try:
            (value,) = layout.unpack_from(self._view, self.position)
        except struct.error:
            raise SerdeError(f"{layout.size} bytes are expected, {self.remaining} are left") from None
        self.position += layout.size
        return value  # type: ignore[no-any-return]  # struct knows no types
