"""``netstack.late``: classes with late methods beside those of the standard library, and names that packages import
late.
"""

import ast
import copy
import dataclasses
import importlib
import inspect
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import InitVar, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from netstack import late
from netstack.late import dataclass, is_instance_of_late, late_names, make_constructors

ROOT = Path(__file__).resolve().parents[2]
LATE_PACKAGES = (
    "netstack",
    "flowlet.columns",
    "flowlet.common",
    "flowlet.datastream",
    "flowlet.datastream.connectors",
    "flowlet.datastream.window",
)


def plain(**parameters: bool) -> pytest.MarkDecorator:
    """Run a test with each of both decorators, given equal parameters."""
    return pytest.mark.parametrize(
        "make", [dataclass(**parameters), dataclasses.dataclass(**parameters)], ids=["late", "standard"]
    )


@dataclass(frozen=True, slots=True)
class Point:
    """A frozen one that can be pickled by its name."""

    x: int
    y: int = 2


@dataclass(frozen=True, slots=True)
class Point3(Point):
    """A subclass."""

    z: int = 3


@dataclass(slots=True)
class Bag:
    """A class whose instances can change."""

    content: list[int] = field(default_factory=list)
    total: InitVar[int] = 0
    kind: ClassVar[str] = "bag"
    doubled: int = field(init=False, default=0, repr=False)

    def __post_init__(self, total: int) -> None:
        self.doubled = 2 * total


def test_a_class_with_late_methods_is_built_compared_shown_and_hashed_as_one_of_the_standard_library() -> None:
    assert Point(1) == Point(1, 2)
    assert Point(1) != Point(1, 3)
    assert Point(1) != Point3(1)
    assert repr(Point3(1)) == "Point3(x=1, y=2, z=3)"
    assert hash(Point(1)) == hash((1, 2))
    assert dataclasses.replace(Point3(1), z=9) == Point3(1, 2, 9)
    assert dataclasses.asdict(Point(5)) == {"x": 5, "y": 2}
    assert Point.__match_args__ == ("x", "y")


def test_each_method_is_made_at_its_first_call() -> None:
    """A method costs nothing more after its first call."""

    @dataclass(frozen=True)
    class Late:
        x: int

    uses: dict[str, Callable[[], object]] = {
        "__init__": lambda: Late(1),
        "__repr__": lambda: repr(Late(1)),
        "__eq__": lambda: Late(1) == Late(1),
        "__hash__": lambda: hash(Late(1)),
    }
    for name, use in uses.items():
        before = vars(Late)[name]
        use()
        made = vars(Late)[name]
        use()

        assert made is not before
        assert vars(Late)[name] is made
        assert made.__qualname__ == f"{Late.__qualname__}.{name}"


def test_defaults_factories_init_only_and_class_variables_have_their_meaning() -> None:
    first, second = Bag(total=4), Bag([1])

    assert first.content is not second.content
    assert (first.doubled, second.doubled) == (8, 0)
    assert repr(first) == "Bag(content=[])"
    assert Bag.kind == "bag"
    with pytest.raises(TypeError, match="unhashable"):
        hash(first)
    with pytest.raises(TypeError, match="unexpected keyword argument 'doubled'"):
        Bag(doubled=3)  # type: ignore[call-arg]


def test_a_frozen_instance_cannot_be_changed() -> None:
    for instance in (Point(1), Point3(1)):
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
            instance.x = 3  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
            del instance.x


def test_instances_are_pickled_and_copied() -> None:
    """Instances can be unpickled in a process that has made no method of the class yet."""
    for value in (Point(1, 5), Point3(1, 2, 4), Bag([1, 2], 3)):
        assert pickle.loads(pickle.dumps(value)) == value
        assert copy.deepcopy(value) == value
    data = pickle.dumps(Point3(1, 2, 4))
    program = f"import pickle; print(repr(pickle.loads({data!r})))"

    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout == "Point3(x=1, y=2, z=4)\n"


def test_signatures_are_those_of_the_fields() -> None:
    @dataclass
    class Late:
        x: int
        y: int = 2

    class Sub(Late):
        pass

    assert list(inspect.signature(Sub).parameters) == ["x", "y"]
    assert list(inspect.signature(Late).parameters) == ["x", "y"]


