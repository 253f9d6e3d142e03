"""What a checkpoint holds of channels: which channel, and the buffers that were on their way.

The buffers before a barrier, once it is known which they are.

Side:       shared.
Invariants: completed or failed once; every callback is called once, outside the lock; its buffers have one owner,
            whoever ``take``s them.  whoever hands buffers over gives away one reference of each; the writer recycles
            it.
Source:     the ``CompletableFuture<List<Buffer>>`` of Flink's ``PipelinedSubpartition`` for barriers that can time out.
            Flink ``ChannelStateWriter``, ``InputChannelInfo``, ``ResultSubpartitionInfo``.
Absent:     the writer itself: what is written where is the runtime's business.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, Protocol

from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.log_lines import shown_state
from netstack.loop.wakeups import run_all


class InFlightData:
    """A result that comes when the barrier is consumed (nothing was in flight), times out, or its checkpoint ends.

    Threading: any thread.
    Ownership: it holds the buffers until they are taken; untaken ones of a failed checkpoint are its completer's to
               recycle.
    """

    __slots__ = ("_buffers", "_callbacks", "_error", "_is_done", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._is_done = False
        self._buffers: list[NetworkBuffer] = []
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[InFlightData], None]] = []

    def __repr__(self) -> str:
        state = shown_state("pending", failed=self._error is not None, done=self._is_done)
        return f"<InFlightData {state}, {len(self._buffers)} buffers>"

    @property
    def is_done(self) -> bool:
        """Whether it was completed or failed."""
        return self._is_done

    @property
    def error(self) -> BaseException | None:
        """Why there will be no buffers, if so."""
        return self._error

    def complete(self, buffers: Sequence[NetworkBuffer]) -> None:
        """Hand over ``buffers``; a second end changes nothing and recycles them."""
        if not self._end(list(buffers), None):
            for buffer in buffers:
                buffer.recycle()

    def fail(self, error: BaseException) -> None:
        """Say that the checkpoint got no buffers, and why; a second end changes nothing."""
        self._end([], error)

    def take(self) -> list[NetworkBuffer]:
        """The buffers, which the caller recycles; empty for everybody but the first, and after a failure."""
        with self._lock:
            buffers, self._buffers = self._buffers, []
        return buffers

    def on_done(self, callback: "Callable[[InFlightData], None]") -> None:
        """Call ``callback`` once it is done, at once if it is; on the thread that completes it, outside every lock."""
        with self._lock:
            if not self._is_done:
                self._callbacks.append(callback)
                return
        callback(self)

    def _end(self, buffers: list[NetworkBuffer], error: BaseException | None) -> bool:
        with self._lock:
            if self._is_done:
                return False
            self._is_done = True
            self._buffers, self._error = buffers, error
            callbacks, self._callbacks = self._callbacks, []
        run_all([partial(callback, self) for callback in callbacks])
        return True


SEQUENCE_NUMBER_UNKNOWN: Final = -1


class InputChannelInfo(NamedTuple):
    """Which channel of which gate of a task."""

    gate_index: int
    channel_index: int


class ResultSubpartitionInfo(NamedTuple):
    """Which subpartition of which partition of a task."""

    partition_index: int
    subpartition_index: int


class ChannelStateWriter(Protocol):
    """Takes the in-flight data of one task.

    Threading: any thread; called outside every lock.
    """

    def add_input_data(
        self,
        checkpoint_id: int,
        channel: InputChannelInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        """``buffers`` of an input channel belong to the checkpoint; the writer recycles them."""

    def add_output_data(
        self,
        checkpoint_id: int,
        subpartition: ResultSubpartitionInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        """``buffers`` of a subpartition belong to the checkpoint; the writer recycles them."""

    def add_output_data_future(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, data: InFlightData
    ) -> None:
        """What is in flight will be known when the barrier was consumed or timed out; the writer recycles it then."""


class NoChannelState:
    """A writer that keeps nothing: for tasks without unaligned checkpoints."""

    __slots__ = ()

    def add_input_data(
        self,
        checkpoint_id: int,
        channel: InputChannelInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        """Recycle ``buffers``."""
        for buffer in buffers:
            buffer.recycle()

    def add_output_data(
        self,
        checkpoint_id: int,
        subpartition: ResultSubpartitionInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        """Recycle ``buffers``."""
        for buffer in buffers:
            buffer.recycle()

    def add_output_data_future(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, data: InFlightData
    ) -> None:
        """Recycle whatever ``data`` brings."""
        data.on_done(_recycle_result)


NO_CHANNEL_STATE: Final = NoChannelState()


class DecompressedInput:
    """Passes everything on, input data as it was before it was compressed: whoever reads it back knows nothing of the
    connection.

    Args:
        writer: gets the data.
        decompress: the original in place of a compressed buffer; one reference in, one out.
    """

    __slots__ = ("_decompress", "_writer", "add_output_data", "add_output_data_future")

    def __init__(self, writer: ChannelStateWriter, decompress: Callable[[NetworkBuffer], NetworkBuffer]) -> None:
        self._writer = writer
        self._decompress = decompress
        self.add_output_data = writer.add_output_data
        self.add_output_data_future = writer.add_output_data_future

    def add_input_data(
        self,
        checkpoint_id: int,
        channel: InputChannelInfo,
        start_sequence_number: int,
        buffers: Sequence[NetworkBuffer],
    ) -> None:
        """Restore what is compressed, and pass all on.

        Raises:
            RemoteProtocolError: a buffer is broken; all are recycled.
        """
        restored: list[NetworkBuffer] = []
        rest = deque(buffers)
        try:
            while rest:
                restored.append(self._decompress(rest.popleft()))
        except BaseException:
            recycle_all([*restored, *rest])
            raise
        self._writer.add_input_data(checkpoint_id, channel, start_sequence_number, restored)


def _recycle_result(data: InFlightData) -> None:
    for buffer in data.take():
        buffer.recycle()
