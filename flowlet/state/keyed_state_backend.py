"""``KeyedStateBackend``: what a task needs of the place where an operator's keyed state is kept, and the files of its
checkpoints.

Side:       task.  Protocols only.
Source:     Flink ``KeyedStateBackend``, ``CheckpointableKeyedStateBackend``, ``CheckpointListener``,
            ``CheckpointStreamFactory``.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from flowlet.datastream.state import StateDescriptor
from flowlet.serde.pickles.former_classes import RunningClasses
from flowlet.state.incremental_snapshot import IncrementalSnapshot, SharedFile
from flowlet.state.keyed_state_snapshot import KeyedStateSnapshot
from flowlet.timers.time_api import KeyContext


class SharedFiles(Protocol):
    """Files that several checkpoints of a job use.  Threading: any thread; blocking.

    One implementer: ``JobSharedFiles`` stands on a floor above.
    """

    @property
    def are_restored_ones_own(self) -> bool:
        """Whether checkpoints may name the files that were restored; not those of another job, which may be removed."""

    @property
    def former_classes(self) -> RunningClasses | None:
        """Maps the classes in restored files, if another program wrote them; else None."""

    def write_shared(self, path: Path) -> SharedFile:
        """Keep a copy of a local file for good.  Raises StorageError."""

    def read_shared(self, file: SharedFile, path: Path) -> None:
        """Copy what was kept into a new local file.  Raises StorageError: it is missing or changed."""


class KeyedStateBackend(Protocol):
    """The keyed states of one operator of one subtask.

    Threading: task thread only; what ``snapshot`` returns is called on any thread.
    Life cycle: ``restore``, if at all, before the first ``state``; ``close`` when the task has ended.
    """

    @property
    def is_used(self) -> bool:
        """Whether a state was declared."""

    @property
    def cleans_at_records(self) -> bool:
        """Whether ``clean`` must be called for every record."""

    def clean(self) -> None:
        """Remove some expired entries of the states that want that for every record."""

    def refuse_new_states(self, reason: str) -> None:
        """From now on ``state`` raises FlowletError with this reason."""

    def state(
        self, descriptor: StateDescriptor, kind: type[StateDescriptor], key_context: KeyContext | None = None
    ) -> Any:
        """The state of a descriptor, which must be of the class ``kind``; the same one for every call with the same
        name.

        ``key_context``: whose current key it belongs to; None: the operator's.

        Raises:
            FlowletError: it is another descriptor, or the name is taken by a state of another kind, type or context.
            StateRestoreError: the state was restored, and is of another kind or type there.
        """

    def forget_keys(self) -> None:
        """Drop the entries of all keys; only of a back end on the heap, without a snapshot under way."""

    def keys_of(self, name: str) -> list[Any]:
        """The keys, as the user knows them, that have an entry of a state which was declared."""

    def snapshot(
        self, checkpoint_id: int = 0, *, is_full: bool = False
    ) -> "Callable[[], KeyedStateSnapshot | IncrementalSnapshot] | None":
        """The synchronous part; what is returned makes the snapshot on any thread.  None: there is no state.

        ``is_full``: in the form that every back end reads, with no file that other checkpoints share.

        Raises:
            FlowletError: a value cannot be copied; names the state.
        """

    def discard_snapshot(self, checkpoint_id: int) -> None:
        """The snapshot will not be finished, or is finished: release what its synchronous part holds; any thread,
        idempotent.
        """

    def restore(self, snapshot: KeyedStateSnapshot | IncrementalSnapshot) -> None:
        """Take over the state of this subtask's key groups; may be called for several snapshots, of subtasks of one
        job.

        Raises:
            StateRestoreError: the snapshot has another form, version or number of key groups, or two snapshots differ
                about a state.
        """

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete: later ones may use its files."""

    def close(self) -> None:
        """Release everything; idempotent."""

    def check_invariants(self) -> None:
        """Assert the invariants."""
