"""Generates the loop that runs a chain, runs it from one operator on, and finds the user function that an error came
from.

Each operator writes the statements that process one record.  Generated text only connects users' functions: it calls
them without changing them.

Hot path.  Per chunk one call, and one look at each loop end; per record the statements of the operators (bench:
programs, wordcount).
Side:       task.
Invariants: a line calls at most one user function, so the number of a failing line identifies the function.  A record
            passes every function behind it before the next record is requested or a generator is resumed.  An error is
            raised at its record, after all records emitted before it were passed on.
Left early: while its ``interrupts`` are not empty, a loop ends after the present record, and its caller keeps the rest.
            The rest of a loop in the middle of a chain cannot be kept: such a loop is left only when the task is
            cancelled.
Source:     ``linecache`` asks the module's loader for the text (PEP 302, ``get_source``): so tracebacks and debuggers
            show it.  Flink ``ChainingOutput.collect``: one call per operator and record, of which its JIT compiler
            makes one loop.
"""

import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from operator import length_hint
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from flowlet.errors import TaskCancelled, UserFunctionError
from flowlet.mailbox.task_mailbox import Attention, Interrupts
from flowlet.serde.type_serializer import preview
from flowlet.typed.record_conversion import RecordConversion
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child

if TYPE_CHECKING:
    from flowlet.chain.stream_operator import StreamOperator

_BLAMES: Final = "__flowlet_blames__"
# The folder of generated files: users' tracebacks leave it out.
_FOLDER: Final = Path(__file__).parent
# CPython compiles at most 20 nested loops and 100 levels of indentation.  A chain that needs more is continued in
# another function.
MAX_BLOCKS: Final = 12
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Blame:
    """The user function that a line calls.

    ``operator_name``, ``subtask``: named in the error.  ``record``: the variable that holds the record.  ``results``:
        the variable that holds the function's result, if the line iterates over it.  ``advice``: makes the error for a
        result that is not iterable.  ``cause``: makes the error to show, from a record and the error that was raised.
    """

    operator_name: str
    subtask: int
    record: str
    results: str | None = None
    advice: Callable[[Any], Exception] | None = None
    cause: Callable[[Any, BaseException], BaseException] | None = None


