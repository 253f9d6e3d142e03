import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.async_io.async_calls import AsyncCalls, SharedAsyncLoop
from flowlet.async_io.async_wait_operator import AsyncUserFunction
from flowlet.chain.stream_operator import OperatorContext
from flowlet.errors import UserFunctionError

CTX = OperatorContext("task", 1, 2, 128, "look up")


@pytest.fixture
def calls() -> Iterator[AsyncCalls]:
    made = AsyncCalls(lambda: None, SharedAsyncLoop())
    yield made
    made.close()


class Recorder:
    """A function object whose life cycle is written with ``def``."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def open(self, context: Any) -> None:
        self.events += ["open", context.get_index_of_this_subtask(), threading.get_ident()]

    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]

    def timeout(self, value: Any) -> list[Any]:
        return []

    def close(self) -> None:
        self.events += ["close", threading.get_ident()]


class AsyncRecorder(Recorder):
    """The same with ``async def``."""

    async def open(self, context: Any) -> None:  # type: ignore[override]  # allowed to users, who are not checked
        await asyncio.sleep(0)
        super().open(context)

    async def close(self) -> None:  # type: ignore[override]  # allowed to users, who are not checked
        await asyncio.sleep(0)
        super().close()


class NeedsLoop(Recorder):
    """Makes an object that needs a running loop, as HTTP clients do."""

    def open(self, context: Any) -> None:
        asyncio.get_running_loop()


class Bare:
    async def async_invoke(self, value: Any) -> list[Any]:
        return [value]


async def echo(value: Any) -> list[Any]:
    return [value]


def wrapped(function: Any, calls: AsyncCalls) -> AsyncUserFunction:
    found = AsyncUserFunction(function)
    found.calls = calls
    return found


def test_an_open_that_needs_a_loop_is_told_to_be_a_coroutine_function(calls: AsyncCalls) -> None:
    with pytest.raises(UserFunctionError) as raised:
        wrapped(NeedsLoop(), calls).open(CTX)
    cause = raised.value.__cause__
    assert cause is not None
    assert cause.__notes__ == ["raised by open()", "write 'async def open': it then runs on the loop of the calls"]


def test_ordinary_methods_run_on_the_tasks_thread(calls: AsyncCalls) -> None:
    recorder = Recorder()
    function = wrapped(recorder, calls)

    function.open(CTX)
    function.close(CTX)

    here = threading.get_ident()
    assert recorder.events == ["open", 1, here, "close", here]


def test_coroutine_methods_run_on_the_loop(calls: AsyncCalls) -> None:
    """Coroutine methods have ended when the call returns."""
    recorder = AsyncRecorder()
    function = wrapped(recorder, calls)

    function.open(CTX)
    function.close(CTX)

    assert recorder.events[:2] == ["open", 1]
    assert recorder.events[3] == "close"
    assert recorder.events[2] == recorder.events[4] != threading.get_ident()


@pytest.mark.parametrize("step", ["open", "close"])
@pytest.mark.parametrize("is_coroutine", [True, False])
def test_a_step_that_fails_is_named(calls: AsyncCalls, step: str, is_coroutine: bool) -> None:
    class Failing(Bare):
        pass

    def fail(*args: object) -> None:
        raise ConnectionError("no database")

    async def fail_later(*args: object) -> None:
        raise ConnectionError("no database")

    setattr(Failing, step, fail_later if is_coroutine else fail)

    function = wrapped(Failing(), calls)
    if step == "close":
        function.open(CTX)
    with pytest.raises(UserFunctionError, match=r"operator 'look up' \(subtask 1\) failed") as caught:
        getattr(function, step)(CTX)

    assert isinstance(caught.value.__cause__, ConnectionError)
    assert caught.value.__cause__.__notes__ == [f"raised by {step}()"]


@pytest.mark.parametrize("function", [Bare(), echo])
def test_what_has_no_life_cycle_needs_none(calls: AsyncCalls, function: Any) -> None:
    bare = wrapped(function, calls)

    bare.open(CTX)
    bare.close(CTX)

    assert bare.step("timeout") is None
    assert calls.run(bare.call, 3) == [3]
    assert repr(bare).startswith("<AsyncUserFunction <")


def test_an_answer_to_a_timeout_is_found() -> None:
    recorder = Recorder()

    assert AsyncUserFunction(recorder).step("timeout") == recorder.timeout
