"""What an ``ExecutionGraph`` wants done.

``RegionOrder``: which regions of a job read the finished results of which others.

Side:       pure.
Invariants: no region reads its own results, nor those of a region that reads its own (there is no cycle).
Units:      times in milliseconds since the epoch.
Source:     Flink ``DefaultScheduler``, ``ExecutionGraphHandler``.  Flink ``PipelinedRegionSchedulingStrategy``,
            ``RestartPipelinedRegionFailoverStrategy``.  Flink starts a region as soon as its own inputs are there; here
            a stage starts when all before it are finished, so that no stage waits for the slots of another.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from graphlib import TopologicalSorter

import msgspec

from flowlet.common.job_status import JobStatus
from flowlet.messages.control_messages import FailureInfo, ToTaskManager
from flowlet.messages.execution_state import ExecutionState
from netstack.late import dataclass


@dataclass(slots=True)
class FailedRun:
    """Why a run ended; only its graph changes it."""

    root: FailureInfo
    concurrent: deque[FailureInfo]  # what else failed until the run had ended, newest last
    restarted_ms: int | None = None  # when the next run of the regions began; None: it has not, or never will


class Deploy(msgspec.Struct, frozen=True):
    """Send the attempt to its TaskManager."""

    attempt: bytes
    tm_id: str


class SendMessage(msgspec.Struct, frozen=True):
    """Send the message to the TaskManager."""

    tm_id: str
    message: ToTaskManager


class ExecutionStateChanged(msgspec.Struct, frozen=True):
    """An attempt is in a new state; to be logged."""

    attempt: bytes
    state: ExecutionState


class JobStatusChanged(msgspec.Struct, frozen=True):
    """The job is in a new state; to be logged, and for those who wait."""

    status: JobStatus


class ReleaseSlots(msgspec.Struct, frozen=True):
    """No attempt of the job is left: its slots are free.  The job has ended, too, unless ``RestartAfter`` follows."""


class RestartAfter(msgspec.Struct, frozen=True):
    """Call ``begin_next_run`` for these regions after the delay, unless the job leaves RESTARTING before."""

    delay_ms: int
    regions: tuple[int, ...] = (0,)


class RequestSlots(msgspec.Struct, frozen=True):
    """The next run or stage waits for its slots; those of further regions that are due meanwhile are waited for
    together.
    """


Effect = Deploy | SendMessage | ExecutionStateChanged | JobStatusChanged | ReleaseSlots | RestartAfter | RequestSlots


class RegionOrder(msgspec.Struct, frozen=True):
    """Who reads whose complete results, and which regions therefore run after which.

    Attributes:
        producers: by region, the regions whose results it reads when they are complete.
        consumers: by region, the regions that read its results.
        stages: by region, from 0: how many regions the longest way to it goes through.  A region begins when all of the
            stages before its own have finished.
    """

    producers: Sequence[frozenset[int]]
    consumers: Sequence[frozenset[int]]
    stages: Sequence[int]

    @classmethod
    def of(cls, producers: Sequence[Collection[int]]) -> "RegionOrder":
        """The order that follows from who reads whose results.

        Raises:
            CycleError: regions read each other's results in a circle, which is a mistake of ours.
        """
        consumers: list[set[int]] = [set() for _ in producers]
        for region, read in enumerate(producers):
            for producer in read:
                consumers[producer].add(region)
        stages = [0] * len(producers)
        for region in TopologicalSorter(dict(enumerate(producers))).static_order():
            stages[region] = max((stages[producer] + 1 for producer in producers[region]), default=0)
        return cls([frozenset(read) for read in producers], [frozenset(each) for each in consumers], stages)

    @property
    def is_staged(self) -> bool:
        """Whether there is more than one stage."""
        return any(self.stages)

    def involved(
        self, failed: Iterable[int], is_gone: Callable[[int], bool], has_begun: Callable[[int], bool]
    ) -> set[int]:
        """The regions that must run again: those that failed, producers whose results they miss, and whoever reads
        results of such regions.

        Args:
            failed: the regions that failed.
            is_gone: whether a region has finished, but its results are no more.
            has_begun: whether a region has attempts.
        """
        found: set[int] = set()
        waiting = list(failed)
        while waiting:
            region = waiting.pop()
            if region in found:
                continue
            found.add(region)
            waiting += [producer for producer in self.producers[region] if is_gone(producer)]
            waiting += [consumer for consumer in self.consumers[region] if has_begun(consumer)]
        return found
