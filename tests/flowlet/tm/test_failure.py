"""The text that a person reads when a task failed or is stuck."""

import sys
import threading
from collections.abc import Callable
from types import FrameType, SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from flowlet.errors import ClosedOutputError, StateRestoreError, TaskCancelled, UserFunctionError
from flowlet.mailbox.task_mailbox import MIN_PRIORITY, Mail, TaskMailbox
from flowlet.messages.control_messages import FailureInfo, TaskDeploymentDescriptor
from flowlet.tm.failure import failure_info, format_thread_stack, named_wait
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from tests.waiting import PATIENCE_S, spin_until

DESCRIPTOR = TaskDeploymentDescriptor("ab" * 16, "job", "cd" * 16, "split", 1, 2, 128, bytes(40), b"", [], [])


def users_function(record: str) -> int:
    return int(record)


def info_of(error: BaseException) -> FailureInfo:
    return failure_info(error, DESCRIPTOR, "tm-1", 5)


def raised_by(function: Callable[[], object]) -> Exception:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - it is the result
        return error
    raise AssertionError("it should have failed")


def user_error() -> UserFunctionError:
    error = UserFunctionError("to int", 1, "'x'")
    error.__cause__ = raised_by(lambda: users_function("x"))
    return error


def engine_function(called: Callable[[], object]) -> Callable[[], object]:
    """Return a function whose code seems to be in a file of ours, and which calls ``called``."""
    namespace: dict[str, Any] = {"called": called}
    exec(compile("def engine_calls():\n    called()\n", str(sys.modules["flowlet.errors"].__file__), "exec"), namespace)
    function: Callable[[], object] = namespace["engine_calls"]
    return function


def test_the_stack_of_a_thread_begins_with_the_users_first_call() -> None:
    """The engine's calls above the user's are left out, as of no use to him; a thread in none of his calls is shown
    whole.
    """
    frames: list[FrameType] = []

    def users_call() -> None:
        frames.append(sys._getframe())

    engine_function(users_call)()

    shown = format_thread_stack(frames[0])
    assert shown.startswith(f'  File "{__file__}"')
    assert "in users_call" in shown.splitlines()[0]
    assert "engine_calls" not in shown
    caller = frames[0].f_back
    assert caller is not None
    assert "engine_calls" in format_thread_stack(caller)


def test_a_users_error_is_described_by_its_own_exception_and_frames() -> None:
    info = info_of(user_error())

    assert (info.exception_type, info.message) == ("ValueError", "invalid literal for int() with base 10: 'x'")
    assert (info.operator, info.task_name, info.subtask, info.record_preview) == ("to int", "split", 1, "'x'")
    assert (info.tm_id, info.timestamp_ms) == ("tm-1", 5)
    assert info.traceback.startswith("Traceback (most recent call last):\n")
    assert "in users_function" in info.traceback
    assert info.traceback.endswith("ValueError: invalid literal for int() with base 10: 'x'\n")
    assert "UserFunctionError" not in info.traceback


def test_frames_of_the_engine_are_left_out_of_a_users_traceback() -> None:
    """Exceptions that led to the error lose them, too: the user reads their own code only."""
    error, cause = UserFunctionError("op", 0, None), KeyError("second")
    cause.__cause__ = raised_by(engine_function(lambda: users_function("x")))
    error.__cause__ = cause

    info = info_of(error)

    assert "in engine_calls" not in info.traceback
    assert info.traceback.count("in users_function") == 1
    assert "The above exception was the direct cause" in info.traceback
    assert info.exception_type == "KeyError"


def test_an_engine_error_keeps_all_frames() -> None:
    info = info_of(raised_by(engine_function(lambda: users_function("x"))))

    assert "in engine_calls" in info.traceback
    assert (info.operator, info.record_preview) == (None, None)


def test_what_went_wrong_while_cleaning_up_is_shown_as_well() -> None:
    """A user error's notes hang on the engine's exception, which is not shown."""
    error = user_error()
    error.add_note("while cleaning up after it: OSError: disk full")

    assert info_of(error).traceback.endswith("\nwhile cleaning up after it: OSError: disk full\n")


def test_exceptions_outside_the_builtins_are_named_with_their_module() -> None:
    assert info_of(TaskCancelled("x")).exception_type == "flowlet.errors.TaskCancelled"


def test_an_exception_whose_text_fails_is_still_reported() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    info = info_of(BrokenError())

    assert info.message == "<its text cannot be shown: str() raised RuntimeError>"
    assert "BrokenError" in info.exception_type


def test_long_texts_keep_their_head_and_their_tail() -> None:
    info = info_of(ValueError("a" * 50_000 + "b" * 50_000))

    assert len(info.message) < 9_000
    assert info.message.startswith("aaa")
    assert info.message.endswith("bbb")
    assert "characters left out" in info.message
    assert len(info.traceback) < 70_000
    assert info.traceback.endswith("bbb\n")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_even_what_is_no_exception_is_described(error: BaseException) -> None:
    """A user's function may call ``sys.exit``."""
    assert info_of(error).exception_type == type(error).__name__


