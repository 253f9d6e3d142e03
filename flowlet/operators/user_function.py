"""How users' code is found, opened, called and blamed; the keys of a chunk.

Hot path.  Nothing per record where the keys came with the records, as they do from every writer by key.  Else (a remote
gate whose producers route by themselves) one call of the selector per record, and one look at the types.

Side:       task.
Invariants: an error message about a record can itself never fail; nothing is counted per record to know which one
            failed.
Source:     PyFlink's function objects (``MapFunction.map`` and so on), Flink ``StreamingRuntimeContext``,
            ``FunctionUtils``, ``StreamingFunctionUtils``, ``AbstractUdfStreamOperator``; ``KeySelector``,
            ``setKeyContextElement1`` before the record is processed.
Absent:     coroutine functions.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, Final, cast

from flowlet.chain.chunking_output import exact_keys_of, selected
from flowlet.chain.loop_code import Blame, LoopCode, RecordLoop, WriteRecord
from flowlet.chain.operator_output import OperatorOutput
from flowlet.chain.stream_operator import MultipleInputStreamOperator, OperatorContext, StreamOperator
from flowlet.datastream.states.runtime_context import (
    NEEDS_KEYS,
    FunctionInitializationContext,
    FunctionSnapshotContext,
    RuntimeContext,
)
from flowlet.datastream.user_functions.function import CheckpointedFunction, CheckpointListener
from flowlet.errors import JobGraphError, UserFunctionError
from flowlet.keys.column_key import ColumnKey, ColumnValue
from flowlet.keys.exact_keys import PLAIN_TYPES, exact_key
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


def run_checkpoint_step(ctx: OperatorContext, function: Any, name: str, argument: object) -> None:
    """Call this method of a ``CheckpointedFunction`` or a ``CheckpointListener``; does nothing for any other object.

    Raises:
        UserFunctionError: the method failed; names the operator.
    """
    if isinstance(function, CheckpointedFunction if hasattr(CheckpointedFunction, name) else CheckpointListener):
        run_step(ctx, getattr(function, name), argument)


class UserFunction:
    """A function object with methods of given names, or, where one is enough, any other callable.

    Only objects with the method are opened and closed: a plain callable that happens to have a ``close`` is not ours to
    close.

    Args:
        function: an object with the methods, or a callable.
        method: such as ``map``.
        more: other methods that the object must have.
        is_on_demand: opened at its first call: a key selector is never called where the sender took the keys.

    Raises:
        JobGraphError: it is neither.
    """

    def __init__(self, function: Any, method: str, *more: str, is_on_demand: bool = False) -> None:
        self.function = function
        self._method = method
        self._is_on_demand = is_on_demand
        self._ctx: OperatorContext | None = None  # with which it is opened on demand, while the operator is open
        self._is_open = False
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
        return f"<{type(self).__name__} {preview(self.function)}>"

    @property
    def call(self) -> Callable[..., Any]:
        """The callable that takes the record; opens a function that is opened on demand."""
        if self._ctx is not None and not self._is_open:
            self._is_open = True  # before the call: after an open() that fails, close() must be called, too
            self.run("open", RuntimeContext(self._ctx, _NOT_FOR_SELECTORS), ctx=self._ctx)
        return cast("Callable[..., Any]", self.method(self._method) or self.function)

    def method(self, name: str) -> Callable[..., Any] | None:
        """The object's method of that name; None if it has none."""
        # A class is a callable here: its instances have the method, it has not.
        found = None if isinstance(self.function, type) else getattr(self.function, name, None)
        return found if callable(found) else None

    def step(self, name: str) -> Callable[..., Any] | None:
        """The object's method for a step of the function's life; None: it has none, or is a plain callable."""
        return None if self.method(self._method) is None else self.method(name)

    def open(self, ctx: OperatorContext, state_refusal: str | None = NEEDS_KEYS) -> None:
        """Call the object's ``initialize_state`` and ``open``, if it has them; ``state_refusal``: see
        ``RuntimeContext``.
        """
        if self._is_on_demand:
            self._ctx = ctx
            return
        self._is_open = True  # before the calls, as above
        context = FunctionInitializationContext(ctx, state_refusal)
        run_checkpoint_step(ctx, self.function, "initialize_state", context)
        self.run("open", RuntimeContext(ctx, state_refusal), ctx=ctx)

    def close(self, ctx: OperatorContext) -> None:
        """Call the object's ``close``, if it has one and was opened."""
        self._ctx = None
        if self._is_open:
            self._is_open = False
            self.run("close", ctx=ctx)

    def run(self, name: str, *args: Any, ctx: OperatorContext) -> None:
        """Call the object's method of that name, if it has one."""
        step = self.step(name)
        if step is not None:
            run_step(ctx, step, *args, name=name)


