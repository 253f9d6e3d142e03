"""State of one program's classes becomes state of the classes with equal names in another program."""

import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from flowlet.checkpoint.task import state_codec
from flowlet.checkpoint.task.snapshots import OperatorState, SubtaskState
from flowlet.checkpoint.task.state_codec import decode_state, encode_state
from flowlet.connectors.write_ahead_writer import CommittableRows, decoded_rows, encoded_part
from flowlet.errors import StateRestoreError
from flowlet.keys.exact_keys import key_group
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.former_classes import RunningClasses
from flowlet.shipping.program_modules import MAIN_OBJECTS
from flowlet.state.state_snapshots import (
    KeyedStateSnapshot,
    OperatorStateRows,
    OperatorStateSnapshot,
    Redistribution,
    StateDescription,
    StateKind,
    StateRows,
)

IMPORTS = """
from __future__ import annotations
import enum
from collections import namedtuple
from dataclasses import dataclass, field
from enum import Enum, Flag, IntEnum, IntFlag, StrEnum, auto
from typing import Generic, NamedTuple, TypeVar
import attrs
import msgspec
"""
CLASSES = """
class Color(Enum):
    RED = 1
    BLUE = 2

class Level(IntEnum):
    LOW = 1
    HIGH = 2

class Word(StrEnum):
    A = "a"

class Right(Flag):
    READ = 1
    WRITE = 2

class Bits(IntFlag):
    ONE = 1
    TWO = 2

@dataclass
class Total:
    count: int = 0
    tags: list = field(default_factory=list)
    def doubled(self): return 2 * self.count

@dataclass(frozen=True)
class Place:
    number: int
    color: Color

@dataclass(frozen=True, slots=True)
class Slotted:
    a: int
    b: str

@dataclass(slots=True)
class Loose:
    a: int
    b: str

class Seen(NamedTuple):
    at: Place
    number: int

Pair = namedtuple("Pair", "first second")

class Plain:
    def __init__(self, x): self.x = x
    def __eq__(self, other): return type(other) is Plain and other.x == self.x

class WithSlots:
    __slots__ = ("x", "y")
    def __init__(self): self.x, self.y = 1, 2

class Outer:
    class Inner:
        def __init__(self): self.x = 3
    class Kind(Enum):
        K = "k"

class Struct(msgspec.Struct):
    a: int
    b: str = "b"

class Reduced:
    def __init__(self, x): self.x = x
    def __reduce__(self): return Reduced, (self.x,)

class Own:
    def __init__(self): self.x = 5
    def __getstate__(self): return {"kept": self.x}
    def __setstate__(self, state): self.x = state["kept"]

T = TypeVar("T")

@dataclass
class Box(Generic[T]):
    content: T

@attrs.define
class Attrs:
    a: int
    b: list = attrs.Factory(list)

@attrs.define(slots=False)
class Dict:
    a: int

class Ordered(dict):
    pass
"""
VALUES = """[
    Color.RED, Color.BLUE, Level.HIGH, Word.A, Right.READ | Right.WRITE, Right.READ, Bits.ONE | Bits.TWO, Total(3, ["t"]),
    Place(1, Color.BLUE), Slotted(1, "b"), Loose(1, "b"), Seen(Place(2, Color.RED), 5), Pair(1, 2), Plain(7), WithSlots(), Outer.Inner(),
    Outer.Kind.K, Struct(1, "c"), Reduced(4), Own(), Box(Total(1)), Box[int](3), Attrs(1, [2]), Dict(3), Ordered(a=1),
    {Place(1, Color.RED): [(Color.BLUE, {"deep": Total(9)})]}, {Color.RED: Level.LOW}, frozenset({Color.BLUE}),
]"""  # noqa: E501


class Program:
    """The main module of a program that is given as text."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, classes: str) -> None:
        main = sys.modules["__main__"]
        self.names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(IMPORTS + classes, "program.py", "exec", dont_inherit=True), self.names)
        self.added = [
            name for name, thing in self.names.items() if isinstance(thing, type) and thing.__module__ == "__main__"
        ]
        for name in self.added:
            monkeypatch.setattr(main, name, self.names[name], raising=False)
        self._monkeypatch = monkeypatch

    def end(self) -> None:
        for name in self.added:
            self._monkeypatch.delattr(sys.modules["__main__"], name)

    def value(self, text: str) -> Any:
        return eval(text, self.names)


Form = Callable[[object], bytes]


@pytest.fixture(params=["today's", "843c7fe's"])
def encoded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Writes a state in the form of this flowlet, or of the one before, where classes have only definitions."""

    def encode(own: object) -> bytes:
        with monkeypatch.context() as patch:
            if request.param != "today's":
                patch.setattr(state_codec, "FormPickler", cloudpickle.Pickler)
            return encode_state(SubtaskState({"1": OperatorState(own)}), {"1": "count"})

    return encode


