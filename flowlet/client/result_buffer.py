"""Decides when the records that a client reads may be handed out, so that a restart of the job neither repeats nor
loses one.

Side:       pure.
Invariants: with EXACTLY_ONCE a record is handed out once a checkpoint behind it is complete, or the job has finished:
            then no restart can produce it again.  Every record that is kept lies behind the newest complete checkpoint.
            The records of one channel keep their order.
Rules:      what was received after barrier ``e`` of a channel, and before its next one, has epoch ``e``; it lies before
            barrier ``n`` just if ``e < n``, because barriers come in the order of their ids.  A restart from checkpoint
            ``m`` that left records before barrier ``m`` unread is an error: no state has them.
Units:      bytes of the buffers that the records came in.
Source:     Flink ``CheckpointedCollectResultBuffer``, ``UncheckpointedCollectResultBuffer``.
Absent:     a limit of what is kept: a reader that stopped would stop the barrier that lets it hand out.
"""

from collections import deque
from enum import Enum
from typing import Any, Final

from flowlet.common.job_settings import JobSettings, RestartKind
from flowlet.errors import FlowletError
from netstack.late import dataclass

NO_CHECKPOINT: Final = -1


class Guarantee(Enum):
    """The values that a reader gets of a job that restarts."""

    NONE = "none"
    """There are no checkpoints: a restart is an error, unless nothing was handed out before."""
    AT_LEAST_ONCE = "at least once"
    """Records are handed out at once; those behind the checkpoint that the job restarts from come again."""
    EXACTLY_ONCE = "exactly once"
    UNLESS_FALLEN_BACK = "exactly once, unless the newest checkpoint cannot be restored"
    """Then those behind the older one that the job restarts from come again."""

    @property
    def holds_back(self) -> bool:
        """Whether records wait for a complete checkpoint behind them."""
        return self in (Guarantee.EXACTLY_ONCE, Guarantee.UNLESS_FALLEN_BACK)


def guarantee_of(settings: JobSettings) -> Guarantee | None:
    """Return the guarantee for a reader of a job with these settings; None: the job has no checkpoints and never
    restarts.
    """
    kind, checkpoints = settings.restart.kind, settings.checkpoints
    if checkpoints is not None and not checkpoints.is_periodic:
        return Guarantee.NONE  # and not None: a savepoint needs its reader until the job has finished
    if checkpoints is None:
        return None if kind in (RestartKind.DEFAULT, RestartKind.NONE) else Guarantee.NONE
    # Records that no restart repeats need not wait.
    is_kept = checkpoints.is_exactly_once and kind is not RestartKind.NONE
    if not is_kept:
        return Guarantee.AT_LEAST_ONCE
    return Guarantee.UNLESS_FALLEN_BACK if checkpoints.restore_fallback else Guarantee.EXACTLY_ONCE


class LostResultsError(FlowletError):
    """The job restarted, and its results cannot be read any further without a gap or a repetition."""


@dataclass(frozen=True, slots=True)
class _Kept:
    epoch: int
    records: Any
    num_bytes: int


class ResultBuffer:
    """The records of one edge, on their way to the user.  Threading: one thread."""

    def __init__(self, num_channels: int, guarantee: Guarantee) -> None:
        self._guarantee = guarantee
        self._kept: deque[_Kept] = deque()  # in the order of arrival
        self.kept_bytes = 0
        """How much waits for a checkpoint."""
        self._passed = [NO_CHECKPOINT] * num_channels  # the newest barrier of each channel
        self._is_ended = [False] * num_channels
        self._completed = NO_CHECKPOINT
        self._has_handed_out = False

    def __repr__(self) -> str:
        return (
            f"<ResultBuffer {self._guarantee.value}, {self.kept_bytes} bytes kept, checkpoint {self._completed} "
            "complete>"
        )

    @property
    def are_all_ended(self) -> bool:
        """Whether every channel of this run has reached the end of its data."""
        return all(self._is_ended)

    # Every method returns the ``records`` to hand out now, in order, if there may be some.

    def receive(self, channel: int, records: Any, num_bytes: int) -> list[Any]:
        """Take records that a buffer of a channel completed; returns the records to hand out."""
        epoch = self._passed[channel]
        if not self._guarantee.holds_back or epoch < self._completed:
            self._has_handed_out = True
            return [records]
        self._kept.append(_Kept(epoch, records, num_bytes))
        self.kept_bytes += num_bytes
        return []

    def pass_barrier(self, channel: int, checkpoint_id: int) -> None:
        """Note that a channel has passed the barrier of a checkpoint."""
        self._passed[channel] = max(self._passed[channel], checkpoint_id)

    def end_channel(self, channel: int) -> None:
        """Note that a channel has reached the end of its data."""
        self._is_ended[channel] = True

    def complete(self, checkpoint_id: int) -> list[Any]:
        """Note that a checkpoint is complete, which stands for the older ones, too; returns the records to hand out."""
        if checkpoint_id <= self._completed:
            return []
        self._completed = checkpoint_id
        kept = self._kept
        self._kept = deque()
        released = []
        for each in kept:
            if each.epoch < checkpoint_id:
                released.append(each.records)
                self.kept_bytes -= each.num_bytes
            else:
                self._kept.append(each)
        return released

    def finish(self) -> list[Any]:
        """Return the remaining records: the job has ended well, and every channel was read to its end."""
        released = [each.records for each in self._kept]
        self._drop_kept()
        return released

    def restart(self, checkpoint_id: int, num_runs: int = 1) -> list[Any]:
        """Begin a new run of the tasks, whose records follow; returns the records to hand out.

        Args:
            checkpoint_id: where they began; ``NO_CHECKPOINT``: at the beginning.
            num_runs: how often they started since the run that was read.

        Raises:
            LostResultsError: records are lost, or would be repeated.
        """
        if self._guarantee is Guarantee.NONE and self._has_handed_out:
            raise LostResultsError(
                "the job restarted after results were read, and without checkpoints they would come again; enable "
                "checkpoints (execution.checkpointing.interval), or no restarts (restart-strategy.type: none)"
            )
        if self._guarantee is Guarantee.EXACTLY_ONCE and checkpoint_id < self._completed:
            raise LostResultsError(
                f"the job restarted from checkpoint {checkpoint_id}, and results up to checkpoint {self._completed} "
                "were handed out: they would come again"
            )
        if self._guarantee is not Guarantee.NONE:
            self._check_nothing_lost(checkpoint_id, num_runs)
        released = self.complete(checkpoint_id)
        self._completed = min(self._completed, checkpoint_id)
        self._drop_kept()
        self._passed = [checkpoint_id] * len(self._passed)
        self._is_ended = [False] * len(self._is_ended)
        return released

    def _check_nothing_lost(self, checkpoint_id: int, num_runs: int) -> None:
        # A channel that had ended has been read up to any checkpoint of that run, but not of a later one.
        lost = [
            channel
            for channel, passed in enumerate(self._passed)
            if passed < checkpoint_id and not (num_runs == 1 and self._is_ended[channel])
        ]
        if lost:
            raise LostResultsError(
                f"the job restarted from checkpoint {checkpoint_id}, and results before it were not read yet "
                f"(of the producers {', '.join(map(str, lost))}): they are lost"
            )

    def _drop_kept(self) -> None:
        self._kept.clear()
        self.kept_bytes = 0

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert all(each.epoch >= self._completed for each in self._kept), (
            "what is kept lies behind the newest complete checkpoint"
        )
        assert self.kept_bytes == sum(each.num_bytes for each in self._kept), "all that is kept is counted"
        assert self._guarantee.holds_back or not self._kept, "only exactly once needs to keep records"
