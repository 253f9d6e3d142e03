import threading

import pytest

from flowlet.messages.execution_state import ExecutionState
from flowlet.task.task_environment import TaskLifecycle

S = ExecutionState
PATHS = {
    S.CREATED: [],
    S.INITIALIZING: [S.INITIALIZING],
    S.RUNNING: [S.INITIALIZING, S.RUNNING],
    S.FINISHED: [S.INITIALIZING, S.RUNNING, S.FINISHED],
    S.FAILED: [S.INITIALIZING, S.FAILED],
    S.CANCELING: [S.INITIALIZING, S.CANCELING],
    S.CANCELED: [S.INITIALIZING, S.CANCELING, S.CANCELED],
}
ALLOWED = {
    (S.CREATED, S.INITIALIZING),
    (S.CREATED, S.CANCELED),
    (S.INITIALIZING, S.RUNNING),
    (S.INITIALIZING, S.CANCELING),
    (S.INITIALIZING, S.FAILED),
    (S.RUNNING, S.FINISHED),
    (S.RUNNING, S.CANCELING),
    (S.RUNNING, S.FAILED),
    (S.CANCELING, S.CANCELED),
}


def lifecycle_in(state: ExecutionState) -> TaskLifecycle:
    made = TaskLifecycle()
    for step in PATHS[state]:
        assert made.try_advance(step)
    return made


@pytest.mark.parametrize("target", list(ExecutionState))
@pytest.mark.parametrize("state", list(PATHS))
def test_every_pair_of_states(state: ExecutionState, target: ExecutionState) -> None:
    """A step in the table is taken, any other is refused and changes nothing."""
    lifecycle = lifecycle_in(state)

    assert lifecycle.try_advance(target) == ((state, target) in ALLOWED)
    assert lifecycle.state is (target if (state, target) in ALLOWED else state)


@pytest.mark.parametrize(
    ("state", "after"),
    [
        (S.CREATED, S.CANCELED),
        (S.INITIALIZING, S.CANCELING),
        (S.RUNNING, S.CANCELING),
        (S.CANCELING, S.CANCELING),
        (S.FINISHED, S.FINISHED),
        (S.FAILED, S.FAILED),
        (S.CANCELED, S.CANCELED),
    ],
)
def test_cancelling_in_every_state(state: ExecutionState, after: ExecutionState) -> None:
    """``cancel`` returns the attempt's state, so that the caller knows who cleans up."""
    lifecycle = lifecycle_in(state)

    assert lifecycle.cancel() is state
    assert lifecycle.state is after


@pytest.mark.parametrize("target", [S.FINISHED, S.FAILED])
def test_a_cancelled_attempt_ends_cancelled(target: ExecutionState) -> None:
    """Later events do not change this."""
    assert lifecycle_in(S.CANCELING).end(target) is S.CANCELED
    assert lifecycle_in(S.RUNNING).end(target) is target


def test_one_of_many_cancels_starts_the_cancellation() -> None:
    lifecycle = lifecycle_in(S.RUNNING)
    seen: list[ExecutionState] = []
    threads = [threading.Thread(target=lambda: seen.append(lifecycle.cancel())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(seen) == sorted([S.RUNNING, *[S.CANCELING] * 7])


def test_it_shows_its_state() -> None:
    assert repr(lifecycle_in(S.RUNNING)) == "<TaskLifecycle RUNNING>"
