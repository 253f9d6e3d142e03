"""``CheckpointHistory``: the last checkpoints of a job for people, in Flink's field names.

``CompletedCheckpoints``: the complete checkpoints of one job that are kept, what they restore, and which of the job's
files they share: when one is needed no more.

Side:       pure.
Invariants: a file that a kept checkpoint names is never given out as unused, and neither is one that a pending
            checkpoint may name.  The ids rise; at most ``num_retained`` are kept, and the newest one always.
Rules:      a file goes when the oldest kept checkpoint is newer than the last one that named it.  No file goes when a
            checkpoint is aborted: a task may be writing it again for the next one.  This rule is enough, because a
            database never gets a file back: a file that is missing in a complete checkpoint will be named by no later
            checkpoint of that task, and a restored task begins with the files of a complete checkpoint.
Source:     Flink ``SharedStateRegistryImpl`` (``lastUsedCheckpointID``, ``unregisterUnusedState``).  Flink
            ``StandaloneCompletedCheckpointStore``.  Flink ``CheckpointStatsTracker``, ``CheckpointingStatistics``,
            ``SubtaskCheckpointStatistics``.
Units:      times in milliseconds since the epoch, durations in milliseconds, sizes in bytes; -1: not yet.
Ours:       ``subtasks`` of a task; ``failure_reason``, ``failed_task`` and ``held_up_by`` of a failed checkpoint.
Absent:     the summary (percentiles).
"""

from collections import Counter, deque
from collections.abc import Collection, Iterable
from typing import Final

from flowlet.checkpoint.jobmanager.former_checkpoint import FormerCheckpoint
from flowlet.checkpoint.jobmanager.pending_checkpoint import (
    CheckpointFailure,
    CheckpointTopology,
    PendingCheckpoint,
    SubtaskPart,
)
from flowlet.common.job_settings import CheckpointSettings
from flowlet.common.paths import root_of
from flowlet.messages.control_messages import CheckpointDurations
from flowlet.messages.execution_state import Subtask
from flowlet.messages.job_messages import StateHandle
from flowlet.storage.manifest import CheckpointManifest


class CompletedCheckpoints:
    """The newest complete checkpoints of a job, the oldest first, and the files that they share.

    Threading: one thread.
    """

    def __init__(self, settings: CheckpointSettings | None, topology: CheckpointTopology) -> None:
        self._num_retained = 1 if settings is None else settings.num_retained
        self._directory = "" if settings is None else settings.directory
        assert self._num_retained >= 1, "CheckpointSettings allow no less"
        self._topology = topology
        self.former: FormerCheckpoint | None = None  # the job starts from it until it has one of its own
        self._manifests: list[CheckpointManifest] = []
        # Shared files by path: the newest checkpoint, pending or complete, that names each.
        self._last_named: dict[str, int] = {}
        self._restored: FormerCheckpoint | None = None  # made of the newest when a run begins with it

    def __repr__(self) -> str:
        return f"<CompletedCheckpoints {self.ids}>"

    @property
    def ids(self) -> list[int]:
        """The ids of the kept checkpoints, the oldest first."""
        return [each.checkpoint_id for each in self._manifests]

    @property
    def newest(self) -> CheckpointManifest | None:
        """The newest checkpoint; None: there is none."""
        return self._manifests[-1] if self._manifests else None

    def add(self, manifest: CheckpointManifest) -> list[int]:
        """Keep a checkpoint that is newer than all others; returns the ids of checkpoints that are kept no longer."""
        newest = self.newest
        assert newest is None or newest.checkpoint_id < manifest.checkpoint_id, (
            "a complete checkpoint subsumes all older ones"
        )
        # Before an older one is dropped: a file that both name must not become unused in between.
        for entry in manifest.subtasks:
            self.name_shared(manifest.checkpoint_id, entry.shared)
        self._manifests.append(manifest)
        dropped, self._manifests = self._manifests[: -self._num_retained], self._manifests[-self._num_retained :]
        return [each.checkpoint_id for each in dropped]

    def drop_newest(self) -> CheckpointManifest:
        """Drop the newest checkpoint, and restore from the one before it, which there must be."""
        assert len(self._manifests) > 1, "nothing would be left to restore"
        return self._manifests.pop()

    def clear(self) -> list[int]:
        """Keep no checkpoint; returns the ids of all that were kept."""
        ids = self.ids
        self._manifests = []
        # No kept checkpoint is left: all shared files of the job go together.
        self._last_named.clear()
        self._restored = None
        return ids

    def name_shared(self, checkpoint_id: int, handles: Iterable[StateHandle]) -> None:
        """Note that a checkpoint, pending or complete, names shared files."""
        for each in handles:
            if each.path is not None:
                # The newest one counts: reports of two checkpoints may come in any order.
                self._last_named[each.path] = max(checkpoint_id, self._last_named.get(each.path, checkpoint_id))

    def take_unused(self) -> list[str]:
        """Forget, and return, the shared files that neither a kept checkpoint nor a later one names."""
        # Older than the oldest kept one: no kept checkpoint names it, and no later one will.
        unused = [path for path, last_id in self._last_named.items() if last_id < self._manifests[0].checkpoint_id]
        for path in unused:
            del self._last_named[path]
        return unused

    def path_of(self, checkpoint_id: int) -> str:
        """Return the directory of a checkpoint of this job."""
        return f"{root_of(self._directory)}/{self._topology.job_id}/chk-{checkpoint_id}"

    @property
    def restored(self) -> FormerCheckpoint | None:
        """The checkpoint of the next run, which may be of another job; None: there is none."""
        newest = self.newest
        if newest is None:
            return self.former
        # Made anew after a fall back: otherwise the id were that of the older one, and the states those of the newer
        # one.
        if self._restored is None or self._restored.checkpoint_id != newest.checkpoint_id:
            self._restored = FormerCheckpoint(None, newest, self._topology)
        return self._restored


