"""Values on their way into a state, and copies of them for snapshots.

``DeclaredValues``: checks that the values a program puts into a state are of the type that it declared.

Hot path: a state whose values are plain compares one type where a value enters (``exact``), and calls ``entered`` only
for a value of another one.  Everything else, and the range of integers, is looked at when it is serialized: by the
snapshot pool, or where a cache of RocksDB is written.  Values that cannot change are not copied for a snapshot: one
pass in C over the types of many.  Others are pickled in one call for many rows, which is a tenth of the time of
``copy.deepcopy``.

Side:       pure.
Invariants: a row of a snapshot shares no list or map with the state; a thawed row shares none with the snapshot.
Rules:      values are converted as records are (``value_conversion``): a number becomes an ``int`` or a ``float``,
            numpy's scalars and subclasses become plain values.  A FLOAT is not rounded.  Only values that are plain are
            converted.  Tuples, rows, lists, maps and times are only checked, as are keys of maps: another key would be
            another entry.  A list will do for a tuple, and a tuple for a list, as for PyFlink's coders.  None may be a
            value of a map, any part of a tuple, row, list or map, and a value of the types that may be null in Java.
Source:     PyFlink ``coders.from_type_info``, which its states serialize with; Flink ``TypeSerializer.copy``,
            ``HeapSnapshotStrategy``.
"""

from __future__ import annotations

import decimal
from array import array
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Final

from flowlet.columns.column import are_unchanging
from flowlet.common.time import Instant
from flowlet.common.typeinfo import ListTypeInfo, MapTypeInfo, PickledBytesTypeInfo, TypeInformation, Types
from flowlet.common.values.conversion import field_form, integer_limits
from flowlet.common.values.field_values import Convert, TypeMismatchError, described
from flowlet.errors import FlowletError
from flowlet.keys.exact_keys import exact_key
from flowlet.serde.pickles.record_pickle import dumps_record, loads_record
from flowlet.state.state_snapshots import StateKind
from flowlet.typed.value_conversion import is_nullable, value_converter
from netstack.late import dataclass


@dataclass(eq=False, slots=True)
class MapEntry:
    """A value of a map, with the user's key, where that is another object than its exact key."""

    key: Any
    value: Any


@dataclass(eq=False, slots=True)
class PickledRow:
    """A row that was pickled, because the user may change its values from now on.

    ``data``: the pickle, or the error if it failed: then the snapshot fails, and the user's function does not.
    """

    data: bytes | FlowletError


