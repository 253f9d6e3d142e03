"""Typed numbers and bytes, one behind the other: what serializers of single values write to and read from.

Side:       pure.
Invariants: a failed write appends nothing; a failed read moves nothing.
Units:      positions and sizes in bytes; numbers big-endian.
Source:     Flink ``DataOutputView``, ``DataInputView``, ``DataOutputSerializer``.
Absent:     reading over the border of a buffer: an element is gathered before it is read.
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
_MAX_VARINT_BYTES: Final = 5  # of 7 bits: more than Flink's 32 bits never come
_MAX_EMPTY: Final = 1 << 20  # of things that take no byte
_MAX_VARINT: Final = (1 << 32) - 1


class DataOutput:
    """Bytes that grow.

    Threading: one thread.  Ownership: ``buffer`` is the output's own; take a copy before the next write.
    """

    __slots__ = ("buffer",)

    def __init__(self) -> None:
        self.buffer = bytearray()

    def __len__(self) -> int:
        return len(self.buffer)

    def __repr__(self) -> str:
        return f"<DataOutput of {len(self.buffer)} bytes>"

    def clear(self) -> None:
        """Begin again; a large buffer is given back at once (Flink's ``pruneBuffer``)."""
        self.buffer = bytearray()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Bytes as they are."""
        self.buffer += data

    def write_byte(self, value: int) -> None:
        """8 bits, -128 to 127."""
        self.buffer.append(value & 0xFF)

    def write_boolean(self, *, value: bool) -> None:
        """One byte, 0 or 1."""
        self.buffer.append(value)

    def write_short(self, value: int) -> None:
        """16 bits with a sign."""
        self.buffer += _SHORT.pack(value)

    def write_char(self, code_unit: int) -> None:
        """16 bits without a sign: a unit of UTF-16."""
        self.buffer += _CHAR.pack(code_unit)

    def write_int(self, value: int) -> None:
        """32 bits with a sign."""
        self.buffer += _INT.pack(value)

    def write_long(self, value: int) -> None:
        """64 bits with a sign."""
        self.buffer += _LONG.pack(value)

    def write_float(self, value: float) -> None:
        """32 bits, rounded.

        Raises:
            OverflowError: it is too large for 32 bits.
        """
        self.buffer += _FLOAT.pack(value)

    def write_double(self, value: float) -> None:
        """64 bits."""
        self.buffer += _DOUBLE.pack(value)

    def write_varint(self, value: int) -> None:
        """A number of up to 32 bits without a sign, 7 bits a byte, the lowest first."""
        assert 0 <= value <= _MAX_VARINT, f"{value} is no number of 32 bits"
        while value > 0x7F:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)


class DataInput:
    """Reads what a ``DataOutput`` wrote.

    Threading: one thread.  Ownership: the bytes stay the caller's; what the ``read`` methods return is a copy, except ``read_view``.
    """

    __slots__ = ("_view", "position")

    def __init__(self, view: bytes | bytearray | memoryview, position: int = 0) -> None:
        self._view = memoryview(view)
        self.position = position

    def __repr__(self) -> str:
        return f"<DataInput at byte {self.position} of {len(self._view)}>"

    @property
    def remaining(self) -> int:
        """How many bytes were not read."""
        return len(self._view) - self.position

    def read_view(self, num_bytes: int) -> memoryview:
        """The next bytes, without a copy: valid as long as what is read from.

        Raises:
            SerdeError: so many are not there; so says every other method.
        """
        start = self.position
        if not 0 <= num_bytes <= len(self._view) - start:
            raise SerdeError(f"{num_bytes} bytes are expected, {self.remaining} are left")
        self.position = start + num_bytes
        return self._view[start : self.position]

    def read(self, num_bytes: int) -> bytes:
        """The next bytes."""
        return bytes(self.read_view(num_bytes))

    def read_byte(self) -> int:
        """8 bits with a sign."""
        value = self._read_unsigned_byte()
        return value - 256 if value > 127 else value

    def read_boolean(self) -> bool:
        """One byte, which must be 0 or 1."""
        value = self._read_unsigned_byte()
        if value > 1:
            self.position -= 1
            raise SerdeError(f"a truth value is 0 or 1, found {value}")
        return value == 1

    def read_short(self) -> int:
        """16 bits with a sign."""
        return int(self._read(_SHORT))

    def read_char(self) -> int:
        """16 bits without a sign."""
        return int(self._read(_CHAR))

    def read_int(self) -> int:
        """32 bits with a sign."""
        return int(self._read(_INT))

    def read_long(self) -> int:
        """64 bits with a sign."""
        return int(self._read(_LONG))

    def read_float(self) -> float:
        """32 bits."""
        return float(self._read(_FLOAT))

    def read_double(self) -> float:
        """64 bits."""
        return float(self._read(_DOUBLE))

    def read_varint(self) -> int:
        """What ``write_varint`` wrote."""
        start, value = self.position, 0
        for index in range(_MAX_VARINT_BYTES):
            byte = self._read_unsigned_byte()
            value |= (byte & 0x7F) << (7 * index)
            if byte < 0x80 and value <= _MAX_VARINT:
                return value
        self.position = start
        raise SerdeError("a number of variable length has more than 32 bits")

    def read_count(self, what: str, *, min_bytes_each: int) -> int:
        """32 bits that say how many things follow; believed only as far as the bytes that are left can hold them."""
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