Document = dict[str, object]
HISTORY_SIZE: Final = 10  # Flink's web.checkpoints.history
_MAX_HELD_UP_BY: Final = 20
_NO_DURATIONS: Final = CheckpointDurations()


class CheckpointHistory:
    """The checkpoints of one job, over all of its runs.  Threading: one thread."""

    def __init__(self, topology: CheckpointTopology) -> None:
        self._topology = topology
        self._ended: deque[PendingCheckpoint] = deque(maxlen=HISTORY_SIZE)  # the oldest first
        self._newest: dict[str, PendingCheckpoint | None] = {"completed": None, "savepoint": None, "failed": None}
        self._restored: tuple[int, int] | None = None  # the id, and when
        self._counts = Counter[str]()  # of checkpoints that have failed, are complete, or were restored

    def __repr__(self) -> str:
        return f"<CheckpointHistory {self._counts['completed']} completed, {self._counts['failed']} failed>"

    def ended(self, record: PendingCheckpoint) -> None:
        """Add a checkpoint that is complete or has failed."""
        # Bounded: the deque forgets the oldest one.
        self._ended.append(record)
        end = "completed" if record.failure is None else "failed"
        self._counts[end] += 1
        self._newest["savepoint" if record.failure is None and record.savepoint is not None else end] = record

    def find(self, checkpoint_id: int) -> PendingCheckpoint | None:
        """Find one of the last checkpoints that have ended; None: it has not ended, or too many have ended since."""
        return next((each for each in self._ended if each.checkpoint_id == checkpoint_id), None)

    def restored(self, checkpoint_id: int, now_ms: int) -> None:
        """Note that a run begins with the state of a checkpoint."""
        self._counts["restored"] += 1
        self._restored = checkpoint_id, now_ms

    def document(self, in_progress: Iterable[PendingCheckpoint], completed: CompletedCheckpoints) -> Document:
        """Make the document of ``GET /jobs/:jobid/checkpoints``; the newest checkpoint first.  ``completed``: the kept
        ones.
        """
        pending = sorted(in_progress, key=lambda record: -record.checkpoint_id)
        history = sorted([*pending, *self._ended], key=lambda record: -record.checkpoint_id)
        return {
            "counts": {
                "restored": self._counts["restored"],
                "total": len(pending) + self._counts["completed"] + self._counts["failed"],
                "in_progress": len(pending),
                "completed": self._counts["completed"],
                "failed": self._counts["failed"],
            },
            "latest": {
                **{end: record and self._checkpoint(record, completed) for end, record in self._newest.items()},
                "restored": self._restored_document(completed),
            },
            "history": [self._checkpoint(record, completed) for record in history[: max(HISTORY_SIZE, len(pending))]],
        }

    def _restored_document(self, completed: CompletedCheckpoints) -> Document | None:
        if self._restored is None:
            return None
        checkpoint_id, restored_ms = self._restored
        former = completed.former
        # The ids of both jobs are different.
        # By the id, because a job and the one that it starts from count on one after the other.
        place = None if former is None or former.checkpoint_id != checkpoint_id else former.place
        return {
            "id": checkpoint_id,
            "restore_timestamp": restored_ms,
            "is_savepoint": place is not None and bool(place.savepoint),
            "external_path": completed.path_of(checkpoint_id) if place is None else str(place),
        }

    def _checkpoint(self, record: PendingCheckpoint, completed: CompletedCheckpoints) -> Document:
        parts = record.parts.values()
        is_unaligned = any(part.durations is not None and part.durations.is_unaligned for part in parts)
        document = {
            "id": record.checkpoint_id,
            "status": _status(record),
            "is_savepoint": record.savepoint is not None,
            "checkpoint_type": _type_of(record, is_unaligned=is_unaligned),
            "trigger_timestamp": record.trigger_ms,
            **_sums(record, parts),
            "num_subtasks": sum(self._topology.parallelisms.values()),
            "tasks": {vertex_id: self._task(record, vertex_id) for vertex_id in self._topology.names},
        }
        if document["status"] == "COMPLETED":
            is_kept = record.savepoint is not None or record.checkpoint_id in completed.ids
            path = record.location or completed.path_of(record.checkpoint_id)
            document |= {"external_path": path, "discarded": not is_kept}
        return document if record.failure is None else {**document, **self._failure(record, record.failure)}

    def _failure(self, record: PendingCheckpoint, failure: CheckpointFailure) -> Document:
        return {
            "failure_timestamp": record.end_ms,
            "failure_reason": failure.reason,
            "failure_message": failure.message,
            "failed_task": None if failure.subtask is None else self._name(failure.subtask),
            "held_up_by": [self._name(each) for each in record.held_up_by[:_MAX_HELD_UP_BY]],
        }

    def _name(self, subtask: Subtask) -> Document:
        return {"id": subtask.vertex_id, "name": self._topology.names[subtask.vertex_id], "subtask": subtask.subtask}

    def _task(self, record: PendingCheckpoint, vertex_id: str) -> Document:
        width = self._topology.parallelisms[vertex_id]
        parts = [record.parts.get(Subtask(vertex_id, index)) for index in range(width)]
        acknowledged = [each for each in parts if each is not None]
        return {
            "id": vertex_id,
            "status": "COMPLETED" if len(acknowledged) == width else _status(record),
            **_sums(record, acknowledged),
            "num_subtasks": width,
            "subtasks": [_subtask(record, index, part) for index, part in enumerate(parts)],
        }


