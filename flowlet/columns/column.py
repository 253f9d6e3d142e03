"""One field of many records, in the representation that costs least; the numbers in it; the values that cannot change.

A record that cannot change may wait for its chunk and travel in columns.  A record that can change is serialized when
it is emitted.

Hot path: C code per column, no Python per value.  Arrays of int64 and float64 are not copied for arithmetic.
``are_unchanging`` makes one pass in C over the types of a list, two over those of tuples.

Side:       pure.
Invariants: ``to_list`` gives the exact Python values that the column stands for, a new list each time; columns never
            change, and share memory with the parts that ``slice`` makes of them.  ``Numbers`` are exactly the column's;
            columns of other values (bool, ints beyond 64 bits, mixed types) have none.
Rules:      the exact type of a value tells whether it can change, because a subclass may change it; but a member of an
            ``Enum`` cannot change, and neither can a frozen dataclass or a named tuple of values that cannot.
            (``object.__setattr__`` changes a frozen dataclass; its author asked for it.)
Units:      positions count from 0.
"""

from __future__ import annotations

import abc
import dataclasses
import datetime
import decimal
import enum
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from netstack.late import dataclass
from netstack.late import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    IndexArray = NDArray[np.intp]
    MaskArray = NDArray[np.bool_]
else:
    IndexArray = MaskArray = Any  # for annotations: numpy is imported late


INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
INSTANT: Final = "datetime64[us]"  # the name of its type
_WIDE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class NumberKind:
    """The meaning of the numbers.

    ``is_instant``: microseconds, or the unit of ``arrow_type``, since the epoch.
    """

    is_instant: bool = False
    arrow_type: Any = None  # of an instant that came from Arrow


@dataclass(frozen=True, slots=True)
class Numbers:
    """A column for arithmetic.

    ``array``: int64 or float64; any number in the place of a null.  ``is_valid``: False for nulls; None: there are no
        nulls.
    """

    array: NDArray[Any]
    is_valid: NDArray[np.bool_] | None = None
    kind: NumberKind = NumberKind()


