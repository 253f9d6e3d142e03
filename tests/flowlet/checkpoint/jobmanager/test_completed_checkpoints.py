"""Tests of ``flowlet.checkpoint.jobmanager.checkpoint_history``."""

import pytest

from flowlet.checkpoint.jobmanager.checkpoint_history import CompletedCheckpoints
from flowlet.checkpoint.jobmanager.pending_checkpoint import CheckpointTopology
from flowlet.common.job_settings import CheckpointSettings
from flowlet.messages.control_messages import (
    JobGraphMessage,
    RestoredState,
    RestoredVertex,
    StateHandle,
    SubtaskEntry,
    VertexMessage,
)
from flowlet.storage.manifest import (
    CheckpointManifest,
    SourceEntry,
)

TOPOLOGY = CheckpointTopology(
    JobGraphMessage("job", "name", [VertexMessage("v", "v", 2, 128, "default", ["v"], b"")], [])
)


def manifest(checkpoint_id: int) -> CheckpointManifest:
    entries = [SubtaskEntry("v", 0, StateHandle(checkpoint_id, b"sum")), SubtaskEntry("v", 1, None, is_finished=True)]
    return CheckpointManifest(
        "job", "name", checkpoint_id, 7, {"v": 2}, entries, [SourceEntry("v", bytes([checkpoint_id]))]
    )


def test_the_newest_ones_are_kept() -> None:
    store = CompletedCheckpoints(CheckpointSettings(num_retained=2), TOPOLOGY)

    dropped = [store.add(manifest(number)) for number in (1, 2, 3, 5)]

    assert (dropped, store.ids, store.newest) == ([[], [], [1], [2]], [3, 5], manifest(5))
    assert repr(store) == "<CompletedCheckpoints [3, 5]>"


def test_the_newest_one_is_restored() -> None:
    store = CompletedCheckpoints(CheckpointSettings(num_retained=2), TOPOLOGY)

    store.add(manifest(1))
    store.add(manifest(2))

    restored = store.restored
    assert restored is not None
    (part, _) = manifest(2).subtasks
    assert restored.restored_state("v", 0) == RestoredState(2, [RestoredVertex(2, [], [part])])
    assert restored.restored_state("v", 1) == RestoredState(2, [RestoredVertex(2, [], [])], is_finished=True)
    assert (restored.sources.get("v"), restored.sources.get("other")) == (b"\x02", None)


def test_without_the_newest_the_one_before_is_restored() -> None:
    store = CompletedCheckpoints(CheckpointSettings(num_retained=2), TOPOLOGY)
    store.add(manifest(1))
    store.add(manifest(2))

    dropped = store.drop_newest()

    assert (dropped, store.ids, store.newest) == (manifest(2), [1], manifest(1))
    restored = store.restored
    assert restored is not None
    assert (restored.checkpoint_id, restored.sources.get("v")) == (1, b"\x01")
    assert restored.restored_state("v", 0).vertices[0].parts == [manifest(1).subtasks[0]]
    assert store.add(manifest(3)) == []


def test_without_one_tasks_begin_anew() -> None:
    store = CompletedCheckpoints(CheckpointSettings(num_retained=1), TOPOLOGY)

    assert (store.newest, store.restored) == (None, None)


def test_clear_gives_all_away() -> None:
    store = CompletedCheckpoints(CheckpointSettings(num_retained=3), TOPOLOGY)
    store.add(manifest(4))
    store.add(manifest(6))

    assert (store.clear(), store.clear()) == ([4, 6], [])
    assert store.restored is None


@pytest.mark.parametrize("number", [3, 4])
def test_ids_rise(number: int) -> None:
    store = CompletedCheckpoints(CheckpointSettings(num_retained=1), TOPOLOGY)
    store.add(manifest(4))

    with pytest.raises(AssertionError):
        store.add(manifest(number))