def running() -> RunningClasses:
    return RunningClasses(MAIN_OBJECTS.class_of)


def restored(content: bytes) -> Any:
    (state,) = decode_state(content, {"1": "count"}, running()).operators.values()
    assert isinstance(state, OperatorState)
    return state.own


def moved(monkeypatch: pytest.MonkeyPatch, encoded: Form, before: str, value: str, now: str) -> tuple[Any, Program]:
    """Return a value of one program in another one."""
    former = Program(monkeypatch, before)
    content = encoded(former.value(value))
    former.end()
    program = Program(monkeypatch, now)
    return restored(content), program


def classes_in(value: Any, names: dict[str, Any]) -> None:
    """Assert that every class of the main module in a value is the one that its program has."""
    if isinstance(value, dict):
        classes_in([*value.keys(), *value.values()], names)
    elif isinstance(value, list | tuple | frozenset):
        for each in value:
            classes_in(each, names)
    if type(value).__module__ == "__main__":
        found: Any = names[type(value).__qualname__.partition(".")[0]]
        for name in type(value).__qualname__.split(".")[1:]:
            found = getattr(found, name)
        assert type(value) is found, value
        for each in getattr(value, "__dict__", {}).values():
            classes_in(each, names)


def test_values_of_every_kind_of_class_are_those_of_the_program_that_runs(
    monkeypatch: pytest.MonkeyPatch, encoded: Form
) -> None:
    """Restored members and instances belong to the running program's classes, where the program defined equal text
    again: ``is`` and ``==`` hold for members, ``isinstance`` and methods for instances.
    """
    found, program = moved(monkeypatch, encoded, CLASSES, VALUES, CLASSES.replace("2 * self.count", "20 * self.count"))

    names = program.names
    expected = program.value(VALUES)
    classes_in(found, names)
    assert found[0] is names["Color"].RED
    assert found[7].doubled() == 60
    for each, known in zip(found, expected, strict=True):
        assert type(each) is type(known)
        equals: Any = type(known).__eq__
        if equals is not object.__eq__:
            assert each == known
    assert (found[14].x, found[14].y, found[15].x, found[18].x, found[19].x) == (1, 2, 3, 4, 5)


DATA = "@dataclass\nclass A: "
SLOTS = "@dataclass(frozen=True, slots=True)\nclass A: "
ATTRS, DICT = "@attrs.define\nclass A: ", "@attrs.define(slots=False)\nclass A: "
NAMED, STRUCT = "class A(NamedTuple): ", "class A(msgspec.Struct): "
ENUM, FLAG = "class A(Enum): ", "class A(Flag): "
INT_ENUM, INT_FLAG = "class A(IntEnum): ", "class A(IntFlag): "
A_LIST = "b: list = field(default_factory=list)"
# By what has changed: the class before, a value, the class now, and the value then.
CHANGES = {
    "a field in front": (DATA + "a: int", "A(1)", DATA + "b: int = 7; a: int = 0", "A(7, 1)"),
    "a list behind": (DATA + "a: int", "A(1)", f"{DATA}a: int; {A_LIST}", "A(1, [])"),
    "the first field": (DATA + "pass", "A()", DATA + A_LIST, "A([])"),
    "another order": (SLOTS + "a: int; b: int", "A(1, 2)", SLOTS + "b: int; a: int", "A(2, 1)"),
    "slots are gone": (SLOTS + "a: int; b: int", "A(1, 2)", DATA + "a: int; b: int", "A(1, 2)"),
    "slots are new": (DATA + "a: int; b: int", "A(1, 2)", SLOTS + "a: int; b: int; c: int = 3", "A(1, 2, 3)"),
    "NamedTuple": (NAMED + "a: int; b: int", "A(1, 2)", NAMED + "b: int; a: int; c: int = 3", "A(2, 1, 3)"),
    "Struct": (STRUCT + "a: int; b: int", "A(1, 2)", STRUCT + "b: int; a: int; c: int = 3", "A(2, 1, 3)"),
    "attrs": (ATTRS + "a: int", "A(1)", ATTRS + "b: list = attrs.Factory(list); a: int = 0", "A([], 1)"),
    "attrs without slots": (DICT + "a: int", "A(1)", DICT + "a: int; b: int = 2", "A(1, 2)"),
    "Enum": (ENUM + "X = auto(); Y = auto()", "[A.X, A.Y]", ENUM + "N = auto(); Y = auto(); X = auto()", "[A.X, A.Y]"),
    "IntEnum": (INT_ENUM + "X = 1; Y = 2", "[A.X]", INT_ENUM + "Z = 3; X = 1", "[A.X]"),
    "Flag": (FLAG + "X = 1; Y = 2; Z = 4", "A.X | A.Z", FLAG + "X = 2; Z = 4; N = 1", "A.X | A.Z"),
    "__setstate__": (
        DATA + "a: int",
        "A(1)",
        "@dataclass\nclass A:\n  b: int\n  def __setstate__(self, state): self.b = state['a'] + 1",
        "A(2)",
    ),
}