def _status(record: PendingCheckpoint) -> str:
    if record.failure is not None:
        return "FAILED"
    return "IN_PROGRESS" if record.end_ms is None else "COMPLETED"


def _type_of(record: PendingCheckpoint, *, is_unaligned: bool) -> str:
    if record.savepoint is not None:
        return "SYNC_SAVEPOINT" if record.savepoint.stops_job else "SAVEPOINT"
    return "UNALIGNED_CHECKPOINT" if is_unaligned else "CHECKPOINT"


def _sums(record: PendingCheckpoint, parts: Collection[SubtaskPart]) -> Document:
    """Add up the acknowledgements of some subtasks; the duration lasts until the last of them, for a whole failed
    checkpoint until its failure.
    """
    durations = [part.durations or _NO_DURATIONS for part in parts]
    size = sum(part.num_bytes for part in parts)
    last_ms = max((part.acknowledged_ms for part in parts), default=-1)
    return {
        "checkpointed_size": size,
        "state_size": size,
        "end_to_end_duration": last_ms - record.trigger_ms if parts else -1,
        "latest_ack_timestamp": last_ms,
        "num_acknowledged_subtasks": len(parts),
        "alignment_buffered": 0,
        "processed_data": sum(each.bytes_processed_during_alignment for each in durations),
        "persisted_data": sum(each.bytes_persisted_during_alignment for each in durations),
    }


def _subtask(record: PendingCheckpoint, index: int, part: SubtaskPart | None) -> Document:
    if part is None:
        return {"index": index, "status": "pending_or_failed"}
    durations = part.durations or _NO_DURATIONS
    return {
        "index": index,
        "status": "completed",
        "ack_timestamp": part.acknowledged_ms,
        "end_to_end_duration": part.acknowledged_ms - record.trigger_ms,
        "checkpointed_size": part.num_bytes,
        "state_size": part.num_bytes,
        "checkpoint": {"sync": durations.sync_ms, "async": durations.async_ms},
        "alignment": {
            "buffered": 0,
            "processed": durations.bytes_processed_during_alignment,
            "persisted": durations.bytes_persisted_during_alignment,
            "duration": durations.alignment_ms,
        },
        "start_delay": durations.start_delay_ms,
        "unaligned_checkpoint": durations.is_unaligned,
        "aborted": record.failure is not None,
    }
