"""One watermark out of the watermarks of many channels.

Side:       task.
Invariants: what is emitted strictly rises; no watermark is emitted while the output is idle; the output is idle exactly when every
            channel is.  An idle channel is never aligned; one that became active again is aligned once its watermark has caught up.
Source:     Flink ``StatusWatermarkValve`` (rules C07-C12 of its tests).
Absent:     a heap over the aligned channels: the minimum is a linear scan, per watermark, not per record.
"""

from dataclasses import dataclass

from flowlet.records import ACTIVE, IDLE, MIN_TIMESTAMP, Watermark, WatermarkStatus


@dataclass(slots=True)
class _ChannelStatus:
    watermark: int = MIN_TIMESTAMP
    is_idle: bool = False
    is_aligned: bool = True


class StatusWatermarkValve:
    """Takes watermarks and statuses by channel, returns what the task must pass on, in order.

    Threading: task thread only.
    """

    def __init__(self, num_channels: int) -> None:
        if num_channels < 1:
            raise ValueError(f"a valve needs at least one channel, got {num_channels}")
        self._channels = [_ChannelStatus() for _ in range(num_channels)]
        self._last_output = MIN_TIMESTAMP
        self._is_output_idle = False

    def __repr__(self) -> str:
        idle = sum(channel.is_idle for channel in self._channels)
        return f"<StatusWatermarkValve at {self._last_output}, {idle} of {len(self._channels)} channels idle>"

    @property
    def last_output(self) -> int:
        """The last watermark emitted, milliseconds."""
        return self._last_output

    @property
    def is_output_idle(self) -> bool:
        """Whether the last status emitted was idle."""
        return self._is_output_idle

    def input_watermark(self, channel_index: int, watermark: Watermark) -> list[Watermark]:
        """Apply a watermark of one channel; ignored while the channel is idle, and if it is not larger than its last one."""
        channel = self._channels[channel_index]
        if self._is_output_idle or channel.is_idle or watermark.timestamp <= channel.watermark:
            return []
        channel.watermark = watermark.timestamp
        if channel.watermark >= self._last_output:
            channel.is_aligned = True
        return self._advance_to_min()

    def input_status(self, channel_index: int, status: WatermarkStatus) -> list[Watermark | WatermarkStatus]:
        """Apply a status of one channel; a repetition is ignored."""
        channel = self._channels[channel_index]
        if channel.is_idle == status.is_idle:
            return []
        channel.is_idle = status.is_idle
        return self._became_idle(channel) if status.is_idle else self._became_active(channel)

    def _became_idle(self, channel: _ChannelStatus) -> list[Watermark | WatermarkStatus]:
        channel.is_aligned = False
        held_back = channel.watermark == self._last_output
        if any(not other.is_idle for other in self._channels):
            return [*self._advance_to_min()] if held_back else []
        # Nothing holds the watermark back any more: give out the largest one before saying that no more will come.
        flushed = self._advance_to(max(other.watermark for other in self._channels)) if held_back else []
        self._is_output_idle = True
        return [*flushed, IDLE]

    def _became_active(self, channel: _ChannelStatus) -> list[Watermark | WatermarkStatus]:
        channel.is_aligned = channel.watermark >= self._last_output
        if not self._is_output_idle:
            return []
        self._is_output_idle = False
        return [ACTIVE]

    def _advance_to_min(self) -> list[Watermark]:
        aligned = [channel.watermark for channel in self._channels if channel.is_aligned]
        return self._advance_to(min(aligned)) if aligned else []

    def _advance_to(self, timestamp: int) -> list[Watermark]:
        if timestamp <= self._last_output:
            return []
        self._last_output = timestamp
        return [Watermark(timestamp)]

    def check_invariants(self) -> None:
        """Assert the invariants of the module header."""
        assert self._is_output_idle == all(channel.is_idle for channel in self._channels)
        for channel in self._channels:
            assert not (channel.is_idle and channel.is_aligned), "an idle channel is aligned"
            assert not channel.is_aligned or channel.watermark >= self._last_output, "an aligned channel lags behind the output"
