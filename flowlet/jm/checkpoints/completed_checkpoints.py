"""``CompletedCheckpoints``: the complete checkpoints of one job that are kept, and what they restore.

``SharedStateRegistry``: which files of a job's checkpoints are shared, and when one is needed no more.

Side:       pure.
Invariants: a file that a kept checkpoint names is never given out as unused, and neither is one that a pending
            checkpoint may name.  the ids rise; at most ``num_retained`` are kept, and the newest one always.
Rules:      a file goes when the oldest kept checkpoint is newer than the last one that named it.  Nothing goes when a
            checkpoint is aborted: a task may be writing the same file for the next one.  That is enough, because a
            database never gets a file back: one that is missing in a complete checkpoint will be named by no later
            checkpoint of that task, and a restored task begins with the files of a complete checkpoint.
Source:     Flink ``SharedStateRegistryImpl`` (``lastUsedCheckpointID``, ``unregisterUnusedState``).  Flink
            ``StandaloneCompletedCheckpointStore``.
"""

from collections.abc import Iterable, Sequence

from flowlet.jm.checkpoints.former_checkpoint import FormerCheckpoint
from flowlet.jm.checkpoints.restored_edges import InFlightEdge, restored_edges
from flowlet.messages.control_messages import RestoredPart, RestoredState
from flowlet.storage.manifest import CheckpointManifest, SubtaskEntry


class SharedStateRegistry:
    """The shared files of one job, by their paths.  Threading: one thread."""

    def __init__(self) -> None:
        self._last_named: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<SharedStateRegistry of {len(self._last_named)} files>"

    @property
    def paths(self) -> frozenset[str]:
        """All files that are known and not given out as unused."""
        return frozenset(self._last_named)

    def name(self, checkpoint_id: int, paths: Iterable[str]) -> None:
        """A checkpoint, pending or complete, names files."""
        for path in paths:
            self._last_named[path] = max(checkpoint_id, self._last_named.get(path, checkpoint_id))

    def take_unused(self, oldest_kept: int) -> list[str]:
        """Forget, and return, the files that no checkpoint from ``oldest_kept`` on names."""
        unused = [path for path, checkpoint_id in self._last_named.items() if checkpoint_id < oldest_kept]
        for path in unused:
            del self._last_named[path]
        return unused

    def clear(self) -> None:
        """Forget all files."""
        self._last_named.clear()


class CompletedCheckpoints:
    """The newest complete checkpoints, the oldest first; ``edges`` of the job.  Threading: one thread."""

    def __init__(self, num_retained: int, edges: Sequence[InFlightEdge] = ()) -> None:
        assert num_retained >= 1, "CheckpointSettings allow no less"
        self._num_retained = num_retained
        self._edges = tuple(edges)
        self.former: FormerCheckpoint | None = None  # what the job starts from until it has one of its own
        self._manifests: list[CheckpointManifest] = []
        self._parts: dict[str, dict[int, SubtaskEntry]] = {}  # of the newest, by vertex id and subtask

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
        assert newest is None or newest.checkpoint_id < manifest.checkpoint_id, (
            "a complete checkpoint subsumes all older ones"
        )
        self._manifests.append(manifest)
        self._parts = {}
        for entry in manifest.subtasks:
            self._parts.setdefault(entry.vertex_id, {})[entry.subtask] = entry
        dropped, self._manifests = self._manifests[: -self._num_retained], self._manifests[-self._num_retained :]
        return [each.checkpoint_id for each in dropped]

    def drop_newest(self) -> CheckpointManifest:
        """Keep the newest no longer, and restore from the one before it, which there must be."""
        assert len(self._manifests) > 1, "nothing would be left to restore"
        dropped = self._manifests.pop()
        self._parts = {}
        for entry in self._manifests[-1].subtasks:
            self._parts.setdefault(entry.vertex_id, {})[entry.subtask] = entry
        return dropped

    def clear(self) -> list[int]:
        """Keep none; returns the ids of all that were kept."""
        ids = self.ids
        self._manifests, self._parts = [], {}
        return ids

    @property
    def restored_id(self) -> int | None:
        """The id of the checkpoint that the next run begins with, which may be of another job; None: there is none."""
        if self.newest is not None:
            return self.newest.checkpoint_id
        return None if self.former is None else self.former.place.checkpoint_id

    def restored_state(self, vertex_id: str, subtask: int) -> RestoredState | None:
        """The part of a subtask in the newest one; None: there is no checkpoint."""
        newest = self.newest
        if newest is None:
            return None if self.former is None else self.former.restored_state(vertex_id, subtask)
        of_vertex = self._parts.get(vertex_id, {})
        entry = of_vertex.get(subtask)
        edges = restored_edges(self._edges, newest, self._parts, vertex_id)
        if entry is None:
            return RestoredState(newest.checkpoint_id, edges=edges)
        wanted = of_vertex.values() if any(each.has_union_state for each in of_vertex.values()) else [entry]
        parts = [
            RestoredPart(each.subtask, each.state, each.channels, each.shared)
            for each in wanted
            if each.state or each.channels
        ]
        return RestoredState(newest.checkpoint_id, parts, entry.is_finished, edges=edges)

    def source_state(self, vertex_id: str) -> bytes | None:
        """The state of a source's split enumerator in the newest one; None: there is none."""
        newest = self.newest
        if newest is None:
            return None if self.former is None else self.former.source_state(vertex_id)
        return next((each.state for each in newest.sources if each.vertex_id == vertex_id), None)
