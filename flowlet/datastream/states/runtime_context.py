"""The contexts of users' functions: the subtask, the states, the checkpoint.

Side:   pure.
Source: PyFlink ``pyflink.datastream.functions``: ``RuntimeContext``, ``KeyedStateStore``; that module exports
        them, too.  Flink ``StreamingRuntimeContext``, ``FunctionSnapshotContext``, ``FunctionInitializationContext``.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast, final

from flowlet.common.not_yet import ExplainsMissing
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
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from flowlet.errors import FlowletError
from flowlet.metrics import MetricGroup
from netstack.late import dataclass

if TYPE_CHECKING:
    from flowlet.chain.stream_operator import OperatorContext

__all__ = [
    "DistributedCache",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeyedStateStore",
    "RuntimeContext",
]

NEEDS_KEYS: Final = "keyed state needs a keyed stream: call key_by(...) before the operator"


class KeyedStateStore(ABC):
    """Makes keyed states, of five kinds, each by its descriptor; see ``RuntimeContext``."""

    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState[Any]:
        """A value per key.

        Raises:
            FlowletError: the operator has no keyed state, or the name is taken by another kind of state.
            StateRestoreError: the checkpoint has a state of this name of another kind or type.
        """
        return cast("ValueState[Any]", self._state(state_descriptor, ValueStateDescriptor))

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list per key; raises as ``get_state``."""
        return cast("ListState[Any]", self._state(state_descriptor, ListStateDescriptor))

    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState[Any, Any]:
        """A map per key; raises as ``get_state``."""
        return cast("MapState[Any, Any]", self._state(state_descriptor, MapStateDescriptor))

    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState[Any]:
        """The values of each key combined by a function of two; raises as ``get_state``."""
        return cast("ReducingState[Any]", self._state(state_descriptor, ReducingStateDescriptor))

    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState[Any, Any]:
        """The values of each key combined by an ``AggregateFunction``; raises as ``get_state``."""
        return cast("AggregatingState[Any, Any]", self._state(state_descriptor, AggregatingStateDescriptor))

    @abstractmethod
    def _state(self, descriptor: StateDescriptor, kind: type[StateDescriptor]) -> Any:
        """The state of a descriptor that the user named as one of this kind."""


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


class RuntimeContext(KeyedStateStore, ExplainsMissing):
    """The subtask that runs a function; argument of ``open``.

    ``state_refusal``: why the operator has no keyed state; None: it has.
    """

    def __init__(self, ctx: "OperatorContext", state_refusal: str | None = NEEDS_KEYS) -> None:
        self._ctx = ctx
        self._state_refusal = state_refusal

    def get_task_name(self) -> str:
        """The name of the task."""
        return self._ctx.task_name

    def get_task_name_with_subtasks(self) -> str:
        """The name of the task with the subtask's number, counted from 1, as in ``Map (3/4)``."""
        return f"{self._ctx.task_name} ({self._ctx.subtask + 1}/{self._ctx.parallelism})"

    def get_number_of_parallel_subtasks(self) -> int:
        """The parallelism of the task."""
        return self._ctx.parallelism

    def get_max_number_of_parallel_subtasks(self) -> int:
        """The number of key groups."""
        return self._ctx.max_parallelism

    def get_index_of_this_subtask(self) -> int:
        """The number of this subtask, counted from 0."""
        return self._ctx.subtask

    def get_attempt_number(self) -> int:
        """How often the subtask was started before."""
        return self._ctx.attempt

    def get_job_parameter(self, key: str, default_value: str) -> str:
        """The job's parameter of that name, or the default."""
        return self._ctx.job_parameters.get(key, default_value)

    def get_metrics_group(self) -> MetricGroup:
        """The metrics of the operator in this subtask."""
        return self._ctx.metrics.group

    def get_distributed_cache(self) -> DistributedCache:
        """The files that travelled with the job."""
        return DistributedCache(self._ctx.cached_files)

    def _state(self, descriptor: StateDescriptor, kind: type[StateDescriptor]) -> Any:
        if self._state_refusal is not None:
            raise FlowletError(f"operator {self._ctx.operator_name!r}: {self._state_refusal}")
        return self._ctx.keyed_state_backend.state(descriptor, kind)


@dataclass(frozen=True, slots=True)
class FunctionSnapshotContext:
    """The checkpoint that is being taken; argument of ``snapshot_state``."""

    checkpoint_id: int
    timestamp_ms: int

    def get_checkpoint_id(self) -> int:
        """The number of the checkpoint; later checkpoints have higher numbers."""
        return self.checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """The time at which the checkpoint was triggered, in milliseconds since the epoch."""
        return self.timestamp_ms


class FunctionInitializationContext:
    """The argument of ``initialize_state``: gives a function its states.

    ``state_refusal``: see ``RuntimeContext``.
    """

    def __init__(self, ctx: "OperatorContext", state_refusal: str | None = NEEDS_KEYS) -> None:
        self._ctx = ctx
        self._keyed = RuntimeContext(ctx, state_refusal)

    def is_restored(self) -> bool:
        """Whether the job goes on from a checkpoint."""
        return self._ctx.restored_checkpoint_id is not None

    def get_restored_checkpoint_id(self) -> int | None:
        """The number of the checkpoint from which the job goes on; None: from none."""
        return self._ctx.restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        """The store that makes states of the subtask, which belong to no key."""
        return self._ctx.operator_state_backend

    def get_keyed_state_store(self) -> KeyedStateStore:
        """The store that makes keyed states; where the stream is not keyed, its methods raise FlowletError."""
        return self._keyed
