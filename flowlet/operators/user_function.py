"""How users' code is found, opened, called and blamed.

Side:       task.
Invariants: an error message about a record can itself never fail; nothing is counted per record to know which one
            failed.
Source:     PyFlink's function objects (``MapFunction.map`` and so on), Flink ``StreamingRuntimeContext``,
            ``FunctionUtils``, ``StreamingFunctionUtils``, ``AbstractUdfStreamOperator``.
Absent:     coroutine functions.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Final, cast

from flowlet.chain.loop_code import LoopCode
from flowlet.chain.operator_output import OperatorOutput
from flowlet.chain.record_loop import RecordLoop, WriteRecord
from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.common.not_yet import ExplainsMissing
from flowlet.datastream.state import (
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
from flowlet.datastream.user_functions.function import (
    CheckpointedFunction,
    CheckpointListener,
    DistributedCache,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    KeyedStateStore,
)
from flowlet.errors import FlowletError, JobGraphError, UserFunctionError
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.metrics import MetricGroup
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview
from netstack.late import dataclass

_NOT_FOR_SELECTORS: Final = "key selectors have no keyed state"
_NEEDS_KEYS: Final = "keyed state needs a keyed stream: call key_by(...) before the operator"


_KEYED_DESCRIPTORS: Final = (
    ValueStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    AggregatingStateDescriptor,
)


def keyed_kind(descriptor: StateDescriptor) -> type[StateDescriptor] | None:
    """The kind of keyed state that a descriptor describes; None: it is no such descriptor."""
    return next((each for each in _KEYED_DESCRIPTORS if isinstance(descriptor, each)), None)


class KeyedStates(KeyedStateStore):
    """The five kinds of keyed state, each by its descriptor."""

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


class RuntimeContext(KeyedStates, ExplainsMissing):
    """What ``open`` is given; the names are PyFlink's.

    ``state_refusal``: why the operator has no keyed state; None: it has.
    """

    def __init__(self, ctx: OperatorContext, state_refusal: str | None = _NEEDS_KEYS) -> None:
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
        """Which subtask this is, counted from 0."""
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
class SnapshotContext(FunctionSnapshotContext):
    """The checkpoint that is being taken."""

    checkpoint_id: int
    timestamp_ms: int

    def get_checkpoint_id(self) -> int:
        """Its number."""
        return self.checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """When it was triggered."""
        return self.timestamp_ms


class InitializationContext(FunctionInitializationContext):
    """Where a function gets its states; ``state_refusal``: see ``RuntimeContext``."""

    def __init__(self, ctx: OperatorContext, state_refusal: str | None) -> None:
        self._ctx = ctx
        self._keyed = RuntimeContext(ctx, state_refusal)

    def is_restored(self) -> bool:
        """Whether the job goes on from a checkpoint."""
        return self._ctx.restored_checkpoint_id is not None

    def get_restored_checkpoint_id(self) -> int | None:
        """The number of that checkpoint; None: there is none."""
        return self._ctx.restored_checkpoint_id

    def get_operator_state_store(self) -> OperatorStateStore:
        """Makes states of the subtask."""
        return self._ctx.operator_state_backend

    def get_keyed_state_store(self) -> KeyedStateStore:
        """Makes keyed states, or says why there are none."""
        return self._keyed


def run_step(ctx: OperatorContext, step: Callable[..., object], *args: Any, name: str | None = None) -> None:
    """Call a step of a function's life; ``name``: its own, where the step need not have it.

    Raises:
        UserFunctionError: the step failed.
    """
    try:
        step(*args)
    except Exception as error:
        error.add_note(f"raised by {name or step.__name__}()")
        raise UserFunctionError(ctx.operator_name, ctx.subtask, None) from error


class Checkpoints:
    """What a function object does about checkpoints: nothing, unless it is a ``CheckpointedFunction`` or a
    ``CheckpointListener``.

    Errors of its methods become a UserFunctionError, which names the operator.
    """

    def __init__(self, function: Any) -> None:
        self._function = function

    def initialize(self, ctx: OperatorContext, state_refusal: str | None = _NEEDS_KEYS) -> None:
        """Call ``initialize_state``; ``state_refusal``: see ``RuntimeContext``."""
        if isinstance(self._function, CheckpointedFunction):
            run_step(ctx, self._function.initialize_state, InitializationContext(ctx, state_refusal))

    def snapshot(self, ctx: OperatorContext, checkpoint_id: int, timestamp_ms: int) -> None:
        """Call ``snapshot_state``."""
        if isinstance(self._function, CheckpointedFunction):
            run_step(ctx, self._function.snapshot_state, SnapshotContext(checkpoint_id, timestamp_ms))

    def completed(self, ctx: OperatorContext, checkpoint_id: int) -> None:
        """Call ``notify_checkpoint_complete``."""
        if isinstance(self._function, CheckpointListener):
            run_step(ctx, self._function.notify_checkpoint_complete, checkpoint_id)

    def aborted(self, ctx: OperatorContext, checkpoint_id: int) -> None:
        """Call ``notify_checkpoint_aborted``."""
        if isinstance(self._function, CheckpointListener):
            run_step(ctx, self._function.notify_checkpoint_aborted, checkpoint_id)


class UserFunction:
    """A function object with methods of given names, or, where one is enough, any other callable.

    Only objects with the method are opened and closed: a plain callable that happens to have a ``close`` is nobody's to
    close.

    Args:
        function: an object with the methods, or a callable.
        method: such as ``map``.
        more: others that it must have.

    Raises:
        JobGraphError: it is neither.
    """

    def __init__(self, function: Any, method: str, *more: str) -> None:
        self._function = function
        self._method = method
        self.checkpoints = Checkpoints(function)
        has_all = all(self.method(name) is not None for name in (method, *more))
        if not has_all and (more or not callable(function)):
            methods = " and ".join(f"{name}()" for name in (method, *more))
            expected = (
                f"an object with the methods {methods}"
                if more
                else f"a function of one record or an object with a method {methods}"
            )
            raise JobGraphError(f"expected {expected}, got {preview(function)} of type {type(function).__name__}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {preview(self._function)}>"

    @property
    def call(self) -> Callable[..., Any]:
        """What to call with the record."""
        return cast("Callable[..., Any]", self.method(self._method) or self._function)

    def method(self, name: str) -> Callable[..., Any] | None:
        """The object's method of that name; None if it has none."""
        # A class is a callable here: its instances have the method, it has not.
        found = None if isinstance(self._function, type) else getattr(self._function, name, None)
        return found if callable(found) else None

    def step(self, name: str) -> Callable[..., Any] | None:
        """The method of that name, for a step of the function's life; None if it has none, or is a plain callable."""
        return None if self.method(self._method) is None else self.method(name)

    def open(self, ctx: OperatorContext, state_refusal: str | None = _NEEDS_KEYS) -> None:
        """Call the object's ``initialize_state`` and ``open``, if it has them; ``state_refusal``: see
        ``RuntimeContext``.
        """
        self.checkpoints.initialize(ctx, state_refusal)
        self.run("open", RuntimeContext(ctx, state_refusal), ctx=ctx)

    def close(self, ctx: OperatorContext) -> None:
        """Call the object's ``close``, if it has one."""
        self.run("close", ctx=ctx)

    def run(self, name: str, *args: Any, ctx: OperatorContext) -> None:
        """Call the object's method of that name, if it has one."""
        step = self.step(name)
        if step is not None:
            run_step(ctx, step, *args, name=name)


