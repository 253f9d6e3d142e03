"""The barrier that a subtask sends behind a checkpoint's."""

import pytest

from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, SavepointFormat, SnapshotType
from tests.flowlet.checkpoint.task.barriers import unaligned
from tests.flowlet.checkpoint.task.doubles import CheckpointedTask


@pytest.mark.parametrize(
    ("options", "barrier"),
    [
        (CheckpointOptions(SnapshotType.SAVEPOINT, SavepointFormat.CANONICAL), None),
        (CheckpointOptions(SnapshotType.SAVEPOINT_TERMINATE, SavepointFormat.CANONICAL), None),
        (CheckpointOptions(alignment=Alignment.FORCED_ALIGNED), unaligned(1)),
    ],
    ids=["savepoint", "savepoint that stops the job", "forced to be aligned on an edge"],
)
def test_only_an_unaligned_checkpoint_has_priority_behind_us(
    options: CheckpointOptions, barrier: CheckpointBarrier | None
) -> None:
    """FLINK-18252: savepoints have none; what an edge forced to be aligned overtakes again behind us."""
    task = CheckpointedTask()

    task.take(CheckpointBarrier(1, 0, options))
    task.run_pool()

    assert task.log[1] == ("broadcast", barrier or CheckpointBarrier(1, 0, options), barrier is not None)
    assert task.responder.acknowledged_ids == [1]
