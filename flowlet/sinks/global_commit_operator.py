"""``GlobalCommitOperator``: the one subtask behind a sink that does one thing more for all of its subtasks, once per
checkpoint.

Side:       task.
Invariants: a committable is committed here only after its subtask has committed it, and together with those of all
            other subtasks.  What was taken over and not committed is state.  After a restart each subtask sends what it
            commits again, and only then is anything committed here.
Rules:      a message of a subtask says that it has committed all of its checkpoint and of those before it.  So what all
            subtasks have passed can be committed.  Messages of the last checkpoint come behind the end of the data.
Source:     Flink ``GlobalCommitterOperator``, ``CommittableSummary``.
"""

from typing import Any

from flowlet.chain.stream_operator import StreamOperator
from flowlet.datastream.connectors.base import Committer, SupportsGlobalCommitter
from flowlet.datastream.state import ListState, ListStateDescriptor
from flowlet.records import Chunk
from flowlet.sinks.commit_runner import CommitRunner
from flowlet.sinks.sink_calls import InitContext, SinkCalls
from netstack.late import dataclass


@dataclass(frozen=True, slots=True)
class Committed:
    """A message of a subtask: it has committed these, and everything that checkpoints up to this one hold.

    ``checkpoint_id``: END without checkpoints.  ``parallelism``: the number of subtasks that send messages.
    """

    checkpoint_id: int
    subtask: int
    parallelism: int
    committables: tuple[Any, ...]


class GlobalCommitOperator(StreamOperator):
    """Commits what all subtasks have committed."""

    runs_after_finish = True
    takes_late_data = True
    waits = True

    def __init__(self, sink: Any, *, name: str = "Sink: Global Committer") -> None:
        self.name = name
        self.sink: SupportsGlobalCommitter = sink
        self._committables: ListState[Any] | None = None
        self._newest: dict[int, int] = {}  # by subtask, the checkpoint of its last message

    def restored_after_finish(self) -> StreamOperator:
        """Itself: the messages of the last checkpoint come again."""
        return self

    def open(self) -> None:
        """Make the committer, and take back what was not committed."""
        self._calls = SinkCalls(self.name, self.ctx.subtask, self.ctx.attention)
        made = self._calls.call("create_global_committer()", self.sink.create_global_committer, InitContext(self.ctx))
        committer = self._calls.checked(self.sink, "create_global_committer()", made, Committer)
        self._runner = CommitRunner(self.ctx, self._calls, committer)
        self._committables = self.ctx.operator_state_backend.get_list_state(ListStateDescriptor("global-committables"))
        for checkpoint_id, subtask, committable in self._committables:
            self._runner.commits.take(checkpoint_id, subtask, [committable])

    def process_chunk(self, chunk: Chunk) -> None:
        """Take messages, and commit what all subtasks have committed."""
        for message in chunk.values:
            self._runner.commits.take(message.checkpoint_id, message.subtask, message.committables)
            self._newest[message.subtask] = message.checkpoint_id
            if len(self._newest) == message.parallelism:
                self._runner.commits.complete(min(self._newest.values()))
        self._runner.commit_all()

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Put what is not committed into the state."""
        if self._committables is not None:
            self._committables.update(self._runner.commits.elements())

    def close(self) -> None:
        """Close the committer."""
        if self._committables is not None:
            self._runner.close()
