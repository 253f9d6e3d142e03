"""``StateShare``: what one subtask takes over of the state of a vertex that had another number of subtasks.

Side:       pure.
Source:     Flink ``StateAssignmentOperation``, ``RoundRobinOperatorStateRepartitioner``.
"""

from collections.abc import Sequence
from typing import TypeVar

from flowlet.keys.key_groups import key_group_range
from netstack.late import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StateShare:
    """One subtask and the former vertex.

    Args:
        subtask: from 0 to ``parallelism`` - 1.
        former_parallelism: the number of subtasks that the operator had.
        finished: the former subtasks that had read and processed everything, and left no state, if they run again.
    """

    subtask: int
    parallelism: int
    max_parallelism: int
    former_parallelism: int
    finished: frozenset[int] = frozenset()

    @property
    def key_groups(self) -> range:
        """The key groups that the subtask owns now."""
        return key_group_range(self.max_parallelism, self.parallelism, self.subtask)

    @property
    def is_the_same(self) -> bool:
        """Whether the subtask takes over what the former one with its number had, and nothing else."""
        return self.former_parallelism == self.parallelism and not self.finished

    def dealt(self, items: Sequence[T]) -> list[T]:
        """The subtask's items, if all are dealt out one by one."""
        return list(items[self.subtask :: self.parallelism])
