"""Each control message has a sender and a handler; the states of attempts and jobs follow each other as in tables."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec
import pytest

from flowlet.common.job_status import JobStatus
from flowlet.jm.job_master import JobMaster
from flowlet.messages.control_messages import (
    AddSplits,
    FromTask,
    MarkPassed,
    ToJobManager,
    ToTask,
    ToTaskManager,
    kinds_of,
    union_of,
)
from flowlet.messages.execution_state import EXECUTION_TRANSITIONS, JOB_TRANSITIONS, ExecutionState
from flowlet.splits.split_kinds import FileSplit
from flowlet.tm.task import Task

Table = Mapping[Any, Callable[..., object]]
TABLES: list[tuple[type[msgspec.Struct], Table]] = [(ToTask, Task.HANDLERS), (FromTask, JobMaster.HANDLERS)]


@pytest.mark.parametrize(("base", "table"), TABLES, ids=["to a task", "from a task"])
def test_every_message_about_a_task_has_a_row_in_the_table_of_its_receiver(
    base: type[msgspec.Struct], table: Table
) -> None:
    """A message without a row would end the session of its receiver."""
    assert set(table) == set(kinds_of(base))


@pytest.mark.parametrize(("base", "table"), TABLES, ids=["to a task", "from a task"])
def test_each_handler_takes_the_message_of_its_row(base: type[msgspec.Struct], table: Table) -> None:
    """The type checker sees only that a handler takes some message."""
    for kind, handler in table.items():
        taken = list(inspect.signature(handler).parameters.values())[1].annotation
        assert kind is taken or kind in get_args(taken), f"{kind.__name__}: {handler}"


def test_a_message_has_the_name_of_its_class_and_is_read_by_the_other_side_alone() -> None:
    """A message that goes into the wrong direction ends its session."""
    order, report = AddSplits(bytes(40), [FileSplit("a", 0, 9)], 5), MarkPassed(bytes(40), 3)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(order))["type"] == "AddSplits"
    assert msgspec.msgpack.Decoder(union_of(ToTaskManager)).decode(msgspec.msgpack.encode(order)) == order
    assert msgspec.msgpack.Decoder(union_of(ToJobManager)).decode(msgspec.msgpack.encode(report)) == report
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'AddSplits'"):
        msgspec.msgpack.Decoder(union_of(ToJobManager)).decode(msgspec.msgpack.encode(order))


def test_a_message_names_its_attempt_first() -> None:
    """A reader of a log, or of the bytes, knows what the message is about."""
    kinds: list[type[Any]] = [*kinds_of(ToTask), *kinds_of(FromTask)]

    assert {kind.__struct_fields__[0] for kind in kinds} == {"attempt"}


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
