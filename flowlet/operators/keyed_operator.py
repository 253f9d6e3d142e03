"""The keys of a chunk.

Hot path.  Nothing per record where the keys came with the records, as they do from every writer by key.  Else (a remote
gate whose producers route by themselves) one call of the selector per record, and one look at the types.

Side:   task.
Source: Flink ``KeySelector``, ``setKeyContextElement1`` before the record is processed.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from flowlet.chain.key_extractor import exact_keys_of, selected
from flowlet.chain.loop_code import Blame, LoopCode, RecordLoop
from flowlet.chain.stream_operator import MultipleInputStreamOperator, OperatorContext
from flowlet.keys.column_key import ColumnKey, ColumnValue
from flowlet.keys.exact_keys import PLAIN_TYPES, exact_key
from flowlet.mailbox.task_mailbox import Interrupts
from flowlet.operators.user_function import FunctionOnDemand, RecordOperator, UserFunction, UserFunctionOperator
from flowlet.records import Chunk


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
        self._selector = operator._add(selector, "get_key", kind=FunctionOnDemand)

    def keys_of(self, chunk: Chunk) -> list[Any]:
        """The key of each record; not asked for again where the sender took it.

        Raises:
            UserFunctionError: the selector failed, or gave something that cannot be a key.
        """
        return self.keys_and_exact(chunk)[0]

    def keys_and_exact(self, chunk: Chunk) -> tuple[list[Any], list[Any]]:
        """The key of each record, and a stand-in of each as ``exact_keys`` gives it: the same list, if the keys are
        their own stand-ins.

        Raises:
            TaskCancelled: the task is cancelled; the selector is called for no further record.
            UserFunctionError: the selector failed, or gave something that cannot be a key.
        """
        known = None if self._is_shown_column else _known_keys(chunk)
        if known is not None and _has_plain_keys(chunk):
            return known, known
        name, ctx = self._operator.name, self._operator.ctx
        if known is None:
            known = selected(self._selector.call, chunk.values, ctx.attention, name, ctx.subtask)
        return known, exact_keys_of(known, chunk, name, ctx.subtask)

    def write_key(self, code: LoopCode, record: str) -> str:
        """The statements that take the key of the record in a variable, for an operator that does
        not head its chain.
        """
        key, operator = code.variable("k"), self._operator
        blame = Blame(operator.name, operator.ctx.subtask, record)
        code.line(f"{key} = {code.bind(self._selector.call, 'key')}({record})", blame)
        code.line(f"{code.bind(exact_key, 'exact_key')}({key})", blame)
        return key


class KeyedRecordOperator(RecordOperator):
    """A ``RecordOperator`` whose function has the key of each record, and keyed state.

    Args:
        name: for people.
        key_selector: a callable, or an object with ``get_key(value)``; None for a stream without keys.
    """

    def __init__(self, name: str, key_selector: Any) -> None:
        super().__init__(name)
        self._used_keys = None if key_selector is None else KeyedInput(self, key_selector)
        if key_selector is not None:
            self.state_refusal = None

    def _keys_of(self, chunk: Chunk) -> list[Any] | None:
        return None if self._used_keys is None else self._used_keys.keys_of(chunk)


class FunctionOperator(KeyedRecordOperator):
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
            self._used_keys = None

    def _write_key(self, code: LoopCode, record: str, key: str | None) -> None:
        """The statements that make the key of the record the current one, if the function uses keyed state."""
        if self._used_keys is not None:
            write_current_key(code, self.ctx, self._used_keys.write_key(code, record) if key is None else key)


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

    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        """Take each record of the input through the chain."""
        self._process_input(input_id - 1, chunk, None)

    def process_input_some(self, input_id: int, chunk: Chunk) -> int:
        """As ``process_input_chunk``, until a mail waits."""
        return self._process_input(input_id - 1, chunk, self.ctx.interrupts)

    def _process_input(self, index: int, chunk: Chunk, interrupts: Interrupts | None) -> int:
        if not len(chunk):
            return 0
        key_input = self._key_inputs[index]
        keys = None if key_input is None else key_input.keys_of(chunk)
        return self._loops[index].run(chunk.records(), chunk.timestamps, len(chunk), keys, interrupts)

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
    """The statements that make a key the current one."""
    code.line(f"{code.bind(ctx.key_context, 'key_context')}.current_key = {key}")
    if ctx.keyed_state is not None and ctx.keyed_state.cleans_at_records:
        code.line(f"{code.bind(ctx.keyed_state.clean, 'clean')}()")


def _has_plain_keys(chunk: Chunk) -> bool:
    """Whether the keys are a column of values of one plain type, so that none has to be looked at."""
    columns = chunk.columns
    if columns is None or columns.key_position is None:
        return False
    return columns.fields[columns.key_position].value_type in PLAIN_TYPES


def _known_keys(chunk: Chunk) -> list[Any] | None:
    """The keys that the sender took, beside the records or as one of their fields; None: it took none."""
    columns = chunk.columns
    if columns is None:
        return chunk.keys
    return None if columns.key_position is None else columns.fields[columns.key_position].to_list()
