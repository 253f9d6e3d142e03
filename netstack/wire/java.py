"""Java's formats of fields, texts and serialized objects, as far as Flink puts them on the wire.

Side:       pure.
Invariants: a decoded value encodes to its bytes again: fields are declared once, for writer and reader.  The reader of
            a throwable takes only class names and messages; it makes no instance, and the number of bytes, classes and
            causes that it reads is bounded.
Source:     ``java.io.DataOutput``; Java Object Serialization Specification, chapter 6;
            ``Throwable.readObject``.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter, itemgetter
from struct import Struct
from struct import error as struct_error
from typing import Any, Final, Generic, NamedTuple, TypeVar

from netstack.errors import LocalProtocolError, RemoteProtocolError

T = TypeVar("T")


class FieldsOf(Generic[T]):
    """The fields of a class one behind the other, big endian.

    Args:
        kind: the class, made of its fields by name.
        fields: ``NAME:CODE`` for each, with the codes of ``struct``, or ``NAME:CODE:LEAST``; a field of so many bytes
            (``20s``) is never cut or filled.  ``OWNER.NAME`` is a field of the object in the field ``OWNER``.
        makers: the class of each ``OWNER``, or what makes the value of a field of the number that is sent.
    """

    def __init__(self, kind: Callable[..., T], fields: str = "", **makers: Callable[..., object]) -> None:
        declared = [field.split(":") for field in fields.split()]
        self.kind = kind
        self._names = [name for name, *_ in declared]
        self._struct = Struct(">" + "".join(code for _, code, *_ in declared))
        self._lengths = [(at, int(code[:-1])) for at, (_, code, *_) in enumerate(declared) if code.endswith("s")]
        self._least = [(at, int(least[0])) for at, (_, _, *least) in enumerate(declared) if least]
        self._makers = makers
        # All values by one call in C, if there are several: an announcement of credit is sent per read.
        self._get = attrgetter(*self._names) if len(declared) > 1 else self._get_few
        # If the class takes just the fields that are sent, by position: by name it takes twice as long.
        taken = list(vars(kind)["__dataclass_fields__"])
        self._is_plain = sorted(taken) == sorted(self._names) and not makers
        order = [self._names.index(name) for name in taken if self._is_plain]
        self._arranged: Callable[..., tuple[object, ...]] = itemgetter(*order) if len(order) > 1 else tuple
        self.num_bytes = self._struct.size

    def __repr__(self) -> str:
        return f"<fields of {self.kind.__name__}: {' '.join(self._names)}>"

    def _get_few(self, value: object) -> tuple[Any, ...]:
        return tuple(getattr(value, name) for name in self._names)

    def pack(self, value: object) -> bytes:
        """Encode the fields of ``value``.

        Raises:
            LocalProtocolError: a field is out of range.
        """
        values = self._get(value)
        for at, length in self._lengths:
            if len(values[at]) != length:
                raise self._error(at, f"has {len(values[at])} bytes, not {length}")
        self._check_least(values)
        try:
            return self._struct.pack(*values)
        except struct_error as error:
            raise LocalProtocolError(f"{value!r} cannot be encoded: {error}") from error

    def unpack(self, view: memoryview, **others: object) -> T:
        """Decode the object of the fields at the start of ``view``, and of ``others``.

        Raises:
            LocalProtocolError: ``pack`` would refuse it.
        """
        values = self._struct.unpack_from(view)
        self._check_least(values)
        if self._is_plain:
            return self.kind(*self._arranged(values))
        fields = {**dict(zip(self._names, values, strict=True)), **others}
        for name, make in self._makers.items():
            if name in fields:
                fields[name] = make(fields[name])
            else:
                parts = [each for each in fields if each.startswith(f"{name}.")]
                fields[name] = make(**{each.removeprefix(f"{name}."): fields.pop(each) for each in parts})
        return self.kind(**fields)

    def _check_least(self, values: Sequence[int]) -> None:
        for at, least in self._least:
            if values[at] < least:
                raise self._error(at, f"is {values[at]}, the least is {least}")

    def _error(self, at: int, text: str) -> LocalProtocolError:
        return LocalProtocolError(f"{self.kind.__name__}.{self._names[at]} {text}")


# ---------------------------------------------------------------- texts

_MAX_UTF_BYTES = 0xFFFF


def encode_utf(text: str) -> bytes:
    """Encode ``text`` in Java's modified UTF-8 (NUL takes two bytes, a character beyond 16 bits six), behind its length
    as u16.

    Raises:
        LocalProtocolError: the text takes more than 65,535 bytes.
    """
    body = _modified(text)
    if len(body) > _MAX_UTF_BYTES:
        raise LocalProtocolError(f"a text of {len(body)} bytes cannot be encoded, the most is {_MAX_UTF_BYTES}")
    return len(body).to_bytes(2, "big") + body


def decode_utf(view: memoryview) -> tuple[str, int]:
    """Decode the text at the start of ``view``; returns it, and the number of bytes that it takes with its length.

    Raises:
        RemoteProtocolError: bytes are missing, or are not modified UTF-8.
    """
    end = 2 + int.from_bytes(view[:2], "big")
    if len(view) < max(2, end):
        raise RemoteProtocolError(f"a text of {end - 2} bytes is announced, {max(0, len(view) - 2)} bytes follow")
    return decode_modified(bytes(view[2:end])), end


def decode_modified(body: bytes) -> str:
    """Decode the text of ``body``, which has no length in front.

    Raises:
        RemoteProtocolError: ``body`` is not modified UTF-8.
    """
    try:
        units = body.replace(b"\xc0\x80", b"\0").decode("utf-8", "surrogatepass")
        text = units.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"a text is not modified UTF-8: {error}") from error
    # The decoder takes more forms than Java writes; such a text would not encode to its bytes again.
    if _modified(text) != body:
        raise RemoteProtocolError(f"a text is not modified UTF-8: {body[:40]!r}")
    return text


def _modified(text: str) -> bytes:
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = text.encode("utf-16-be", "surrogatepass")
    halves = "".join(chr(units[at] << 8 | units[at + 1]) for at in range(0, len(units), 2))
    return halves.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")


# ---------------------------------------------------------------- throwables

JAVA_STREAM_MAGIC: Final = b"\xac\xed"
_STREAM_START = JAVA_STREAM_MAGIC + b"\x00\x05"
_NULL, _REFERENCE, _CLASS_DESCRIPTION, _OBJECT, _STRING, _END = 0x70, 0x71, 0x72, 0x73, 0x74, 0x78
_IS_SERIALIZABLE, _HAS_WRITE_METHOD = 0x02, 0x01
_MAX_CAUSES = 8
_MAX_CLASSES = 32
# Flink's throwables were seen to have at most ten fields in a class and twenty texts before the message.
_MAX_FIELDS = 64
_MAX_TEXTS = 512
_THROWABLE_FIELDS = ("cause", "detailMessage", "stackTrace", "suppressedExceptions")


class JavaClass(NamedTuple):
    """The description of a serializable class: name, ``serialVersionUID`` (hex), fields as (type code, name, type)."""

    name: str
    version: str
    fields: tuple[tuple[str, str, str], ...] = ()
    has_write_method: bool = False


THROWABLE: Final = JavaClass(
    "java.lang.Throwable",
    "d5c635273977b8cb",
    (
        ("L", "cause", "Ljava/lang/Throwable;"),
        ("L", "detailMessage", "Ljava/lang/String;"),
        ("[", "stackTrace", "[Ljava/lang/StackTraceElement;"),
        ("L", "suppressedExceptions", "Ljava/util/List;"),
    ),
    has_write_method=True,
)


def encode_throwable(classes: Sequence[JavaClass], message: str) -> bytes:
    """Serialize a throwable with a message, without cause and stack trace (these fields are null).

    Args:
        classes: its class, then the base classes up to but without ``THROWABLE``.
        message: at most 65,535 bytes in modified UTF-8.

    Raises:
        LocalProtocolError: ``message`` is too long.
    """
    parts = [_STREAM_START, bytes([_OBJECT])]
    for each in (*classes, THROWABLE):
        parts += bytes([_CLASS_DESCRIPTION]), encode_utf(each.name), bytes.fromhex(each.version)
        parts += (
            bytes([_IS_SERIALIZABLE | (_HAS_WRITE_METHOD if each.has_write_method else 0)]),
            len(each.fields).to_bytes(2, "big"),
        )
        parts += (
            code.encode() + encode_utf(name) + bytes([_STRING]) + encode_utf(kind) for code, name, kind in each.fields
        )
        parts.append(bytes([_END]))
    # The null ends the chain of base classes; then come the values, those of the base classes first.
    parts += bytes([_NULL, _NULL, _STRING]), encode_utf(message), bytes([_NULL, _NULL, _END])
    parts += (bytes([_NULL]) * len(each.fields) for each in reversed(classes))
    return b"".join(parts)


def describe_throwable(view: memoryview) -> tuple[str, str | None]:
    """Return the class name of the serialized throwable in ``view``, and its message or that of its innermost cause.

    The bytes are not trusted, and nothing is instantiated.  Returns ("", None) if they are not readable.
    """
    cursor = _Cursor(view)
    try:
        if cursor.take(4) != _STREAM_START:
            return "", None
        name = cursor.object_class()
    except _UnreadableError:
        return "", None
    try:
        return name, _message(cursor)
    except _UnreadableError:
        return name, None


def _message(cursor: "_Cursor") -> str | None:
    """Return the message of the throwable whose values begin at ``cursor``, or that of its innermost cause."""
    prefix = ""
    for _ in range(_MAX_CAUSES):
        kind = cursor.byte()
        if kind != _OBJECT:
            if kind == _REFERENCE:  # to itself: no cause was set
                cursor.take(4)
            elif kind != _NULL:
                return None
            return prefix + cursor.text() if cursor.byte() == _STRING else prefix[:-2] or None
        cursor.at -= 1
        prefix = f"caused by {cursor.object_class()}: "
    return None


class _UnreadableError(Exception):
    """The stream does not hold a throwable in a form known here."""


class _Cursor:
    """A position in a stream."""

    def __init__(self, view: memoryview) -> None:
        self.view = view
        self.at = 0
        self.num_texts = 0

    def take(self, num_bytes: int) -> bytes:
        end = self.at + num_bytes
        if end > len(self.view):
            raise _UnreadableError
        part = bytes(self.view[self.at : end])
        self.at = end
        return part

    def byte(self) -> int:
        return self.take(1)[0]

    def text(self) -> str:
        self.num_texts += 1
        if self.num_texts > _MAX_TEXTS:
            raise _UnreadableError
        try:
            return decode_modified(self.take(int.from_bytes(self.take(2), "big")))
        except RemoteProtocolError as error:
            raise _UnreadableError from error

    def object_class(self) -> str:
        """Skip to the first value of an object; returns the name of its class."""
        if self.byte() != _OBJECT:
            raise _UnreadableError
        names: list[str] = []
        for _ in range(_MAX_CLASSES):
            kind = self.byte()
            if kind == _REFERENCE:  # a class that was described before
                self.take(4)
                break
            if kind == _NULL:
                break
            if kind != _CLASS_DESCRIPTION:
                raise _UnreadableError
            names.append(self._class_description())
        if not names:
            raise _UnreadableError
        return names[0]

    def _class_description(self) -> str:
        name = self.text()
        self.take(9)  # version, flags
        num_fields = int.from_bytes(self.take(2), "big")
        if num_fields > _MAX_FIELDS:
            raise _UnreadableError
        fields = tuple(self._field() for _ in range(num_fields))
        if self.byte() != _END or (name == THROWABLE.name and fields != _THROWABLE_FIELDS):
            raise _UnreadableError
        return name

    def _field(self) -> str:
        code = self.byte()
        name = self.text()
        if code in b"L[":
            kind = self.byte()
            if kind == _STRING:
                self.text()
            elif kind == _REFERENCE:
                self.take(4)
            else:
                raise _UnreadableError
        return name