@pytest.mark.parametrize(("before", "value", "now", "expected"), CHANGES.values(), ids=CHANGES)
def test_fields_and_members_go_by_their_names(
    before: str, value: str, now: str, expected: str, monkeypatch: pytest.MonkeyPatch, encoded: Form
) -> None:
    """New fields have their default, fields in another order their value; members may be added and moved."""
    found, program = moved(monkeypatch, encoded, before, value, now)

    assert found == program.value(expected)
    for each in found if type(found) is list else [found]:
        assert type(each) is program.names["A"]


# By what has changed: the class before, a value, the class now, and what the error says of the class.
REFUSED = {
    "the class is gone": (
        "class A: pass",
        "A()",
        "",
        "of the program is in the state, and is not found by its name: keep it, at the top",
    ),
    "a member is gone": (
        ENUM + "X = 1; Y = 2",
        "A.Y",
        ENUM + "X = 1",
        "of the program has no member (Y|2) any more, only X",
    ),
    "another value": (
        INT_ENUM + "X = 1",
        "A.X",
        INT_ENUM + "X = 2",
        "of the program has a member X with the value 2, ",
    ),
    "a flag is gone": (FLAG + "X = 1; Y = 2", "A.X | A.Y", FLAG + "X = 1", "of the program has no member Y any more"),
    "a flag has another value": (
        INT_FLAG + "X = 1; Y = 2",
        "A.X",
        INT_FLAG + "X = 2",
        "of the program has a member X with the value 2",
    ),
    **{
        f"{name} with a new field": (
            f"{kind}a: int",
            "A(1)",
            f"{kind}a: int; b: int",
            ".* has a new field 'b' without a default",
        )
        for name, kind in (("dataclass", DATA), ("NamedTuple", NAMED), ("Struct", STRUCT), ("attrs", ATTRS))
    },
    "dataclass without the field": (
        DATA + "a: int",
        "A(1)",
        DATA + "b: int = 1",
        ".* has no field 'a' any more, .*__setstate__",
    ),
    "NamedTuple without the field": (NAMED + "a: int", "A(1)", NAMED + "b: int", ".* has no field 'a' any more"),
    "another kind": (
        DATA + "a: int",
        "A(1)",
        ENUM + "X = 1",
        ".* was of the kind 'dataclass' and is of the kind 'Enum' now",
    ),
}


