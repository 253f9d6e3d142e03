"""Promises of ``CompletableFuture``."""

import pytest

from flowlet.common import CompletableFuture
from flowlet.errors import FlowletError, JobExecutionError


def failing() -> int:
    raise JobExecutionError("it failed")


def test_a_completed_future_has_its_value() -> None:
    future = CompletableFuture.completed(7)

    assert future.done()
    assert future.result() == 7
    assert future.exception() is None
    assert str(future) == "CompletableFuture(done)"


def test_the_value_is_waited_for_only_when_it_is_asked_for() -> None:
    waits: list[str] = []
    future = CompletableFuture(lambda: waits.append("waited"), lambda: bool(waits))

    assert not future.done()
    assert str(future) == "CompletableFuture(pending)"
    assert waits == []

    future.result()

    assert waits == ["waited"]
    assert future.done()


def test_an_error_is_raised_by_result_and_returned_by_exception() -> None:
    future = CompletableFuture(failing, lambda: True)

    with pytest.raises(JobExecutionError, match="it failed"):
        future.result()
    assert isinstance(future.exception(), JobExecutionError)


def test_an_interrupt_is_never_taken_for_the_jobs_error() -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        CompletableFuture(interrupted, lambda: False).exception()


def test_a_future_that_was_given_up_has_no_value() -> None:
    """The wait is not even begun."""
    future = CompletableFuture(failing, lambda: False)

    assert not future.cancelled()
    assert future.cancel()
    assert future.cancelled()
    assert future.done()
    assert future.cancel()
    with pytest.raises(FlowletError, match="the future was cancelled"):
        future.result()
    assert "cancelled" in str(future.exception())


def test_a_value_that_is_there_cannot_be_given_up() -> None:
    future = CompletableFuture.completed(7)

    assert not future.cancel()
    assert not future.cancelled()
    assert future.result() == 7
