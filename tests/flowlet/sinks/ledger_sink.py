"""A sink that writes into a ledger outside of the engine: batches that count once they are committed.

Faults by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from flowlet.datastream.connectors import (
    CommitRequest,
    Committer,
    CommittingSinkWriter,
    Sink,
    SinkWriterContext,
    StatefulSinkWriter,
    SupportsCommitter,
    SupportsGlobalCommitter,
    SupportsWriterState,
    WriterInitContext,
)


@dataclass
class Ledger:
    """The outer system, with all that it knows."""

    committed: dict[tuple[int, int, int], list[Any]] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    published: list[tuple[tuple[int, int, int], ...]] = field(default_factory=list)  # batches, by global commit
    faults: list[str] = field(default_factory=list)  # taken one by one, in order

    def take(self, fault: str) -> bool:
        """Whether it fails now in this way."""
        if fault not in self.faults:
            return False
        self.faults.remove(fault)
        return True

    @property
    def records(self) -> list[Any]:
        """All that counts."""
        return [each for batch in self.committed.values() for each in batch]


LEDGERS: Final[dict[str, Ledger]] = {}  # by name: a sink is pickled on its way to its task


@dataclass(frozen=True)
class Batch:
    """A committable: the records between two checkpoints of a subtask; commits of one number are one commit."""

    number: tuple[int, int, int]
    records: tuple[Any, ...]


class LedgerWriter(CommittingSinkWriter[Any], StatefulSinkWriter[Any]):
    """Keeps records in memory until the next checkpoint; its state is the number of its next batch."""

    def __init__(self, ledger: Ledger, context: WriterInitContext, number: int) -> None:
        self.ledger, self.subtask, self.attempt, self.number = (
            ledger,
            context.get_index_of_this_subtask(),
            context.get_attempt_number(),
            number,
        )
        self.waiting: list[Any] = []
        ledger.calls.append(f"writer from {number}")

    def write(self, value: Any, context: SinkWriterContext) -> None:
        if self.ledger.take("write"):
            raise ValueError("cannot write")
        self.waiting.append(value)

    def flush(self, *, end_of_input: bool) -> None:
        self.ledger.calls.append(f"flush {end_of_input}")
        if self.ledger.take("flush"):
            raise ValueError("cannot flush")

    def prepare_commit(self) -> Sequence[Batch]:
        records, self.waiting = self.waiting, []
        if not records:
            return []
        self.number += 1
        return [Batch((self.subtask, self.attempt, self.number), tuple(records))]

    def snapshot_state(self, checkpoint_id: int) -> Sequence[int]:
        self.ledger.calls.append(f"snapshot {checkpoint_id}")
        return [self.number]

    def close(self) -> None:
        self.ledger.calls.append("close writer")


class LedgerCommitter(Committer[Batch]):
    """Commits batches; a batch that is there already changes nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def commit(self, requests: Sequence[CommitRequest[Batch]]) -> None:
        self.ledger.calls.append(f"commit {len(requests)}")
        for each in requests:
            batch = each.get_committable()
            if self.ledger.take("retry"):
                each.retry_later()
            elif self.ledger.take("lost"):
                each.signal_failed_with_known_reason(ValueError("too large"))
            elif self.ledger.take("unknown"):
                each.signal_failed_with_unknown_reason(ValueError("no answer"))
            elif self.ledger.take("raise"):
                raise ValueError("cannot commit")
            else:
                self.ledger.committed[batch.number] = list(batch.records)
                if self.ledger.take("raise after commit"):
                    raise ValueError("the answer was lost")

    def close(self) -> None:
        self.ledger.calls.append("close committer")


class LedgerSink(Sink, SupportsCommitter, SupportsWriterState):
    """Writes into the ledger of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def create_writer(self, context: WriterInitContext) -> LedgerWriter:
        return LedgerWriter(LEDGERS[self.name], context, 0)

    def restore_writer(self, context: WriterInitContext, recovered_state: Sequence[int]) -> LedgerWriter:
        return LedgerWriter(LEDGERS[self.name], context, max(recovered_state, default=0))

    def create_committer(self, context: WriterInitContext) -> LedgerCommitter:
        return LedgerCommitter(LEDGERS[self.name])


class GlobalLedgerCommitter(Committer[Batch]):
    """Publishes batches, which must be in the ledger; a batch that is published already changes nothing."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    def commit(self, requests: Sequence[CommitRequest[Batch]]) -> None:
        numbers = [each.get_committable().number for each in requests]
        assert all(number in self.ledger.committed for number in numbers), "committed before"
        if self.ledger.take("global raise"):
            raise ValueError("cannot publish")
        known = {number for commit in self.ledger.published for number in commit}
        self.ledger.published.append(tuple(number for number in numbers if number not in known))
        if self.ledger.take("global raise after commit"):
            raise ValueError("the answer was lost")


class GlobalLedgerSink(LedgerSink, SupportsGlobalCommitter):
    """A sink that also publishes its commits."""

    def create_global_committer(self, context: WriterInitContext) -> GlobalLedgerCommitter:
        return GlobalLedgerCommitter(LEDGERS[self.name])
