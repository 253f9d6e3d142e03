"""Each rule of the house finds a small sample that breaks it, and leaves one alone that keeps it."""

import ast
from pathlib import Path

import pytest

from tests.house import known
from tests.house.floors import Room, room_of, violations_of
from tests.house.promises import beyond_entries
from tests.house.rules import (
    MAX_LINES,
    MAX_MODULES,
    MIN_LINES,
    class_names,
    comments,
    docstrings,
    nested_conditionals,
    package_sizes,
    protocols,
    sizes,
    tuple_assignments,
)

ROOMS = (Room("low", 0, ("p",)), Room("other", 1, ("p.up",)), Room("high", 1, ("q",)))
PROTOCOL = "class Reads(Protocol):\n    def read(self): ...\n    size: int\n"
IMPLEMENTER = "class {}:\n    def __init__(self):\n        self.size = 1\n    def read(self): ...\n"


def trees(**sources: str) -> dict[str, ast.Module]:
    """Modules by name; ``a__b`` stands for ``a.b``."""
    return {name.replace("__", "."): ast.parse(text) for name, text in sources.items()}


@pytest.mark.parametrize(("num_lines", "found"), [(1, "short"), (MIN_LINES - 1, "short"), (MAX_LINES + 1, "long")])
def test_short_and_long_modules_are_named(num_lines: int, found: str) -> None:
    assert list(sizes({"flowlet.jm.a": "\n" * num_lines})) == [f"flowlet.jm.a is {found}"]


@pytest.mark.parametrize(
    ("name", "num_lines"), [("flowlet.jm.a", MIN_LINES), ("flowlet.jm.a", MAX_LINES), ("flowlet.common.time", 1)]
)
def test_modules_of_the_right_size_and_faces_are_not(name: str, num_lines: int) -> None:
    assert list(sizes({name: "\n" * num_lines})) == []


def test_packages_with_many_modules_are_named() -> None:
    full = {f"flowlet.jm.a{number}": "" for number in range(MAX_MODULES)}

    assert list(package_sizes(full)) == []
    assert list(package_sizes(full | {"flowlet.jm.b": ""})) == ["flowlet.jm"]


def test_a_class_name_that_stands_twice_is_named() -> None:
    """But not a private one."""
    found = class_names(trees(a="class C: ...\nclass _D: ...", b="class C: ...\nclass _D: ...", c="class E: ..."))

    assert list(found) == ["C: a, b"]


@pytest.mark.parametrize("num_implementers", [0, 1])
def test_a_protocol_with_one_implementer_is_named(num_implementers: int) -> None:
    text = PROTOCOL + "".join(IMPLEMENTER.format(f"C{number}") for number in range(num_implementers))

    assert list(protocols(trees(a=text))) == ["a.Reads"]


@pytest.mark.parametrize(
    "text",
    [
        PROTOCOL + IMPLEMENTER.format("A") + IMPLEMENTER.format("B"),
        "class Reads(Protocol):\n    '''Reads.  One implementer: it breaks a cycle.'''\n    def read(self): ...\n",
        "class Called(Protocol[T]):\n    def __call__(self) -> None: ...\n",
    ],
)
def test_a_protocol_with_two_or_with_a_reason_is_not(text: str) -> None:
    assert list(protocols(trees(a=text))) == []


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("a, b = 1, 2", True),
        ("self.a, self.b = a, b", True),
        ("a, b = b, a", False),
        ("a, b = f()", False),
        ("a = 1, 2", False),
    ],
)
def test_several_assignments_in_one_are_named(statement: str, is_found: bool) -> None:
    text = f"class C:\n    def f(self):\n        {statement}\n"

    assert list(tuple_assignments(trees(m=text))) == ["m.C.f, line 3"] * is_found
    assert list(tuple_assignments(trees(m=f"'''Adds.\n\nHot path.  Per record.\n'''\n{text}"))) == []


@pytest.mark.parametrize(
    ("value", "is_found"),
    [
        ("a if b else c if d else e", True),
        ("f(a if b else c) if d else e", True),
        ("[a if b else c for d in e if d]", False),
    ],
)
def test_a_conditional_in_a_conditional_is_named(value: str, is_found: bool) -> None:
    assert list(nested_conditionals(trees(m=f"x = {value}"))) == ["m.(module), line 1"] * is_found


def test_a_module_lies_in_the_room_with_the_longest_prefix() -> None:
    found = [room_of(name, ROOMS) for name in ("p", "p.a", "p.up", "p.up.a", "p.upper", "r")]

    assert [None if room is None else room.name for room in found] == ["low", "low", "other", "other", "low", None]


def test_imports_upward_and_rooms_that_import_each_other_are_named() -> None:
    edges = {"p.a": {"p.up.b", "p.c"}, "p.up.b": {"p.a", "q.c"}, "q.c": {"p.a", "p.up.d"}}

    assert [each.partition(":")[0] for each in violations_of(edges, ROOMS)] == [
        "p.a imports p.up.b, and low is on a floor below other",
        "the rooms high and other import each other",
        "the rooms low and other import each other",
    ]


@pytest.mark.parametrize(
    ("statement", "beyond"),
    [
        ("from netstack import NetstackConfig", set()),
        ("from flowlet.datastream import MapFunction", set()),
        ("from flowlet.windows.window_operator import WindowOperator", set()),
        ("from flowlet.windows import aligned_windows", {"flowlet.windows.aligned_windows"}),
        ("from netstack.buffer.buffer_builder import BufferBuilder", {"netstack.buffer.buffer_builder"}),
        ("import flowlet.chain.loop_code", {"flowlet.chain.loop_code"}),
        ("from tests.waiting import PATIENCE_S", set()),
    ],
)
def test_what_is_no_entry_is_named(statement: str, beyond: set[str]) -> None:
    assert beyond_entries(ast.parse(statement)) == beyond


def test_a_list_only_gets_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "FOLDER", tmp_path)
    known.write("rule", {"a", "b"})

    assert known.complaint("rule", {"a", "b"}) == ""
    assert known.complaint("rule", {"a", "b", "c"}) == "breaks the rule rule, see CONTRIBUTING.md: c"
    assert known.complaint("rule", {"a", "b, line 7", "c, line 8"}).endswith(": c, line 8")
    assert "comes off its list by python -m tests.house --write: b" in known.complaint("rule", {"a"})


def test_an_empty_list_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "FOLDER", tmp_path)
    known.write("rule", {"a"})
    known.write("rule", ())

    assert list(tmp_path.iterdir()) == []
    assert known.known("rule") == set()


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("What a task reads.", True),
        ("See `f`.", True),
        ("Nothing is read.", True),
        ("Read from the same\nfile.", True),
        ("Close the gate.", False),
        ("The bytes that are left.", False),
        ("Whether anybody waits.", False),
        ("Offsets of a sum.", False),
        ("Asynchronous.", False),
    ],
)
def test_docstrings_begin_with_a_verb_or_the_thing(text: str, *, is_found: bool) -> None:
    """In modules, classes and functions, nested ones too."""
    quoted = f'"""{text}"""'
    nested = f"class C:\n    async def f(self):\n        def g():\n            {quoted!s}".replace(
        "\nfile", "\n            file"
    )

    assert list(docstrings(trees(a=quoted))) == (["a"] if is_found else [])
    assert list(docstrings(trees(a=nested))) == (["a.C.f.g"] if is_found else [])


def test_comments_have_no_banned_words() -> None:
    assert list(comments({"a": "x = 1  # the same\n", "b": "x = 'the same'  # as before\n"})) == ["a"]