@plain(frozen=True)
def test_classes_of_the_standard_library_can_be_derived(make: Any) -> None:
    """A frozen class stays frozen for the rule that only a frozen class may have it as its base."""

    class Base:
        x: int

    base: Any = make(Base)

    class Derived(base):  # type: ignore[misc]
        y: int = 1

    frozen: Any = dataclasses.dataclass(frozen=True)(Derived)

    assert frozen(3) == frozen(3, 1)
    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclasses.dataclass(type("Changing", (base,), {"__annotations__": {"y": int}}))


@plain(frozen=True)
def test_a_changing_class_cannot_have_a_frozen_base(make: Any) -> None:
    class Base:
        x: int

    base: Any = make(Base)

    with pytest.raises(TypeError, match="cannot inherit non-frozen dataclass from a frozen one"):
        dataclass(type("Changing", (base,), {"__annotations__": {"y": int}}))


@plain(eq=False)
def test_without_eq_instances_are_compared_by_identity(make: Any) -> None:
    class Step:
        x: int

    step: Any = make(Step)

    assert step(1) != step(1)
    assert len({step(1), step(1)}) == 2


@plain(order=True)
def test_instances_are_ordered_by_their_fields(make: Any) -> None:
    class Version:
        major: int
        minor: int

    version: Any = make(Version)

    assert sorted([version(2, 1), version(1, 9)]) == [version(1, 9), version(2, 1)]
    assert version(1, 1) <= version(1, 1)


@plain(frozen=True, kw_only=True)
def test_methods_that_a_class_has_itself_stay(make: Any) -> None:
    class Own:
        x: int

        def __repr__(self) -> str:
            return "mine"

        def __hash__(self) -> int:
            return 7

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Own)

    own: Any = make(Own)

    assert (repr(own(x=1)), hash(own(x=1)), own(x=1) == own(x=2)) == ("mine", 7, True)
    with pytest.raises(TypeError, match="positional argument"):
        own(1)


def test_parameters_are_noted_as_the_standard_library_notes_them() -> None:
    """Libraries, and our own pickles of users' classes, look at them."""
    for parameters in ({}, {"frozen": True, "slots": True}, {"eq": False}, {"order": True, "kw_only": True}):
        decorators: list[Any] = [dataclass, dataclasses.dataclass]
        late, standard = [
            each(**parameters)(type("Some", (), {"__doc__": "."})).__dataclass_params__ for each in decorators
        ]

        assert repr(late) == repr(standard)


def test_a_program_that_ctrl_c_has_ended_is_known_to_have_ended_so() -> None:
    """Although methods are made while exit functions run: Python forgets it where a text is executed."""
    text = (
        "import atexit\nfrom netstack.late import dataclass\n@dataclass\nclass Late:\n    'x'\n    x: int\n"
        "atexit.register(lambda: print(Late(1)))\nraise KeyboardInterrupt"
    )

    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (-signal.SIGINT, "Late(x=1)\n")


@plain(slots=True)
@pytest.mark.parametrize("is_slotted", [False, True])
def test_fields_that_are_no_parameters_get_their_values(make: Any, is_slotted: bool) -> None:
    class Plain:
        named: int = field(default=1, kw_only=True)
        hidden: int = field(default=2, init=False, repr=False)
        made: list[int] = field(default_factory=list, init=False)
        passed: InitVar[int] = 5  # type: ignore[assignment]  # of a dataclass that the decorator only then makes
        left_out: int = field(default=7, compare=False)

        def __post_init__(self, passed: int) -> None:
            self.made.append(passed)

    cls: Any = (
        make(Plain)
        if is_slotted
        else (dataclass if make.__module__ == "netstack.late" else dataclasses.dataclass)(Plain)
    )

    assert repr(cls(named=3)) == f"{Plain.__qualname__}(named=3, made=[5], left_out=7)"
    assert cls(6).made == [6]
    assert cls(6, 1) == cls(6, 2)
    assert cls().hidden == 2
    assert list(inspect.signature(cls).parameters) == ["passed", "left_out", "named"]


# ---------------------------------------------------------------- many imports


def test_many_imports_leave_the_garbage_collector_as_it_was(tmp_path: Path) -> None:
    """On or off, with the frozen objects, also after an error; garbage is collected later."""
    (tmp_path / "good.py").write_text("import gc\nwas_on = gc.isenabled()\n")
    (tmp_path / "bad.py").write_text("raise ValueError('bad')\n")
    text = f"""
import gc, sys, weakref
sys.path.insert(0, {str(tmp_path)!r})
from netstack.late import import_many
class Node: pass
node = Node(); node.me = node; gone = weakref.ref(node); del node
print(import_many("good").was_on, gc.isenabled(), gc.get_freeze_count())
gc.collect()
print(gone() is None)
try: import_many("bad")
except ValueError: print(gc.isenabled())
gc.freeze(); frozen = gc.get_freeze_count(); del sys.modules["good"]
import_many("good"); print(gc.get_freeze_count() > 0.9 * frozen)
gc.disable(); del sys.modules["good"]
import_many("good"); print(gc.isenabled())
"""

    assert run_program(text).splitlines() == ["False True 0", "True", "True", "True", "False"]