def wide(array: NDArray[Any]) -> NDArray[Any] | None:
    """The array as int64 or float64, without change; None where that is not possible."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind == "i" or (kind == "u" and (size < _WIDE_BYTES or array.max(initial=0) <= INT64_MAX)):
        return array.astype(np.int64, copy=False)
    if kind == "f" and size <= _WIDE_BYTES:
        return array.astype(np.float64, copy=False)
    return None


UNCHANGING: Final = frozenset(
    {str, int, float, bool, bytes, complex, NoneType, decimal.Decimal, uuid.UUID}
    | {datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone}
)
_MAX_DEPTH: Final = 20  # of tuples in tuples; deeper ones count as changing, so that no stack overflows


def is_unchanging(value: Any, depth: int = _MAX_DEPTH) -> bool:
    """Whether neither the value nor a value inside it can change."""
    kind = type(value)
    if kind in UNCHANGING:
        return True
    parts = _parts(value, kind)
    return parts is not None and depth > 0 and all(is_unchanging(part, depth - 1) for part in parts)


def are_unchanging(values: list[Any]) -> bool:
    """Whether ``is_unchanging`` holds for each value."""
    kinds = set(map(type, values))
    if kinds <= UNCHANGING:
        return True
    if kinds == {tuple} and UNCHANGING.issuperset(map(type, chain.from_iterable(values))):
        return True
    return all(map(is_unchanging, values))


def _parts(value: Any, kind: Any) -> Iterable[Any] | None:
    """All parts of the value; None if it can change by itself."""
    if kind is tuple or kind is frozenset:
        parts: Iterable[Any] = value
        return parts
    form: Callable[[Any], Iterable[Any]] | None = _form_of(kind)
    return None if form is None else form(value)


@lru_cache(maxsize=1024)
def _form_of(kind: Any) -> Callable[[Any], Iterable[Any]] | None:
    """The function that gives the parts of an instance of a class whose instances cannot change by themselves.

    None for any other class.
    """
    if issubclass(kind, enum.Enum):
        return values_of([])
    if issubclass(kind, tuple) and kind.__bases__ == (tuple,) and hasattr(kind, "_fields") and not kind.__dictoffset__:
        return tuple.__iter__
    if all(map(_is_frozen, kind.__mro__)) and "__dataclass_params__" in vars(kind):
        if kind.__dictoffset__:
            return lambda value: vars(value).values()
        names = [field.name for field in dataclasses.fields(kind)]
        slots = {name for base in kind.__mro__ for name in vars(base).get("__slots__", ())}
        return values_of(names) if slots <= set(names) else None
    return None


def _is_frozen(base: type) -> bool:
    """Whether the class itself, apart from its bases, is a frozen dataclass or adds no attribute to instances."""
    if base in (object, abc.ABC, Generic):
        return True
    params = vars(base).get("__dataclass_params__")
    return params is not None and bool(params.frozen)


def values_of(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """The function that gives the attributes of these names of an object."""
    match names:
        case []:
            return lambda _: ()
        case [name]:
            get = attrgetter(name)
            return lambda value: (get(value),)
        case _:
            return attrgetter(*names)


_T = TypeVar("_T")


class Column(ABC):
    """The values of one field; a subclass for each representation.

    Code that depends on the representation is a ``ColumnVisitor``, never a test of the class.
    """

    __slots__ = ()

    visited_as: ClassVar[str] = "any"  # of ``_REPRESENTATIONS``
    is_constant: ClassVar[bool] = False  # whether it is one value many times
    has_objects: ClassVar[bool] = False  # whether it holds Python objects, not arrays
    may_have_nulls: ClassVar[bool] = False  # whether numbers in this representation may have nulls among them
    never_has_nulls: ClassVar[bool] = False  # whether no value of any kind can be null

    @abstractmethod
    def __len__(self) -> int:
        """How many values there are."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.to_list())

    @abstractmethod
    def to_list(self) -> list[Any]:
        """The values as Python objects, in a list of the caller's own."""

    @abstractmethod
    def take(self, indices: IndexArray) -> Column:
        """The values at these positions, in this order."""

    @abstractmethod
    def slice(self, start: int, stop: int) -> Column:
        """The values from ``start`` to before ``stop``; positions beyond the end are left out."""

    def is_unchanging(self) -> bool:
        """Whether no value can change (``is_unchanging``).  Here: where values are never null, they are numbers,
        instants or texts, which cannot.
        """
        return self.never_has_nulls

    @property
    def value_type(self) -> type | None:
        """The exact type of all values, where it is known without a look at them; else None."""
        return None

    def as_list(self) -> list[Any]:
        """The values in a list that must not be changed."""
        return self.to_list()

    def as_array(self, dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """The values in an array of this type, which must not be changed; None if they are of another type."""
        return None

    def numbers(self) -> Numbers | None:
        """The ints, floats or instants, for arithmetic; None if there are other values."""
        return None

    def arrow_array(self) -> Any:
        """The values as a ``pyarrow.Array`` without a look at each; None if that is not possible."""
        return None

    def concatenate(self, columns: Sequence[Column]) -> Column | None:
        """All values of these columns as one column of this representation; None if some do not fit into it, or if that
        would not be quicker.

        Args:
            columns: this column is among them; all columns before it have ``is_constant``.
        """
        return None

    def detached(self) -> Column:
        """The values without a table that still grows."""
        return self

    def narrowed(self) -> Column:
        """A column of these values, at least one, with integers of 64 bits in as few bytes as they need."""
        return self

    def widened(self) -> Column:
        """A column of these values, with narrow integers widened to 64 bits."""
        return self


_REPRESENTATIONS: Final = ("any", "array", "arrow", "coded", "constant", "list", "offsets", "short_texts")


class ColumnVisitor(ABC, Generic[_T]):
    """Handles a column by its representation, as ``ast.NodeVisitor`` does a node.

    A subclass has a method for each representation that it handles in a way of its own, such as ``visit_list`` for
    columns that are ``visited_as`` "list".
    """

    __slots__ = ()
    _methods: ClassVar[dict[str, Callable[[Any, Column], Any]]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._methods = {each: getattr(cls, f"visit_{each}", cls.visit_any) for each in _REPRESENTATIONS}

    def visit(self, column: Column) -> _T:
        """Call the method for this representation, or else ``visit_any``."""
        found: _T = self._methods[column.visited_as](self, column)
        return found

    @abstractmethod
    def visit_any(self, column: Column) -> _T:
        """Handle any column, by its values."""
