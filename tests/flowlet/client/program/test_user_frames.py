"""The owners of frames, the form of an uncaught error of ours, and the interrupts that are one line."""

import json
import sys
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import pytest

from flowlet.client.program import user_frames
from flowlet.client.program.interrupts import Latch
from flowlet.client.program.user_frames import Owner, from_user_frame, install_exception_hook, owner_of
from flowlet.errors import FlowletError, JobExecutionError, RemoteTraceback, without_our_frames
from flowlet.rpc.requests import RpcConnectError


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
    """The user's frame may be called by the standard library, and the frames that it calls stay."""

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


def test_an_interrupt_in_the_client_is_one_line_and_everything_else_is_shown_as_ever(
    hook: None, capsys: pytest.CaptureFixture[str]
) -> None:
    install_exception_hook()
    with pytest.raises(TypeError) as caught:
        Latch().wait("no number")  # type: ignore[arg-type]  # it raises there

    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), caught.value.__traceback__)
    assert capsys.readouterr().err == "KeyboardInterrupt\n"

    sys.excepthook(TypeError, caught.value, caught.value.__traceback__)
    assert "in wait" in capsys.readouterr().err
    sys.excepthook(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert capsys.readouterr().err == "KeyboardInterrupt\n"  # Python's way to show one without frames


def test_a_hook_of_the_program_stays(hook: None) -> None:
    def own(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        raise AssertionError("nobody calls it here")

    sys.excepthook = own

    install_exception_hook()

    assert sys.excepthook is own


@pytest.mark.parametrize(("module", "is_one_line"), [("__main__", False), ("flowlet.somewhere", True)])
def test_generated_code_of_a_module_is_not_the_users(
    hook: None, capsys: pytest.CaptureFixture[str], module: str, is_one_line: bool
) -> None:
    """Generated code belongs to the user or not by its module: ``python -c`` and methods of dataclasses share a file
    name.
    """
    namespace = {"__name__": module}
    exec(compile("def generated():\n    raise KeyboardInterrupt\n", "<string>", "exec"), namespace)
    engine = {"called": namespace["generated"]}
    exec(compile("def inside():\n    called()\n", user_frames.__file__, "exec"), engine)
    inside: Any = engine["inside"]
    install_exception_hook()

    with pytest.raises(KeyboardInterrupt) as caught:
        inside()
    sys.excepthook(KeyboardInterrupt, caught.value, traceback_of(caught.value))

    assert (capsys.readouterr().err == "KeyboardInterrupt\n") is is_one_line


def engine_function(body: str, **names: Any) -> Any:
    """Return a function whose code seems to be in a file of ours."""
    namespace = dict(names)
    exec(compile(f"def inside():\n    {body}\n", user_frames.__file__, "exec"), namespace)
    return namespace["inside"]


def users_call(inside: Any) -> None:
    inside()


def shown(error: BaseException, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return the lines that an uncaught error leaves on the terminal."""
    install_exception_hook()
    sys.excepthook(type(error), error, error.__traceback__)
    return capsys.readouterr().err.splitlines()


def raised_in_engine(error: BaseException, cause: BaseException | None = None) -> BaseException:
    with pytest.raises(type(error)) as caught:
        users_call(engine_function("raise error from cause", error=error, cause=cause))
    assert caught.value.__traceback__ is not None
    return caught.value.with_traceback(caught.value.__traceback__.tb_next)  # without this function's


def test_an_error_of_ours_shows_the_users_frames_alone(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown(raised_in_engine(FlowletError("no such option")), capsys)

    assert lines[0] == "Traceback (most recent call last):"
    assert [line for line in lines if line.startswith("  File")] == [
        f'  File "{__file__}", line {users_call.__code__.co_firstlineno + 1}, in users_call'
    ]
    assert lines[-1] == "flowlet.errors.FlowletError: no such option"


def test_a_failed_function_and_the_call_that_ran_it_are_one_traceback(
    hook: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """The function ran in another process; the user reads one failure of one program."""
    remote = RemoteTraceback(
        'Traceback (most recent call last):\n  File "program.py", line 5, in divide\nZeroDivisionError: division by '
        "zero\n"
    )

    lines = shown(raised_in_engine(JobExecutionError("job 'x' failed"), remote), capsys)

    assert lines.count("Traceback (most recent call last):") == 1
    assert [line.rpartition(" in ")[2] for line in lines if line.startswith("  File")] == ["users_call", "divide"]
    assert lines[-2:] == ["ZeroDivisionError: division by zero", "flowlet.errors.JobExecutionError: job 'x' failed"]


def test_the_chain_of_the_users_own_errors_stays(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    chain = (
        "Traceback (most recent call last):\nKeyError: 1\n\nThe above exception was the direct cause of the following "
        "exception:\n\n"
        "Traceback (most recent call last):\nValueError: 2\n"
    )

    lines = shown(raised_in_engine(JobExecutionError("failed"), RemoteTraceback(chain)), capsys)

    ends = [lines.index(end) for end in ("KeyError: 1", "ValueError: 2", "flowlet.errors.JobExecutionError: failed")]
    assert ends == sorted(ends)
    assert lines.count("Traceback (most recent call last):") == 2


def test_errors_of_libraries_that_led_to_ours_are_left_out(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    """Our own text repeats theirs."""
    cause = OSError("111")
    caught_in_engine = "\n    ".join(["try:", "    raise cause", "except OSError:", "    pass"])
    engine_function(caught_in_engine, cause=cause)()

    lines = shown(raised_in_engine(FlowletError("nothing listens there"), cause), capsys)

    assert "OSError: 111" not in lines
    assert lines[-1] == "flowlet.errors.FlowletError: nothing listens there"


def test_what_is_about_the_cluster_alone_is_one_line(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(raised_in_engine(RpcConnectError("JobManager x:1:\ngone")), capsys) == [
        "flowlet.rpc.requests.RpcConnectError: JobManager x:1: gone"
    ]


@pytest.mark.parametrize("error", [FlowletError("ours"), RpcConnectError("ours")])
def test_all_frames_can_be_had(
    hook: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setenv("FLOWLET_TRACEBACK", "full")

    lines = shown(raised_in_engine(error), capsys)

    assert any("in inside" in line for line in lines)
    assert without_our_frames(error).__traceback__ is not None


def test_a_fault_of_ours_keeps_its_frames(hook: None, capsys: pytest.CaptureFixture[str]) -> None:
    """A report of the fault needs the frames; an error in a thread of ours, to which no line of the user's led, keeps
    them, too.
    """
    assert any("in inside" in line for line in shown(raised_in_engine(KeyError("ours")), capsys))
    error = raised_in_engine(FlowletError("ours"))
    assert error.__traceback__ is not None
    assert any("in inside" in line for line in shown(error.with_traceback(error.__traceback__.tb_next), capsys))
