"""How users' code is found, opened, called and blamed.

Side:       task.
Invariants: an error message about a record can itself never fail; nothing is counted per record to know which one
            failed.
Source:     PyFlink's function objects (``MapFunction.map`` and so on), Flink ``StreamingRuntimeContext``,
            ``FunctionUtils``, ``StreamingFunctionUtils``, ``AbstractUdfStreamOperator``.
Absent:     coroutine functions.
"""

from collections.abc import Callable
from typing import Any, Final, cast

from flowlet.chain.loop_code import LoopCode, RecordLoop, WriteRecord
from flowlet.chain.operator_output import OperatorOutput
from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.datastream.states.runtime_context import (
    NEEDS_KEYS,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RuntimeContext,
)
from flowlet.datastream.user_functions.function import CheckpointedFunction, CheckpointListener
from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview

_NOT_FOR_SELECTORS: Final = "key selectors have no keyed state"


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


_CHECKPOINT_STEPS: Final = {
    "initialize_state": CheckpointedFunction,
    "snapshot_state": CheckpointedFunction,
    "notify_checkpoint_complete": CheckpointListener,
    "notify_checkpoint_aborted": CheckpointListener,
}


def run_checkpoint_step(ctx: OperatorContext, function: Any, name: str, argument: object) -> None:
    """Call this method of a ``CheckpointedFunction`` or a ``CheckpointListener``; does nothing for any other object.

    Raises:
        UserFunctionError: the method failed; names the operator.
    """
    if isinstance(function, _CHECKPOINT_STEPS[name]):
        run_step(ctx, getattr(function, name), argument)


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

    def open(self, ctx: OperatorContext, state_refusal: str | None = NEEDS_KEYS) -> None:
        """Call the object's ``initialize_state`` and ``open``, if it has them; ``state_refusal``: see
        ``RuntimeContext``.
        """
        self.run_checkpoint_step("initialize_state", FunctionInitializationContext(ctx, state_refusal), ctx=ctx)
        self.run("open", RuntimeContext(ctx, state_refusal), ctx=ctx)

    def close(self, ctx: OperatorContext) -> None:
        """Call the object's ``close``, if it has one."""
        self.run("close", ctx=ctx)

    def run(self, name: str, *args: Any, ctx: OperatorContext) -> None:
        """Call the object's method of that name, if it has one."""
        step = self.step(name)
        if step is not None:
            run_step(ctx, step, *args, name=name)

    def run_checkpoint_step(self, name: str, argument: object, *, ctx: OperatorContext) -> None:
        """Call this method of the object, if it is to know of checkpoints (``run_checkpoint_step``)."""
        run_checkpoint_step(ctx, self._function, name, argument)


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

    def open(self, ctx: OperatorContext, state_refusal: str | None = NEEDS_KEYS) -> None:
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

    state_refusal: str | None = NEEDS_KEYS  # why the functions have no keyed state; None: they have

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
        self._run_checkpoint_steps("snapshot_state", FunctionSnapshotContext(checkpoint_id, timestamp_ms))

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Tell the functions that want to know."""
        self._run_checkpoint_steps("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Tell the functions that want to know."""
        self._run_checkpoint_steps("notify_checkpoint_aborted", checkpoint_id)

    def _run_checkpoint_steps(self, name: str, argument: object) -> None:
        for function in self._functions:
            self.ctx.attention.check()
            function.run_checkpoint_step(name, argument, ctx=self.ctx)

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
