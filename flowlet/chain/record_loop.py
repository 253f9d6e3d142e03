"""The generated loop of a chain, from one operator on.

Hot path.  Per chunk one call, and one look at each loop end; per record what the operators wrote (bench: programs, wordcount).

Side:       task.
Invariants: a record passes every function behind it before the next one is looked at, and a generator is resumed only then; an error is
            raised in the place of the record that it is about, with everything emitted that was emitted before it.
Source:     Flink ``ChainingOutput.collect``, one call per operator and record; its JIT compiler makes one loop of them.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from flowlet.chain.loop_code import MAX_BLOCKS, LoopCode, failure_of
from flowlet.chain.stream_operator import StreamOperator

# Writes the statements for one record; is given the variables of record, timestamp (or None) and key (or None).
WriteRecord = Callable[[LoopCode, str, str | None, str | None], None]


class LoopEnd(Protocol):
    """What a loop is written for anew when other records come by: a chunking output, or a consumer behind a ``key_by``."""

    @property
    def text_key(self) -> tuple[Any, ...]:
        """A loop whose text was written for another one must be written anew."""

    def enter_loop(self) -> None:
        """A run begins; there may be one already."""

    def leave_loop(self) -> None:
        """It ended."""

    def drain(self) -> None:
        """Pass on what waits."""

    def write_limit(self, code: LoopCode) -> None:
        """The statements that pass on what waits, if that is enough; for the end of an inner loop."""


class RecordLoop:
    """One loop, made when it is first needed, and anew when what is emitted behind it looks different.

    Args:
        title: for people who see the text in a debugger.
        write: writes the statements for one record.
        loop_ends: of all operators behind.
    """

    __slots__ = ("_loop_ends", "_made", "_title", "_write")

    def __init__(self, title: str, write: WriteRecord, loop_ends: Sequence[LoopEnd]) -> None:
        self._title = title
        self._write = write
        self._loop_ends = loop_ends
        self._made: dict[tuple[bool, bool], tuple[list[Any], Callable[..., None]]] = {}  # by whether there are timestamps, and keys

    def __repr__(self) -> str:
        return f"<RecordLoop {self._title}>"

    def run(self, records: Iterable[Any], timestamps: Iterable[int] | None, num_records: int, keys: Iterable[Any] | None = None) -> None:
        """Process records.

        Args:
            records: in stream order; may be lazy, then the next one is asked for when the last one is through.
            timestamps: as many, or None; asked for before its record.
            num_records: how many there are.
            keys: as many, or None.

        Raises:
            UserFunctionError: a function failed; names the operator and the record.
        """
        loop_ends = self._loop_ends
        has_timestamps = timestamps is not None
        for end in loop_ends:
            end.enter_loop()
        try:
            loop = self._loop(has_timestamps=has_timestamps, has_keys=keys is not None)
            try:
                loop(records, timestamps, keys, num_records)
            except Exception as error:
                failure = failure_of(error)
                self._drain()
                if failure is error:
                    raise
                raise failure from failure.__cause__
            self._drain()
        finally:
            for end in loop_ends:
                end.leave_loop()

    def _drain(self) -> None:
        for end in self._loop_ends:
            end.drain()

    def _loop(self, *, has_timestamps: bool, has_keys: bool) -> Callable[..., None]:
        texts = [end.text_key for end in self._loop_ends]
        made = self._made.get((has_timestamps, has_keys))
        if made is None or made[0] != texts:
            made = self._made[has_timestamps, has_keys] = texts, self._generate(has_timestamps=has_timestamps, has_keys=has_keys)
        return made[1]

    def _generate(self, *, has_timestamps: bool, has_keys: bool) -> Callable[..., None]:
        code = LoopCode(self._title, self._drain)
        record = code.variable("v")
        timestamp = code.variable("t") if has_timestamps else None
        key = code.variable("k") if has_keys else None
        # Timestamps first: those that are lazy end what is to be done about the record before.
        items = {timestamp: "timestamps", record: "records", key: "keys"}
        variables = [name for name in items if name is not None]
        sources = [items[name] for name in variables]
        source = sources[0] if len(sources) == 1 else f"zip({', '.join(sources)})"
        with code.block(f"for {', '.join(variables)} in {source}:"):
            self._write(code, record, timestamp, key)
        return code.define("records, timestamps, keys, num_records")


def write_into(
    operator: StreamOperator, loop_ends: Sequence[LoopEnd], code: LoopCode, record: str, timestamp: str | None, key: str | None
) -> None:
    """The statements with which a chained operator processes the record in a variable; where they nest too deep, in a loop of its own."""
    if code.num_blocks < MAX_BLOCKS:
        operator.write_record(code, record, timestamp, key)
        return
    loop = RecordLoop(operator.name, operator.write_record, loop_ends)
    stamps, keys = [f"({each},)" if each is not None else "None" for each in (timestamp, key)]
    code.line(f"{code.bind(loop.run, 'push')}(({record},), {stamps}, 1, {keys})")