class Leaving(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Text(str):
    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("no")


class Sly(Exception):
    def __str__(self) -> str:
        return Text("half of \ud83d")


class EvilType(type):
    def __getattribute__(cls, name: str) -> Any:
        raise SystemExit(3)


def nameless() -> Exception:
    """Make an error of a local class, as pytest asks module names and parameters for attributes."""

    class Nameless(Exception, metaclass=EvilType):
        pass

    return Nameless()


def with_note(note: Any) -> Exception:
    error = ValueError("x")
    error.__notes__ = [note]
    return error


@pytest.mark.parametrize(
    "make",
    [
        Leaving,
        Sly,
        lambda: ValueError("half of \ud83d"),
        type("Half", (Exception,), {"__qualname__": "Half\ud83d"}),
        type("Odd", (Exception,), {"__module__": None}),
        type("Odd", (Exception,), {"__module__": "\ud83d"}),
        lambda: with_note("\ud83d"),
        lambda: with_note(Leaving()),
        lambda: with_note(3),
        nameless,
    ],
    ids=["leaving", "sly", "surrogate", "name", "no module", "module", "note", "evil note", "odd note", "nameless"],
)
@pytest.mark.parametrize("is_users", [True, False])
def test_whatever_an_exception_does_it_is_described_in_text_that_can_be_sent(
    make: Callable[[], Exception], is_users: bool
) -> None:
    """A text with half a surrogate pair ended the session of the TaskManager, and a str() that called sys.exit the
    task's thread.
    """
    failure = make()
    if is_users:
        error = failure
        failure = UserFunctionError("map", 1, "'x'")
        failure.__cause__ = error

    info = info_of(failure)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(info), type=FailureInfo) == info
    assert (info.task_name, info.subtask, info.tm_id) == ("split", 1, "tm-1")
    assert (info.operator, info.record_preview) == (("map", "'x'") if is_users else (None, None))
    assert info.exception_type


def test_the_stack_of_a_running_thread_names_where_it_is() -> None:
    started, release = threading.Event(), threading.Event()

    def stuck_here() -> None:
        started.set()
        release.wait()

    thread = threading.Thread(target=stuck_here)
    thread.start()
    started.wait()

    stack = format_thread_stack(sys._current_frames()[thread.ident or 0])
    release.set()
    thread.join()

    assert "in stuck_here" in stack


def test_what_would_only_happen_again_suppresses_restarts() -> None:
    """A state that cannot be restored, and an output whose reader has left."""
    assert failure_info(ClosedOutputError("its reader has left"), DESCRIPTOR, "tm-1", 5).suppresses_restarts
    assert failure_info(StateRestoreError("damaged"), DESCRIPTOR, "tm-1", 5).suppresses_restarts
    assert not failure_info(ValueError("x"), DESCRIPTOR, "tm-1", 5).suppresses_restarts


def name_while(wait: Callable[[], object], end: Callable[[], object]) -> str:
    """Return the end of the report of a thread that stands in ``wait``, which ``end`` ends."""
    thread = threading.Thread(target=wait)
    thread.start()

    def report() -> str:
        frame = sys._current_frames().get(thread.ident or 0)
        return "" if frame is None else format_thread_stack(frame)

    try:
        spin_until(lambda: "\n  It waits for" in report() or not thread.is_alive())
        return report().splitlines()[-1].strip()
    finally:
        end()
        thread.join(PATIENCE_S)


def test_a_task_without_mail() -> None:
    box = TaskMailbox()

    def take() -> None:
        box.bind_to_current_thread()
        box.take()

    name = name_while(take, lambda: box.put_threadsafe(Mail(lambda: None, MIN_PRIORITY, "end")))

    assert name == "It waits for mail, input or room; ended by a mail, so by cancel."


def test_a_task_without_a_free_buffer() -> None:
    """The innermost wait gives the name, as everywhere: the thread parks in slices, in a loop of another module."""
    parent = NetworkBufferPool(2, 64)
    pool = parent.create_buffer_pool(owner="test", num_required=1, max_buffers=1)
    segment = pool.request_segment_nowait(-1)
    assert segment is not None
    taken = []

    name = name_while(lambda: taken.append(pool.request_segment_blocking(0)), lambda: pool.recycle(segment))

    assert name == "It waits for a free buffer of the task's pool; ended by a consumer that reads, or by cancel."
    pool.recycle(taken.pop())
    pool.destroy()
    parent.destroy()


def test_a_thread_that_works_stands_in_no_wait() -> None:
    assert named_wait(sys._getframe()) is None


def test_a_thread_that_goes_on_while_it_is_looked_at_has_no_line() -> None:
    """Its frame has none for a moment."""
    frame = cast(FrameType, SimpleNamespace(f_lineno=None, f_code=named_wait.__code__, f_back=None))

    assert named_wait(frame) is None
