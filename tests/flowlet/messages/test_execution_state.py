"""Tests of ``flowlet.messages.execution_state``: the two tables."""

import pytest

from flowlet.common.job_status import JobStatus
from flowlet.messages.execution_state import EXECUTION_TRANSITIONS, JOB_TRANSITIONS, ExecutionState

TERMINAL = {ExecutionState.FINISHED, ExecutionState.CANCELED, ExecutionState.FAILED}


@pytest.mark.parametrize("state", ExecutionState)
def test_is_terminal_is_exactly_finished_canceled_failed(state: ExecutionState) -> None:
    assert state.is_terminal == (state in TERMINAL)


@pytest.mark.parametrize("state", ExecutionState)
def test_a_task_manager_has_what_is_deployed_and_not_over(state: ExecutionState) -> None:
    assert state.is_deployed == (state not in TERMINAL | {ExecutionState.CREATED, ExecutionState.SCHEDULED})


@pytest.mark.parametrize("state", [state for state in ExecutionState if state not in TERMINAL])
def test_every_live_state_can_fail_and_be_canceled(state: ExecutionState) -> None:
    assert {ExecutionState.FAILED, ExecutionState.CANCELED} <= EXECUTION_TRANSITIONS[state]


def test_states_only_move_forward() -> None:
    """No table entry leads back: an attempt cannot run in circles."""
    order = [*(state for state in ExecutionState if state not in TERMINAL), *TERMINAL]

    for before, afters in EXECUTION_TRANSITIONS.items():
        assert all(order.index(after) > order.index(before) for after in afters)


@pytest.mark.parametrize("status", JOB_TRANSITIONS)
def test_a_job_status_without_successors_is_globally_terminal(status: JobStatus) -> None:
    assert status.is_globally_terminal_state() == (not JOB_TRANSITIONS[status])


def test_every_job_status_is_reached_from_created() -> None:
    seen, todo = {JobStatus.CREATED}, [JobStatus.CREATED]
    while todo:
        new = JOB_TRANSITIONS[todo.pop()] - seen
        seen |= new
        todo += new

    assert seen == set(JOB_TRANSITIONS)
