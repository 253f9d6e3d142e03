"""Runs the generated loop of a chain, from one operator on.

Hot path.  Per chunk one call, and one look at each loop end; per record the statements of the operators (bench:
programs, wordcount).
Side:       task.
Invariants: a record passes every function behind it before the next record is requested or a generator is resumed.  An
            error is raised at its record, after everything emitted before it was passed on.
Left early: while its ``interrupts`` are not empty, a loop ends after the record that it is at, and its caller keeps the
            rest.  Nobody can keep the rest of a loop in the middle of a chain: such a loop is left only when the task
            is cancelled.
Source:     Flink ``ChainingOutput.collect``: one call per operator and record, of which its JIT compiler makes one
            loop.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, Final

from flowlet.chain.loop_code import MAX_BLOCKS, LoopCode, failure_of
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import TaskCancelled, UserFunctionError
from flowlet.mailbox.task_mailbox import Attention, Interrupts
from flowlet.typed.record_conversion import RecordConversion
from netstack.loop.forks import end_stranded_child

# Generates the statements for one record; takes the variables of the record, its timestamp (or None) and its key (or
# None).
WriteRecord = Callable[[LoopCode, str, str | None, str | None], None]


class LoopEnd(ABC):
    """The end of a loop: a chunking output, or a consumer behind a ``key_by``, in which no record waits.

    Its statements depend on the shape of the last records.
    """

    @property
    @abstractmethod
    def text_key(self) -> tuple[Any, ...]:
        """Changes whenever the text of the loop is out of date: then the loop is generated again."""

    def enter_loop(self) -> None:  # noqa: B027  # a consumer that keeps nothing has nothing to do
        """A run of a loop starts; runs may nest."""

    def leave_loop(self) -> None:  # noqa: B027  # as above
        """The run that started last ended."""

    def drain(self) -> None:  # noqa: B027  # as above
        """Pass all waiting records to the consumer."""

    def write_limit(self, code: LoopCode) -> None:  # noqa: B027  # as above
        """Generate the statements that pass on what waits, once it fills a chunk; for the end of an inner loop."""


NO_ATTENTION: Final = Attention()


class RecordLoop:
    """A loop that is generated when it first runs, and again when its ends change.

    ``title`` names it in debuggers.  ``write`` generates the statements for one record.  ``attention``: the task's.
    """

    __slots__ = ("_attention", "_loop_ends", "_made", "_title", "_write")

    def __init__(
        self, title: str, write: WriteRecord, loop_ends: Sequence[LoopEnd], attention: Attention = NO_ATTENTION
    ) -> None:
        self._title = title
        self._attention = attention
        self._write = write
        self._loop_ends = loop_ends
        self._made: dict[tuple[bool, bool], tuple[list[Any], Callable[..., int]]] = {}  # by (has timestamps, has keys)

    def __repr__(self) -> str:
        return f"<RecordLoop {self._title}>"

    def run(
        self,
        records: Iterable[Any],
        timestamps: Iterable[int] | None,
        num_records: int,
        keys: Iterable[Any] | None = None,
        interrupts: Interrupts | None = None,
    ) -> int:
        """Process records; returns how many: all, unless ``interrupts`` were not empty in front of one of them; 0 if in
        front of the first.

        Args:
            records: in stream order; may be lazy: the next record is requested when the last one is fully processed.
            timestamps: milliseconds, one per record, or None; requested before its record.
            num_records: their number.
            keys: one per record, or None.
            interrupts: of the task's mailbox, if the caller keeps the rest; None: there must be none.

        Raises:
            UserFunctionError: a function failed; names the operator and the record.
            TaskCancelled: the task was cancelled; what was emitted is not passed on.
        """
        loop_ends = self._loop_ends
        has_timestamps = timestamps is not None
        attention = self._attention
        if attention.is_cancelled:
            attention.check()
        if interrupts:  # already: one record all the same, so that mails that never end do not stop the chain
            records, num_records, interrupts = islice(records, 1), min(1, num_records), None
        for end in loop_ends:
            end.enter_loop()
        records = iter(records)
        try:
            loop = self._loop(has_timestamps=has_timestamps, has_keys=keys is not None)
            try:
                num_done: int = loop(
                    records, timestamps, keys, num_records, attention if interrupts is None else interrupts
                )
            except TaskCancelled:
                raise
            except BaseException as error:  # also SystemExit: it is the function's error, not the end of the process
                end_stranded_child()
                failure = failure_of(error)
                if isinstance(failure, UserFunctionError):
                    failure.num_processed = num_processed(records, num_records)
                self._drain()
                if failure is error:
                    raise
                raise failure from failure.__cause__
            end_stranded_child()
            if attention.is_cancelled:
                attention.check()  # a mail has ended the loop: no function behind may be called
            self._drain()
        finally:
            for end in loop_ends:
                end.leave_loop()
        return num_done

    def _drain(self) -> None:
        for end in self._loop_ends:
            end.drain()

    def _loop(self, *, has_timestamps: bool, has_keys: bool) -> Callable[..., int]:
        texts = [end.text_key for end in self._loop_ends]
        made = self._made.get((has_timestamps, has_keys))
        if made is None or made[0] != texts:
            made = self._made[has_timestamps, has_keys] = (
                texts,
                self._generate(has_timestamps=has_timestamps, has_keys=has_keys),
            )
        return made[1]

    def _generate(self, *, has_timestamps: bool, has_keys: bool) -> Callable[..., int]:
        code = LoopCode(self._title, self._drain)
        record = code.variable("v")
        timestamp = code.variable("t") if has_timestamps else None
        key = code.variable("k") if has_keys else None
        # Timestamps first: a lazy one completes the work on the record before.
        items = {timestamp: "timestamps", record: "records", key: "keys"}
        variables = [name for name in items if name is not None]
        sources = [items[name] for name in variables]
        source = sources[0] if len(sources) == 1 else f"zip({', '.join(sources)})"
        with code.block(f"for {', '.join(variables)} in {source}:"):
            # In front of the record, which costs half as much as behind it (bench: words, 5 and 10 ns on a busy
            # machine): no branch of the statements below has to jump to it.
            with code.block("if interrupts:"):
                code.line(f"num_left = interrupts.leave(records, {code.bind(code.drain, 'drain')})")
                with code.block("if num_left is not None:"):
                    code.line("num_records -= num_left + 1")
                    code.line("break")
            self._write(code, record, timestamp, key)
        # So the counters have the records before the one that failed.
        on_error = f"num_records = {code.bind(num_processed, 'num_processed')}(records, num_records)"
        return code.define("records, timestamps, keys, num_records, interrupts", "num_records", on_error)


def num_processed(records: Iterator[Any], num_records: int) -> int:
    """How many of so many records came before the one that an iterator gave last; 0 if it cannot tell."""
    num_left = length_hint(records, num_records)
    return max(0, num_records - num_left - 1)


def write_into(
    operator: StreamOperator,
    loop_ends: Sequence[LoopEnd],
    code: LoopCode,
    record: str,
    timestamp: str | None,
    key: str | None,
) -> None:
    """Generate the statements with which an operator processes a record; where blocks nest too deep, the call of a loop
    of its own.
    """
    if code.num_blocks < MAX_BLOCKS:
        operator.write_record(code, record, timestamp, key)
        return
    loop = RecordLoop(operator.name, operator.write_record, loop_ends, operator.ctx.attention)
    stamps, keys = [f"({each},)" if each is not None else "None" for each in (timestamp, key)]
    code.line(f"{code.bind(loop.run, 'push')}(({record},), {stamps}, 1, {keys})")


def write_conversion(conversion: RecordConversion, code: LoopCode, record: str) -> str:
    """Generate the statement that converts a record to its declared type; returns the variable with
    the converted one.
    """
    # Another variable would be one more reference, so that no operator behind could take the record for its own.
    converted = code.variable("v") if code.is_shared(record) else record
    code.line(f"{converted} = {code.bind(conversion.convert, 'convert')}({record})")
    return converted
