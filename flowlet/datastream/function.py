"""What all functions share.

Side:   pure.
Source: PyFlink ``pyflink.datastream.functions``: ``Function``, ``RuntimeContext``; there under that name.
"""

from abc import ABC, abstractmethod

__all__ = ["Function", "RuntimeContext"]


class RuntimeContext(ABC):
    """What a function may know about the subtask that runs it; given to ``open``."""

    @abstractmethod
    def get_task_name(self) -> str:
        """The name of the task."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism of the task."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """The max parallelism of the task."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """Which subtask this is, counted from 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """How often the subtask was started before."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """The name of the task with the subtask's number, counted from 1, as in ``Map (3/4)``."""


class Function(ABC):  # noqa: B024  # open and close may, but need not be overridden
    """Base of all functions.

    Life cycle: ``open`` once before the first record, ``close`` once after the last one, or after a failure.
    """

    def open(self, runtime_context: RuntimeContext) -> None:  # noqa: B027  # nothing to do unless overridden
        """Prepare; called on the task's thread."""

    def close(self) -> None:  # noqa: B027  # nothing to do unless overridden
        """Give back what ``open`` took."""
