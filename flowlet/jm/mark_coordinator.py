"""``MarkCoordinator``: sends completion marks through one job, so that producers learn when the whole job has processed
their partitions.

Side:       pure.
Invariants: at most one mark is on its way; requests meanwhile share the next one.  A mark is complete when every task
            has reported it or has FINISHED.  After ``close`` no mark is sent or completed: a producer then hears of the
            end of the job.
Source:     Flink ``CheckpointCoordinator``, without state.
"""

from collections.abc import Sequence

from flowlet.jm.scheduler import attempt_id
from flowlet.rpc.control_messages import EmitMark, JobGraphMessage, MarkCompleted, MarkOrder


class MarkCoordinator:
    """The completion marks of one run of a job.  Threading: one thread.  Every method returns the orders to send."""

    def __init__(self, job: JobGraphMessage, attempt_number: int = 0) -> None:
        targets = {edge.target for edge in job.edges}
        attempts = {
            each.id: [attempt_id(job.job_id, each.id, index, attempt_number) for index in range(each.parallelism)]
            for each in job.vertices
        }
        self._sources = [each for vertex in job.vertices if vertex.id not in targets for each in attempts[vertex.id]]
        self._gates = [
            each for vertex in job.vertices if vertex.remote_gate is not None for each in attempts[vertex.id]
        ]
        self._unfinished = {each for of_vertex in attempts.values() for each in of_vertex}
        self._missing: set[bytes] = set()  # tasks that the mark on its way has not passed
        self._last = 0  # the number of the mark that was sent last
        self._wanted = 0  # the highest number that was requested
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._missing)} tasks are missing"
        return f"<MarkCoordinator at mark {self._last}, {state}, wanted {self._wanted}>"

    @property
    def missing(self) -> list[bytes]:
        """The attempts that the mark on its way has not passed."""
        return sorted(self._missing)

    def requested(self, after: int) -> Sequence[MarkOrder]:
        """A source has emitted mark ``after`` and wants a later one."""
        self._wanted = max(self._wanted, after + 1)
        return self._go_on()

    def passed(self, attempt: bytes, number: int) -> Sequence[MarkOrder]:
        """A mark has passed a task."""
        if number != self._last:
            return []
        return self._without(attempt)

    def finished(self, attempt: bytes) -> Sequence[MarkOrder]:
        """A task has FINISHED, so it has processed everything."""
        self._unfinished.discard(attempt)
        return self._without(attempt)

    def close(self) -> None:
        """The job runs no more; idempotent."""
        self._is_closed = True

    def _without(self, attempt: bytes) -> Sequence[MarkOrder]:
        if self._is_closed or attempt not in self._missing:
            return []
        self._missing.remove(attempt)
        if self._missing:
            return []
        completed = [MarkCompleted(each, self._last) for each in self._gates if each in self._unfinished]
        return [*completed, *self._go_on()]

    def _go_on(self) -> Sequence[MarkOrder]:
        """Send the next mark, if it is wanted and none is on its way."""
        if self._is_closed or self._missing or self._wanted <= self._last:
            return []
        self._last += 1
        self._missing = set(self._unfinished)
        return [EmitMark(each, self._last) for each in self._sources if each in self._unfinished]
