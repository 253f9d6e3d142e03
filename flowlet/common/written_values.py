"""Values as configuration writes them: numbers, durations, sizes of memory, addresses.

Lengths of time as texts, such as ``10 s`` and ``1 min``.

``MemorySize``: a number of bytes, and its text.

Addresses of JobManagers and TaskManagers as people write them: ``host:port``.

Side:   pure.
Source: Java ``Double.toString``.  Flink ``TimeUtils.parseDuration``, ``TimeUtils.formatWithHighestUnit``.  Flink
        ``MemorySize``, PyFlink ``pyflink.datastream.slot_sharing_group``.
Units:  bytes; a kilobyte has 1024.
Rules:  ``http://`` in front and ``/`` at the end are allowed, because a browser shows them so.  A JobManager speaks
        HTTP whose requests are signed: an address with ``https://`` is a mistake, or that of a proxy that would break
        the signatures.
"""

import decimal
import math
import re
from collections.abc import Mapping
from functools import total_ordering
from ipaddress import IPv6Address
from typing import Final, NoReturn

from flowlet.errors import ConfigError
from netstack.late import by_name

# Java writes numbers outside of this range with an exponent.
_PLAIN_EXPONENTS: Final = range(-3, 7)


def java_name(value: float) -> str:
    """Return Java's name of a float that is no finite number."""
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def number_text(value: float, shortest: str | None = None) -> str:
    """Write a number of 64 bits; ``shortest``: the shortest text of one of fewer bits, in Python's form."""
    shortest = repr(float(value)) if shortest is None else shortest
    if 0.001 <= abs(value) < 10_000_000.0 and "e" not in shortest:
        return shortest  # Python's text is Java's there: 0.5 us in place of 4 us
    if not math.isfinite(value):
        return java_name(value)
    if value == 0:
        return "-0.0" if shortest.startswith("-") else "0.0"
    sign, digits, exponent = decimal.Decimal(shortest).normalize().as_tuple()
    if len(digits) == 1:  # Java gives at least two digits, which are the two closest ones
        sign, digits, exponent = decimal.Decimal(f"{value:.1e}").as_tuple()
    assert isinstance(exponent, int), "a finite number has one"
    text, power = "".join(map(str, digits)), len(digits) - 1 + exponent
    minus = "-" if sign else ""
    if power not in _PLAIN_EXPONENTS:
        return f"{minus}{text[0]}.{text[1:].rstrip('0') or '0'}E{power}"
    if power < 0:
        return f"{minus}0.{'0' * (-power - 1)}{text.rstrip('0')}"
    whole = text[: power + 1].ljust(power + 1, "0")
    return f"{minus}{whole}.{text[power + 1 :].rstrip('0') or '0'}"


_QUANTITY: Final = re.compile(r"(\d+)\s*([a-zµ]*)", re.ASCII)
# Also other names of the units, as Flink has them.
_NANOS: Final = by_name(
    {
        86_400_000_000_000: "d day days",
        3_600_000_000_000: "h hour hours",
        60_000_000_000: "m min minute minutes",
        1_000_000_000: "s sec second seconds",
        1_000_000: "ms milli millis millisecond milliseconds",
        1_000: "µs micro micros microsecond microseconds",
        1: "ns nano nanos nanosecond nanoseconds",
    }
) | {"": 1_000_000}
_LABELS: Final = ("d", "h", "min", "s", "ms", "µs", "ns")  # in texts that we write


def _quantity(text: str, units: Mapping[str, int]) -> int:
    found = _QUANTITY.fullmatch(text.strip().lower())
    if found is None or found[2] not in units:
        raise ValueError(text)
    return int(found[1]) * units[found[2]]


def duration_nanos(text: str) -> int:
    """Parse a duration such as ``10 s`` as nanoseconds; a number alone is milliseconds.  ValueError: it is none."""
    return _quantity(text, _NANOS)


def duration_text(nanos: int) -> str:
    """Write a length of time in the largest unit that holds it in whole numbers, as Flink does; of 0: ``0 ms``."""
    if nanos == 0:
        return "0 ms"
    label = next(label for label in _LABELS if nanos % _NANOS[label] == 0)
    return f"{nanos // _NANOS[label]} {label}"


_NAMES: Final = ("bytes", "kb", "mb", "gb", "tb")  # in texts that we write
_UNITS: Final = ("b bytes", "k kb kibibytes", "m mb mebibytes", "g gb gibibytes", "t tb tebibytes")
_SIZES: Final = by_name({1 << 10 * power: labels for power, labels in enumerate(_UNITS)}) | {"": 1}


def parse_bytes(text: str) -> int:
    """Parse a size such as ``64 mb`` as bytes; a number alone is bytes.  ValueError: it is none."""
    return _quantity(text, _SIZES)


