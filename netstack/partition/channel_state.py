"""Where buffers go that a checkpoint barrier overtook.

Side:       shared.
Invariants: whoever hands buffers over gives away one reference of each; the writer recycles it.
Source:     Flink ``ChannelStateWriter``, ``InputChannelInfo``, ``ResultSubpartitionInfo``.
Absent:     the writer itself: what is written where is the runtime's business.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from netstack.buffer.segment import NetworkBuffer
from netstack.partition.in_flight import InFlightData

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
        self, checkpoint_id: int, channel: InputChannelInfo, start_sequence_number: int, buffers: Sequence[NetworkBuffer]
    ) -> None:
        """``buffers`` of an input channel belong to the checkpoint; the writer recycles them."""

    def add_output_data(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, buffers: Sequence[NetworkBuffer]
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
        self, checkpoint_id: int, channel: InputChannelInfo, start_sequence_number: int, buffers: Sequence[NetworkBuffer]
    ) -> None:
        """Recycle ``buffers``."""
        for buffer in buffers:
            buffer.recycle()

    def add_output_data(
        self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, start_sequence_number: int, buffers: Sequence[NetworkBuffer]
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


def _recycle_result(data: InFlightData) -> None:
    for buffer in data.take():
        buffer.recycle()
