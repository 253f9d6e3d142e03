"""Source: Flink `StreamTaskActionExecutor`."""

import threading

import pytest

from flowlet.mailbox.mailbox_future import IMMEDIATE, StreamTaskActionExecutor, SynchronizedActionExecutor
from flowlet.mailbox.task_mailbox import Mail
from tests.waiting import PATIENCE_S


@pytest.fixture(params=["immediate", "synchronized"])
def executor(request: pytest.FixtureRequest) -> StreamTaskActionExecutor:
    return IMMEDIATE if request.param == "immediate" else SynchronizedActionExecutor()


def test_the_result_is_the_callers(executor: StreamTaskActionExecutor) -> None:
    assert executor.call(lambda: 42) == 42
    assert "ActionExecutor" in repr(executor)


def test_an_error_passes_unchanged_and_leaves_the_executor_usable(executor: StreamTaskActionExecutor) -> None:
    error = ValueError("of the action")

    def fail() -> None:
        raise error

    with pytest.raises(ValueError, match="of the action") as caught:
        executor.call(fail)

    assert caught.value is error
    assert in_thread(executor) == [1]


def in_thread(executor: StreamTaskActionExecutor) -> list[int]:
    ran: list[int] = []
    thread = threading.Thread(target=lambda: executor.call(lambda: ran.append(1)))
    thread.start()
    thread.join(PATIENCE_S)
    return ran


def test_an_action_may_run_another_one_inside(executor: StreamTaskActionExecutor) -> None:
    """The lock is reentrant: an operator that yields runs mails inside a mail."""
    assert executor.call(lambda: executor.call(lambda: "inside")) == "inside"


def test_a_mail_waits_for_the_lock_of_its_executor() -> None:
    """Who holds the lock works undisturbed; the mail runs afterwards."""

    class Recorder:
        def __enter__(self) -> None:
            order.append("lock")

        def __exit__(self, *args: object) -> None:
            order.append("unlock")

    order: list[str] = []
    executor = SynchronizedActionExecutor(Recorder())

    Mail(lambda: order.append("mail"), 0, "a mail", action_executor=executor).run()

    assert order == ["lock", "mail", "unlock"]


def test_nobody_else_gets_the_lock_while_an_action_runs() -> None:
    """Another thread is turned away inside, and let in afterwards."""
    lock = threading.RLock()
    executor = SynchronizedActionExecutor(lock)

    assert executor.call(lambda: is_free(lock)) is False
    assert is_free(lock)


def is_free(lock: "threading.RLock") -> bool:
    """As another thread sees it."""
    seen: list[bool] = []

    def look() -> None:
        seen.append(lock.acquire(blocking=False))
        if seen[0]:
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join(PATIENCE_S)
    return seen[0]
