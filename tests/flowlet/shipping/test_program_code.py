"""The parts of a program that are shipped to TaskManagers that lack them."""

import importlib
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from flowlet.client.program.user_frames import is_users_file
from flowlet.errors import JobSubmissionError
from flowlet.shipping import bundle_maker
from flowlet.shipping.bundle_maker import NeededCode, main_objects, modules_beside

Program = Callable[..., ModuleType]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Program]:
    """Write a program's folder, import its modules, and return its main module."""
    before = set(sys.modules)

    def make(files: dict[str, str], *imports: str, spec: str | None = None) -> ModuleType:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        for name in imports:
            importlib.import_module(name)
        main = ModuleType("__main__")
        main.__file__ = str(tmp_path / ("main.py" if spec is None else f"{spec.replace('.', '/')}.py"))
        main.__spec__ = None if spec is None else importlib.machinery.ModuleSpec(spec, None)
        return main

    yield make
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_imported_modules_beside_the_program_are_shipped_and_packages_whole(program: Program, tmp_path: Path) -> None:
    main = program(
        {
            "rules_of_test.py": "LIMIT = 3",
            "never_imported_of_test.py": "",
            "models_of_test/__init__.py": "",
            "models_of_test/plain.py": "",
            "models_of_test/deep/lazy.py": "",
            "models_of_test/not-a-module.py": "",
        },
        "rules_of_test",
        "models_of_test.plain",
    )

    modules = modules_beside(main, is_users_file)

    assert sorted(modules) == [
        "models_of_test",
        "models_of_test.deep",
        "models_of_test.deep.lazy",
        "models_of_test.plain",
        "rules_of_test",
    ]
    assert modules["rules_of_test"].source == b"LIMIT = 3"
    assert modules["rules_of_test"].path == str(tmp_path / "rules_of_test.py")
    assert [name for name, module in modules.items() if module.is_package] == ["models_of_test", "models_of_test.deep"]


def test_a_folder_without_init_is_a_package_too(program: Program) -> None:
    main = program({"folder_of_test/inner.py": ""}, "folder_of_test.inner")
    modules = modules_beside(main, is_users_file)
    assert modules["folder_of_test"].is_package
    assert "folder_of_test.inner" in modules


def test_a_program_run_by_its_module_name_lies_in_a_package(program: Program) -> None:
    main = program({"app_of_test/__init__.py": "", "app_of_test/job.py": ""}, "app_of_test", spec="app_of_test.job")
    assert sorted(modules_beside(main, is_users_file)) == ["app_of_test", "app_of_test.job"]


def test_neither_installed_modules_nor_ours_nor_pythons_are_shipped(program: Program, tmp_path: Path) -> None:
    """A module of the program with the name of one of Python's is not shipped, either: the TaskManager needs Python's
    own.
    """
    main = program(
        {".venv/lib/python3/site-packages/installed_of_test.py": "", "this.py": "", "beside_of_test.py": ""},
        "this",
        "beside_of_test",
    )
    sys.path.insert(0, str(tmp_path / ".venv/lib/python3/site-packages"))
    try:
        importlib.import_module("installed_of_test")
    finally:
        sys.path.pop(0)
    assert sys.modules["this"].__file__ == str(tmp_path / "this.py")

    assert sorted(modules_beside(main, is_users_file)) == ["beside_of_test"]


def test_an_installed_program_ships_nothing() -> None:
    main = ModuleType("__main__")
    main.__file__ = pytest.__file__
    assert modules_beside(main, is_users_file) == {}


def test_too_much_source_is_refused_with_the_largest_module(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    main = program({"small_of_test.py": "", "large_of_test.py": "#" * 100}, "small_of_test", "large_of_test")
    monkeypatch.setattr(bundle_maker, "MAX_MODULE_BYTES", 99)
    reason = r"100 bytes, the limit is 99 \(the largest is large_of_test with 100\): install"
    with pytest.raises(JobSubmissionError, match=reason):
        modules_beside(main, is_users_file)


def test_classes_and_functions_of_the_main_module_are_shipped_one_by_one(program: Program) -> None:
    main = program({})
    exec(  # a main module
        "import threading, collections\n"
        "class Model:\n    weight = 3\n"
        "def double(x): return 2 * x\n"
        "lock = threading.Lock()\n"
        "table = b'x' * 100_000\n"
        "def locked(): return lock\n"
        "def looked_up(): return table\n"
        "imported = collections.OrderedDict\n",
        vars(main),
    )

    objects = main_objects(main)

    assert sorted(objects) == ["Model", "double"]  # what cannot be pickled, or is large, is left out
    assert pickle.loads(objects["Model"]).weight == 3
    assert pickle.loads(objects["double"])(4) == 8


def test_what_pickles_itself_by_its_name_is_shipped(program: Program) -> None:
    """A cached function, a NewType, and the one object of a class pickle themselves by their names."""
    main = program({})
    exec(  # a main module
        "import functools, typing\n"
        "@functools.cache\ndef half(x): return x // 2\n"
        "UserId = typing.NewType('UserId', int)\n"
        "class Missing:\n    def __reduce__(self): return 'MISSING'\n"
        "MISSING, other = Missing(), Missing()\n",
        vars(main),
    )

    objects = main_objects(main)

    assert sorted(objects) == ["MISSING", "Missing", "UserId", "half"]
    assert pickle.loads(objects["half"])(4) == 2
    assert type(pickle.loads(objects["MISSING"])).__name__ == "Missing"


def test_objects_that_raise_when_they_are_asked_are_left_out(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such objects may be among the names of the main module, and among the modules that are loaded."""
    main = program({"beside_of_test.py": ""}, "beside_of_test")
    exec(  # a main module
        "class OddMeta(type):\n    __module__ = property(lambda cls: 1 // 0)\n"
        "class Odd(metaclass=OddMeta): pass\n"
        "class Refusing:\n    def __getattr__(self, name): raise ImportError(name)\n    def __reduce__(self): raise "
        "ValueError\n"
        "refusing = Refusing()\n"
        "class Plain: pass\n",
        vars(main),
    )
    monkeypatch.setitem(sys.modules, "refusing_of_test", vars(main)["refusing"])
    monkeypatch.setitem(sys.modules, "nothing_of_test", None)

    assert sorted(main_objects(main)) == ["Plain", "Refusing"]
    assert sorted(modules_beside(main, is_users_file)) == ["beside_of_test"]


def test_a_main_module_that_multiprocessing_renamed_is_not_shipped_as_a_module(
    program: Program, tmp_path: Path
) -> None:
    """Objects of the renamed module travel by value, under its name as the main module."""
    main = program({"main.py": ""})
    main.__name__ = "__mp_main__"
    exec("class Model: pass\n", vars(main))  # a main module
    sys.modules["__mp_main__"] = main  # the fixture removes it

    assert modules_beside(main, is_users_file) == {}
    assert sorted(main_objects(main)) == ["Model"]


def test_a_cluster_in_the_process_needs_no_code() -> None:
    assert bundle_maker.program_code(NeededCode.NOTHING, is_users_file) == ({}, {})
