"""``WatermarkStrategy``: how a source tells event time.

Side:   pure.
Source: PyFlink ``pyflink.common.watermark_strategy``.
Absent: timestamp assigners and every strategy that generates watermarks from them (bounded out-of-orderness, idleness, alignment).
"""

from typing import final

__all__ = ["WatermarkStrategy"]


@final
class WatermarkStrategy:
    """What ``from_source`` needs to know about event time; made by one of the static methods.

    ``reads_timestamps`` says whether watermarks follow the records' own timestamps.
    """

    __slots__ = ("name", "reads_timestamps")

    def __init__(self, name: str, *, reads_timestamps: bool) -> None:
        self.name = name
        self.reads_timestamps = reads_timestamps

    @staticmethod
    def no_watermarks() -> "WatermarkStrategy":
        """No watermarks but the last one, at the end of the input."""
        return WatermarkStrategy("no_watermarks", reads_timestamps=False)

    @staticmethod
    def for_monotonous_timestamps() -> "WatermarkStrategy":
        """For sources whose timestamps never go back.

        A source without timestamps (text files) has nothing to follow: then this is the same as ``no_watermarks()``.
        """
        return WatermarkStrategy("for_monotonous_timestamps", reads_timestamps=True)

    def __repr__(self) -> str:
        return f"WatermarkStrategy.{self.name}()"
