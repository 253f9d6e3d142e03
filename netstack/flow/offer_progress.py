"""The progress of a partition that a producer has offered to every subtask of a gate.

Side:       pure.
Invariants: a subtask goes OFFERED (-> QUEUED) -> REQUESTED -> PROCESSED -> ENDED and never back.  The first failure is
            kept.  An offer cannot fail once all subtasks have ended.
"""

from enum import IntEnum


class Stage(IntEnum):
    """What one subtask has done with its subpartition."""

    OFFERED = 0
    QUEUED = 1
    """It has no room yet: the offer waits."""
    REQUESTED = 2
    """It accepted the offer and requested the subpartition."""
    PROCESSED = 3
    """Its task has processed every record."""
    ENDED = 4
    """It received the end of the partition."""


class OfferProgress:
    """The stage of each subtask, and the failure of the offer or None.

    Threading: none; its owner locks.
    """

    __slots__ = ("_stages", "failure")

    def __init__(self, num_subtasks: int) -> None:
        self._stages = [Stage.OFFERED] * num_subtasks
        self.failure: Exception | None = None

    def __repr__(self) -> str:
        return (
            "<OfferProgress "
            f"{[stage.name for stage in self._stages]}{'' if self.failure is None else f', failed: {self.failure}'}>"
        )

    @property
    def stage(self) -> Stage:
        """The stage that every subtask has reached."""
        return self.stage_of(None)

    def stage_of(self, num_first: int | None) -> Stage:
        """The stage that each of the first subtasks has reached; None: of all."""
        return min(self._stages[:num_first])

    def late_subtasks(self, stage: Stage) -> list[int]:
        """The subtasks that have not reached ``stage``."""
        return [subtask for subtask, reached in enumerate(self._stages) if reached < stage]

    def advance(self, subtask: int, stage: Stage) -> None:
        """A subtask has reached ``stage``; an earlier stage than its own changes nothing."""
        self._stages[subtask] = max(self._stages[subtask], stage)

    def leave(self, subtask: int, failure: Exception) -> None:
        """A subtask stopped reading: it has ended if it had processed every record; otherwise the offer failed."""
        if self._stages[subtask] >= Stage.PROCESSED:
            self.advance(subtask, Stage.ENDED)
        else:
            self.fail(failure)

    def lose(self, subtask: int, failure: Exception) -> None:
        """The connection to a subtask is lost: the offer failed, unless that subtask had ended.

        PROCESSED is not enough: the producer cannot know whether the subtask counted the partition.
        """
        if self._stages[subtask] is not Stage.ENDED:
            self.fail(failure)

    def fail(self, failure: Exception) -> None:
        """The offer failed; a later failure does not replace the first one."""
        if self.failure is None and self.stage is not Stage.ENDED:
            self.failure = failure
