"""``FieldForm``: how values of each plain declared type are checked, converted, written as texts and as JSON, and read
back.

This module has texts, booleans, numbers and bytes, ``time_values`` has dates and times; ``conversion`` finds the form
of a type.

Side:   pure.
Rules:  ``checked``, texts and JSON: a value that is not of its type, or does not fit into it, is a ValueError that
        shows the value and the type: nothing wraps around, is cut off, or becomes infinite.  Texts of numbers have the
        digits 0 to 9, and no ``_``.  Scalars of numpy count as Python's values; NaT and NA of pandas are no values.
        ``converted``: a number becomes an ``int`` (towards zero) or a ``float``, FLOAT is rounded to 32 bits, and an
        integer that does not fit is refused, as is a value of another kind.
        ``from_element``: integers wrap around at their 8, 16 or 32 bits, FLOAT is rounded, and a number is a text of
        its digits.
Source: PyFlink ``coder_impl_fast.pyx``, ``coders.from_type_info_proto``; what its ``from_collection(..., type_info)``
        does to elements on their way through the JVM.  Java ``Double.toString``.
"""

import base64
import binascii
import ctypes
import decimal
import math
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.written_values import java_name, number_text
from flowlet.errors import SerdeError
from flowlet.keys.key_scalars import hash_str
from flowlet.serde.type_serializer import ValueMismatchError, preview
from netstack.late import dataclass
from netstack.late import numpy as np

Convert = Callable[[Any], Any]
Text = Callable[[Any], str]

# The least float that does not fit into 32 bits: half a step above the largest one that does (IEEE 754, round half to
# even).
_FLOAT32_LIMIT: Final = 2.0**128 - 2.0**103
_MAX_FLOAT32: Final = math.nextafter(_FLOAT32_LIMIT, 0.0)
_INFINITE: Final = frozenset({"inf", "infinity"})
_BOOLEANS: Final = {"true": True, "false": False}


