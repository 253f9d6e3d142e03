"""Classes as people write them, and classes that only look like those.

Each pair is a function that makes a record of a number, and whether many such records go by columns.
"""

import abc
import datetime
import decimal
import enum
import functools
from collections import namedtuple
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import msgspec

from flowlet.common.types import Row, RowKind

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Plain:
    number: int
    text: str = "x"
    more: float | None = None

    def __post_init__(self) -> None:
        self.num_made = 1


@dataclass(frozen=True)
class Frozen:
    number: int
    text: str

    @functools.cached_property
    def doubled(self) -> int:
        return 2 * self.number


@dataclass(slots=True)
class Slots:
    number: int
    color: Color


@dataclass(frozen=True, slots=True)
class FrozenSlots:
    number: int
    text: str


@dataclass(frozen=True, slots=True, weakref_slot=True)
class WeakSlots(FrozenSlots):
    more: int = 5


@dataclass
class Derived(Plain):
    tags: list[str] = field(default_factory=list)
    shared: ClassVar[int] = 3


@dataclass
class Box(Generic[T]):
    content: T


class Numbered:
    def __init__(self, number: int) -> None:
        self.number = number


class Handwritten:
    limit = 7

    def __init__(self, number: int) -> None:
        self.number = number
        self._text = str(number)
        self.__hidden = number + 1

    def hidden(self) -> int:
        return self.__hidden


class Base(abc.ABC):
    @abc.abstractmethod
    def area(self) -> int: ...


class Square(Base):
    def __init__(self, side: int) -> None:
        self.side = side

    def area(self) -> int:
        return self.side**2


class WithProperty:
    """The property writes the ``__dict__`` itself."""

    def __init__(self, number: int) -> None:
        self.number = number

    @property
    def number(self) -> int:
        return int(self.__dict__["number"])

    @number.setter
    def number(self, number: int) -> None:
        self.__dict__["number"] = number + 1


class Loud(Numbered):
    """Tells of every attribute that is set; pickle sets them behind its back."""

    num_set = 0

    def __setattr__(self, name: str, value: Any) -> None:
        Loud.num_set += 1
        object.__setattr__(self, name, value)


class Point(NamedTuple):
    x: int
    y: str = "y"

    def doubled(self) -> int:
        return 2 * self.x


class NamedPoint(namedtuple("NamedPoint", ["x", "y"])):
    """A named tuple with a ``__dict__``, as people forget the slots."""

    def doubled(self) -> int:
        return int(2 * self.x)


class Struct(msgspec.Struct):
    number: int
    text: str = "x"


class FrozenStruct(msgspec.Struct, frozen=True):
    number: int
    text: str = "x"


class TaggedStruct(FrozenStruct, tag="tagged", frozen=True, gc=False, omit_defaults=True):
    more: int = 3


class CheckedStruct(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("negative")


# From here on: not flat.


class KeywordStruct(msgspec.Struct, kw_only=True):
    number: int


class Reduced(Numbered):
    def __reduce__(self) -> Any:
        return Reduced, (self.number + 1,)


class Stated(Numbered):
    def __getstate__(self) -> Any:
        return {"number": self.number + 10}


class Restored(Numbered):
    def __setstate__(self, state: Any) -> None:
        self.number = state["number"] + 100


class WithNew:
    def __new__(cls, number: int = 0) -> "WithNew":
        made = super().__new__(cls)
        made.made_by_new = number
        return made

    made_by_new: int

    def __init__(self, number: int = 0) -> None:
        self.number = number


class SlotsAndDict(Plain):
    __slots__ = ("extra",)

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.extra = number


class LoudSlots:
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        object.__setattr__(self, "number", number)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value + 1000)


class WithGetattr(Numbered):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class Meta(type):
    pass


class WithMeta(Numbered, metaclass=Meta):
    pass


class Count(int):
    pass


class Names(dict[str, int]):
    pass


class NewPoint(NamedTuple("NewPoint", [("x", int)])):
    __slots__ = ()

    def __new__(cls, x: int) -> "NewPoint":
        return super().__new__(cls, abs(x))


class Failure(Exception):
    pass


