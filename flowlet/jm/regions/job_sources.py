"""``JobSources``: the split enumerators of one job, each of which begins anew with the region of its source.

Side:       loop.
Invariants: all subtasks of such a source are in one region.
Source:     Flink ``SourceCoordinator``, ``OperatorCoordinatorHandler``.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from flowlet.jm.alignment.watermark_alignment import SourceSubtask
from flowlet.rpc.control_messages import VertexMessage
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.enumerators import enumerator_for
from flowlet.splits.split_kinds import AnySplit, SplitSet


class Readers(Protocol):
    """Sends splits to the tasks that read them."""

    def add_splits(self, tm_id: str, attempt: bytes, splits: Sequence[AnySplit], waiting_bytes: int) -> None:
        """Give a task splits, with the size in bytes of those that are still unassigned."""

    def no_more_splits(self, tm_id: str, attempt: bytes) -> None:
        """Tell a task that all splits are assigned."""


class SourceStates(Protocol):
    """What checkpoints know of enumerators."""

    def add_source(self, vertex_id: str, snapshot: Callable[[], bytes]) -> None:
        """Ask ``snapshot`` at every checkpoint."""

    def source_state(self, vertex_id: str) -> bytes | None:
        """What the enumerator begins with; None: with nothing."""


class Coordinator(Protocol):
    """The part of ``SourceCoordinator`` that is needed here."""

    def start(self) -> None:
        """Find the splits."""

    def snapshot(self) -> bytes:
        """The splits that are not assigned."""

    def splits_requested(self, subtask: int) -> None:
        """Answer a reader."""

    def close(self) -> None:
        """Answer no reader any more; idempotent."""


class CreateCoordinator(Protocol):
    """Makes a ``SourceCoordinator``."""

    def __call__(
        self,
        name: str,
        enumerator: SplitEnumerator,
        num_readers: int,
        *,
        add_splits: Callable[[int, Sequence[AnySplit], int], None],
        no_more_splits: Callable[[int], None],
        fail: Callable[[Exception], None],
        restored: bytes | None,
    ) -> Coordinator:
        """For one run of a source."""


class JobSources:
    """The split enumerators of one job.

    Threading: the JobManager's loop.
    Life cycle: for each run of a region ``prepare``, and ``start`` once its tasks are deployed; ``close`` when they are
        being cancelled.

    Args:
        create: makes what hands out the splits of one source.
        readers: for the splits.
        place_of: the TaskManager and the newest attempt of a subtask.
        states: of the checkpoints.
        fail: fails the job; with the error and the name of the vertex.
    """

    def __init__(
        self,
        create: CreateCoordinator,
        readers: Readers,
        place_of: Callable[[SourceSubtask], tuple[str, bytes]],
        states: SourceStates,
        fail: Callable[[Exception, str], None],
    ) -> None:
        self._create_coordinator = create
        self._readers = readers
        self._place_of = place_of
        self._states = states
        self._fail = fail
        self._coordinators: dict[str, Coordinator] = {}  # by vertex id

    def __repr__(self) -> str:
        return f"<JobSources {list(self._coordinators.values())}>"

    def prepare(self, vertices: Iterable[VertexMessage]) -> list[Coordinator]:
        """Make enumerators for a run of those of the vertices that need one; to be started once the
        tasks are deployed.
        """
        made = []
        for vertex in vertices:
            if vertex.split_set is not None:
                coordinator = self._coordinators[vertex.id] = self._create(vertex, vertex.split_set)
                self._states.add_source(vertex.id, coordinator.snapshot)
                made.append(coordinator)
        return made

    def splits_requested(self, vertex_id: str, subtask: int) -> bool:
        """Answer a reader; False if its vertex has no enumerator."""
        coordinator = self._coordinators.get(vertex_id)
        if coordinator is None:
            return False
        coordinator.splits_requested(subtask)
        return True

    def close(self, vertex_id: str) -> None:
        """Answer the readers of a vertex no more; idempotent."""
        if (coordinator := self._coordinators.get(vertex_id)) is not None:
            coordinator.close()

    def close_all(self) -> None:
        """Answer no readers any more; idempotent."""
        for coordinator in self._coordinators.values():
            coordinator.close()

    def _create(self, vertex: VertexMessage, split_set: SplitSet) -> Coordinator:
        return self._create_coordinator(
            vertex.name,
            enumerator_for(split_set),
            vertex.parallelism,
            add_splits=lambda subtask, splits, waiting_bytes: self._add_splits(
                SourceSubtask(vertex.id, subtask), splits, waiting_bytes
            ),
            no_more_splits=lambda subtask: self._readers.no_more_splits(
                *self._place_of(SourceSubtask(vertex.id, subtask))
            ),
            fail=lambda error: self._fail(error, vertex.name),
            restored=self._states.source_state(vertex.id),
        )

    def _add_splits(self, reader: SourceSubtask, splits: Sequence[AnySplit], waiting_bytes: int) -> None:
        tm_id, attempt = self._place_of(reader)
        self._readers.add_splits(tm_id, attempt, splits, waiting_bytes)