def map_pairs(entries: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """Keys and values of a map."""
    return [(value.key, value.value) if type(value) is MapEntry else (key, value) for key, value in entries.items()]


def frozen_row(name: str, kind: StateKind, stored: Any) -> Any:
    """The row of one key as it is now, for ``thawed_row``; never raises.

    A row that a table kept and dropped (``stored`` is a tuple for a list or a map) was never the user's.
    """
    row = _row(kind, stored)
    # Fast path: a row that cannot change is its own copy.
    if are_unchanging([row]):
        return row
    try:
        # Pickled now, on the task's thread: the user may change the row right after.
        return PickledRow(dumped_rows(name, [row]))
    except FlowletError as error:
        return PickledRow(error)


def thawed_row(name: str, kind: StateKind, kept: Any) -> Any:
    """The row of a result of ``frozen_row``, or of an entry that a table kept until it was replaced.

    Raises:
        FlowletError: it could not be copied; names the state.
    """
    if type(kept) is PickledRow:
        if isinstance(kept.data, FlowletError):
            # Late, where the snapshot is made: the user's access went on without it.
            raise kept.data
        return loads_record(kept.data)[0]
    # A kept entry may be a list or a map, in the form of the table.
    return copied_rows(name, kind, [kept])[0]


def copied_rows(name: str, kind: StateKind, entries: list[Any]) -> list[Any]:
    """The rows of a state's entries, for some keys, as copies.

    Raises:
        FlowletError: a value cannot be copied; names the state.
    """
    match kind:
        case StateKind.LIST | StateKind.MAP:
            rows = [_row(kind, entry) for entry in entries]
            is_fixed = are_unchanging(list(chain.from_iterable(rows)))
        case _:
            rows = entries
            is_fixed = are_unchanging(rows)
    if is_fixed:
        return rows
    copied: list[Any] = loads_record(dumped_rows(name, rows))
    return copied


def thawed_rows(kind: StateKind, values: Iterable[Any]) -> list[Any]:
    """The entries of a state for the values of ``StateRows``; they share no changeable object with these."""
    rows = list(values)
    # All rows in one call, as in ``copied_rows``.
    rows = rows if are_unchanging(rows) else loads_record(dumps_record(rows))
    match kind:
        case StateKind.LIST:
            return [list(row) for row in rows]
        case StateKind.MAP:
            return [dict(stored_pair(key, value) for key, value in row) for row in rows]
        case _:
            return rows


def stored_pair(key: Any, value: Any) -> tuple[Any, Any]:
    """Key and value of the dictionary that keeps a map."""
    exact = exact_key(key)
    return (key, value) if exact is key else (exact, MapEntry(key, value))


def _row(kind: StateKind, stored: Any) -> Any:
    match kind:
        case StateKind.LIST:
            return tuple(stored)
        case StateKind.MAP:
            return tuple(map_pairs(stored)) if type(stored) is dict else stored
        case _:
            return stored


def dumped_rows(name: str, rows: list[Any]) -> bytes:
    """The pickle of rows.  Raises FlowletError, which names the state."""
    try:
        return dumps_record(rows)
    except Exception as error:
        raise FlowletError(
            f"state {name!r} holds a value that cannot be pickled into a snapshot ({error}); keep values that can be "
            "pickled"
        ) from error


_INTEGERS: Final = (Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG())
_TYPECODES: Final = dict(zip(map(integer_limits, _INTEGERS), "bhiq", strict=True))  # of ``array``, by limits
# Plain values of other classes are only checked.
_CONVERTED: Final = frozenset({str, bool, int, float, decimal.Decimal, Instant})


class DeclaredValues:
    """The declared type of one state, and its name for messages.  Threading: any; it never changes.

    Args:
        name: of the state.
        type_info: as its descriptor has it: of a list the list, of a map the map.
        kind: of the state; broadcast state is a map.
    """

    __slots__ = (
        "_convert_key",
        "_convert_value",
        "_key",
        "_name",
        "_needs_keys",
        "_needs_rows",
        "_type_info",
        "_typecode",
        "_value",
        "exact",
        "exact_key",
        "is_entered",
    )

    def __init__(self, name: str, type_info: TypeInformation, kind: StateKind) -> None:
        self._name = name
        self._type_info = type_info
        self._key: TypeInformation | None = None
        self._value = type_info
        if kind is StateKind.LIST:
            assert isinstance(type_info, ListTypeInfo), "the descriptor makes it"
            self._value = type_info.elem_type
        elif kind is StateKind.MAP:
            assert isinstance(type_info, MapTypeInfo), "the descriptor makes it"
            self._key, self._value = type_info.key_type_info, type_info.value_type_info
        form = field_form(self._value)
        # A FLOAT is a Python float here: rounding would change a value that the program gets back.
        is_rounded = form is not None and form.exact is float
        self._convert_value = value_converter(Types.DOUBLE() if is_rounded else self._value, is_stored=True)
        self._convert_key = None if self._key is None else value_converter(self._key, is_stored=True)
        self.exact = _exact(self._value)
        """The type whose values are taken unconverted; None: values are not checked where they enter."""
        self.exact_key = None if self._key is None else _exact(self._key)
        """``exact``, of the keys of a map."""
        self.is_entered = self.exact is not None or self.exact_key is not None
        """Whether values or keys are checked where they enter."""
        self._typecode = _TYPECODES.get(integer_limits(self._value))
        self._needs_rows = _needs_rows(self._value)
        self._needs_keys = self._key is not None and _needs_rows(self._key)

    def __repr__(self) -> str:
        return f"<DeclaredValues of {self._name!r}: {self._type_info!r}>"

    # -- where a value enters

    def entered(self, value: Any) -> Any:
        """The value, converted if the declared type is plain.

        Raises FlowletError: the value is of another type; names state, type and value.
        """
        # None comes from a list or a map: a state of one value is cleared by it before.
        if self.exact is None or type(value) is self.exact or (value is None and self._takes_none):
            return value
        assert self._convert_value is not None, "plain types have one"
        try:
            return self._convert_value(value)
        except TypeMismatchError as error:
            raise self._refused("a value", value, error) from None

    @property
    def _takes_none(self) -> bool:
        return self._key is not None or is_nullable(self._value)

    def all_entered(self, values: Iterable[Any]) -> list[Any]:
        """The results of ``entered`` for all values."""
        found = list(values)
        exact = self.exact
        # Fast path: one pass in C over the types.
        if exact is None or set(map(type, found)) <= {exact}:
            return found
        return list(map(self.entered, found))

    def check_key(self, key: Any) -> None:
        """Refuse a key of a map whose declared type is plain.  Raises FlowletError, as ``entered``."""
        if self.exact_key is not None and type(key) is not self.exact_key:
            self._check("a key", self._convert_key, key)

    # -- where values are serialized

    @property
    def is_serialized_checked(self) -> bool:
        """Whether ``check_rows`` has anything to check."""
        return self._needs_rows or self._needs_keys

    def check_rows(self, kind: StateKind, rows: Iterable[Any], *, has_ttl: bool) -> None:
        """Refuse wrong values and keys that were not checked where they entered; ``rows``: as in ``StateRows``.

        Raises FlowletError.
        """
        match kind:
            case StateKind.LIST:
                values = [each for row in rows for each in row]
            case StateKind.MAP:
                pairs = [pair for row in rows for pair in row]
                values = [value for _, value in pairs]
                for key, _ in pairs:
                    self.check_serialized_key(key)
            case _:
                values = list(rows)
        # The time of the last use is ours, and right.
        if has_ttl:
            values = [each[0] for each in values]
        if not self._needs_rows:
            return
        # Fast path: C looks at the range of all integers at once.
        if self._typecode is not None:
            try:
                array(self._typecode, values)
            except (OverflowError, TypeError):  # None, in a map
                pass
            else:
                return
        # One by one, to find the wrong one, and name it.
        for value in values:
            if value is not None or not self._takes_none:
                self._check("a value", self._convert_value, value)

    def check_serialized_key(self, key: Any) -> None:
        """Refuse a wrong key of a map that was not checked where it entered.  Raises FlowletError."""
        if self._needs_keys:
            self._check("a key", self._convert_key, key)

    def _check(self, what: str, convert: Convert | None, value: Any) -> None:
        if convert is None:
            return
        try:
            # Its result is dropped: only values that enter are converted.
            convert(value)
        except TypeMismatchError as error:
            raise self._refused(what, value, error) from None

    def _refused(self, what: str, value: Any, error: TypeMismatchError) -> FlowletError:
        return FlowletError(
            f"state {self._name!r} is declared as {self._type_info!r} and cannot hold {what} {described(value)}: "
            f"{error}; store a value of "
            "the declared type, or declare the one that you store (Types.PICKLED_BYTE_ARRAY() takes any)"
        )


def _exact(type_info: TypeInformation) -> type | None:
    """The one type whose values need no conversion; None: a value's type alone does not tell."""
    form = field_form(type_info)
    return None if form is None or form.exact not in _CONVERTED else form.exact


def _needs_rows(type_info: TypeInformation) -> bool:
    """Whether values are checked where they are serialized."""
    # An int's class does not tell whether it is in range.
    is_exact = _exact(type_info) is not None or isinstance(type_info, PickledBytesTypeInfo)
    return not is_exact or integer_limits(type_info) is not None


# ---------------------------------------------------------------- states that check values where they enter


class EnteredState:
    """The first base class of states whose values, and keys of maps, are checked where they enter.

    ``declared``: of a plain type; None: values are taken unchecked.
    """

    __slots__ = ("_all_entered", "_declared", "_exact")

    def __init__(self, declared: DeclaredValues | None) -> None:
        self._declared = declared
        self._exact = None if declared is None else declared.exact
        self._all_entered: Callable[[Iterable[Any]], list[Any]] = list if declared is None else declared.all_entered