class Empty:
    pass


def with_names(number: int, **attributes: Any) -> Handwritten:
    record = Handwritten(number)
    vars(record).update(attributes)
    return record


def computed(number: int) -> Frozen:
    record = Frozen(number, "x")
    assert record.doubled == 2 * number
    return record


def noted(number: int) -> NamedPoint:
    record = NamedPoint(number, "x")
    record.note = number  # type: ignore[attr-defined]
    return record


def updated(number: int) -> Row:
    return Row.of_kind(RowKind.UPDATE_AFTER, number)


def twice(number: int) -> Derived:
    tags: Any = [str(number)]
    return Derived(number, more=tags, tags=tags)


def itself(number: int) -> Plain:
    record = Plain(number)
    record.more = record  # type: ignore[assignment]
    return record


def json_of(number: int) -> dict[str, Any]:
    """Keys that are new objects, as JSON text gives."""
    return {"".join(["num", "ber"]): number, "".join(["te", "xt"]): f"t{number}"}


FLAT: dict[str, Any] = {
    "dataclass": Plain,
    "fields of two types": lambda number: Plain(number, more=None if number % 3 else 0.5),
    "frozen": lambda number: Frozen(number, "x"),
    "cached property": computed,
    "slots": lambda number: Slots(number, Color.RED if number % 2 else Color.BLUE),
    "frozen slots": lambda number: FrozenSlots(number, str(number)),
    "weak slots": lambda number: WeakSlots(number, str(number)),
    "derived": lambda number: Derived(number, tags=[str(number)]),
    "in a dataclass": lambda number: Box(Plain(number)),
    "deep in dataclasses": lambda number: Box(Box(Box(Plain(number)))),
    "frozen in a dataclass": lambda number: Box(FrozenSlots(number, "y")),
    "written by hand": Handwritten,
    "odd names": lambda number: with_names(number, **{"class": 1, "a-b": 2, "ﬁ": 3, "__debug__": 4, "\ud800": number}),
    "abstract base": Square,
    "property": WithProperty,
    "own setattr": Loud,
    "dates": lambda number: Box(
        datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(seconds=number)
    ),
    "decimals": lambda number: Box((decimal.Decimal(number), ("a", None))),
    "NamedTuple": Point,
    "namedtuple with a dict": lambda number: NamedPoint(number, [number]),
    "struct": Struct,
    "tagged struct": lambda number: TaggedStruct(number, more=number),
    "checked struct": CheckedStruct,
    "row with names": lambda number: Row(number=number, text="x"),
    "row without names": lambda number: Row(number, "x"),
    "row in a row": lambda number: Row(number=Row(number, None)),
    "dict of JSON": json_of,
    "dicts in a dataclass": lambda number: Box({"a": number}),
}
PICKLED: dict[str, Any] = {
    "generic with its type": lambda number: Box[int](number),
    "keyword struct": lambda number: KeywordStruct(number=number),
    "reduce": Reduced,
    "getstate": Stated,
    "setstate": Restored,
    "new": WithNew,
    "slots and dict": SlotsAndDict,
    "slots with setattr": LoudSlots,
    "getattr": WithGetattr,
    "metaclass": WithMeta,
    "int": Count,
    "subclass of dict": lambda number: Names(number=number),
    "own new of a NamedTuple": NewPoint,
    "noted": noted,
    "exception": Failure,
    "empty": lambda number: Empty(),
    "other attributes": lambda number: with_names(number, **{f"a{number}": 1}),
    "another order": lambda number: with_names(
        number, **dict(sorted({"a": 1, "b": 2}.items(), reverse=number % 2 == 0))
    ),
    "row of another kind": updated,
    "rows of other names": lambda number: Row(**{f"a{number}": number}),
    "rows of other lengths": lambda number: Row(*range(number % 2 + 1)),
    "dict of literals": lambda number: {"number": number},
    "dicts of other keys": lambda number: {f"a{number}": number},
    "dicts of lists": lambda number: {"".join(["num", "ber"]): [number]},
    "the same list twice": twice,
    "itself": itself,
    "open objects": lambda number: Box(Reduced(number)),
}
