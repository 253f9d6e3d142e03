"""The base classes of functions.

Side:   pure.
Source: PyFlink ``pyflink.datastream.functions``: ``Function``, ``RuntimeContext``; that module exports them, too.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flowlet.datastream.state import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )

__all__ = ["Function", "RuntimeContext"]


class RuntimeContext(ABC):
    """The subtask that runs a function; argument of ``open``."""

    @abstractmethod
    def get_task_name(self) -> str:
        """The name of the task."""

    @abstractmethod
    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism of the task."""

    @abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int:
        """The maximum parallelism of the task."""

    @abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """The index of the subtask, from 0."""

    @abstractmethod
    def get_attempt_number(self) -> int:
        """How often the subtask was restarted."""

    @abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """The name of the task with the subtask's number, from 1, as in ``Map (3/4)``."""

    @abstractmethod
    def get_state(self, state_descriptor: "ValueStateDescriptor") -> "ValueState[Any]":
        """A value per key; only on a keyed stream.  Its methods are called while a record or timer is processed."""

    @abstractmethod
    def get_list_state(self, state_descriptor: "ListStateDescriptor") -> "ListState[Any]":
        """A list per key; only on a keyed stream."""

    @abstractmethod
    def get_map_state(self, state_descriptor: "MapStateDescriptor") -> "MapState[Any, Any]":
        """A map per key; only on a keyed stream."""

    @abstractmethod
    def get_reducing_state(self, state_descriptor: "ReducingStateDescriptor") -> "ReducingState[Any]":
        """The values of each key combined by a function of two; only on a keyed stream."""

    @abstractmethod
    def get_aggregating_state(self, state_descriptor: "AggregatingStateDescriptor") -> "AggregatingState[Any, Any]":
        """The values of each key combined by an ``AggregateFunction``; only on a keyed stream."""


class Function(ABC):  # noqa: B024  # open and close may, but need not be overridden
    """Base class of all functions: ``open`` before the first record, ``close`` after the last one or after a failure."""

    def open(self, runtime_context: RuntimeContext) -> None:  # noqa: B027  # nothing to do unless overridden
        """Prepare; on the task's thread."""

    def close(self) -> None:  # noqa: B027  # nothing to do unless overridden
        """Release what ``open`` acquired."""
