"""A task that is cancelled in a long call of a function, other than for a record, calls no other
one but ``close()``.
"""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream.connectors import Sink, SupportsCommitter
from flowlet.datastream.connectors.base import Committer, CommittingSinkWriter
from flowlet.datastream.functions import CheckpointedFunction, CheckpointListener, MapFunction
from flowlet.errors import TaskCancelled
from flowlet.operators.process_operator import MapOperator
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.task.checkpointed_tasks import checkpointing, complete, trigger
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.local_tasks import chain


class Calls:
    """Notes the calls of functions, and cancels the task in one of them: a call that takes long
    cannot be told from it.
    """

    def __init__(self, cancels_in: str) -> None:
        self._cancels_in = cancels_in
        self.seen: list[str] = []
        self.task: StreamTask | None = None

    def note(self, call: str) -> None:
        self.seen.append(call)
        if call == self._cancels_in:
            assert self.task is not None
            self.task.cancel()


class Noting(MapFunction, CheckpointedFunction, CheckpointListener):
    def __init__(self, calls: Calls, name: str) -> None:
        self._note: Callable[[str], None] = lambda call: calls.note(f"{name} {call}")

    def open(self, runtime_context: object) -> None:
        self._note("open")

    def map(self, value: Any) -> Any:
        return value

    def initialize_state(self, context: object) -> None:
        pass

    def snapshot_state(self, context: object) -> None:
        self._note("snapshot_state")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._note("notify_checkpoint_complete")

    def close(self) -> None:
        self._note("close")


class NotingSink(Sink, SupportsCommitter):
    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def create_writer(self, context: object) -> CommittingSinkWriter[Any]:
        note = self._calls.note

        class Writer(CommittingSinkWriter[Any]):
            def write(self, value: Any, context: object) -> None:
                pass

            def flush(self, *, end_of_input: bool) -> None:
                note("flush at the end" if end_of_input else "flush")

            def prepare_commit(self) -> list[Any]:
                note("prepare_commit")
                return [1]

            def close(self) -> None:
                note("writer close")

        return Writer()

    def create_committer(self, context: object) -> Committer[Any]:
        note = self._calls.note

        class Committing(Committer[Any]):
            def commit(self, requests: Any) -> None:
                note("commit")

            def close(self) -> None:
                note("committer close")

        return Committing()


def run(network: LocalNetwork, calls: Calls, operators: list[StreamOperator], *, checkpoints: bool) -> list[str]:
    """Run a task to its end, or with a checkpoint after its first record; returns the calls but those of ``open``."""
    environment = network.environment("slow")
    if checkpoints:
        environment.checkpointing = checkpointing(
            InMemoryCheckpointStore(), lambda run: None, are_taken_after_finish=False
        )

    def begin(value: Any) -> Any:
        task = calls.task
        if checkpoints and task is not None and task.checkpoints is not None:
            trigger(task, 1)
            complete(task, 1)
        return value

    head: list[StreamOperator] = [SourceOperator(CollectionSource([1])), MapOperator(begin)]
    calls.task = create_stream_task(environment, chain(*head, *operators))
    with pytest.raises(TaskCancelled):
        calls.task.invoke()
    return [each for each in calls.seen if "open" not in each]


@pytest.mark.parametrize(
    ("cancels_in", "expected"),
    [
        ("second snapshot_state", ["second snapshot_state"]),
        (
            "first notify_checkpoint_complete",
            ["second snapshot_state", "first snapshot_state", "first notify_checkpoint_complete"],
        ),
    ],
)
def test_no_other_function_of_the_chain_is_called_after_one_in_which_the_task_was_cancelled(
    network: LocalNetwork, cancels_in: str, expected: list[str]
) -> None:
    """Snapshots are taken tail first, notifications come head first; all functions are closed."""
    calls = Calls(cancels_in)
    functions: list[StreamOperator] = [MapOperator(Noting(calls, "first")), MapOperator(Noting(calls, "second"))]

    seen = run(network, calls, functions, checkpoints=True)

    assert seen == [*expected, "first close", "second close"]


@pytest.mark.parametrize(
    ("cancels_in", "checkpoints", "expected"),
    [
        ("flush", True, ["flush"]),
        ("prepare_commit", True, ["flush", "prepare_commit"]),
        ("flush at the end", False, ["flush at the end"]),
        ("prepare_commit", False, ["flush at the end", "prepare_commit"]),
        ("commit", False, ["flush at the end", "prepare_commit", "commit"]),
    ],
)
def test_a_sink_is_asked_for_nothing_else_after_a_call_in_which_the_task_was_cancelled(
    network: LocalNetwork, cancels_in: str, *, checkpoints: bool, expected: list[str]
) -> None:
    """A call is not broken off, because a commit may be under way."""
    calls = Calls(cancels_in)

    seen = run(network, calls, [SinkOperator(NotingSink(calls))], checkpoints=checkpoints)

    assert seen == [*expected, "writer close", "committer close"]
