"""How far a partition is that was offered to every subtask of a gate.

Side:       pure.
Invariants: a subtask goes OFFERED -> REQUESTED -> PROCESSED -> ENDED and never back; the first failure is final, and nothing fails once
            every subtask has ended.
"""

from enum import IntEnum


class Stage(IntEnum):
    """What one subtask has done with its subpartition."""

    OFFERED = 0
    REQUESTED = 1
    """It asked for it: the offer is accepted."""
    PROCESSED = 2
    """Its task has processed every record."""
    ENDED = 3
    """It saw the end of the partition."""


class OfferProgress:
    """Of one offer.

    Threading: none; its owner locks.
    """

    __slots__ = ("_stages", "failure")

    def __init__(self, num_subtasks: int) -> None:
        self._stages = [Stage.OFFERED] * num_subtasks
        self.failure: Exception | None = None

    def __repr__(self) -> str:
        return f"<OfferProgress {[stage.name for stage in self._stages]}{'' if self.failure is None else f', failed: {self.failure}'}>"

    @property
    def stage(self) -> Stage:
        """What all subtasks have reached."""
        return min(self._stages)

    def late_subtasks(self, stage: Stage) -> list[int]:
        """Those that have not reached ``stage``."""
        return [subtask for subtask, reached in enumerate(self._stages) if reached < stage]

    def advance(self, subtask: int, stage: Stage) -> None:
        """A subtask has reached ``stage``; one that is further stays there."""
        self._stages[subtask] = max(self._stages[subtask], stage)

    def leave(self, subtask: int, failure: Exception) -> None:
        """A subtask reads no more: that is its end, or, if it had not processed everything, the failure of the offer."""
        if self._stages[subtask] >= Stage.PROCESSED:
            self.advance(subtask, Stage.ENDED)
        else:
            self.fail(failure)

    def lose(self, subtask: int, failure: Exception) -> None:
        """The way to a subtask is lost: whether it counted the partition nobody knows, so the offer failed unless that one was through."""
        if self._stages[subtask] is not Stage.ENDED:
            self.fail(failure)

    def fail(self, failure: Exception) -> None:
        """Nothing more comes of it; the first reason is kept."""
        if self.failure is None and self.stage is not Stage.ENDED:
            self.failure = failure
