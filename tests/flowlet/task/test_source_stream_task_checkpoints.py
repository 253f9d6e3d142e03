"""What a source's snapshot holds: all that the JobManager sent before the trigger, and nothing that it sent after.

Source: Flink ``OperatorCoordinatorHolder``, ``SubtaskGatewayImpl``: events of a coordinator never cross its checkpoint.
"""

from collections.abc import Callable, Sequence

from flowlet.checkpoint.channel_state_writer import InMemoryChannelStateWriter
from flowlet.checkpoint.responder import InMemoryCheckpointStore
from flowlet.checkpoint.snapshots import CheckpointMetadata, OperatorState
from flowlet.operators.source_operator import Source, SourceOperator, SourceReader
from flowlet.records import Chunk
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.file_enumerator import FileSplitEnumerator
from flowlet.splits.file_split import FileSet, FileSplit
from flowlet.task.create_stream_task import create_stream_task
from flowlet.task.source_stream_task import SourceStreamTask
from flowlet.task.task_environment import Checkpointing
from netstack.availability import AvailabilityFuture
from netstack.wire.events import CheckpointOptions
from tests.flowlet.checkpoint.doubles import ManualTimers
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.local_tasks import Tasks, chain, step_until_idle

SOURCE_ID = b"splits' operator"


class Holding(Source):
    """Its reader only holds splits."""

    def create_enumerator(self) -> SplitEnumerator:
        return FileSplitEnumerator(FileSet(()))

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return _Holder()


class _Holder:
    def __init__(self) -> None:
        self._held: list[str] = []

    def start(self, request_splits: Callable[[], None]) -> None:
        request_splits()

    def add_splits(self, splits: Sequence[FileSplit], waiting_bytes: int) -> None:
        self._held += [split.path for split in splits]

    def no_more_splits(self) -> None:
        self._held.append("no more")

    def poll_chunk(self) -> Chunk:
        return Chunk([])

    def available_future(self) -> AvailabilityFuture:
        return AvailabilityFuture()

    def snapshot_position(self) -> tuple[str, ...]:
        return tuple(self._held)

    def restore_position(self, position: tuple[str, ...]) -> None:
        self._held = list(position)

    def close(self) -> None:
        pass


def split(path: str) -> FileSplit:
    return FileSplit(path, 0, 1)


def test_splits_that_arrive_behind_a_trigger_are_not_in_the_snapshot(network: LocalNetwork, tasks: Tasks) -> None:
    """The enumerator's snapshot, taken at the trigger, still has them: in both, they would be read twice after a restart."""
    store = InMemoryCheckpointStore()
    environment = network.environment("source")
    environment.request_splits = lambda: None
    environment.checkpointing = Checkpointing(store.responder_of("v", 0), lambda call: call(), ManualTimers(), InMemoryChannelStateWriter())
    operator = SourceOperator(Holding())
    operator.operator_id = SOURCE_ID
    task = create_stream_task(environment, chain(operator))
    assert isinstance(task, SourceStreamTask)
    assert task.checkpoints is not None
    tasks.restored(task)

    task.add_splits([split("before")], 0)
    task.checkpoints.trigger_checkpoint_async(CheckpointMetadata(1, 0, 0), CheckpointOptions())
    task.add_splits([split("after")], 0)
    task.no_more_splits()
    step_until_idle(task)
    task.checkpoints.trigger_checkpoint_async(CheckpointMetadata(2, 0, 0), CheckpointOptions())
    step_until_idle(task)

    assert store.state_of(1, "v", 0).operators == {SOURCE_ID.hex(): OperatorState(("before",))}
    assert store.state_of(2, "v", 0).operators == {SOURCE_ID.hex(): OperatorState(("before", "after", "no more"))}
    task.cancel()