@pytest.mark.parametrize(("before", "value", "now", "said"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_mapped_is_refused_with_class_and_field(
    before: str, value: str, now: str, said: str, monkeypatch: pytest.MonkeyPatch, encoded: Form
) -> None:
    """State that does not fit is refused, never changed or lost in silence; the error names the operator, too."""
    with pytest.raises(StateRestoreError, match=f"the state of operator 'count': class A {said}"):
        moved(monkeypatch, encoded, before, value, now)


def test_classes_in_every_part_of_a_state_are_mapped_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes are mapped in timers, keyed state and operator state; an error says in which states the class is."""
    text = "@dataclass(frozen=True)\nclass A:\n  a: int"
    former = Program(monkeypatch, text)
    value = former.value("A(1)")
    groups = {key_group(value, 128): {"seen": StateRows((value,), ((value, 2),)), "other": StateRows((value,), (3,))}}
    keyed = KeyedStateSnapshot({"seen": StateDescription(StateKind.VALUE, "Any")}, 128, groups)
    rows = {"rules": OperatorStateRows(Redistribution.BROADCAST, "Any", ((value, value),))}
    state = OperatorState(None, {3: {"timers": [(4, value)]}}, 1, keyed, OperatorStateSnapshot(rows))
    content = encode_state(SubtaskState({"1": state}))
    former.end()

    program = Program(monkeypatch, text)
    (found,) = decode_state(content, None, running()).operators.values()
    program.end()

    expected = program.value("A(1)")
    assert isinstance(found, OperatorState)
    assert isinstance(found.keyed, KeyedStateSnapshot)
    assert found.timers == {3: {"timers": [(4, expected)]}}
    (states,) = found.keyed.groups.values()
    assert (states["seen"].keys, states["seen"].values) == ((expected,), ((expected, 2),))
    assert found.by_subtask is not None
    assert found.by_subtask.states["rules"].elements == ((expected, expected),)
    with pytest.raises(
        StateRestoreError,
        match="the state of operator 'count', timers, 'seen', 'other', 'rules': class A of the program is",
    ):
        decode_state(content, {"1": "count"}, running())


def prepared(program: Program, *rows: str) -> CommittableRows:
    """Each is a part of its own."""
    return CommittableRows("w", 3, 0, len(rows), b"".join(encoded_part(program.value(f"[{each}]")) for each in rows))


def test_rows_that_wait_for_a_commit_are_of_the_classes_of_the_program_that_runs(
    monkeypatch: pytest.MonkeyPatch, encoded: Form
) -> None:
    """Writers of databases and brokers keep them as pickles, and read them when the checkpoint is complete."""
    before = "class C(Enum):\n  X = 1\n  Y = 2\n@dataclass\nclass A:\n  a: object"
    former = Program(monkeypatch, before)
    content = encoded([prepared(former, "('id', C.X)", "A(C.Y)", "(7, 'plain')")])
    former.end()

    program = Program(monkeypatch, before.replace("X = 1\n  Y = 2", "Y = 1\n  X = 2") + "\n  b: int = 7")
    (found,) = restored(content)

    rows = decoded_rows(found.rows)
    assert rows == program.value("[('id', C.X), A(C.Y, 7), (7, 'plain')]")
    assert type(rows[1]) is program.names["A"]
    assert rows[0][1] is program.names["C"].X
    assert (found.writer, found.number, found.num_rows) == ("w", 3, 3)


def test_rows_that_wait_for_a_commit_whose_class_is_gone_are_refused(
    monkeypatch: pytest.MonkeyPatch, encoded: Form
) -> None:
    """The error is raised when the rows are restored, not when the next checkpoint is complete."""
    former = Program(monkeypatch, "class A: pass")
    content = encoded([prepared(former, "A()")])
    former.end()

    with pytest.raises(StateRestoreError, match="'count': class A of the program is in the state, and is not found"):
        restored(content)


def test_keys_that_would_become_other_keys_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that counts for ``==`` changes the key group of a key, so that no record would find its state."""
    former = Program(monkeypatch, "@dataclass(frozen=True)\nclass A: a: int")
    key = former.value("A(1)")
    keyed = KeyedStateSnapshot(
        {"seen": StateDescription(StateKind.VALUE, "Any")},
        128,
        {key_group(key, 128): {"seen": StateRows((key,), (2,))}},
    )
    content = encode_state(SubtaskState({"1": OperatorState(keyed=keyed)}))
    former.end()
    Program(monkeypatch, "@dataclass(frozen=True)\nclass A: a: int; b: int = 3")

    with pytest.raises(StateRestoreError, match="'seen': the class of its keys has another name, or other fields"):
        decode_state(content, None, running())


def test_a_reader_without_the_program_sees_the_classes_as_they_were(
    monkeypatch: pytest.MonkeyPatch, encoded: Form
) -> None:
    """``read_state`` needs no program."""
    former = Program(monkeypatch, CLASSES)
    content = encoded(former.value(VALUES))
    former.end()

    (state,) = decode_state(content).operators.values()

    assert isinstance(state, OperatorState)
    found: Any = state.own
    assert found[0].name == "RED"
    assert found[7].doubled() == 6


def test_a_nested_class_keeps_its_name_where_it_is_sent_by_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """The qualified name of a nested class is part of its key, which is equal in every process."""
    program = Program(monkeypatch, "class Outer:\n  class Inner:\n    pass")
    made = program.value("Outer.Inner")
    pickled = program_pickle.dumps(made).replace(
        cloudpickle.cloudpickle._get_or_create_tracker_id(made).encode(), b"0" * 32
    )

    assert cloudpickle.loads(pickled).__qualname__ == "Outer.Inner"
