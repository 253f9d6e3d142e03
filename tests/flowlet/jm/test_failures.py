"""Tests of ``flowlet.jm.failures``: who, where and why, in every one."""

import pytest

from flowlet.errors import FlowletError, StateRestoreError
from flowlet.graph.execution_graph import is_symptom
from flowlet.jm import failures
from flowlet.messages.control_messages import FailureInfo, RegisterTaskManager
from flowlet.messages.execution_state import ExecutionState

PLACE = RegisterTaskManager("tm-1", 1, "127.0.0.1", 6000, 42)


def test_a_lost_task_manager_is_named_with_address_and_process() -> None:
    failure = failures.task_manager_lost(PLACE, "it closed the connection", 7)

    assert failure.message == "TaskManager tm-1 (127.0.0.1:6000, pid 42) was lost: it closed the connection"
    assert (failure.tm_id, failure.timestamp_ms) == ("tm-1", 7)


def test_a_lack_of_slots_names_no_task_manager() -> None:
    failure = failures.no_slots("job needs 4 slots", 7)

    assert (failure.message, failure.tm_id, failure.subtask) == ("job needs 4 slots", "", -1)


@pytest.mark.parametrize("state", [ExecutionState.CANCELED, ExecutionState.FAILED])
def test_what_a_task_did_names_the_task(state: ExecutionState) -> None:
    failure = failures.unexplained(state, PLACE, "map", 3, 7)

    assert failure is not None
    assert "'map' (subtask 3)" in failure.message
    assert "TaskManager tm-1 (127.0.0.1:6000, pid 42)" in failure.message
    assert (failure.task_name, failure.subtask, failure.tm_id) == ("map", 3, "tm-1")


def test_a_source_that_failed_is_named_with_its_error() -> None:
    """Our own errors say all there is to say; of others, people want to see where they come from."""
    own = failures.source_failed(FlowletError("cannot read a.txt"), "read", 7)
    try:
        raise KeyError("bucket")
    except KeyError as error:
        foreign = failures.source_failed(error, "read", 7)

    assert (own.exception_type, own.message, own.traceback) == ("flowlet.errors.FlowletError", "cannot read a.txt", "")
    assert (own.task_name, own.subtask, own.tm_id, own.timestamp_ms) == ("read", -1, "", 7)
    assert (foreign.exception_type, foreign.message) == ("KeyError", "'bucket'")
    assert foreign.traceback.splitlines()[-1] == "KeyError: 'bucket'"
    assert __file__ in foreign.traceback


@pytest.mark.parametrize(
    "failure",
    [
        failures.task_manager_lost(PLACE, "x", 7),
        failures.no_slots("x", 7),
        failures.unexplained(ExecutionState.CANCELED, PLACE, "map", 3, 7),
    ],
)
def test_they_are_causes_and_not_symptoms(failure: FailureInfo | None) -> None:
    """Such causes replace the reports of consumers about the broken connection."""
    assert failure is not None
    assert not is_symptom(failure)


def test_a_job_that_could_not_start_again_failed_for_the_first_reason_and_then_for_slots() -> None:
    original = failures.task_manager_lost(PLACE, "it closed the connection", 7)

    both = failures.no_slots("job needs 4 slots", 9, original)

    assert both.message.startswith(original.message)
    assert both.message.endswith("\nand the job could not start again: NoResourceAvailable: job needs 4 slots")
    assert (both.exception_type, both.tm_id, both.timestamp_ms) == ("TaskManagerLost", "tm-1", 9)


def test_only_a_state_that_cannot_be_restored_suppresses_restarts() -> None:
    assert failures.source_failed(StateRestoreError("damaged"), "read", 7).suppresses_restarts
    assert not failures.source_failed(FlowletError("no such file"), "read", 7).suppresses_restarts
