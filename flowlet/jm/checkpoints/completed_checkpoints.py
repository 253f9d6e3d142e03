"""``CompletedCheckpoints``: the complete checkpoints of one job that are kept, and what they restore.

Side:       pure.
Invariants: the ids rise; at most ``num_retained`` are kept, and the newest one always.
Source:     Flink ``StandaloneCompletedCheckpointStore``.
"""

from flowlet.rpc.control_messages import RestoredState
from flowlet.storage.manifest import CheckpointManifest


class CompletedCheckpoints:
    """The newest complete checkpoints, the oldest first.  Threading: one thread."""

    def __init__(self, num_retained: int) -> None:
        assert num_retained >= 1, "CheckpointSettings allow no less"
        self._num_retained = num_retained
        self._manifests: list[CheckpointManifest] = []
        self._parts: dict[tuple[str, int], RestoredState] = {}  # of the newest, by vertex id and subtask

    def __repr__(self) -> str:
        return f"<CompletedCheckpoints {self.ids}>"

    @property
    def ids(self) -> list[int]:
        """The ids of those that are kept, the oldest first."""
        return [each.checkpoint_id for each in self._manifests]

    @property
    def newest(self) -> CheckpointManifest | None:
        """The newest one; None: there is none."""
        return self._manifests[-1] if self._manifests else None

    def add(self, manifest: CheckpointManifest) -> list[int]:
        """Keep a checkpoint that is newer than all others; returns the ids of those that are kept no longer."""
        newest = self.newest
        assert newest is None or newest.checkpoint_id < manifest.checkpoint_id, "a complete checkpoint subsumes all older ones"
        self._manifests.append(manifest)
        self._parts = {
            (entry.vertex_id, entry.subtask): RestoredState(manifest.checkpoint_id, entry.state, entry.is_finished)
            for entry in manifest.subtasks
        }
        dropped, self._manifests = self._manifests[: -self._num_retained], self._manifests[-self._num_retained :]
        return [each.checkpoint_id for each in dropped]

    def clear(self) -> list[int]:
        """Keep none; returns the ids of all that were kept."""
        ids = self.ids
        self._manifests, self._parts = [], {}
        return ids

    def restored_state(self, vertex_id: str, subtask: int) -> RestoredState | None:
        """The part of a subtask in the newest one; None: there is no checkpoint."""
        newest = self.newest
        return None if newest is None else self._parts.get((vertex_id, subtask), RestoredState(newest.checkpoint_id))

    def source_state(self, vertex_id: str) -> bytes | None:
        """The state of a source's split enumerator in the newest one; None: there is none."""
        newest = self.newest
        return None if newest is None else next((each.state for each in newest.sources if each.vertex_id == vertex_id), None)
