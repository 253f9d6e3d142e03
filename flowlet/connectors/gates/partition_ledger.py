"""``PartitionLedger``: which records of which partitions one subtask of a remote gate holds, in checkpoints and since.

Side:       pure.
Invariants: each record of a partition for this subtask is passed on once, however many attempts bring it; an attempt
            may begin anywhere in the held records.  ``kept`` never exceeds ``held``: the subtask holds at least the
            records of each complete checkpoint.  An attempt is refused if nobody can tell which of its records are
            held: it leaves a gap, has fewer or more records than a partition that has ended, or was overtaken.
Rules:      positions count the records of one partition that are routed to this subtask, so attempts must have equal
            records in an equal order.  With ``RetryRule.ANY_ROWS`` only attempts of one number are believed to have
            them; another attempt begins from nothing.  Of partitions that no attempt brings now, ``MAX_REMEMBERED`` are
            remembered; the oldest are forgotten first.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import InitVar
from typing import Final, NamedTuple

from flowlet.common.job_settings import RetryRule
from flowlet.errors import FlowletError
from flowlet.messages.control_messages import CountedPartition
from netstack.late import dataclass

ALL_RECORDS: Final = 1 << 62
"""``HeldPartition.num_records`` of a partition that has ended, if the number is not known."""
# Bounded, because a gate may live for ever: as many as ``JobGate`` of the JobManager remembers.
MAX_REMEMBERED: Final = 65_536


class HeldPartition(NamedTuple):
    """One partition in a checkpoint.

    ``is_divided``: it was held by another number of subtasks, so nobody can tell which of its records are held.
    """

    key: CountedPartition
    attempt: int
    num_records: int
    has_ended: bool
    is_divided: bool = False


class UnfitAttemptError(FlowletError):
    """An attempt is refused: nobody can tell which of its records are held; the message says why, and what to do."""


@dataclass(slots=True)
class LedgerEntry:
    """One partition: ``held`` and ``has_ended`` are of now; ``kept`` and ``is_end_kept`` of a complete checkpoint."""

    attempt: int
    held: int = 0
    has_ended: bool = False
    kept: int = 0
    is_end_kept: bool = False
    is_divided: bool = False
    num_cursors: int = 0
    is_current: bool = True


@dataclass(slots=True, eq=False)
class AttemptCursor:
    """How far one attempt is; made by ``PartitionLedger.open``."""

    key: CountedPartition
    position: int
    entry: LedgerEntry
    told: int
    """The number of kept records that its producer was told last."""


@dataclass(eq=False, repr=False)
class PartitionLedger:
    """The partitions of one subtask.  Threading: none.

    Args:
        rule: which attempts have equal records.
        restored: the partitions in a checkpoint.
        max_remembered: how many partitions to remember that no attempt brings now.
    """

    rule: RetryRule = RetryRule.SAME_ROWS
    restored: InitVar[Sequence[HeldPartition]] = ()
    max_remembered: int = MAX_REMEMBERED

    def __post_init__(self, restored: Sequence[HeldPartition]) -> None:
        self._entries: OrderedDict[CountedPartition, LedgerEntry] = OrderedDict()  # the oldest first
        # By checkpoint: what it holds beyond complete checkpoints.
        self._taken: dict[int, list[tuple[LedgerEntry, int, bool]]] = {}
        for each in restored:
            entry = LedgerEntry(
                each.attempt, each.num_records, each.has_ended, each.num_records, each.has_ended, each.is_divided
            )
            self._entries[each.key] = entry

    def __repr__(self) -> str:
        return f"<PartitionLedger of {len(self._entries)} partitions, {len(self._taken)} checkpoints are under way>"

    def ended(self) -> list[CountedPartition]:
        """The partitions of which a complete checkpoint holds all records for this subtask."""
        return [key for key, entry in self._entries.items() if entry.is_end_kept]

    def open(self, key: CountedPartition, attempt: int, first_record: int) -> AttemptCursor:
        """Begin an attempt, whose first record has the number ``first_record``.

        Raises:
            UnfitAttemptError: nobody can tell which of its records are held.
        """
        entry = self._entries.get(key)
        if entry is not None and entry.is_divided:
            raise UnfitAttemptError(
                f"{key} was half in when its job was started with another parallelism, so nobody knows which of its "
                "records are in: push it as a part of a new write, or start the job with the former parallelism"
            )
        if entry is None or (self.rule is RetryRule.ANY_ROWS and entry.attempt != attempt):
            if entry is not None:
                entry.is_current = False
            entry = LedgerEntry(attempt)
        if first_record > entry.held:
            raise UnfitAttemptError(
                f"{key} goes on with record {first_record}, but the gate holds {entry.held}: its job went back to an "
                "older checkpoint, or has forgotten the partition"
            )
        self._entries[key] = entry
        self._entries.move_to_end(key)
        entry.num_cursors += 1
        self._forget_oldest()
        return AttemptCursor(key, first_record, entry, first_record)

    def admit(self, cursor: AttemptCursor, num_records: int) -> int:
        """Count records that the attempt brings; return how many of them, from the first on, are held already.

        Raises:
            UnfitAttemptError: the partition has ended with fewer records, or another attempt has taken its place.
        """
        entry = self._current(cursor)
        end = cursor.position + num_records
        if entry.has_ended and end > entry.held:
            raise UnfitAttemptError(
                f"{cursor.key} has more than the {entry.held} records that an earlier attempt had: attempts must have "
                "the same records"
            )
        num_known = max(0, min(num_records, entry.held - cursor.position))
        cursor.position = end
        entry.held = max(entry.held, end)
        return num_known

    def end(self, cursor: AttemptCursor) -> None:
        """Note that the attempt has brought its last record.

        Raises:
            UnfitAttemptError: an earlier attempt had more, or another attempt has taken its place.
        """
        entry = self._current(cursor)
        if cursor.position < entry.held != ALL_RECORDS:
            raise UnfitAttemptError(
                f"{cursor.key} has {cursor.position} records for this subtask, of which {entry.held} are in already: "
                "attempts must have the same records"
            )
        entry.has_ended = True

    def close(self, cursor: AttemptCursor) -> None:
        """Close the cursor of an attempt that has ended, or was aborted."""
        cursor.entry.num_cursors -= 1
        self._forget_oldest()

    def take(self, checkpoint_id: int) -> None:
        """Note that a checkpoint holds the present result of ``held``."""
        self._taken[checkpoint_id] = [
            (entry, entry.held, entry.has_ended)
            for entry in self._entries.values()
            if entry.held > entry.kept or entry.has_ended is not entry.is_end_kept
        ]

    def held(self) -> list[HeldPartition]:
        """The partitions, and the records of each, that the subtask holds now."""
        return [
            HeldPartition(key, entry.attempt, entry.held, entry.has_ended, entry.is_divided)
            for key, entry in self._entries.items()
        ]

    def complete(self, checkpoint_id: int) -> list[CountedPartition]:
        """Note a complete checkpoint; return the partitions that it holds to their ends, as no earlier one did."""
        changed = self._taken.pop(checkpoint_id, [])
        for older in [each for each in self._taken if each < checkpoint_id]:
            del self._taken[older]
        ended: set[int] = set()
        for entry, held, has_ended in changed:
            entry.kept = max(entry.kept, held)
            if has_ended and not entry.is_end_kept:
                entry.is_end_kept = True
                ended.add(id(entry))
        return [key for key, entry in self._entries.items() if id(entry) in ended] if ended else []

    def abort(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that has failed."""
        self._taken.pop(checkpoint_id, None)

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        for entry in self._entries.values():
            assert 0 <= entry.kept <= entry.held
            assert entry.has_ended or not entry.is_end_kept
            assert entry.num_cursors >= 0

    def _current(self, cursor: AttemptCursor) -> LedgerEntry:
        entry = cursor.entry
        if not entry.is_current:
            raise UnfitAttemptError(f"another attempt of {cursor.key} has taken the place of this one")
        return entry

    def _forget_oldest(self) -> None:
        if len(self._entries) <= self.max_remembered:
            return
        oldest = next((key for key, entry in self._entries.items() if not entry.num_cursors), None)
        if oldest is not None:
            self._entries.pop(oldest).is_current = False


def merged(former: Sequence[Sequence[HeldPartition] | None]) -> list[HeldPartition]:
    """The partitions that each subtask holds after a change of the parallelism.

    A partition of which all former subtasks held all records has ended for each new one; any other one is divided.

    Args:
        former: the partitions of each former subtask; None: it had read everything.
    """
    known = [each for each in former if each is not None]
    by_key: dict[CountedPartition, list[HeldPartition]] = {}
    for states in known:
        for state in states:
            by_key.setdefault(state.key, []).append(state)
    found = []
    for key, states in by_key.items():
        is_divided = any(each.is_divided for each in states)
        has_ended = not is_divided and len(states) == len(known) and all(each.has_ended for each in states)
        newest = max(each.attempt for each in states)
        found.append(HeldPartition(key, newest, ALL_RECORDS if has_ended else 0, has_ended, not has_ended))
    return found
