"""A channel state writer that remembers."""

from collections.abc import Callable, Sequence

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.partition.channel_state import InputChannelInfo, NoChannelState


class RecordingStateWriter(NoChannelState):
    """Notes the sizes of the buffers that it gets, per call."""

    __slots__ = ("error", "kept", "on_add", "persisted")

    def __init__(self) -> None:
        self.persisted: list[tuple[int, InputChannelInfo, list[int]]] = []
        self.kept: list[NetworkBuffer] = []
        self.error: Exception | None = None
        self.on_add: Callable[[], None] | None = None

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        self.kept += buffers
        if self.error is not None:
            raise self.error
        if self.on_add is not None:
            self.on_add()
        self.persisted.append((checkpoint_id, channel, [buffer.size for buffer in buffers]))

    def recycle(self) -> None:
        """Recycle every buffer that was kept, as a writer does in the end."""
        for buffer in self.kept:
            buffer.recycle()
        self.kept.clear()
