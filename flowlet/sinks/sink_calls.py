"""``SinkCalls``: calls the methods of users' sinks, and puts the operator into their errors.

``BadRecordError``: a writer that takes many records at once says which of them it cannot write.

``ChunkWriter``: a writer of ours that takes chunks as they are, for columns.

Side:   task.
Source: Flink ``SinkWriterOperator.Context``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

from flowlet.datastream.connectors.base import SinkWriterContext
from flowlet.errors import FlowletError, TaskCancelled, UserFunctionError
from flowlet.mailbox.task_mailbox import Attention
from flowlet.records import Chunk
from flowlet.serde.type_serializer import preview
from netstack.loop.forks import end_stranded_child

END: Final = 2**63 - 1  # as the number of a checkpoint: the end of a job without any


class BadRecordError(FlowletError):
    """Raised ``from`` what is wrong with the record; the sink's operator makes a UserFunctionError of it, which shows
    the record.
    """

    def __init__(self, record: Any) -> None:
        super().__init__("a record cannot be written")
        self.record = record


class ChunkWriter(ABC):
    """A second base class of a ``SinkWriter``."""

    @abstractmethod
    def write_chunk(self, chunk: Chunk, context: SinkWriterContext) -> None:
        """Take all records of a chunk, which the context does not describe.

        Raises BadRecordError: one of them cannot be written.
        """


T = TypeVar("T")


class SinkCalls:
    """The calls of one operator of a subtask."""

    def __init__(self, operator: str, subtask: int, attention: Attention) -> None:
        self._operator = operator
        self._subtask = subtask
        self._attention = attention

    def call(self, what: str, method: Callable[..., T], *args: Any) -> T:
        """What the method returns; ``what`` names it in an error.

        Raises:
            TaskCancelled: the task was cancelled before the call.
            UserFunctionError, FlowletError: as ``fail``.
        """
        self._attention.check()  # the call before may have taken a minute
        return self.last_call(what, method, *args)

    def last_call(self, what: str, method: Callable[..., T], *args: Any) -> T:
        """As ``call``, also when the task was cancelled: for ``close()``."""
        try:
            result = method(*args)
        except BaseException as error:  # noqa: BLE001 - raised again, as the error of the sink
            self.fail(error, what)
        end_stranded_child()
        return result

    def made(self, sink: object, what: str, make: Callable[[], object], *kinds: type) -> Any:
        """What a method makes.  Raises FlowletError: it is not of all these classes."""
        made = self.call(what, make)
        for kind in kinds:
            if not isinstance(made, kind):
                raise FlowletError(
                    f"operator {self._operator!r}: {what} of {type(sink).__name__} must return a {kind.__name__}, got "
                    f"{preview(made)} of type {type(made).__name__}"
                )
        return made

    def fail(self, error: BaseException, what: str, record: str | None = None, num_processed: int = 0) -> NoReturn:
        """Raise the error of a method; ``num_processed``: so many records of the slice came before.

        Raises:
            UserFunctionError: from the error of a user; with the preview of the record, if it is known.
            FlowletError: from one of a sink of ours, whose message says all.
        """
        end_stranded_child()
        if isinstance(error, UserFunctionError | TaskCancelled):
            raise error
        if isinstance(error, BadRecordError):
            raise UserFunctionError(self._operator, self._subtask, preview(error.record)) from error.__cause__
        if isinstance(error, FlowletError):
            raise FlowletError(f"operator {self._operator!r} (subtask {self._subtask}): {error}") from error
        error.add_note(f"raised by {what}")
        failure = UserFunctionError(self._operator, self._subtask, record)
        failure.num_processed = num_processed
        raise failure from error
