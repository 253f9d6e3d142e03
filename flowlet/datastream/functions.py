"""The functions that users write as classes.

Side:   pure.  An instance is made in the user's program, pickled, and called on the thread of one task.
Source: PyFlink ``pyflink.datastream.functions``.
Absent: process, window, aggregate, co-, broadcast and async functions; Java-backed source and sink functions; state and metrics of a
        ``RuntimeContext``.
"""

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["FilterFunction", "FlatMapFunction", "Function", "KeySelector", "MapFunction", "ReduceFunction", "RuntimeContext"]


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


class MapFunction(Function):
    """One record for each record."""

    @abstractmethod
    def map(self, value: Any) -> Any:
        """The record that takes the place of ``value``."""


class FlatMapFunction(Function):
    """Any number of records for each record."""

    @abstractmethod
    def flat_map(self, value: Any) -> Any:
        """An iterable of the records that take the place of ``value``; often a generator."""


class FilterFunction(Function):
    """Which records stay."""

    @abstractmethod
    def filter(self, value: Any) -> bool:
        """Whether ``value`` stays."""


class ReduceFunction(Function):
    """Two records of one key become one."""

    @abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """The result so far (``value1``) joined with the next record (``value2``); not changed in place unless both are given up."""


class KeySelector(Function):
    """The key of a record."""

    @abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key: equal for equal records in every process, such as a str, int, bytes or a tuple of these."""
