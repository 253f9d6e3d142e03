"""``TwoPhaseCommitSinkFunction``: a sink function whose records count with a checkpoint.

Side:       pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Invariants: each transaction that was begun is committed or aborted, unless the process dies; then the next attempt does
            it.
Source:     Flink ``TwoPhaseCommitSinkFunction``.
Absent:     timeouts of transactions, the user context.
"""

from abc import abstractmethod
from typing import Any, Final

from flowlet.datastream.functions import SinkContext, SinkFunction
from flowlet.datastream.state import ListState, ListStateDescriptor
from flowlet.datastream.states.runtime_context import FunctionInitializationContext, FunctionSnapshotContext
from flowlet.datastream.user_functions.function import (
    CheckpointedFunction,
    CheckpointListener,
)

__all__ = ["TwoPhaseCommitSinkFunction"]

_PENDING: Final = "pending"  # a checkpoint holds the transaction, so it is committed
_OPEN: Final = "open"  # it took records after the checkpoint, so it is aborted


class TwoPhaseCommitSinkFunction(SinkFunction, CheckpointedFunction, CheckpointListener):
    """A sink that writes into transactions, each from one checkpoint to the next, and commits each when its checkpoint
    is complete.

    A transaction is any object that can be pickled, and that says how it is found again after a restart.  Records of a
    job that fails or is cancelled do not count if no checkpoint holds them.  In a job without checkpoints one
    transaction takes all records, and is committed at the end.
    """

    @abstractmethod
    def begin_transaction(self) -> Any:
        """A new transaction."""

    @abstractmethod
    def invoke_in_transaction(self, transaction: Any, value: Any, context: SinkContext) -> None:
        """Write a record into the transaction; Flink's ``invoke`` of three arguments."""

    @abstractmethod
    def pre_commit(self, transaction: Any) -> None:
        """Prepare the commit so that it can succeed after any crash: flush and close a file, say; no record follows."""

    @abstractmethod
    def commit(self, transaction: Any) -> None:
        """Make the records count.  After a failure it is called again, also if it had succeeded: then do nothing."""

    @abstractmethod
    def abort(self, transaction: Any) -> None:
        """Drop the records."""

    def recover_and_commit(self, transaction: Any) -> None:
        """Commit a transaction that a checkpoint holds, after a restart; calls ``commit`` unless overridden."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: Any) -> None:
        """Abort the open transaction of a checkpoint, after a restart; calls ``abort`` unless overridden."""
        self.abort(transaction)

    # -- the protocol

    _current: Any = None
    _is_open: bool = False  # whether ``_current`` is neither pre-committed nor aborted
    _transactions: ListState[Any]  # set by initialize_state

    def invoke(self, value: Any, context: SinkContext) -> None:
        """Write the record into the current transaction."""
        self.invoke_in_transaction(self._current, value, context)

    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Commit the pre-committed transactions of the checkpoint, abort its open one, then begin a transaction."""
        self._waiting: list[tuple[int, Any]] = []  # pre-committed transactions with their checkpoints
        self._transactions = context.get_operator_state_store().get_list_state(ListStateDescriptor("transactions"))
        for kind, transaction in self._transactions:
            if kind == _PENDING:
                self.recover_and_commit(transaction)
            else:
                self.recover_and_abort(transaction)
        self._begin()

    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Pre-commit the current transaction, which belongs to this checkpoint, and begin the next one."""
        self.pre_commit(self._current)
        self._is_open = False
        self._waiting.append((context.get_checkpoint_id(), self._current))
        self._begin()
        self._transactions.update([*((_PENDING, each) for _, each in self._waiting), (_OPEN, self._current)])

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Commit the transactions of this checkpoint and of earlier ones."""
        while self._waiting and self._waiting[0][0] <= checkpoint_id:
            self.commit(self._waiting[0][1])
            del self._waiting[0]

    def close(self) -> None:
        """Abort the current transaction, whose records no checkpoint holds."""
        current, is_open = self._current, self._is_open
        self._is_open = False
        if is_open:
            self.abort(current)

    def _begin(self) -> None:
        self._current = self.begin_transaction()
        self._is_open = True