class TypeMismatchError(Exception):
    """A value is not of its type; becomes a ``DeclaredTypeError`` of the operator before the user sees it.

    ``path`` leads to the value, from the outside in.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{', '.join(self.path)}: {self.reason}" if self.path else self.reason

    def inside(self, place: str) -> "TypeMismatchError":
        """Return this error, after ``place`` was put in front of its path: as seen from the value around it."""
        self.path.insert(0, place)
        return self


@dataclass(frozen=True, slots=True)
class FieldForm:
    """The facets of one plain type: how its values are checked, converted and written.

    Attributes:
        checked: a value of a record, as Python's own value of the type.  Raises ValueError.
        text: of a checked value.  Raises ValueError.
        parsed: the value of a text.  Raises ValueError.
        converted: what PyFlink's coder makes of a value that is not None.  Raises TypeMismatchError.
        is_text: whether every text is a value, also an empty one.
        is_json: whether JSON has the values themselves, and not their texts.
        from_json: the value of what a parser of JSON gives; None: ``checked`` or, of a text, ``parsed``.
        to_json: a value of a record as an encoder of JSON takes it; None: ``checked``, or its text.
        exact: the class whose own instances, if they are in range, are values as they are; None: there is none.
        limits: the least and the greatest of them, of floats those in JSON; None: all.
        changes: whether ``converted`` may make another value of one of the right kind.
        collected: used in place of ``converted`` where the user's program gets the records; None: ``converted`` is.
        is_nullable: whether Flink's serializer of the type writes null.
        classes: of elements of ``from_collection``, among which a ``bool`` is no ``int``; None: ``exact``, or any.
        from_element: the value that such an element becomes; None: itself.  Raises TypeError.
        java_text: the text that Java writes of a value.
        java_hash: ``hashCode`` of a value in Java; None: it is not known.
        arrow: the name of the Arrow type that has the values, as ``pyarrow.type_for_alias`` takes it; None: there is
            none.
        to_bytes: the bytes of a value, of a type that Arrow lacks.  Raises ValueMismatchError: it does not fit.  None:
            Arrow has the values, or a form of its own for them.
        from_bytes: the value of these bytes; may raise any error for corrupt ones.
    """

    checked: Convert
    text: Text
    parsed: Callable[[str], Any]
    converted: Convert
    is_text: bool = False
    is_json: bool = False
    from_json: Convert | None = None
    to_json: Convert | None = None
    exact: type | None = None
    limits: tuple[float, float] | None = None
    changes: bool = False
    collected: Convert | None = None
    is_nullable: bool = False
    classes: tuple[type, ...] | None = None
    from_element: Convert | None = None
    java_text: Text = str
    java_hash: Callable[[Any], int] | None = None
    arrow: str | None = None
    to_bytes: Callable[[Any], bytes] | None = None
    from_bytes: Callable[[bytes], Any] = bytes


def plain_list(value: Any, *, allows_none: bool) -> Sequence[Any]:
    """Return the elements of a list, tuple, ``array.array`` or array of numpy.  ValueError: it is none,
    or has a None.
    """
    plain: Sequence[Any] = value.tolist() if hasattr(value, "tolist") else value
    if not isinstance(plain, list | tuple):
        raise misfit(value, "list")
    if not allows_none and None in plain:
        raise misfit(None, "element of an array of primitives")
    return plain


def misfit(value: Any, wanted: str) -> ValueError:
    """Make the error of ``checked`` for a value that is no ``wanted``."""
    return ValueError(f"{_shown(value)} is no {wanted}")


def wrong_kind(value: Any, wanted: str) -> TypeMismatchError:
    """Make the error of ``converted`` for a value that is no ``wanted``."""
    return TypeMismatchError(f"expected {wanted}, got {described(value)}")


def described(value: Any) -> str:
    """Write a value and its type, for messages."""
    return "None" if value is None else _shown(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} of type {type(value).__name__}"  # fits into a line


def is_missing(value: Any) -> bool:
    """Whether ``value`` is NaT or NA of pandas or numpy, which are no values; neither package is imported for that."""
    name = type(value).__name__
    return name in {"NaTType", "NAType"} or (name in {"datetime64", "timedelta64"} and str(value) == "NaT")


def of_class(
    kind: type | tuple[type, ...],
    wanted: str,
    made: Convert,
    *,
    kept: type | None = None,
    error: Callable[[Any, str], Exception] = wrong_kind,
) -> Convert:
    """Return a function that converts instances of a class, and refuses other values.  ``kept``: its own instances
    stay.
    """

    def convert(value: Any) -> Any:
        if type(value) is kept:
            return value
        if not isinstance(value, kind):
            raise error(value, wanted)
        return made(value)

    return convert


def _from_numpy(value: Any) -> Any:
    """Return the value of a scalar of numpy as Python's; any other value itself."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


# ---------------------------------------------------------------- texts and booleans


_checked_text: Final = of_class(str, "STRING", str.__str__, kept=str, error=misfit)
_to_text: Final = of_class(str, "a str", str.__str__, kept=str)


def _checked_character(value: Any) -> str:
    if not isinstance(value, str) or len(value) != 1:
        raise misfit(value, "CHAR")
    return str.__str__(value)


def _to_character(value: Any) -> str:
    text: str = _to_text(value)
    if len(text) != 1:
        raise wrong_kind(value, "a str of one character")
    return text


def _text_from_json(value: Any) -> str:
    if type(value) is str:
        return value
    if type(value) is int:
        return str(value)
    raise misfit(value, "STRING")


def _character_from_element(value: str) -> str:
    if len(value) != 1:
        raise TypeError(f"{value!r} is not one character")
    return value


def _checked_boolean(value: Any) -> bool:
    if type(value) is bool:
        return value
    plain = _from_numpy(value)
    if type(plain) is not bool:
        raise misfit(value, "BOOLEAN")
    return plain


def _boolean_text(value: Any) -> str:
    return "true" if value else "false"


def _parsed_boolean(text: str) -> bool:
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise ValueError(f"true or false is expected, got {text!r}")
    return found


def _to_bool(value: Any) -> bool:
    if type(value) is bool:
        return value
    number = _whole(value)
    if not 0 <= number <= 255:  # PyFlink writes a byte
        raise wrong_kind(value, "a bool")
    return bool(number)


# ---------------------------------------------------------------- numbers