# ---------------------------------------------------------------- names of packages


def test_a_name_is_imported_when_it_is_asked_for() -> None:
    get, names, exported = late_names("netstack")

    assert get("ConnectionID") is importlib.import_module("netstack.ids").ConnectionID
    assert "ConnectionID" in names()
    assert "ConnectionID" in exported
    with pytest.raises(AttributeError, match="module 'netstack' has no attribute 'Nothing'"):
        get("Nothing")


@pytest.mark.parametrize("package", LATE_PACKAGES)
def test_a_package_with_late_names_has_what_type_checkers_see(package: str) -> None:
    """The stub, ``__all__`` and ``dir()`` of the package name equal things, from equal modules."""
    module = importlib.import_module(package)
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [each for each in tree.body if isinstance(each, ast.ImportFrom)]
    seen = {alias.name: each.module or "" for each in imports for alias in each.names}

    assert set(seen) == set(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    for name, place in seen.items():
        assert getattr(module, name) is getattr(importlib.import_module(place), name)


@pytest.mark.parametrize("package", LATE_PACKAGES)
def test_a_package_with_late_names_loads_no_module_of_its_own(package: str) -> None:
    found = run_program(
        f"import sys, {package}; print(*(each for each in sys.modules if each.startswith({package + '.'!r})))"
    )

    assert set(found.split()) <= {"netstack.late", "flowlet.common.not_yet"}


@pytest.mark.slow
@pytest.mark.parametrize("package", LATE_PACKAGES)
def test_a_star_import_gives_all_names(package: str) -> None:
    assert (
        run_program(f"import {package} as p; from {package} import *; print(set(p.__all__) <= set(globals()))")
        == "True\n"
    )


def test_modules_of_a_package_with_late_names_are_attributes() -> None:
    """Submodules are attributes of the package, as if it had imported all of them itself."""
    assert (
        run_program("import flowlet.datastream as ds; print(ds.window.TumblingEventTimeWindows.__name__)")
        == "TumblingEventTimeWindows\n"
    )
    assert run_program("import flowlet.common; print(hasattr(flowlet.common, 'no_such_module'))") == "False\n"


def run_program(text: str) -> str:
    """Return the output of a program that runs in a process of its own."""
    return subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_numpy_is_imported_when_a_line_needs_it_and_then_takes_the_place_of_its_stand_in() -> None:
    """A hot path pays nothing, also in modules that come later."""
    program = """
import sys
import flowlet.records as early
assert "numpy" not in sys.modules
assert early.np.int64(7) == 7
import numpy
import flowlet.checkpoint.task.input_recovery as later
from netstack import late
assert early.np is late.numpy is numpy
"""
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True)


def test_a_stand_in_has_no_attribute_that_the_module_has_not() -> None:
    with pytest.raises(AttributeError, match="numpy"):
        late.numpy.there_is_no_such_name  # type: ignore[attr-defined]  # noqa: B018


def test_without_its_module_there_is_no_instance_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("late_module")
    module.Late = Late  # type: ignore[attr-defined]

    assert not is_instance_of_late(Late(1), "late_module", "Late")

    monkeypatch.setitem(sys.modules, "late_module", module)
    assert is_instance_of_late(Late(1), "late_module", "Late")
    assert not is_instance_of_late(1, "late_module", "Late")


@dataclass
class Late:
    number: int


@dataclass(frozen=True, slots=True)
class Unmade:
    number: int


def test_constructors_can_be_made_before_the_first_call() -> None:
    """Twice does no harm, and an object is as it would be.  A name that is missing is an error."""
    before = Unmade.__init__
    make_constructors({__name__: "Unmade"})
    made = Unmade.__init__
    make_constructors({__name__: "Unmade"})

    assert before is not made
    assert Unmade.__init__ is made
    assert Unmade(7).number == 7
    with pytest.raises(AttributeError, match="Missing"):
        make_constructors({__name__: "Missing"})
