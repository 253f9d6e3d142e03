"""Sinks: where records end.

Side:   task.
Source: Flink ``PrintSinkFunction`` (``PrintSinkOutputWriter`` for the prefix), ``DiscardingSink``, ``StreamSink``.
Absent: sinks that take part in checkpoints.
"""

import sys
from typing import Any, ClassVar

from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators.base import StreamOperator
from flowlet.operators.user_function import UserFunctionOperator, last_of, preview
from flowlet.records import Chunk


class DiscardSink(StreamOperator):
    """Forgets every record."""

    touches_records: ClassVar[bool] = False

    def __init__(self, *, name: str = "Discard") -> None:
        self.name = name

    def process_chunk(self, chunk: Chunk) -> None:
        """Nothing."""


class PrintSink(StreamOperator):
    """Writes each record as a line to the standard output of the process that runs the task.

    A line is ``str`` of the record behind the prefix ``identifier:subtask> ``; the identifier only if there is one, the subtask (counted
    from 1) only if there are several, no prefix if neither.

    Args:
        identifier: for people who look at more than one print.
        name: for people.
    """

    touches_records: ClassVar[bool] = False

    def __init__(self, identifier: str | None = None, *, name: str = "Print to Std. Out") -> None:
        self.name = name
        self._identifier = identifier or ""
        self._prefix = ""

    def open(self) -> None:
        """Make the prefix."""
        subtask = str(self.ctx.subtask + 1) if self.ctx.parallelism > 1 else ""
        prefix = ":".join(part for part in (self._identifier, subtask) if part)
        self._prefix = f"{prefix}> " if prefix else ""

    def process_chunk(self, chunk: Chunk) -> None:
        """Print the records with one write, so that lines of several tasks do not mix.

        Raises:
            UserFunctionError: a record's ``str`` failed.
            FlowletError: standard output cannot be written.
        """
        prefix = self._prefix
        records = iter(chunk.values)
        try:
            lines = [f"{prefix}{record!s}\n" for record in records]
        except Exception as error:
            raise UserFunctionError(self.name, self.ctx.subtask, preview(last_of(chunk.values, records))) from error
        stream = sys.stdout
        encoding = stream.encoding or "utf-8"
        # Characters that the terminal cannot show, and lone surrogates, are shown escaped.
        text = "".join(lines).encode(encoding, "backslashreplace").decode(encoding)
        try:
            stream.write(text)
            stream.flush()
        except (OSError, ValueError) as error:  # ValueError: it was closed
            raise FlowletError(f"operator {self.name!r} (subtask {self.ctx.subtask}) cannot write to standard output: {error}") from error


class FunctionSink(UserFunctionOperator):
    """Calls a function with every record.

    Args:
        function: a callable, or an object with ``invoke(value)``.
        name: for people.
    """

    def __init__(self, function: Any, *, name: str = "Sink") -> None:
        super().__init__(name)
        self._function = self._add(function, "invoke")

    def process_chunk(self, chunk: Chunk) -> None:
        """Hand the records over, one by one."""
        records = iter(chunk.values)
        function = self._function.call
        try:
            for record in records:
                function(record)
        except Exception as error:
            raise self._failure(chunk.values, records) from error