@total_ordering
class MemorySize:
    """A size in bytes; immutable.  Raises ConfigError: it is no whole number of 0 or more."""

    __slots__ = ("_bytes",)

    def __init__(self, bytes_size: int | None = None) -> None:
        if not isinstance(bytes_size, int) or isinstance(bytes_size, bool) or bytes_size < 0:
            raise ConfigError(f"a memory size is a whole number of bytes, 0 or more, got {bytes_size!r}")
        self._bytes: int = bytes_size

    @staticmethod
    def of_mebi_bytes(mebi_bytes: int) -> "MemorySize":
        """Make a size in units of 1024 * 1024 bytes."""
        return MemorySize(MemorySize(mebi_bytes).get_bytes() << 20)

    @staticmethod
    def parse(text: str) -> "MemorySize":
        """Parse a size such as ``64 mb``; not in PyFlink, but in Flink.  Raises ConfigError: it is none."""
        try:
            return MemorySize(parse_bytes(text))
        except ValueError:
            raise ConfigError(f"{text!r} is no size in bytes; write it as 1048576, 512 kb, 64 mb or 2 gb") from None

    @property
    def get_java_memory_size(self) -> NoReturn:
        """Refuse: there are no Java objects.  Raises AttributeError: always."""
        raise AttributeError(
            "'MemorySize' has no get_java_memory_size(): there are no Java objects here; use get_bytes()"
        )

    def get_bytes(self) -> int:
        """Return the size in bytes."""
        return self._bytes

    def get_kibi_bytes(self) -> int:
        """Return the size in units of 1024 bytes, rounded down."""
        return self._bytes >> 10

    def get_mebi_bytes(self) -> int:
        """Return the size in units of 1024^2 bytes, rounded down."""
        return self._bytes >> 20

    def get_gibi_bytes(self) -> int:
        """Return the size in units of 1024^3 bytes, rounded down."""
        return self._bytes >> 30

    def get_tebi_bytes(self) -> int:
        """Return the size in units of 1024^4 bytes, rounded down."""
        return self._bytes >> 40

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MemorySize) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __lt__(self, other: "MemorySize") -> bool:
        return self._bytes < other._bytes

    def __str__(self) -> str:
        """Write the size in the largest unit that gives a whole number; whole terabytes in bytes, as
        Flink writes them.
        """
        power = next((each - 1 for each in range(1, len(_NAMES)) if self._bytes % (1 << 10 * each)), 0)
        return f"{self._bytes >> 10 * power} {_NAMES[power]}"

    def __repr__(self) -> str:
        return f"MemorySize({self._bytes})"


JOB_MANAGER_VARIABLE: Final = "FLOWLET_JOBMANAGER"  # host:port
_EXAMPLE: Final = "such as 127.0.0.1:8081"
_REFUSED_IN_HOSTS: Final = frozenset("/\\@?#[]\"'<>,;")


def parse_address(text: str, where: str) -> tuple[str, int]:
    """Parse ``host:port``: returns the host, without the brackets of IPv6, and the port.

    Raises:
        ConfigError: it is something else; names ``where`` it was found.
    """
    address = text.strip()
    scheme, has_scheme, _ = address.partition("://")
    if has_scheme and scheme.lower() != "http":
        raise ConfigError(f"{where} is {text!r}: a JobManager speaks no {scheme}; give host:port, {_EXAMPLE}")
    address = address[len("http://") :] if has_scheme else address
    host, colon, port = address.rstrip("/").rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or len(port) > len("65535"):
        raise ConfigError(f"{where} is {text!r}; it must be host:port, {_EXAMPLE}")
    return checked_address(host, int(port), f"{where} is {text!r}")


def parse_job_manager_option(text: str, variables: Mapping[str, str]) -> tuple[str, int]:
    """Parse host and port of the option ``--jobmanager``, which takes its default from an environment variable.

    Raises:
        ConfigError: it is something else; names the variable if the text is that of the variable.
    """
    is_of_variable = text == variables.get(JOB_MANAGER_VARIABLE)
    return parse_address(text, f"environment variable {JOB_MANAGER_VARIABLE}" if is_of_variable else "--jobmanager")


def checked_address(host: str, port: int, where: str) -> tuple[str, int]:
    """Return the host, without the brackets of IPv6, and the port, if they are good.

    Raises ConfigError: they are no host and port; names ``where``.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_host = bool(bare) and not (_REFUSED_IN_HOSTS & set(bare)) and bare.isprintable() and " " not in bare
    if not is_host or (":" in bare and not _is_ipv6(bare)) or not 1 <= port <= 65535:
        raise ConfigError(f"{where}: {host!r} and {port} are no host and port from 1 to 65535")
    return bare, port


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
