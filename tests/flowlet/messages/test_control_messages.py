"""Each control message has its row: one side can send it, and the other side has a handler for it."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_args

import msgspec
import pytest

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
