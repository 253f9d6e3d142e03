"""``CheckpointSettings``: how often a job takes checkpoints, how, and where they are kept.

Side:   pure.
Units:  milliseconds.
Source: Flink ``CheckpointCoordinatorConfiguration``, ``CheckpointingOptions``.
"""

from typing import Final

from flowlet.errors import JobGraphError
from netstack.late import dataclass

MIN_INTERVAL_MS: Final = 10  # Flink's
_LOWEST: Final = {
    "interval_ms": MIN_INTERVAL_MS,
    "timeout_ms": MIN_INTERVAL_MS,
    "min_pause_ms": 0,
    "max_concurrent": 1,
    "num_retained": 1,
    "aligned_timeout_ms": 0,
}


@dataclass(frozen=True, slots=True)
class CheckpointSettings:
    """What ``enable_checkpointing`` and ``execution.checkpointing.*`` decide.

    Args:
        interval_ms: from one trigger to the next; None: only savepoints are taken, on request.
        directory: an absolute path, its ``file:`` URL, or a URL of fsspec, that all TaskManagers and the JobManager
            reach; empty if only savepoints are taken.
        is_exactly_once: barriers are aligned; otherwise they are only counted (at least once).
        timeout_ms: after it a checkpoint that is not complete fails.
        min_pause_ms: from the end of one checkpoint to the next trigger, at least.
        max_concurrent: how many are under way at a time.
        tolerable_failures: so many may fail one after the other; the next one fails the job.  -1: any number.
        num_retained: so many complete ones are kept.
        after_tasks_finish: they go on when a part of the tasks has finished, and each task waits at its end for one
            more.
        is_unaligned: barriers may overtake records, which become part of the checkpoint; only exactly once, and one at
            a time.
        aligned_timeout_ms: barriers overtake only when the alignment takes longer than this; 0: at once.
        is_retained_on_cancellation: they stay when the job is cancelled.
        is_retained_on_failure: they stay when the job fails.
        restore_fallback: if the newest one cannot be restored, the job begins with the one before it, as far as they
            are kept.
        savepoint_directory: where savepoints are written if nobody says where; empty: whoever wants one must say it.

    Raises:
        JobGraphError: a number is out of range, the directory is missing, or unaligned checkpoints do not go with the
            rest.
    """

    interval_ms: int | None
    directory: str
    is_exactly_once: bool = True
    timeout_ms: int = 600_000
    min_pause_ms: int = 0
    max_concurrent: int = 1
    tolerable_failures: int = 0
    num_retained: int = 1
    after_tasks_finish: bool = True
    is_unaligned: bool = False
    aligned_timeout_ms: int = 0
    is_retained_on_cancellation: bool = False
    is_retained_on_failure: bool = False
    restore_fallback: bool = False
    savepoint_directory: str = ""

    def __post_init__(self) -> None:
        for name, lowest in _LOWEST.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise JobGraphError(f"{name} of the checkpoints is {value}, the least is {lowest}")
        if self.tolerable_failures < -1:
            raise JobGraphError(
                f"tolerable_failures of the checkpoints is {self.tolerable_failures}, the least is -1 (any number)"
            )
        if self.is_periodic and not self.directory:
            raise JobGraphError("checkpoints need a directory: set execution.checkpointing.dir")
        if self.is_unaligned and not self.is_exactly_once:
            raise JobGraphError(
                "unaligned checkpoints are taken exactly once only: set execution.checkpointing.mode to EXACTLY_ONCE, "
                "or leave out "
                "execution.checkpointing.unaligned.enabled"
            )
        if self.is_unaligned and self.max_concurrent > 1:
            raise JobGraphError(
                f"of unaligned checkpoints one is under way at a time, not {self.max_concurrent}: set "
                "execution.checkpointing.max-concurrent-checkpoints to 1, or leave out "
                "execution.checkpointing.unaligned.enabled"
            )

    @property
    def is_periodic(self) -> bool:
        """Whether checkpoints are taken by themselves; no: only savepoints."""
        return self.interval_ms is not None
