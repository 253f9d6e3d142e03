"""Source: Flink ``WatermarkOutputMultiplexerTest``."""

from hypothesis import given
from hypothesis import strategies as st

from flowlet.records import MIN_TIMESTAMP
from flowlet.watermarks.combined_watermarks import WatermarkMultiplexer


class Heard:
    """Keeps the news, as the emitter does."""

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


def test_of_three_parts_the_slowest_active_one_counts() -> None:
    """One idle part holds nothing back, nor do two; the whole is idle only with the last one."""
    heard = Heard()
    parts = WatermarkMultiplexer(heard)
    slow, middle, fast = parts.add("slow"), parts.add("middle"), parts.add("fast")
    for part, timestamp in ((slow, 1), (middle, 10), (fast, 100)):
        part.emit_watermark(timestamp)

    slow.mark_idle()
    middle.mark_idle()
    fast.mark_idle()
    fast.mark_active()
    fast.emit_watermark(200)
    middle.mark_active()
    fast.emit_watermark(300)

    assert heard.said == [1, 10, 100, "idle", "active", 200]


@given(
    steps=st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 5) | st.sampled_from(["idle", "active"])), max_size=30)
)
def test_the_whole_is_what_its_parts_say(steps: list[tuple[int, int | str]]) -> None:
    """It is the smallest among the parts that are not idle; the whole is idle exactly when all of them are."""
    heard = Heard()
    multiplexer = WatermarkMultiplexer(heard)
    parts = [multiplexer.add(str(number)) for number in range(4)]
    timestamps, idle, highest = [MIN_TIMESTAMP] * 4, [False] * 4, MIN_TIMESTAMP

    for number, step in steps:
        if step == "idle":
            parts[number].mark_idle()
            idle[number] = True
        elif step == "active":
            parts[number].mark_active()
            idle[number] = False
        else:
            parts[number].emit_watermark(int(step))
            if int(step) > timestamps[number]:
                timestamps[number], idle[number] = int(step), False

        active = [timestamp for timestamp, is_idle in zip(timestamps, idle, strict=True) if not is_idle]
        highest = max([highest, min(active)] if active else [highest])
        assert (heard.watermark, heard.is_idle) == (highest, not active), (number, step)
        multiplexer.check_invariants()


def test_a_part_that_was_removed_has_no_more_to_say() -> None:
    """The generator of the part may still be called; the memory that parts need is bounded by those that are there."""
    heard = Heard()
    parts = WatermarkMultiplexer(heard)
    gone, slow = parts.add("gone"), parts.add("slow")
    parts.remove("gone")

    for timestamp in range(1, 500):
        gone.emit_watermark(timestamp)
        slow.emit_watermark(2 * timestamp)
        parts.check_invariants()

    assert heard.watermark == 998
