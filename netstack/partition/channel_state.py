"""Where buffers go that a checkpoint barrier overtook.

Side:       shared.
Invariants: whoever hands buffers over gives away one reference of each; the writer recycles it.
Source:     Flink ``ChannelStateWriter``, ``InputChannelInfo``, ``ResultSubpartitionInfo``.
Absent:     the writer itself: what is written where is the runtime's business.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.partition.in_flight_data import InFlightData

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