class LoopCode:
    """A function that is being generated.

    ``title`` names the loop in debuggers.  ``drain`` passes on all records that wait in the loop's ends.
    """

    def __init__(self, title: str, drain: Callable[[], None]) -> None:
        self._title = title
        self.drain = drain
        self._body: list[str] = []
        self._ends: list[str] = []
        self._starts: list[str] = []
        self._blames: dict[int, Blame] = {}  # index in the body -> the function whose fault an error there is
        self._indentation = 2
        self._values: dict[str, Any] = {}
        self._names: dict[int, str] = {}  # id of a bound value -> its name in the text
        self._num_variables = 0
        self._shared: set[str] = set()
        self.num_blocks = 0
        self.counts: dict[int, str] = {}  # id of an operator -> the expression for the number of records that it gets

    def variable(self, prefix: str) -> str:
        """A new name for a local variable."""
        self._num_variables += 1
        return f"{prefix}{self._num_variables}"

    def bind(self, value: Any, prefix: str) -> str:
        """The name of an object in the text."""
        name = self._names.get(id(value))
        if name is None:
            name = self._names[id(value)] = f"{prefix}_{len(self._values)}"
            self._values[name] = value
        return name

    @contextmanager
    def sharing(self, variable: str, *, is_shared: bool = True) -> Iterator[None]:
        """Note that the variable is read again behind the statements that are written in the block: these must hand on
        a copy of its object, not the object.
        """
        is_new = is_shared and variable not in self._shared
        if is_new:
            self._shared.add(variable)
        yield
        if is_new:
            self._shared.discard(variable)

    def is_shared(self, variable: str) -> bool:
        """Whether a later statement reads the variable again."""
        return variable in self._shared

    def line(self, text: str, blame: Blame | None = None) -> None:
        """Append a statement."""
        if blame is not None:
            self._blames[len(self._body)] = blame
        self._body.append("    " * self._indentation + text)

    @contextmanager
    def block(self, head: str, blame: Blame | None = None) -> Iterator[None]:
        """Append a compound statement; the statements that are written in the block become its body."""
        self.line(head, blame)
        self._indentation += 1
        self.num_blocks += 1
        size = len(self._body)
        yield
        if len(self._body) == size:
            self.line("pass")
        self._indentation -= 1
        self.num_blocks -= 1

    def at_start(self, text: str) -> None:
        """Append a statement that runs before the loop."""
        self._starts.append("    " + text)

    def at_end(self, text: str) -> None:
        """Append a statement that runs after the loop, even if the loop raises."""
        self._ends.append("        " + text)

    def define(self, parameters: str, result: str | None = None, on_error: str | None = None) -> Callable[..., Any]:
        """Compile the function; ``result``: the expression that it returns; ``on_error``: a statement that runs if the
        loop raises.
        """
        ends = self._ends or ["        pass"]
        # Bound values become default arguments, hence local variables: each access costs 1 ns less, and there are
        # dozens per record.
        bound = [f"{name}={name}" for name in ("type", "len", *self._values)]
        head = [
            f"# {self._title!a}",
            f"def run({', '.join([parameters, *bound] if parameters else bound)}):",
            *self._starts,
            "    try:",
        ]
        handler = [] if on_error is None else ["    except BaseException:", f"        {on_error}", "        raise"]
        lines = [*head, *(self._body or ["        pass"]), *handler, "    finally:", *ends]
        if result is not None:
            lines.append(f"    return {result}")
        # Line numbers count from 1.
        blames = {index + len(head) + 1: blame for index, blame in self._blames.items()}
        text = "\n".join(lines) + "\n"
        namespace = {"__name__": __name__, "__loader__": _Source(text), _BLAMES: blames, **self._values}
        exec(_compiled(text), namespace)  # noqa: S102 - plumbing of ours around the user's calls
        function: Callable[..., Any] = namespace["run"]
        # CPython specializes calls per code object: loops of several subtasks would undo each other's.
        function.__code__ = function.__code__.replace()
        return function


@lru_cache(maxsize=256)
def _compiled(text: str) -> types.CodeType:
    """Compile a loop; subtasks share equal texts, so that each is compiled once in a process, 0.8 ms."""
    return compile(text, str(_FOLDER / f"<generated {next(_numbers)}>.py"), "exec", dont_inherit=True)


@dataclass(frozen=True, slots=True)
class _Source:
    """The loader of one generated module."""

    text: str

    def get_source(self, _: str) -> str:
        return self.text


def operator_in(frame: types.FrameType | None) -> str | None:
    """The operator whose function a thread runs, by its innermost generated loop; None if it runs none."""
    while frame is not None:
        blame = frame.f_globals.get(_BLAMES, {}).get(frame.f_lineno)
        if blame is not None:
            name: str = blame.operator_name
            return name
        frame = frame.f_back
    return None


def failure_of(error: BaseException) -> BaseException:
    """The error to raise for an error in a generated loop, ``from`` its ``__cause__``; the error itself if no user
    function raised it.
    """
    if isinstance(error, UserFunctionError | TaskCancelled):
        return error
    found: tuple[Blame, types.TracebackType] | None = None
    entry = error.__traceback__
    while entry is not None:
        blames: dict[int, Blame] | None = entry.tb_frame.f_globals.get(_BLAMES)
        if blames is not None and entry.tb_lineno in blames:
            found = blames[entry.tb_lineno], entry
        entry = entry.tb_next
    if found is None:
        return error
    blame, entry = found
    variables = entry.tb_frame.f_locals
    record = variables.get(blame.record)
    failure = UserFunctionError(blame.operator_name, blame.subtask, preview(record))
    failure.__cause__ = error if blame.cause is None else blame.cause(record, error)
    if entry.tb_next is None and type(error) is TypeError and blame.results is not None and blame.advice is not None:
        results = variables.get(blame.results)
        if not hasattr(type(results), "__iter__"):
            failure.__cause__ = blame.advice(results)
    return failure


# Generates the statements for one record; takes the variables of the record, its timestamp (or None) and its key (or
# None).
WriteRecord = Callable[[LoopCode, str, str | None, str | None], None]


