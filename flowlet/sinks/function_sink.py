"""Sinks that are one operator: they discard records, print them, or call a ``SinkFunction``.

Hot path.  Per record one call of the user's function, and one store of its timestamp if the function takes a context.

Side:       task.
Invariants: a function that is told of complete checkpoints is told of the final one before its subtask ends; if the
            subtask is restored from the final one, the function is initialized again, and gets no records.
Source:     Flink ``StreamSink``, ``PrintSinkFunction`` (``PrintSinkOutputWriter`` for the prefix), ``DiscardingSink``.
"""

import errno
import sys
from typing import Any, Final

from flowlet.chain.loop_code import Blame, LoopCode, RecordLoop
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream.functions import SinkContext, SinkFunction
from flowlet.datastream.sinks.two_phase_commit_sink_function import TwoPhaseCommitSinkFunction
from flowlet.datastream.user_functions.function import CheckpointedFunction, CheckpointListener
from flowlet.errors import ClosedOutputError, FlowletError, StateRestoreError
from flowlet.operators.user_function import RecordOperator
from flowlet.records import Chunk, Watermark
from flowlet.sinks.commit_runner import END
from flowlet.typed.value_conversion import printed_text

# A text file of Python writes its buffer at 8 KiB, wherever a line is then cut; we flush before, so that lines stay
# whole.
_MAX_UNFLUSHED_CHARACTERS: Final = 4_096

_ADVICE: Final = "start the program with one, such as >/dev/null, or use another sink"


class DiscardSink(StreamOperator):
    """Drops every record."""

    def __init__(self, *, name: str = "Discard") -> None:
        self.name = name

    def process_chunk(self, chunk: Chunk) -> None:
        """Drop the records."""

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Drop the record."""


class PrintSink(StreamOperator):
    """Writes each record as a line to the standard output of its TaskManager.

    A line is ``identifier:subtask> `` and the text of the record; the subtask, counted from 1, only if there are
    several, and no prefix if there is neither.  The text is ``str`` of the record, or with a declared type the text of
    Java (``flowlet.typed.value_conversion``).  Lines keep their order among lines that functions of the chain print.
    """

    def __init__(
        self,
        identifier: str | None = None,
        type_info: TypeInformation | None = None,
        *,
        name: str = "Print to Std. Out",
    ) -> None:
        self.name = name
        self._type_info = type_info
        self._identifier = identifier or ""
        self._prefix = ""
        self._num_unflushed = 0  # characters

    def open(self) -> None:
        """Prepare the prefix and the loop."""
        subtask = str(self.ctx.subtask + 1) if self.ctx.parallelism > 1 else ""
        prefix = ":".join(part for part in (self._identifier, subtask) if part)
        self._prefix = f"{prefix}> " if prefix else ""
        if sys.stdout is None:  # the process was started without one; print() of Python would drop everything
            raise ClosedOutputError(f"{self._failed_to_write()}: it is closed; {_ADVICE}")
        self._loop = RecordLoop(self.name, self.write_record, [], self.ctx.attention)
        self.ctx.attention.flushes.append(self._flush)

    def process_chunk(self, chunk: Chunk) -> None:
        """Print the records.

        Raises:
            UserFunctionError: ``str`` of a record failed.
            FlowletError: standard output cannot be written.
        """
        self._loop.run(chunk.records(), None, len(chunk))

    def process_some(self, chunk: Chunk) -> int:
        """Print records until a mail waits; return how many were printed.  Raises as ``process_chunk``."""
        return self._loop.run(chunk.records(), None, len(chunk), None, self.ctx.interrupts)

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Print the record."""
        text = code.variable("text")
        # With a call, because an f-string would call the record's __format__.
        show = code.bind(printed_text(self._type_info), "text")
        code.line(f"{text} = {show}({record})", Blame(self.name, self.ctx.subtask, record))
        code.line(f"{code.bind(self._write, 'print')}({text})")
        code.at_end(f"{code.bind(self._flush, 'flush')}()")

    def _write(self, text: str) -> None:
        stream = sys.stdout
        line = f"{self._prefix}{text}\n"
        try:
            stream.write(line)
        except UnicodeEncodeError:
            # The stream's encoding lacks a character, or the text has lone surrogates: write them escaped.
            encoding = stream.encoding or "utf-8"
            stream.write(line.encode(encoding, "backslashreplace").decode(encoding))
        except (OSError, ValueError) as error:  # ValueError: the stream is closed
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

    def _failure(self, error: OSError | ValueError) -> FlowletError:
        if isinstance(error, BrokenPipeError):
            return ClosedOutputError(f"{self._failed_to_write()}: its reader has left")
        if isinstance(error, ValueError) or error.errno == errno.EBADF:
            return ClosedOutputError(f"{self._failed_to_write()}: it is closed ({error}); {_ADVICE}")
        return FlowletError(f"{self._failed_to_write()}: {error}")

    def _failed_to_write(self) -> str:
        return f"operator {self.name!r} (subtask {self.ctx.subtask}) cannot write to standard output"


class FunctionSink(RecordOperator):
    """Calls a function of one value, or the ``invoke(value, context)`` of an object, with every record."""

    def __init__(self, function: Any, *, name: str = "Sink: Unnamed") -> None:
        super().__init__(name)
        self._user = function
        self._function = self._add(function, "invoke")
        # Such a function may have to commit the transactions of the final checkpoint.
        self.runs_after_finish = isinstance(function, CheckpointedFunction) and isinstance(function, CheckpointListener)
        self._has_finished = False

    def restored_after_finish(self) -> StreamOperator:
        """Return this operator, which refuses records from now on."""
        self._has_finished = True
        return self

    def open(self) -> None:
        """Open the function."""
        self._context = SinkContext(self.ctx.clock)
        super().open()

    def write_record(self, code: LoopCode, record: str, timestamp: str | None, key: str | None) -> None:
        """Call the function."""
        blame = Blame(self.name, self.ctx.subtask, record)
        if self._has_finished:
            code.line(f"{code.bind(self._refuse, 'refuse')}()")
        if self._function.method("invoke") is None:
            code.line(f"{code.bind(self._function.call, 'invoke')}({record})", blame)
            return
        context = code.bind(self._context, "context")
        code.line(f"{context}.record_timestamp = {timestamp}")
        code.line(f"{code.bind(self._function.call, 'invoke')}({record}, {context})", blame)

    def process_watermark(self, watermark: Watermark) -> None:
        """Keep the watermark for the function's context, then pass it on."""
        self._context.watermark = watermark.timestamp
        super().process_watermark(watermark)

    def finish(self) -> None:
        """Let the function write out waiting records; without checkpoints, commit its last transaction."""
        if self._has_finished:
            return
        if isinstance(self._user, SinkFunction):
            self._function.run("finish", ctx=self.ctx)
        if isinstance(self._user, TwoPhaseCommitSinkFunction) and not self.ctx.has_checkpoints:
            self.snapshot_functions(END, self.ctx.processing_time_service.current_time_ms())
            self.notify_checkpoint_complete(END)

    def _refuse(self) -> None:
        raise StateRestoreError(
            f"operator {self.name!r} had finished when its checkpoint was taken, but a producer sends it more records"
        )
