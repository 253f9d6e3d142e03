"""Sinks: where records end.

Side:   task.
Source: Flink ``PrintSinkFunction`` (``PrintSinkOutputWriter`` for the prefix), ``DiscardingSink``, ``StreamSink``.
Absent: sinks that take part in checkpoints.
"""

import sys
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode
from flowlet.chain.record_loop import RecordLoop
from flowlet.chain.stream_operator import StreamOperator
from flowlet.errors import FlowletError
from flowlet.operators.user_function import RecordOperator
from flowlet.records import Chunk

# Python passes on what was written to a text file when that is 8 KiB: flushed before, a line is never cut in two.
_MAX_UNFLUSHED_CHARACTERS: Final = 4_096


class DiscardSink(StreamOperator):
    """Forgets every record."""

    def __init__(self, *, name: str = "Discard") -> None:
        self.name = name

    def process_chunk(self, chunk: Chunk) -> None:
        """Nothing."""

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Nothing."""


class PrintSink(StreamOperator):
    """Writes each record as a line to the standard output of the process that runs the task.

    A line is ``str`` of the record behind the prefix ``identifier:subtask> ``; the identifier only if there is one, the subtask (counted
    from 1) only if there are several, no prefix if neither.  Lines stand between those that functions of the chain print.

    Args:
        identifier: for people who look at more than one print.
        name: for people.
    """

    def __init__(self, identifier: str | None = None, *, name: str = "Print to Std. Out") -> None:
        self.name = name
        self._identifier = identifier or ""
        self._prefix = ""
        self._num_unflushed = 0  # characters

    def open(self) -> None:
        """Make the prefix, and the loop."""
        subtask = str(self.ctx.subtask + 1) if self.ctx.parallelism > 1 else ""
        prefix = ":".join(part for part in (self._identifier, subtask) if part)
        self._prefix = f"{prefix}> " if prefix else ""
        self._loop = RecordLoop(self.name, self.write_record, [])

    def process_chunk(self, chunk: Chunk) -> None:
        """Print the records.

        Raises:
            UserFunctionError: a record's ``str`` failed.
            FlowletError: standard output cannot be written.
        """
        self._loop.run(chunk.records(), None, len(chunk))

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Print the record."""
        text = code.variable("text")
        # Not by its __format__.
        code.line(f"{text} = str({record})", Blame(self.name, self.ctx.subtask, record))
        code.line(f"{code.bind(self._write, 'print')}({text})")
        code.at_end(f"{code.bind(self._flush, 'flush')}()")

    def _write(self, text: str) -> None:
        stream = sys.stdout
        line = f"{self._prefix}{text}\n"
        try:
            stream.write(line)
        except UnicodeEncodeError:
            # Characters that the terminal cannot show, and lone surrogates, are shown escaped.
            encoding = stream.encoding or "utf-8"
            stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:  # ValueError: it was closed
            raise self._failure(error) from error
        self._num_unflushed += len(line)
        if self._num_unflushed > _MAX_UNFLUSHED_CHARACTERS:
            self._flush()

    def _flush(self) -> None:
        self._num_unflushed = 0
        try:
            sys.stdout.flush()
        except (OSError, ValueError) as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> FlowletError:
        return FlowletError(f"operator {self.name!r} (subtask {self.ctx.subtask}) cannot write to standard output: {error}")


class FunctionSink(RecordOperator):
    """Calls a function with every record.

    Args:
        function: a callable, or an object with ``invoke(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Sink") -> None:
        super().__init__(name)
        self._function = self._add(function, "invoke")

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Hand the record over."""
        code.line(f"{code.bind(self._function.call, 'invoke')}({record})", Blame(self.name, self.ctx.subtask, record))