class UserFunctionOperator(StreamOperator):
    """An operator around one user function, or several.

    Subclasses call ``_add`` in their constructor, and bind ``call`` of the returned ``UserFunction`` in ``open``: bound
    methods are not pickled.
    """

    state_refusal: str | None = NEEDS_KEYS  # why the functions have no keyed state; None: they have

    def __init__(self, name: str) -> None:
        self.name = name
        self._functions: list[UserFunction] = []

    def open(self) -> None:
        """Open the functions."""
        for function in self._functions:
            # Each may take long: after a cancellation no further function is called.
            self.ctx.attention.check()
            function.open(self.ctx, self._refusal_of(function))

    def _refusal_of(self, function: UserFunction) -> str | None:
        """Why a function has no keyed state; None: it has."""
        return self.state_refusal

    def close(self) -> None:
        """Close the functions that were opened."""
        for function in reversed(self._functions):
            function.close(self.ctx)

    # -- checkpoints

    def snapshot_functions(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the functions save their data in their states."""
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
            run_checkpoint_step(self.ctx, function.function, name, argument)

    def _record_loop(self, write: WriteRecord, part: str | None = None) -> RecordLoop:
        """A loop that ends where this operator's chain does; ``part`` names the loop if the operator has several."""
        title = self.name if part is None else f"{self.name}, {part}"
        return RecordLoop(title, write, self.output.loop_ends, self.ctx.attention)

    def _add(self, function: Any, *methods: str, is_on_demand: bool = False) -> UserFunction:
        added = UserFunction(function, *methods, is_on_demand=is_on_demand)
        self._functions.append(added)
        return added


class RecordOperator(UserFunctionOperator):
    """An operator that writes its statements for one record into the loop of its chain.

    Subclasses have ``write_record``.

    Args:
        name: for people.
        key_selector: a callable, or an object with ``get_key(value)``: the function has the key of each record, and
            keyed state; None for a stream without keys.
    """

    def __init__(self, name: str, key_selector: Any = None) -> None:
        super().__init__(name)
        self._used_keys = None if key_selector is None else KeyedInput(self, key_selector)
        if key_selector is not None:
            self.state_refusal = None

    def setup(self, ctx: OperatorContext, output: OperatorOutput) -> None:
        """Tell the operator where it is and where its results go."""
        super().setup(ctx, output)
        self._loop = self._record_loop(self._write_head)

    def process_chunk(self, chunk: Chunk, interrupts: Interrupts | None = None) -> int:
        """Take records through the chain until ``interrupts`` are not empty (None: all); returns how many."""
        num_records = len(chunk)
        if not num_records:
            return 0
        keys = None if self._used_keys is None else self._used_keys.keys_and_exact(chunk)[0]
        return self._loop.run(chunk.records(), chunk.timestamps, num_records, keys, interrupts)

    def process_some(self, chunk: Chunk) -> int:
        """Take records through the chain until a mail waits; returns how many."""
        return self.process_chunk(chunk, self.ctx.interrupts)

    def _write_head(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        code.counts[id(self)] = "num_records"
        self.write_record(code, record, timestamp, key)

    def _write_key(self, code: LoopCode, record: str, key: str | None) -> str | None:
        """Write the statements that make the key of the record the current one, if the operator uses keyed state;
        returns the variable with the key, for who emits it.

        ``key`` is None if the operator does not head its chain, or the key is a column: then it is taken here.
        """
        if self._used_keys is not None:
            key = self._used_keys.write_key(code, record, key)
            write_current_key(code, self.ctx, key)
        return key


class KeyedInput:
    """The key selector of one input of an operator.

    Args:
        operator: closes the selector with its functions, and opens it when it is first called.
        key_selector: a callable, or an object with ``get_key(value)``.
        is_shown: the user's functions see the key; else instants and dates of a column are numbers (``ColumnKey``).
    """

    def __init__(self, operator: UserFunctionOperator, key_selector: Any, *, is_shown: bool = True) -> None:
        self._operator = operator
        self._is_shown_column = is_shown and isinstance(key_selector, ColumnKey)
        selector = ColumnValue(key_selector.name) if self._is_shown_column else key_selector
        self._selector = operator._add(selector, "get_key", is_on_demand=True)

    def keys_and_exact(self, chunk: Chunk) -> tuple[list[Any], list[Any]]:
        """The key of each record, and the exact key (``exact_keys``) of each: one list if the keys are their own exact
        keys.  The selector is not called where the sender took the keys.

        Raises:
            TaskCancelled: the task is cancelled; the selector is called for no further record.
            UserFunctionError: the selector failed, or gave a value that cannot be a key.
        """
        columns = chunk.columns
        known: list[Any] | None = None  # the keys that the sender took, beside the records or as one of their fields
        if columns is None:
            known = None if self._is_shown_column else chunk.keys
        elif columns.key_position is not None and not self._is_shown_column:
            column = columns.fields[columns.key_position]
            known = column.to_list()
            # Plain values are their own exact keys, so no one has to look at each.
            if column.value_type in PLAIN_TYPES:
                return known, known
        name, ctx = self._operator.name, self._operator.ctx
        if known is None:
            known = selected(self._selector.call, chunk.values, ctx.attention, name, ctx.subtask)
        return known, exact_keys_of(known, chunk, name, ctx.subtask)

    def write_key(self, code: LoopCode, record: str, known: str | None = None) -> str:
        """Write the statements that take the key of the record, for an operator that does not head its chain; returns
        the variable with the key, which may be known.
        """
        if known is not None:
            return known
        key, operator = code.variable("k"), self._operator
        blame = Blame(operator.name, operator.ctx.subtask, record)
        code.line(f"{key} = {code.bind(self._selector.call, 'key')}({record})", blame)
        # Called for its error alone: a value that cannot be a key is to fail at its record.  The function sees the key
        # as it is.
        code.line(f"{code.bind(exact_key, 'exact_key')}({key})", blame)
        return key


class FunctionOperator(RecordOperator):
    """Calls one method with each record.  The key of each record is taken only if the function asked for a state in
    ``open``.

    Args:
        function: a callable, or an object with the method.
        key_selector: of a keyed stream, for keyed state; None: the stream has no keys.
        name: for people; None: ``title``.
    """

    method: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, function: Any, key_selector: Any = None, *, name: str | None = None) -> None:
        super().__init__(self.title if name is None else name, key_selector)
        self.function = self._add(function, self.method)

    def open(self) -> None:
        """Open the functions; from now on it is known whether they use keyed state."""
        super().open()
        if self._used_keys is not None and not is_state_used(self.ctx):
            # The selector is not called from now on: without keyed state no one asks for the key.
            self._used_keys = None


# Writes the statements that call a method of the user's function: the method, then as ``WriteRecord``.
WriteCall = Callable[[Any, LoopCode, str, str | None, str | None], None]


class TwoInputRecordOperator(UserFunctionOperator, MultipleInputStreamOperator):
    """An operator that takes the records of each of its two inputs through a loop of their own.

    Subclasses make ``_loops`` when they are opened.

    Args:
        key_selectors: of the inputs, for keyed state; None for a stream without keys.
        name: for people.
    """

    num_inputs = 2
    _function: UserFunction
    _loops: Sequence[RecordLoop]

    def __init__(self, key_selectors: Sequence[Any] | None, name: str) -> None:
        super().__init__(name)
        selectors = (None, None) if key_selectors is None else key_selectors
        # None: keys are not needed.
        self._key_inputs = [None if selector is None else KeyedInput(self, selector) for selector in selectors]
        if selectors[0] is not None:
            self.state_refusal = None

    def process_input_chunk(self, input_id: int, chunk: Chunk, interrupts: Interrupts | None = None) -> int:
        """Take records of the input through the chain until ``interrupts`` are not empty (None: all); returns how
        many.
        """
        num_records = len(chunk)
        if not num_records:
            return 0
        key_input = self._key_inputs[input_id - 1]
        keys = None if key_input is None else key_input.keys_and_exact(chunk)[0]
        return self._loops[input_id - 1].run(chunk.records(), chunk.timestamps, num_records, keys, interrupts)

    def process_input_some(self, input_id: int, chunk: Chunk) -> int:
        """Take records of the input through the chain until a mail waits; returns how many."""
        return self.process_input_chunk(input_id, chunk, self.ctx.interrupts)

    def _loop_of(self, name: str, write: WriteCall) -> RecordLoop:
        """The loop that calls a method of the function."""
        return self._record_loop(partial(write, self._function.method(name)), name)


def is_state_used(ctx: OperatorContext) -> bool:
    """Whether the functions of an operator, which were opened, asked for keyed state; if they did not, they cannot any
    more.
    """
    states = ctx.keyed_state
    if states is None or states.is_used:
        return states is not None
    states.refuse_new_states("the function must ask for its states in open(), so that the key of each record is known")
    return False


def write_current_key(code: LoopCode, ctx: OperatorContext, key: str) -> None:
    """Write the statements that make a key the current one."""
    code.line(f"{code.bind(ctx.key_context, 'key_context')}.current_key = {key}")
    if ctx.keyed_state is not None and ctx.keyed_state.cleans_at_records:
        code.line(f"{code.bind(ctx.keyed_state.clean, 'clean')}()")
