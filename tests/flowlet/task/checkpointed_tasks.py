"""Tasks that take part in checkpoints, and a store in memory for their states."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.task.snapshots import OperatorState
from flowlet.checkpoint.task.state_codec import decode_state, encode_state
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import Checkpointing
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, CheckpointOptions
from tests.flowlet.checkpoint.task.in_memory_store import InMemoryCheckpointStore
from tests.flowlet.task.local_network import LocalNetwork, Recorder, edge
from tests.flowlet.task.local_tasks import chain

VERTEX = "2" * 32


def checkpointing(
    store: InMemoryCheckpointStore,
    execute_async: Callable[[Callable[[], None]], object] = lambda run: run(),
    **options: Any,
) -> Checkpointing:
    """Return the checkpoints of subtask 0 of ``VERTEX``; asynchronous parts run at once, unless the test keeps them."""
    return Checkpointing(store.responder_of(VERTEX, 0), execute_async, InMemoryChannelStateWriter(), **options)


def trigger(task: StreamTask | None, checkpoint_id: int, options: CheckpointOptions | None = None) -> "Future[bool]":
    assert task is not None
    assert task.checkpoints is not None
    barrier = CheckpointBarrier(checkpoint_id, 0, CheckpointOptions() if options is None else options)
    return task.checkpoints.trigger_checkpoint_async(barrier)


def complete(task: StreamTask, checkpoint_id: int) -> None:
    assert task.checkpoints is not None
    task.checkpoints.notify_checkpoint_complete_async(checkpoint_id)


class Remembering(Recorder):
    """Keeps how many records it saw."""

    operator_id = b"remembering oper"

    def __init__(self) -> None:
        super().__init__("remembering")
        self.restored: object = "nothing was called"
        self.notified: list[tuple[str, int]] = []

    def initialize_state(self, state: object | None) -> None:
        self._note("initialize")
        self.restored = state

    def snapshot_state(self, checkpoint_id: int) -> object:
        return len(self.values)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.notified.append(("complete", checkpoint_id))

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self.notified.append(("aborted", checkpoint_id))


class Rig:
    """A task with a store in memory; asynchronous parts run when the test says so."""

    def __init__(self, network: LocalNetwork) -> None:
        self.network = network
        self.store = InMemoryCheckpointStore()
        self.pool: list[Callable[[], None]] = []
        self.partition = network.partition()
        self.reader = network.reader(self.partition)

    def task(
        self,
        *operators: StreamOperator,
        producers: list[ResultPartition],
        restored: Mapping[str, OperatorState] | None = None,
    ) -> StreamTask:
        """``restored``: the states of the operators, by their ids in hex."""
        gates = [self.network.gate(producer) for producer in producers]
        outputs = [edge(self.partition, source=len(operators) - 1)]
        environment = self.network.environment("joint", gates=gates, outputs=outputs)
        environment.checkpointing = checkpointing(self.store, self.pool.append, restored=restored or {})
        return create_stream_task(environment, chain(*operators))

    def run_async(self) -> None:
        while self.pool:
            self.pool.pop(0)()

    def read(self) -> list[object]:
        """Return the records that came out; a barrier stops the view, as it would stop a channel."""
        values = self.reader.read_values()
        self.reader.view.resume_consumption()
        return values + self.reader.read_values()

    def stored(self, checkpoint_id: int) -> Mapping[str, OperatorState]:
        """Return the states of the operators, as a storage gives them back."""
        return decode_state(encode_state(self.store.state_of(checkpoint_id, VERTEX, 0))).operators

    def state_of(self, checkpoint_id: int) -> object:
        found = self.store.state_of(checkpoint_id, VERTEX, 0).operators[Remembering.operator_id.hex()]
        assert isinstance(found, OperatorState)
        return found.own
