"""``program_pickle``: functions by value keep the files that they come from."""

import dataclasses
import pickle
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest

from flowlet.errors import SerdeError
from flowlet.serde.pickles import program_pickle
from flowlet.serde.pickles.program_pickle import describe_unpicklable
from flowlet.serde.pickles.record_pickle import class_of

Dumps = Callable[[Any], bytes]
SOURCE = """
def outer(number):
    return inner(number)

def inner(number):
    return (lambda: 1 // number)()
"""


class Number(int):
    """Counts how often one of them is pickled."""

    num_pickled = 0

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        Number.num_pickled += 1
        return int, (int(self),)


def test_plain_parts_are_not_pickled_one_by_one() -> None:
    """Parts are pickled with the whole: a program's list of many numbers would take a pickler for each."""
    error = TypeError("cannot pickle '_thread.lock' object")

    described = describe_unpicklable([*map(Number, range(5)), threading.Lock()], error, "things")

    assert described.startswith("`things[5]` (_thread.lock): TypeError")
    assert Number.num_pickled == 5


def functions_of(path: str) -> dict[str, Callable[[int], int]]:
    names: dict[str, Callable[[int], int]] = {"__name__": "__main__"}  # type: ignore[dict-item]  # the name of a module, as the main one has it
    exec(compile(SOURCE, path, "exec"), names)
    return names


def test_every_frame_names_its_file() -> None:
    """Functions that refer to each other, and a function inside of a function, keep their files."""
    outer = cloudpickle.loads(program_pickle.dumps(functions_of("/home/ann/job.py")["outer"]))

    with pytest.raises(ZeroDivisionError) as caught:
        outer(0)

    frames = traceback.extract_tb(caught.value.__traceback__)[1:]
    assert [(frame.filename, frame.name) for frame in frames] == [
        ("/home/ann/job.py", "outer"),
        ("/home/ann/job.py", "inner"),
        ("/home/ann/job.py", "<lambda>"),
    ]


def test_values_and_protocols_are_those_of_cloudpickle() -> None:
    value = {"a": [1, 2.5, None, ("x",)], "f": len}
    assert cloudpickle.loads(program_pickle.dumps(value)) == value
    assert program_pickle.dumps(value, 4)[:2] == b"\x80\x04"


@pytest.mark.parametrize("marker", [dataclasses.MISSING, dataclasses.KW_ONLY])
def test_what_dataclasses_marks_fields_with_stays_itself(marker: object) -> None:
    """A field of a class by value would otherwise have a default that is none.  An older flowlet wrote the marker as an
    object: a class in an old checkpoint has a marker of its own, and goes on its way once more.
    """
    assert pickle.loads(program_pickle.dumps(marker)) is marker
    assert pickle.loads(program_pickle.dumps(type(marker)())) is marker


@pytest.fixture
def dumps_elsewhere(monkeypatch: pytest.MonkeyPatch) -> Dumps:
    """Pickles as a Python of another minor version would."""

    def dumps(value: Any) -> bytes:
        with monkeypatch.context() as patch:
            patch.setattr(program_pickle, "_PYTHON", (3, 99))
            return program_pickle.dumps(value)

    return dumps


def test_bytecode_of_another_minor_version_is_refused_with_both_versions(dumps_elsewhere: Dumps) -> None:
    """Bytecode of another version would run until it meets an instruction that means something else here."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"

    with pytest.raises(
        SerdeError, match=rf"a function of /home/ann/job.py is bytecode of Python 3\.99, which Python {here} cannot run"
    ):
        pickle.loads(dumps_elsewhere(functions_of("/home/ann/job.py")["outer"]))


def test_a_class_of_a_main_program_in_state_is_refused_by_another_minor_version(dumps_elsewhere: Dumps) -> None:
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile("class Total:\n    def add(self):\n        pass\n", "/home/ann/job.py", "exec"), names)

    with pytest.raises(SerdeError, match=r"a class cannot be read: SerdeError: .* is bytecode of Python 3\.99"):
        class_of(dumps_elsewhere(names["Total"]))


def test_what_an_older_flowlet_wrote_says_no_version_and_is_read() -> None:
    function = functions_of("/home/ann/job.py")["inner"]
    _, (_, *written) = program_pickle._reduce_code_with_file(function.__code__)
    assert program_pickle._code_of_file(*written).co_filename == "/home/ann/job.py"
