"""Hands out the splits of one source to its readers.

Side:       loop.
Invariants: the enumerator finds its splits on a thread of its own; a reader that asks before that is answered as soon as it has, in the
            order of the questions; after ``close``, or a failure, nobody is answered and ``fail`` is not called again.
Units:      bytes.
Source:     Flink ``SourceCoordinator``, ``SourceCoordinatorContext``, ``RequestSplitEvent``, ``AddSplitEvent``, ``NoMoreSplitsEvent``.
Absent:     taking splits back from a reader that failed: the job fails with it.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from flowlet.jm.background_call import call_in_background
from flowlet.splits.enumerator import SplitEnumerator
from flowlet.splits.file_split import FileSplit


class CallInBackground(Protocol):
    """Runs a function elsewhere and hands its result, or its error, to this thread."""

    def __call__(
        self, function: Callable[[], None], on_result: Callable[[None], None], on_error: Callable[[Exception], None], name: str
    ) -> object:
        """Return before the function has."""


class SourceCoordinator:
    """The enumerator of one source vertex, and the readers that wait for it.

    Threading: the JobManager's loop.
    Life cycle: ``start`` once the tasks are deployed, ``close`` when the job no longer runs; idempotent.

    Args:
        name: of the vertex, for people.
        enumerator: has not looked for its splits yet.
        num_readers: the parallelism of the vertex.
        add_splits: sends a subtask its splits, and says how many bytes are left.
        no_more_splits: tells a subtask that nothing is left.
        fail: ends the job; called once at most.
        call_in_background: see there.
    """

    def __init__(
        self,
        name: str,
        enumerator: SplitEnumerator,
        num_readers: int,
        *,
        add_splits: Callable[[int, Sequence[FileSplit], int], None],
        no_more_splits: Callable[[int], None],
        fail: Callable[[Exception], None],
        call_in_background: CallInBackground = call_in_background,
    ) -> None:
        self._name = name
        self._enumerator = enumerator
        self._num_readers = num_readers
        self._add_splits = add_splits
        self._no_more_splits = no_more_splits
        self._fail = fail
        self._call_in_background = call_in_background
        self._waiting: list[int] | None = []  # readers that asked too early; None: the enumerator knows its splits
        self._is_closed = False

    def __repr__(self) -> str:
        waiting = "" if self._waiting is None else f", {len(self._waiting)} readers wait"
        return f"<SourceCoordinator of {self._name!r}, {'closed' if self._is_closed else self._enumerator}{waiting}>"

    def start(self) -> None:
        """Begin to look for the splits."""
        enumerator, num_readers = self._enumerator, self._num_readers
        self._call_in_background(lambda: enumerator.discover(num_readers), self._discovered, self._failed, f"splits of {self._name}")

    def splits_requested(self, subtask: int) -> None:
        """A reader wants more."""
        if self._is_closed:
            return
        if self._waiting is not None:
            self._waiting.append(subtask)
            return
        splits = self._enumerator.next_splits(subtask)
        if splits:
            self._add_splits(subtask, splits, self._enumerator.waiting_bytes)
        else:
            self._no_more_splits(subtask)

    def close(self) -> None:
        """Answer nobody any more; a search that is under way ends by itself."""
        self._is_closed = True

    def _discovered(self, _: None) -> None:
        waiting, self._waiting = self._waiting, None
        for subtask in waiting or ():
            self.splits_requested(subtask)

    def _failed(self, error: Exception) -> None:
        if not self._is_closed:
            self.close()
            self._fail(error)
