"""Source: Flink ``WatermarkOutputMultiplexerTest``."""

from flowlet.records import MIN_TIMESTAMP
from flowlet.watermarks.watermark_multiplexer import WatermarkMultiplexer


class Heard:
    """Keeps what is news, as the emitter does."""

    def __init__(self) -> None:
        self.said: list[int | str] = []
        self.watermark = MIN_TIMESTAMP
        self.is_idle = False

    def emit_watermark(self, timestamp: int) -> None:
        if timestamp > self.watermark:
            self.watermark = timestamp
            self.said.append(timestamp)

    def mark_idle(self) -> None:
        if not self.is_idle:
            self.is_idle = True
            self.said.append("idle")

    def mark_active(self) -> None:
        if self.is_idle:
            self.is_idle = False
            self.said.append("active")


def test_the_smallest_part_counts() -> None:
    heard = Heard()
    parts = WatermarkMultiplexer(heard)
    first, second = parts.add("a"), parts.add("b")

    first.emit_watermark(10)
    assert heard.said == []
    second.emit_watermark(5)
    second.emit_watermark(4)
    second.emit_watermark(20)

    assert heard.said == [5, 10]
    assert parts.watermarks() == {"a": 10, "b": 20}


def test_idle_parts_do_not_count_until_they_are_active_again() -> None:
    heard = Heard()
    parts = WatermarkMultiplexer(heard)
    first, second = parts.add("a"), parts.add("b")
    first.emit_watermark(10)

    second.mark_idle()
    first.mark_idle()
    first.mark_idle()
    second.mark_active()
    second.emit_watermark(11)
    first.mark_active()
    first.emit_watermark(12)

    assert heard.said == [10, "idle", "active", 11]


def test_a_part_that_is_removed_holds_nothing_back() -> None:
    heard = Heard()
    parts = WatermarkMultiplexer(heard)
    parts.add("a").emit_watermark(10)
    parts.add("b")

    parts.add("c").mark_idle()
    parts.remove("b")
    parts.remove("a")
    parts.remove("c")

    assert heard.said == [10, "idle"]


def test_deferred_changes_are_told_together() -> None:
    heard = Heard()
    parts = WatermarkMultiplexer(heard)
    first, second = parts.add("a"), parts.add("b")
    first.emit_watermark(1)
    second.emit_watermark(1)

    parts.defer()
    first.emit_watermark(10)
    second.emit_watermark(5)
    second.emit_watermark(9)
    assert heard.said == [1]
    parts.update()

    assert heard.said == [1, 9]
