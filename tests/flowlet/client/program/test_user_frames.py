"""Whose frames are whose, and which interrupts are one line."""

import json
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pytest

from flowlet.client.program import user_frames
from flowlet.client.program.interrupts import Latch
from flowlet.client.program.user_frames import Owner, from_user_frame, owner_of, show_interrupts_in_one_line


@pytest.fixture
def hook() -> Iterator[None]:
    """Python's own, whatever earlier tests have installed."""
    former, sys.excepthook = sys.excepthook, sys.__excepthook__
    yield
    sys.excepthook = former


@pytest.mark.parametrize(
    ("filename", "owner"),
    [
        (user_frames.__file__, Owner.ENGINE),
        (threading.__file__, Owner.LIBRARY),
        (pytest.__file__, Owner.LIBRARY),
        ("<frozen importlib._bootstrap>", Owner.LIBRARY),
        ("uvloop/loop.pyx", Owner.LIBRARY),
        (__file__, Owner.USER),
        ("<stdin>", Owner.USER),
        ("/tmp/ipykernel_1/2.py", Owner.USER),
    ],
)
def test_files_have_owners(filename: str, owner: Owner) -> None:
    assert owner_of(filename) is owner


def traceback_of(error: BaseException) -> TracebackType:
    assert error.__traceback__ is not None
    return error.__traceback__


def test_a_traceback_begins_with_the_users_frame() -> None:
    """Here of a function that the standard library calls; what the user's frame calls stays."""

    def refuse(_: object) -> None:
        Latch().wait("no number")  # type: ignore[arg-type]  # it raises

    with pytest.raises(TypeError) as caught:
        json.dumps(object(), default=refuse)
    trace = from_user_frame(traceback_of(caught.value).tb_next)

    assert trace is not None
    assert trace.tb_frame.f_code is refuse.__code__
    assert trace.tb_next is not None


def test_a_traceback_without_the_user_is_none() -> None:
    with pytest.raises(TypeError) as caught:
        json.dumps(object())

    assert from_user_frame(traceback_of(caught.value).tb_next) is None
    assert from_user_frame(None) is None


def test_an_interrupt_in_the_client_is_one_line(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    latch = Latch()
    show_interrupts_in_one_line()

    with pytest.raises(TypeError) as caught:
        latch.wait("no number")  # type: ignore[arg-type]  # it raises there
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), caught.value.__traceback__)

    assert capsys.readouterr().err == "KeyboardInterrupt\n"


def test_everything_else_is_shown_as_ever(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    latch = Latch()
    show_interrupts_in_one_line()

    with pytest.raises(TypeError) as caught:
        latch.wait("no number")  # type: ignore[arg-type]  # it raises there
    sys.excepthook(TypeError, caught.value, caught.value.__traceback__)
    error = capsys.readouterr().err
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    interrupt = capsys.readouterr().err

    assert "in wait" in error
    assert interrupt == "KeyboardInterrupt\n"  # Python's way to show one without frames


def test_a_hook_of_the_program_stays(hook: None) -> None:
    def own(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        raise AssertionError("nobody calls it here")

    sys.excepthook = own

    show_interrupts_in_one_line()

    assert sys.excepthook is own


@pytest.mark.parametrize(("module", "is_one_line"), [("__main__", False), ("flowlet.somewhere", True)])
def test_generated_code_of_a_module_is_not_the_users(
    hook: None, capsys: pytest.CaptureFixture[str], module: str, is_one_line: bool
) -> None:
    """The text of ``python -c`` and the methods of dataclasses have the same file name."""
    namespace = {"__name__": module}
    exec(compile("def generated():\n    raise KeyboardInterrupt\n", "<string>", "exec"), namespace)
    engine = {"called": namespace["generated"]}
    exec(compile("def inside():\n    called()\n", user_frames.__file__, "exec"), engine)
    inside: Any = engine["inside"]
    show_interrupts_in_one_line()

    with pytest.raises(KeyboardInterrupt) as caught:
        inside()
    sys.excepthook(KeyboardInterrupt, caught.value, traceback_of(caught.value))

    assert (capsys.readouterr().err == "KeyboardInterrupt\n") is is_one_line
