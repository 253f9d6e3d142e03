"""``class_pickle``: classes that a reader cannot import are made again as they were."""

import enum
import gc
import pickle
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flowlet.serde.pickles import class_pickle, program_pickle
from flowlet.serde.pickles.class_pickle import classes_stay, is_importable, is_run_as_program, module_name_of


def made_again(text: str, name: str) -> Any:
    """Return a class of a main module, as a process makes it that has never had it."""
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(text, names)  # a main module
    pickled, original = program_pickle.dumps(names[name]), weakref.ref(names[name])
    names.clear()
    gc.collect()
    assert original() is None
    return pickle.loads(pickled)


def test_slots_are_the_only_attributes_again() -> None:
    cls = made_again("class Event:\n    __slots__ = ('number', '__hidden')\n    limit = 3\n", "Event")
    event = cls()
    event.number = 1

    assert (event.number, event.limit, cls.__slots__) == (1, 3, ("number", "__hidden"))
    assert hasattr(cls, "_Event__hidden")
    with pytest.raises(AttributeError):
        event.other = 1


def test_a_class_does_not_run_the_hooks_of_the_program_again() -> None:
    text = """
class Base:
    def __init_subclass__(cls, *, kind):
        cls.kind = kind
class Event(Base, kind="event"):
    pass
"""
    cls = made_again(text, "Event")

    assert (cls.kind, [each.__name__ for each in cls.__mro__]) == ("event", ["Event", "Base", "object"])
    with pytest.raises(TypeError, match="kind"):
        type("Other", (cls,), {})  # the hook itself is there


def test_the_hook_of_an_importable_base_runs_as_far_as_it_can() -> None:
    text = """
from tests.flowlet.serde.pickles.test_class_pickle import Registering
class Event(Registering): pass
"""
    seen.clear()
    cls = made_again(text, "Event")
    assert seen == ["Event", "Event"]
    assert cls.__mro__[1] is Registering


seen: list[str] = []


class Registering:
    """Keeps the names of its subclasses."""

    def __init_subclass__(cls) -> None:
        """Register one."""
        seen.append(cls.__name__)


def test_members_of_an_enumeration_are_what_they_were() -> None:
    text = """
import enum
class Code(bytes, enum.Enum):
    def __new__(cls, value, label):
        made = bytes.__new__(cls, [value])
        made._value_, made.label = value, label
        return made
    A = (65, "first")
    ALSO_A = (65, "first")
"""
    cls = made_again(text, "Code")

    assert issubclass(cls, enum.Enum)
    assert (cls.A, cls.A.value, cls.A.label, cls(65) is cls.A, cls.ALSO_A is cls.A) == (b"A", 65, "first", True, True)


def test_a_struct_has_its_fields_defaults_and_options_again() -> None:
    text = """
import msgspec
class Tree(msgspec.Struct, frozen=True, tag="t", rename="camel"):
    my_number: int
    my_text: str | None = None
    names: list = []
"""
    cls = made_again(text, "Tree")
    tree = msgspec.json.decode(b'{"type": "t", "myNumber": 1, "myText": "x"}', type=cls)

    assert (tree.my_text, tree.names, cls.__struct_fields__) == ("x", [], ("my_number", "my_text", "names"))
    assert cls(1) == cls(1)
    with pytest.raises(AttributeError, match="immutable"):
        tree.my_number = 3


def test_a_class_that_is_here_stays_as_it_is_where_objects_come_back() -> None:
    event = made_again("class Event:\n    limit = 1\n", "Event")
    pickled = program_pickle.dumps(event)
    event.limit = 2

    with classes_stay():
        assert pickle.loads(pickled) is event
    assert event.limit == 2

    assert pickle.loads(pickled) is event
    assert event.limit == 1  # a new version of the program


def test_a_class_that_this_process_made_itself_stays_as_it_is() -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec("class Event:\n    limit = 1\n", names)  # a main module
    event = names["Event"]
    pickled = program_pickle.dumps(event)
    event.limit = 2

    assert pickle.loads(pickled) is event
    assert event.limit == 2


def test_a_program_that_runs_under_another_name_is_not_importable(tmp_path: Path) -> None:
    """The module is there, with its file, but cannot be imported."""
    code = (
        "import runpy, sys\n"
        "open('job.py', 'w').write('class Event: pass\\nimport probe; probe.ask(Event)')\n"
        "open('probe.py', 'w').write('from flowlet.serde.pickles.class_pickle import is_importable\\n"
        "def ask(cls): print(cls.__module__, is_importable(cls), is_importable(ask))')\n"
        "sys.path.insert(0, '.')\n"
        "runpy.run_path('job.py', run_name='job')\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True, cwd=tmp_path)

    assert done.stdout == "job False True\n"


def test_names_of_modules_are_asked_for_without_the_programs_code() -> None:
    class Odd(type):
        @property
        def __module__(cls) -> str:  # type: ignore[override]
            raise RuntimeError

    odd = Odd("Event", (), {})
    function = lambda: None  # noqa: E731
    function.__module__ = 5  # type: ignore[assignment]

    assert module_name_of(odd) == __name__
    assert module_name_of(function) is None
    assert (is_importable(odd), is_importable(function), is_importable(class_pickle.reduce_class)) == (
        False,
        False,
        True,
    )
    assert (is_run_as_program("__main__"), is_run_as_program("enum"), is_run_as_program("of nobody")) == (
        True,
        False,
        False,
    )
