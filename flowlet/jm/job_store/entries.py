"""What the job store keeps of a job, and what a JobManager finds there when it starts.

Side:   pure.
Source: Flink ``JobGraphStore``, ``CheckpointIDCounter``, ``JobResultStore``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field

import msgspec

from flowlet.rpc.control_messages import JobGraphMessage
from flowlet.storage.manifest import CheckpointManifest
from netstack.late import dataclass

ID_BLOCK = 100
"""So many ids of checkpoints are reserved at once: a write for each would hold up its trigger."""


class JobProgress(msgspec.Struct, frozen=True):
    """How far a job is.

    Args:
        attempt: the newest number of a run; it is kept before the run is deployed.
        completed_checkpoint: a complete one; newer ones may exist; -1: none is known.
        ids_below: no checkpoint with this id, or a higher one, was triggered.
        unrestorable: complete ones that no run could begin with, so that an older one was taken.
    """

    attempt: int = 0
    completed_checkpoint: int = -1
    ids_below: int = ID_BLOCK
    unrestorable: list[int] = []


class JobEnd(msgspec.Struct, frozen=True):
    """How a job ended: its status, and its document as JSON."""

    status: str
    document: bytes


class StoredJob(msgspec.Struct, frozen=True):
    """A job that has not ended."""

    job: JobGraphMessage
    progress: JobProgress


@dataclass(frozen=True, slots=True)
class StoreContent:
    """What lies in the store: jobs, ends by job id, and by job id why an entry cannot be used."""

    jobs: Sequence[StoredJob] = ()
    ends: Mapping[str, JobEnd] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecoveredJob:
    """A job that goes on.

    Args:
        job: as it was submitted.
        attempt: the number of its next run, above all earlier ones.
        checkpoints: the complete ones, the oldest first; the next run begins with the last.
        next_checkpoint_id: above all ids that were ever triggered.
        unrestorable: newer complete ones that no run can begin with.
    """

    job: JobGraphMessage
    attempt: int
    checkpoints: Sequence[CheckpointManifest] = ()
    next_checkpoint_id: int = 1
    unrestorable: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Recovery:
    """What a JobManager begins with: jobs, ends by job id, and by job id why a job does not go on."""

    jobs: Sequence[RecoveredJob] = ()
    ends: Mapping[str, JobEnd] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
