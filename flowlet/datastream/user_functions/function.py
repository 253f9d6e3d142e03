"""The base classes of functions, and how they take part in checkpoints.

Side:   pure.
Source: PyFlink ``pyflink.datastream.functions``: ``Function``, ``RuntimeContext``, ``KeyedStateStore``; that module
        exports them, too.  Flink ``CheckpointedFunction``, ``CheckpointListener``, which PyFlink lacks, with names in
        the style of Python.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self, final

from flowlet.errors import FlowletError, JobGraphError
from flowlet.metrics import MetricGroup

if TYPE_CHECKING:
    from flowlet.datastream.states.state_descriptors import (
        AggregatingState,
        AggregatingStateDescriptor,
        ListState,
        ListStateDescriptor,
        MapState,
        MapStateDescriptor,
        OperatorStateStore,
        ReducingState,
        ReducingStateDescriptor,
        ValueState,
        ValueStateDescriptor,
    )


class KeyedStateStore(ABC):
    """Makes the keyed states of a function; only on a keyed stream."""

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


@final
class DistributedCache:
    """The files that travelled with a job to the TaskManager of this subtask."""

    __slots__ = ("_paths",)

    def __init__(self, paths: Mapping[str, str]) -> None:
        self._paths = paths

    def get_file(self, name: str) -> str:
        """The path of a copy here, to be read only.  Raises FlowletError: no file was registered under that name."""
        found = self._paths.get(name)
        if found is None:
            known = ", ".join(map(repr, sorted(self._paths))) or "none"
            raise FlowletError(f"there is no cached file {name!r}; registered are: {known}")
        return found


class RuntimeContext(KeyedStateStore):
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
    def get_job_parameter(self, key: str, default_value: str) -> str:
        """The parameter of that name, from ``ExecutionConfig.set_global_job_parameters``; ``default_value`` if there is
        none.
        """

    @abstractmethod
    def get_metrics_group(self) -> MetricGroup:
        """Makes the metrics of the function; they are shown per operator and subtask."""

    @abstractmethod
    def get_distributed_cache(self) -> DistributedCache:
        """The files of ``StreamExecutionEnvironment.register_cached_file``.  Flink's; PyFlink's context lacks it."""


class Function(ABC):  # noqa: B024  # open and close may, but need not be overridden
    """Base class of all functions: ``open`` before the first record, ``close`` after the last one
    or after a failure.
    """

    def open(self, runtime_context: RuntimeContext) -> None:  # noqa: B027  # nothing to do unless overridden
        """Prepare; on the task's thread."""

    def close(self) -> None:  # noqa: B027  # nothing to do unless overridden
        """Release what ``open`` acquired."""


class WrappingFunction(Function):
    """Opens and closes the function inside of it, unless that is a plain callable."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the function."""
        if isinstance(self._function, Function):
            self._function.open(runtime_context)

    def close(self) -> None:
        """Close the function."""
        if isinstance(self._function, Function):
            self._function.close()


class WrittenInPython:
    """A class that PyFlink has for objects of Java: here only classes that are derived of it have instances."""

    _instead: ClassVar[str]

    def __new__(cls, *args: object, **named: object) -> Self:
        """Raises JobGraphError: PyFlink's own class wraps an object of Java; here it is written in Python."""
        if args and "_instead" in vars(cls):
            raise JobGraphError(f"{cls.__name__}({args[0]!r}): {cls._instead}")
        if (args or named) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")  # as Python says of a class without a constructor
        return super().__new__(cls)


def has_life_cycle(function: Any) -> bool:
    """Whether it is a function object that overrides ``open`` or ``close``."""
    return isinstance(function, Function) and (type(function).open, type(function).close) != (
        Function.open,
        Function.close,
    )


class FunctionSnapshotContext(ABC):
    """The checkpoint that is being taken; argument of ``snapshot_state``."""

    @abstractmethod
    def get_checkpoint_id(self) -> int:
        """Its number; numbers rise."""

    @abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """When it was triggered, in milliseconds since the epoch."""


class FunctionInitializationContext(ABC):
    """Where a function gets its states; argument of ``initialize_state``."""

    @abstractmethod
    def is_restored(self) -> bool:
        """Whether the job goes on from a checkpoint."""

    @abstractmethod
    def get_restored_checkpoint_id(self) -> int | None:
        """The number of the checkpoint from which the job goes on; None: from none."""

    @abstractmethod
    def get_operator_state_store(self) -> "OperatorStateStore":
        """Makes states of the subtask, which belong to no key."""

    @abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Makes keyed states; where the stream is not keyed, its methods raise FlowletError."""


class CheckpointedFunction(ABC):
    """A function with state of its subtask, which belongs to no key; a second base class of any function.

    Both methods run on the task's thread, as the function itself; those of a ``SourceFunction`` while its ``run`` holds
    no checkpoint lock.
    """

    @abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """A checkpoint is taken: put into the states what belongs there; they are copied when this returns.

        An error fails the job.
        """

    @abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Get the states, and what they held; once, before ``open``, at the first start and after each restart."""


class CheckpointListener(ABC):
    """A function that learns what became of checkpoints; a second base class of any function.

    The methods run on the task's thread.  Numbers rise, and some checkpoints are never reported: what a checkpoint
    confirms, a later one confirms, too.  An error fails the job.
    """

    @abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """The checkpoint is complete: the job will never go on from an older one."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:  # noqa: B027  # nothing to do unless overridden
        """The checkpoint will never be complete."""
