import pytest

from flowlet.mailbox.mailbox_future import FlushingActionExecutor, SynchronizedActionExecutor


def test_an_action_is_followed_by_a_flush() -> None:
    calls: list[str] = []
    executor = FlushingActionExecutor(lambda: calls.append("flush"))

    def action() -> int:
        calls.append("action")
        return 7

    assert executor.call(action) == 7
    assert calls == ["action", "flush"]


def test_an_action_that_fails_is_not_followed_by_a_flush() -> None:
    calls: list[str] = []
    executor = FlushingActionExecutor(lambda: calls.append("flush"))

    with pytest.raises(ZeroDivisionError):
        executor.call(lambda: 1 / 0)

    assert calls == []


def test_action_and_flush_run_inside_the_other_executor() -> None:
    """One lock for both: nobody emits in between."""
    calls: list[str] = []

    class Lock:
        def __enter__(self) -> None:
            calls.append("lock")

        def __exit__(self, *error: object) -> None:
            calls.append("unlock")

    executor = FlushingActionExecutor(lambda: calls.append("flush"), SynchronizedActionExecutor(Lock()))

    executor.call(lambda: calls.append("action"))

    assert calls == ["lock", "action", "flush", "unlock"]
    assert repr(executor).startswith("<FlushingActionExecutor around <SynchronizedActionExecutor")