class FunctionOnDemand(UserFunction):
    """A function that is opened when it is first needed: a key selector is not where the sender of the records took the
    keys.
    """

    def __init__(self, function: Any, method: str) -> None:
        super().__init__(function, method)
        self._ctx: OperatorContext | None = None  # while the operator is open
        self._is_open = False

    @property
    def call(self) -> Callable[..., Any]:
        """What to call with the record; opens the function."""
        if self._ctx is not None and not self._is_open:
            self._is_open = True  # before the call: what a failing open() took must be given back, too
            self.run("open", RuntimeContext(self._ctx, _NOT_FOR_SELECTORS), ctx=self._ctx)
        return super().call

    def open(self, ctx: OperatorContext, state_refusal: str | None = _NEEDS_KEYS) -> None:
        """Remember what the function is to be opened with."""
        self._ctx = ctx

    def close(self, ctx: OperatorContext) -> None:
        """Close the function if it was opened."""
        self._ctx = None
        if self._is_open:
            self._is_open = False
            super().close(ctx)


class UserFunctionOperator(StreamOperator):
    """An operator around one user function, or several.

    Subclasses call ``_add`` in their constructor and bind ``call`` of what it returns in ``open``: bound methods are
    not pickled.
    """

    state_refusal: str | None = _NEEDS_KEYS  # why the functions have no keyed state; None: they have

    def __init__(self, name: str) -> None:
        self.name = name
        self._functions: list[UserFunction] = []
        self._num_open = 0

    def open(self) -> None:
        """Open the functions."""
        for function in self._functions:
            self.ctx.attention.check()
            # Counted first: what a failing open() took must be given back too.
            self._num_open += 1
            function.open(self.ctx, self._refusal_of(function))

    def _refusal_of(self, function: UserFunction) -> str | None:
        """Why a function has no keyed state; None: it has."""
        return self.state_refusal

    def close(self) -> None:
        """Close the functions that were opened."""
        while self._num_open:
            self._num_open -= 1
            self._functions[self._num_open].close(self.ctx)

    # -- checkpoints

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the functions put what they keep into their states."""
        for function in self._functions:
            self.ctx.attention.check()
            function.checkpoints.snapshot(self.ctx, checkpoint_id, timestamp_ms)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the functions that want to know."""
        for function in self._functions:
            self.ctx.attention.check()
            function.checkpoints.completed(self.ctx, checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the functions that want to know."""
        for function in self._functions:
            self.ctx.attention.check()
            function.checkpoints.aborted(self.ctx, checkpoint_id)

    def _record_loop(self, write: WriteRecord, part: str | None = None) -> RecordLoop:
        """A loop that ends where this operator's chain does; ``part``: what it runs, where the operator has several."""
        title = self.name if part is None else f"{self.name}, {part}"
        return RecordLoop(title, write, self.output.loop_ends, self.ctx.attention)

    def _add(self, function: Any, *methods: str, kind: Callable[..., UserFunction] = UserFunction) -> UserFunction:
        added = kind(function, *methods)
        self._functions.append(added)
        return added


class RecordOperator(UserFunctionOperator):
    """An operator that writes what it does with one record into the loop of its chain.

    Subclasses have ``write_record``.
    """

    def setup(self, ctx: OperatorContext, output: OperatorOutput) -> None:
        """Tell the operator where it is and where its results go."""
        super().setup(ctx, output)
        self._loop = self._record_loop(self._write_head)

    def process_chunk(self, chunk: Chunk) -> None:
        """Take each record through the chain."""
        self._process(chunk, None)

    def process_some(self, chunk: Chunk) -> int:
        """As ``process_chunk``, until a mail waits."""
        return self._process(chunk, self.ctx.interrupts)

    def _process(self, chunk: Chunk, interrupts: Interrupts | None) -> int:
        if not len(chunk):
            return 0
        return self._loop.run(chunk.records(), chunk.timestamps, len(chunk), self._keys_of(chunk), interrupts)

    def _keys_of(self, chunk: Chunk) -> list[Any] | None:
        """The key of each record, if the loop needs them."""
        return None

    def _write_head(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        code.counts[id(self)] = "num_records"
        self.write_record(code, record, timestamp, key)