class LoopEnd:
    """The end of a loop: a chunking output, or a consumer behind a ``key_by``, in which no record waits.

    Its statements depend on the shape of the last records.
    """

    text_key: Any  # the version of the loop's text: when it changes, the loop is generated again

    def enter_loop(self) -> None:
        """Note that a run of a loop starts; runs may nest."""

    def leave_loop(self) -> None:
        """Note that the run that started last has ended."""

    def drain(self) -> None:
        """Pass all waiting records to the consumer."""

    def write_limit(self, code: LoopCode) -> None:
        """Generate the statements that pass waiting records on once they fill a chunk; for the end of an inner loop."""


NO_ATTENTION: Final = Attention()


class RecordLoop:
    """A loop that is generated when it first runs, and again when its ends change.

    ``title`` names the loop in debuggers.  ``write`` generates the statements for one record.  ``attention``: the
    task's.
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
        """Process records until ``interrupts`` are not empty in front of one; returns how many, perhaps none.

        Args:
            records: in stream order; may be lazy: the next record is requested when the last one is fully processed.
            timestamps: milliseconds, one per record, or None; requested before its record.
            num_records: their number.
            keys: one per record, or None.
            interrupts: of the task's mailbox, if the caller can keep the rest; None: all records must be processed.

        Raises:
            UserFunctionError: a function failed; names the operator and the record.
            TaskCancelled: the task was cancelled; waiting records are not passed on.
        """
        loop_ends = self._loop_ends
        attention = self._attention
        if attention.is_cancelled:
            attention.check()
        if interrupts:  # already: take one record in any case, so that endless mails do not stop the chain
            records, num_records, interrupts = islice(records, 1), min(1, num_records), None
        for end in loop_ends:
            end.enter_loop()
        records = iter(records)
        try:
            texts = [end.text_key for end in loop_ends]
            kind = timestamps is not None, keys is not None
            made = self._made.get(kind)
            if made is None or made[0] != texts:
                made = self._made[kind] = texts, self._generate(has_timestamps=kind[0], has_keys=kind[1])
            try:
                num_done: int = made[1](
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
            # This test stands in front of the record, which costs half as much as behind it (bench: words, 5 and 10 ns
            # on a busy machine): no branch of the statements below has to jump to it.
            with code.block("if interrupts:"):
                code.line(f"num_left = interrupts.leave(records, {code.bind(code.drain, 'drain')})")
                with code.block("if num_left is not None:"):
                    code.line("num_records -= num_left + 1")
                    code.line("break")
            self._write(code, record, timestamp, key)
        # On an error, the counters must have the records before the failed one.
        on_error = f"num_records = {code.bind(num_processed, 'num_processed')}(records, num_records)"
        return code.define("records, timestamps, keys, num_records, interrupts", "num_records", on_error)


def num_processed(records: Iterator[Any], num_records: int) -> int:
    """How many of ``num_records`` records an iterator gave before its last one; 0 if it has no length hint."""
    num_left = length_hint(records, num_records)
    return max(0, num_records - num_left - 1)


def write_into(
    operator: "StreamOperator",
    loop_ends: Sequence[LoopEnd],
    code: LoopCode,
    record: str,
    timestamp: str | None,
    key: str | None,
) -> None:
    """Generate the statements with which an operator processes a record; if blocks nest too deep, the call of another
    loop.
    """
    if code.num_blocks < MAX_BLOCKS:
        operator.write_record(code, record, timestamp, key)
        return
    loop = RecordLoop(operator.name, operator.write_record, loop_ends, operator.ctx.attention)
    stamps, keys = [f"({each},)" if each is not None else "None" for each in (timestamp, key)]
    code.line(f"{code.bind(loop.run, 'push')}(({record},), {stamps}, 1, {keys})")


def write_conversion(conversion: RecordConversion, code: LoopCode, record: str) -> str:
    """Generate the statement that converts a record to its declared type; returns the variable with the result."""
    # Without need no second variable: with one more reference to the record, operators behind would copy it.
    converted = code.variable("v") if code.is_shared(record) else record
    code.line(f"{converted} = {code.bind(conversion.convert, 'convert')}({record})")
    return converted