def _number_of(kind: type[int] | type[float], wanted: str) -> Convert:
    """Return a function that converts numbers of any class, and refuses texts of numbers."""
    special = f"__{kind.__name__}__"

    def convert(value: Any) -> Any:
        if type(value) is kind:
            return value
        if isinstance(value, str | bytes | bytearray) or not (hasattr(value, special) or hasattr(value, "__index__")):
            raise wrong_kind(value, wanted)
        try:
            return kind(value)
        except (ValueError, OverflowError, TypeError) as error:  # nan, infinity, an array of several numbers
            raise TypeMismatchError(f"{described(value)} is no {kind.__name__}: {error}") from None

    return convert


_whole: Final[Callable[[Any], int]] = _number_of(int, "an int")
_real: Final[Callable[[Any], float]] = _number_of(float, "a float")


def integer_form(name: str, limits: tuple[int, int] | None, **facets: Any) -> FieldForm:
    """Make the form of integers within limits (None: of any size); ``facets``: others of ``FieldForm``."""
    low, high = limits or (-math.inf, math.inf)
    bits = None if limits is None else (limits[1] - limits[0]).bit_length()

    def checked(value: Any) -> int:
        plain = value if type(value) is int else _from_numpy(value)
        if not isinstance(plain, int) or isinstance(plain, bool):
            raise misfit(value, name)
        if not low <= plain <= high:
            raise ValueError(f"{plain} does not fit into the {bits} bits of {name}")
        return int(plain)

    def parsed(text: str) -> int:
        number = int(_digits(text))
        if not low <= number <= high:
            raise ValueError(f"{number} does not fit into the {bits} bits of {name}")
        return number

    def converted(value: Any) -> int:
        number = _whole(value)
        if low <= number <= high:
            return number
        raise TypeMismatchError(f"{described(value)} does not fit into {bits} bits")

    return FieldForm(
        checked,
        str,
        parsed,
        _whole if limits is None else converted,
        is_json=True,
        exact=int,
        limits=limits,
        is_nullable=limits is None,
        **facets,
    )


def _signed_form(
    name: str, bits: int, from_element: Callable[[int], int], java_hash: Callable[[int], int] = int
) -> FieldForm:
    limits = (-(1 << bits - 1), (1 << bits - 1) - 1)
    return integer_form(name, limits, from_element=from_element, java_hash=java_hash, arrow=f"int{bits}")


def _long_from_element(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"{value!r} does not fit into the 64 bits of {Types.LONG()!r}")
    return value


def _hash_of_long(number: int) -> int:
    bits = number & 0xFFFFFFFFFFFFFFFF
    return bits ^ bits >> 32


