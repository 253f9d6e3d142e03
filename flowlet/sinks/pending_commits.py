"""``PendingCommits``: what a sink has prepared and not committed yet, by checkpoint.

Side:       pure.
Invariants: what was prepared is due once a checkpoint is complete that holds it, never before; what is due is attempted
            in the order in which it was prepared; nothing is dropped unless it was committed, or its committer says
            that it never can be.
Source:     Flink ``CommittableCollector``, ``CheckpointCommittableManagerImpl``, ``CommitRequestImpl``,
            ``CommitRequestState``.
"""

from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import Any, Final

from flowlet.datastream.connectors.base import CommitRequest
from netstack.late import dataclass

MAX_RETRIES: Final = 10  # Flink's ``sink.committer.retries``: then the job fails, and commits again after the restart


class Outcome(Enum):
    """What a committer said of a request."""

    COMMITTED = auto()
    RETRY = auto()
    LOST = auto()  # it can never be committed
    UNKNOWN = auto()  # whether it can be committed is not known


class PendingRequest(CommitRequest[Any]):
    """One committable of one subtask, from its preparation until it is committed."""

    __slots__ = ("checkpoint_id", "committable", "error", "num_retries", "outcome", "subtask")

    def __init__(self, committable: Any, subtask: int, checkpoint_id: int = 0) -> None:
        self.committable = committable
        self.subtask = subtask  # that prepared it
        self.checkpoint_id = checkpoint_id  # the first one that holds it
        self.num_retries = 0
        self.outcome = Outcome.COMMITTED  # of the last attempt
        self.error: Exception | None = None

    def __repr__(self) -> str:
        return (
            f"<PendingRequest of checkpoint {self.checkpoint_id}, subtask {self.subtask}, {self.num_retries} retries>"
        )

    def get_committable(self) -> Any:
        """What the writer prepared."""
        return self.committable

    def get_number_of_retries(self) -> int:
        """How often it was tried before."""
        return self.num_retries

    def retry_later(self) -> None:
        """Try it again after a pause."""
        self.outcome = Outcome.RETRY

    def update_and_retry_later(self, committable: Any) -> None:
        """Try this one instead after a pause."""
        self.committable = committable
        self.outcome = Outcome.RETRY

    def signal_already_committed(self) -> None:
        """It was committed before."""
        self.outcome = Outcome.COMMITTED

    def signal_failed_with_known_reason(self, error: Exception) -> None:
        """It can never be committed."""
        self.outcome, self.error = Outcome.LOST, error

    def signal_failed_with_unknown_reason(self, error: Exception) -> None:
        """It failed."""
        self.outcome, self.error = Outcome.UNKNOWN, error


@dataclass(frozen=True, slots=True)
class CommitAttempt:
    """What became of all requests of one call of a committer.

    ``unknown``: the first one whose failure has an unknown reason, or that was tried too often.
    """

    committed: Sequence[PendingRequest]
    lost: Sequence[PendingRequest]
    unknown: PendingRequest | None


class PendingCommits:
    """The committables of one subtask.

    Life cycle: ``restore`` once, if at all; then ``prepare``, ``assign`` and ``complete`` as the checkpoints go;
        whenever there are ``due`` ones: ``begin``, the committer, ``settle``.
    """

    def __init__(self, subtask: int) -> None:
        self._subtask = subtask
        self._prepared: list[PendingRequest] = []  # not in a checkpoint yet
        self._waiting: list[PendingRequest] = []  # in one that is not complete
        self._due: list[PendingRequest] = []

    def __repr__(self) -> str:
        return f"<PendingCommits: {len(self._prepared)} prepared, {len(self._waiting)} waiting, {len(self._due)} due>"

    @property
    def has_due(self) -> bool:
        """Whether something can be committed now."""
        return bool(self._due)

    def prepare(self, committables: Iterable[Any]) -> None:
        """Add what the writer prepared; it belongs to the next checkpoint."""
        self._prepared += [PendingRequest(each, self._subtask) for each in committables]

    def assign(self, checkpoint_id: int) -> None:
        """The checkpoint holds what was prepared."""
        for each in self._prepared:
            each.checkpoint_id = checkpoint_id
        self._waiting += self._prepared
        self._prepared = []

    def take(self, checkpoint_id: int, subtask: int, committables: Iterable[Any]) -> None:
        """Add those of another subtask, which has committed them."""
        self._waiting += [PendingRequest(each, subtask, checkpoint_id) for each in committables]

    def complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete: what it and those before it hold is due."""
        due = [each for each in self._waiting if each.checkpoint_id <= checkpoint_id]
        self._due += sorted(due, key=lambda each: each.checkpoint_id)  # stable; those of several subtasks may be mixed
        self._waiting = [each for each in self._waiting if each.checkpoint_id > checkpoint_id]

    def complete_all(self) -> None:
        """Nothing can be lost any more: what was prepared is due."""
        self._due += [*self._waiting, *self._prepared]
        self._waiting, self._prepared = [], []

    def begin(self) -> list[PendingRequest]:
        """What is due, in order; each counts as committed unless the committer says otherwise."""
        for each in self._due:
            each.outcome, each.error = Outcome.COMMITTED, None
        return list(self._due)

    def settle(self) -> CommitAttempt:
        """Drop what was committed, or is lost; the rest is due again."""
        attempted, self._due = self._due, []
        for each in attempted:
            match each.outcome:
                case Outcome.RETRY:
                    each.num_retries += 1
                    self._due.append(each)
                case Outcome.UNKNOWN:
                    self._due.append(each)
                case Outcome.COMMITTED | Outcome.LOST:
                    pass
        return CommitAttempt(
            [each for each in attempted if each.outcome is Outcome.COMMITTED],
            [each for each in attempted if each.outcome is Outcome.LOST],
            next(
                (each for each in self._due if each.outcome is Outcome.UNKNOWN or each.num_retries > MAX_RETRIES), None
            ),
        )

    # -- state

    def elements(self) -> list[tuple[int, int, Any]]:
        """Checkpoint, subtask and committable of everything that a checkpoint must hold, in order."""
        assert not self._prepared, "a checkpoint has taken over what was prepared"
        return [(each.checkpoint_id, each.subtask, each.committable) for each in (*self._due, *self._waiting)]

    def restore(self, elements: Iterable[tuple[int, int, Any]]) -> None:
        """Take over elements of a checkpoint; it is complete, so all are due."""
        self._due += [
            PendingRequest(committable, subtask, checkpoint_id) for checkpoint_id, subtask, committable in elements
        ]
