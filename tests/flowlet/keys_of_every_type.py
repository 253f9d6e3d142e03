"""A key of every type, with its hash, which never changes: key groups of stored state go by it.

Imported by another process with another ``PYTHONHASHSEED``, too.
"""

import datetime
import enum
import ipaddress
import math
import pathlib
import re
import uuid
from collections import namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from flowlet.common.types import Row, RowKind

VIENNA = datetime.timezone(datetime.timedelta(hours=1), "Vienna in winter")
INSTANT = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001 - one without a time zone
Point = namedtuple("Point", "x y")


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Plain(enum.Enum):
    ONE = 1
    TWO = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Place(NamedTuple):
    city: str
    zip_code: int


@dataclass(frozen=True)
class Order:
    user: str
    number: int
    note: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Shop:
    place: Place
    opened: datetime.date | None


@dataclass(frozen=True)
class Nothing:
    pass


@dataclass(frozen=True)
class One:
    value: Any


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    user: str
    number: int


class Version:
    """A value class as people write them, with something that is computed once."""

    def __init__(self, major: int, minor: int) -> None:
        self.minor = minor
        self.major = major

    @cached_property
    def text(self) -> str:
        return f"{self.major}.{self.minor}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and (self.major, self.minor) == (other.major, other.minor)

    def __hash__(self) -> int:
        return hash((self.major, self.minor))


class Slotted:
    __slots__ = ("name", "unset")

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Slotted) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


class Money(int):
    """A number that holds more, and compares it."""

    currency: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and (int(self), self.currency) == (int(other), other.currency)

    def __hash__(self) -> int:
        return hash((int(self), self.currency))


def money(amount: int, currency: str) -> Money:
    made = Money(amount)
    made.currency = currency
    return made


# Each is another key than all others.
GOLDEN: list[tuple[Any, int]] = [
    (None, 0),
    (True, 1231),
    (1, 1),
    (2**80, 62980096),
    (1.0, 1072693248),
    (math.nan, 2146959360),
    (1 + 0j, -1106247680),
    (complex(0.0, -0.0), -2147483648),
    (Decimal("1.00"), 49),
    (Decimal("-0.0"), 48),
    (Decimal("1E+3"), 1527452),
    (Decimal("123456789012345678901234567890.123456789"), 1043686680),
    (Decimal("sNaN"), 78043),
    (Decimal("-Infinity"), 506745205),
    (Fraction(1), 32),
    (Fraction(-3, 4), -89),
    ("", 0),
    ("red", 112785),
    (b"red", 142576),
    (datetime.date(1970, 1, 2), 1),
    (datetime.date(2024, 2, 29), 19782),
    (datetime.datetime(1970, 1, 1, 0, 0, 0, 7), 7),  # noqa: DTZ001 - as above
    (INSTANT, 1810273412),
    (INSTANT.replace(tzinfo=datetime.UTC), 1810273412),
    (datetime.datetime.max.replace(tzinfo=VIENNA), -161742860),
    (datetime.datetime.min.replace(tzinfo=VIENNA), -714875904),
    (datetime.time(12, 30), 2050327050),
    (datetime.time(12, 30, tzinfo=VIENNA), -1549672951),
    (datetime.time(0, 0, tzinfo=VIENNA), -694967297),
    (datetime.timedelta(microseconds=7), 7),
    (datetime.timedelta(days=-2, seconds=3), 998308119),
    (datetime.timedelta.max, -469475288),
    (uuid.UUID("12345678-1234-5678-9abc-def012345678"), -2004318072),
    (pathlib.PurePosixPath("/a/B"), 1494917),
    (pathlib.PureWindowsPath("c:/A/b"), -1404280190),
    (ipaddress.ip_address("10.0.0.1"), 1209192961),
    (ipaddress.ip_network("2001:db8::/32"), -2029807569),
    (range(3), 1669956862),
    (re.compile("a+", re.IGNORECASE), 1103579902),
    (Plain.ONE, 1366600673),
    (Plain.TWO, 1366605767),
    (Access.READ, -1271062120),
    (Access.READ | Access.WRITE, -1271062118),
    (Access(0), -1271062121),
    (RowKind.INSERT, 1970351938),
    ((), 0),
    ((None,), 0),
    (("a", 1.5, (datetime.date(2024, 2, 29), Plain.ONE)), 277312380),
    ([], 1),
    ([None], 31),
    (["a", [1, (2,)]], 4962),
    (frozenset(), 0),
    (frozenset({"a", "b", None, 1}), 196),
    (frozenset({(1, "a"), Plain.ONE}), 1366600801),
    (Row(), 0),
    (Row("a", 1), 3008),
    (Row(name="a", number=1), 3008),
    (Row(number="a", name=1), 3008),
    (Row.of_kind(RowKind.DELETE, "a", 1), 3008),
    (Row([1], Row(None)), 992),
    (Order("ann", 1), -1297557367),
    (Order("ann", 2), -1297557366),
    (Shop(Place("Wien", 1010), None), -254979516),
    (Nothing(), 2035880520),
    (One(()), -222069313),
    (One(None), -222069313),
    (One([Decimal(1)]), -222069233),
    (Struct(user="ann", number=1), -1087974982),
    (Version(1, 2), 439890715),
    (Slotted("a"), -413852732),
    (money(5, "EUR"), 851830382),
    (money(5, "USD"), 852304682),
    (np.datetime64(1, "ns"), -817862218),
    (np.datetime64(1, "ps"), 416151644),
    (np.timedelta64(1, "ns"), 1557727196),
    (np.timedelta64(1, "Y"), 1568992039),
]