def _digits(text: str) -> str:
    """Return the text of a number.  ValueError: it has an underscore or a character beyond ASCII, which Python's own
    functions take.
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"a number is expected, got {text!r}")
    return text


def _checked_double(value: Any) -> float:
    """Return a float; of an int only if that is a float without being rounded."""
    if type(value) is float:
        return value
    plain = _from_numpy(value)
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        raise misfit(value, "DOUBLE")
    try:
        number = float(plain)
    except OverflowError:
        raise ValueError(f"{plain} does not fit into DOUBLE") from None
    if isinstance(plain, int) and number != plain:
        raise ValueError(f"{plain} does not fit into DOUBLE without being rounded")
    return number


def _checked_float(value: Any) -> float:
    """Check a value as ``_checked_double`` does, and that 32 bits can hold a number of its size."""
    number = value if type(value) is float else _checked_double(value)
    if -_FLOAT32_LIMIT < number < _FLOAT32_LIMIT or number - number != 0:  # or it is NaN or infinite itself
        return number
    raise ValueError(f"{number!r} does not fit into the 32 bits of FLOAT")


def _rounded_float(value: Any) -> float:
    """Check a value as ``_checked_float`` does, and round it to 32 bits."""
    return ctypes.c_float(_checked_float(value)).value


def _parsed_double(text: str) -> float:
    """Parse a number, which is infinite only if the text says so."""
    number = float(_digits(text))
    if math.isinf(number) and text.lower().lstrip("+-") not in _INFINITE:
        raise ValueError(f"{text} does not fit into DOUBLE")
    return number


def _float_from_json(checked: Callable[[Any], float], value: Any) -> float:
    if type(value) is str:
        return checked(_parsed_double(value))
    if type(value) is decimal.Decimal or type(value) is int:
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isinf(number):
            raise ValueError(f"{value} does not fit into DOUBLE")
        value = number
    return checked(value)


def _float_to_json(checked: Callable[[Any], float], value: Any) -> float | str:
    number = checked(value)
    return number if number - number == 0 else java_name(number)


def _to_float32(value: Any) -> float:
    return ctypes.c_float(_real(value)).value


def float_text(value: float) -> str:
    """Write a number of 32 bits."""
    single = np.float32(value)
    return number_text(float(single), str(single))


def _checked_decimal(value: Any) -> decimal.Decimal:
    if isinstance(value, int) and not isinstance(value, bool):
        return decimal.Decimal(value)
    if not isinstance(value, decimal.Decimal):
        raise misfit(value, "BIG_DEC")
    if not value.is_finite():
        raise ValueError(f"{value} is no number, which BIG_DEC cannot hold")
    return value


def _parsed_decimal(text: str) -> decimal.Decimal:
    """Parse a number, with all its digits."""
    try:
        return _checked_decimal(decimal.Decimal(_digits(text)))
    except decimal.InvalidOperation:
        raise ValueError(f"a decimal is expected, got {text!r}") from None


def _to_decimal(value: Any) -> decimal.Decimal:
    if type(value) is decimal.Decimal:
        return value
    try:
        return decimal.Decimal(str(value))
    except decimal.InvalidOperation:
        raise wrong_kind(value, "a decimal.Decimal") from None


# ---------------------------------------------------------------- numbers that Arrow lacks, as bytes

# Flink's scale is an i32.  Without the limit, ``10 ** scale`` of a larger one would exhaust the memory.
_MAX_SCALE: Final = 2**31 - 1
# About 9,800 digits.  Converting between binary and decimal digits takes time with the square of their number.
_MAX_UNSCALED_BYTES: Final = 4096
_SCALE: Final = struct.Struct(">i")


def _integer_bytes(value: int) -> bytes:
    # One bit more than the number has, for the sign; without it 128 would be read as -128.
    return value.to_bytes((value if value >= 0 else ~value).bit_length() // 8 + 1, "big", signed=True)


def _read_big_integer(data: bytes) -> int:
    return int.from_bytes(data, "big", signed=True)


def _write_decimal(value: Any) -> bytes:
    """Write a decimal, with its trailing zeros.  -0 is refused, because Java's zero has no sign."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or (sign and not value) or abs(exponent) > _MAX_SCALE:
        raise ValueMismatchError(
            f"{preview(value)} is no BigDecimal: it is not finite, is minus zero, or has too large an exponent"
        )
    unscaled = int(decimal.Decimal((sign, digits, 0))) if len(digits) < 3 * _MAX_UNSCALED_BYTES else None
    if unscaled is None or unscaled.bit_length() >= 8 * _MAX_UNSCALED_BYTES:
        raise ValueMismatchError(f"{preview(value)} has {len(digits)} digits, more than a BigDecimal may have here")
    return _SCALE.pack(-exponent) + _integer_bytes(unscaled)


def _read_decimal(data: bytes) -> decimal.Decimal:
    """Read a decimal, with all digits, whatever the precision of the decimal context."""
    num_bytes = len(data) - _SCALE.size
    if num_bytes > _MAX_UNSCALED_BYTES:
        raise SerdeError(f"a number of {num_bytes} bytes, allowed are {_MAX_UNSCALED_BYTES}")
    (scale,) = _SCALE.unpack_from(data)
    unscaled = _read_big_integer(data[_SCALE.size :])
    return decimal.Decimal((int(unscaled < 0), decimal.Decimal(unscaled).as_tuple().digits, -scale))


# ---------------------------------------------------------------- bytes


_checked_bytes: Final = of_class((bytes, bytearray, memoryview), "bytes", bytes, kept=bytes, error=misfit)
_to_bytes: Final = of_class((bytes, bytearray), "bytes", bytes, kept=bytes)


def _parsed_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"bytes in base64 are expected, got {text!r}") from error


def _bytes_from_json(value: Any) -> bytes:
    if type(value) is list:
        if None in value:
            raise ValueError(f"null in an array of primitives: {value!r}")
        return bytes([_BYTE.checked(each) & 0xFF for each in value])
    if type(value) is not str:
        raise misfit(value, f"text of a {Types.PRIMITIVE_ARRAY(Types.BYTE())!r}")
    return _parsed_bytes(value)


# ---------------------------------------------------------------- the forms

_BYTE: Final = _signed_form("BYTE", 8, lambda value: ctypes.c_int8(value).value)
_BYTES: Final = FieldForm(
    _checked_bytes,
    lambda value: base64.b64encode(value).decode(),
    _parsed_bytes,
    _to_bytes,
    is_json=True,
    from_json=_bytes_from_json,
    exact=bytes,
    classes=(object,),
)
VALUE_FORMS: Final[dict[TypeInformation, FieldForm]] = {
    Types.STRING(): FieldForm(
        _checked_text,
        str,
        str,
        _to_text,
        is_text=True,
        is_json=True,
        from_json=_text_from_json,
        exact=str,
        is_nullable=True,
        classes=(str, int),
        from_element=lambda value: value if isinstance(value, str) else str(value),
        java_hash=hash_str,
        arrow="string",
    ),
    Types.CHAR(): FieldForm(
        _checked_character,
        str,
        _checked_character,
        _to_character,
        is_text=True,
        is_json=True,
        classes=(str,),
        from_element=_character_from_element,
        java_hash=hash_str,
    ),
    Types.BOOLEAN(): FieldForm(
        _checked_boolean,
        _boolean_text,
        _parsed_boolean,
        _to_bool,
        is_json=True,
        exact=bool,
        java_text=_boolean_text,
        arrow="bool",
    ),
    Types.BYTE(): _BYTE,
    Types.SHORT(): _signed_form("SHORT", 16, lambda value: ctypes.c_int16(value).value),
    Types.INT(): _signed_form("INT", 32, lambda value: ctypes.c_int32(value).value),
    Types.LONG(): _signed_form("LONG", 64, _long_from_element, _hash_of_long),
    Types.BIG_INT(): integer_form("BIG_INT", None, to_bytes=_integer_bytes, from_bytes=_read_big_integer),
    Types.FLOAT(): FieldForm(
        _checked_float,
        repr,
        lambda text: _rounded_float(_parsed_double(text)),
        _to_float32,
        from_json=partial(_float_from_json, _rounded_float),
        to_json=partial(_float_to_json, _checked_float),
        exact=float,
        limits=(-_MAX_FLOAT32, _MAX_FLOAT32),
        changes=True,
        collected=lambda value: float(str(np.float32(_to_float32(value)))),
        classes=(float, int),
        from_element=lambda value: ctypes.c_float(value).value,
        java_text=float_text,
        arrow="float",
    ),
    Types.DOUBLE(): FieldForm(
        _checked_double,
        repr,
        _parsed_double,
        _real,
        from_json=partial(_float_from_json, _checked_double),
        to_json=partial(_float_to_json, _checked_double),
        exact=float,
        limits=(-sys.float_info.max, sys.float_info.max),
        classes=(float, int),
        from_element=float,
        java_text=number_text,
        arrow="double",
    ),
    Types.BIG_DEC(): FieldForm(
        _checked_decimal,
        str,
        _parsed_decimal,
        _to_decimal,
        is_json=True,
        from_json=lambda value: _parsed_decimal(value) if type(value) is str else _checked_decimal(value),
        exact=decimal.Decimal,
        is_nullable=True,
        to_bytes=_write_decimal,
        from_bytes=_read_decimal,
    ),
    Types.LIST(Types.BYTE()): _BYTES,
    Types.PRIMITIVE_ARRAY(Types.BYTE()): replace(
        _BYTES,
        arrow="binary",
        collected=lambda value: memoryview(_to_bytes(value)).cast("b").tolist(),  # Java's bytes have a sign
    ),
}
