"""Promises of ``StatusWatermarkValve``.

Source: Flink ``StatusWatermarkValveTest`` (all scenarios, with its numbers), and FLINK-38477: finished channels beside
        idle ones.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, MAX_WATERMARK, MIN_TIMESTAMP, Watermark, WatermarkStatus
from flowlet.watermarks.combined_watermarks import ChannelState, StatusWatermarkValve

Step = tuple[int, int | WatermarkStatus]  # a channel, and a watermark or a status


def feed(valve: StatusWatermarkValve, *steps: Step) -> list[int | WatermarkStatus]:
    """Apply the steps; return the output, with watermarks as plain numbers."""
    out: list[int | WatermarkStatus] = []
    for channel, what in steps:
        found = (
            valve.input_status(channel, what)
            if isinstance(what, WatermarkStatus)
            else valve.input_watermark(channel, Watermark(what))
        )
        valve.check_invariants()
        out += [each.timestamp if isinstance(each, Watermark) else each for each in found]
    return out


# By what is shown: the number of channels, and steps with what comes out of them.  ``0=7`` is a watermark of channel 0.
WORDS: dict[str, int | WatermarkStatus] = {"idle": IDLE, "active": ACTIVE, "end": MAX_TIMESTAMP}
CASES = {
    "one channel passes rising watermarks": (1, "0=0 0=25 -> 0 25"),
    "one channel drops watermarks that do not rise": (1, "0=25 0=18 0=25 0=42 -> 25 42"),
    "one channel passes changes of its status only": (
        1,
        "0=active ->; 0=idle -> idle; 0=idle ->; 0=active -> active",
    ),
    "the watermarks of an idle channel are forgotten": (1, "0=25 0=idle 0=50 -> 25 idle; 0=active 0=50 -> active 50"),
    "nothing comes out before every channel has a watermark": (3, "0=0 1=0 ->; 2=0 -> 0"),
    "the smallest watermark decides": (
        3,
        "0=0 1=0 2=0 -> 0; 0=12 2=8 2=10 ->; 1=15 -> 10; 2=17 -> 12; 0=20 -> 15",
    ),
    "falling watermarks change nothing": (3, "0=25 1=10 2=17 -> 10; 0=12 1=8 2=15 ->"),
    "the output is idle exactly when all channels are": (
        2,
        "0=idle ->; 1=idle -> idle; 0=active -> active; 1=active ->",
    ),
    "an idle channel no longer holds the others back": (3, "0=15 1=10 ->; 2=idle -> 10; 1=18 -> 15; 0=20 -> 18"),
    "channels that become idle one by one raise the watermark": (
        3,
        "0=25 1=10 2=17 -> 10; 1=idle -> 17; 2=idle -> 25",
    ),
    "the last channel to become idle, which held the output back, flushes the largest watermark": (
        3,
        "0=10 1=5 2=3 -> 3; 0=idle 1=idle ->; 2=idle -> 10 idle",
    ),
    "a channel that is active again counts once it caught up": (
        3,
        "0=10 1=7 2=3 -> 3; 2=idle -> 7; 2=active 2=5 ->; 2=9 ->; 1=12 -> 9",
    ),
    "channels that are active but behind give no watermark": (
        3,
        "0=10 1=7 2=idle -> 7; 2=active 0=idle 1=idle ->",
    ),
    "a channel behind that becomes idle flushes nothing, for it did not hold the output back": (
        2,
        "0=7 1=10 -> 7; 0=idle -> 10; 0=active 0=9 0=idle ->",
    ),
    "the last channel to become idle flushes nothing if it was behind": (
        3,
        "0=5 1=10 2=20 2=idle 0=idle -> 5 10; 0=active 1=idle ->; 0=idle -> idle",
    ),
    "an idle channel behind does not release the others: the one ahead speaks for itself with its next watermark": (
        3,
        "0=5 1=10 2=20 2=idle 0=idle -> 5 10; 0=active 1=idle 2=active 0=idle ->; 2=21 -> 21",
    ),
    "a finished channel beside idle ones does not push the watermark to infinity (FLINK-38477)": (
        2,
        "0=10 1=20 -> 10; 0=end -> 20; 1=idle -> idle; 1=active 1=30 -> active 30",
    ),
    "a channel that finishes beside idle ones leaves the output idle": (
        3,
        "0=10 1=20 2=20 -> 10; 1=idle 2=idle ->; 0=end -> 20 idle",
    ),
    "the last watermark comes once every channel has finished": (2, "0=end 0=end ->; 1=5 -> 5; 1=end 1=end -> end"),
    "an idle channel may finish: if it is the last one, the output is active again and at its end": (
        2,
        "0=7 1=7 0=idle -> 7; 0=end ->; 1=idle -> idle; 1=end -> active end",
    ),
    "a finished channel says nothing any more": (2, "0=3 0=end ->; 0=idle 0=active 0=50 ->"),
}


def value_of(text: str) -> int | WatermarkStatus:
    return WORDS[text] if text in WORDS else int(text)


@pytest.mark.parametrize("shows", CASES)
def test_the_output_follows_the_channels(shows: str) -> None:
    """The valve also says its last watermark, and whether its output is idle."""
    num_channels, story = CASES[shows]
    valve, last, is_idle = StatusWatermarkValve(num_channels), MIN_TIMESTAMP, False

    for part in story.split(";"):
        steps, _, expected = part.partition("->")
        out = feed(valve, *((int(step[0]), value_of(step[2:])) for step in steps.split()))

        assert out == [value_of(each) for each in expected.split()], part
        for each in out:
            if isinstance(each, WatermarkStatus):
                is_idle = each.is_idle
            else:
                last = each
        assert (valve.last_output, valve.is_output_idle) == (last, is_idle), part


def test_a_valve_needs_a_channel() -> None:
    with pytest.raises(ValueError, match="at least one"):
        StatusWatermarkValve(0)


def test_the_last_watermark_passes() -> None:
    valve = StatusWatermarkValve(1)

    assert valve.input_watermark(0, MAX_WATERMARK) == [MAX_WATERMARK]


def test_who_holds_the_watermark_back_can_be_asked() -> None:
    """The answer is the slowest active channels; neither idle nor finished ones."""
    valve = StatusWatermarkValve(4)
    feed(valve, (0, 5), (1, 9), (2, 5), (2, IDLE), (3, MAX_TIMESTAMP))

    assert valve.held_back_by() == [0]
    assert valve.channel_state(3) is ChannelState.FINISHED
    feed(valve, (2, ACTIVE), (1, IDLE))
    assert valve.held_back_by() == [0, 2]


def test_the_valve_prints_where_it_is() -> None:
    valve = StatusWatermarkValve(3)
    feed(valve, (0, 5), (1, 5), (2, 5), (1, IDLE))

    assert repr(valve) == "<StatusWatermarkValve at 5, 1 of 3 channels idle>"
    feed(valve, (2, MAX_TIMESTAMP))
    assert repr(valve) == "<StatusWatermarkValve at 5, 1 of 3 channels idle, 1 finished>"


class Model:
    """The same rules with a linear scan."""

    def __init__(self, num_channels: int) -> None:
        self.watermarks = [MIN_TIMESTAMP] * num_channels
        self.states = [ChannelState.ALIGNED] * num_channels
        self.last = MIN_TIMESTAMP
        self.idle = False

    def apply(self, channel: int, what: int | WatermarkStatus) -> list[int | WatermarkStatus]:
        state = self.states[channel]
        if state is ChannelState.FINISHED:
            return []
        if isinstance(what, WatermarkStatus):
            return self.status(channel, is_idle=what.is_idle)
        if what == MAX_TIMESTAMP:
            self.states[channel] = ChannelState.FINISHED
            is_silent = state is ChannelState.IDLE and not self.all_in(ChannelState.FINISHED)
            return [] if is_silent else self.less(may_advance=True)
        if state is ChannelState.IDLE or what <= self.watermarks[channel]:
            return []
        self.watermarks[channel] = what
        if what >= self.last:
            self.states[channel] = ChannelState.ALIGNED
        return self.to(self.least())

    def status(self, channel: int, *, is_idle: bool) -> list[int | WatermarkStatus]:
        if is_idle == (self.states[channel] is ChannelState.IDLE):
            return []
        if is_idle:
            self.states[channel] = ChannelState.IDLE
            return self.less(may_advance=self.watermarks[channel] == self.last)
        self.states[channel] = ChannelState.ALIGNED if self.watermarks[channel] >= self.last else ChannelState.BEHIND
        return self.awake()

    def less(self, *, may_advance: bool) -> list[int | WatermarkStatus]:
        if self.all_in(ChannelState.FINISHED):
            return [*self.awake(), *self.to(MAX_TIMESTAMP)]
        if not self.all_in(ChannelState.FINISHED, ChannelState.IDLE):
            return self.to(self.least()) if may_advance else []
        out = self.to(max(self.those(ChannelState.IDLE))) if may_advance else []
        self.idle = True
        return [*out, IDLE]

    def awake(self) -> list[int | WatermarkStatus]:
        was_idle, self.idle = self.idle, False
        return [ACTIVE] if was_idle else []

    def least(self) -> int:
        return min(self.those(ChannelState.ALIGNED), default=MIN_TIMESTAMP)

    def those(self, wanted: ChannelState) -> list[int]:
        """Return the watermarks of the channels in this state."""
        return [watermark for watermark, state in zip(self.watermarks, self.states, strict=True) if state is wanted]

    def to(self, timestamp: int) -> list[int | WatermarkStatus]:
        if timestamp <= self.last:
            return []
        self.last = timestamp
        return [timestamp]

    def all_in(self, *states: ChannelState) -> bool:
        return all(state in states for state in self.states)


steps = st.tuples(st.integers(0, 3), st.one_of(st.integers(0, 50), st.sampled_from([ACTIVE, IDLE, MAX_TIMESTAMP])))


@given(inputs=st.lists(steps, max_size=60))
def test_the_output_rises_strictly_and_is_silent_while_idle(inputs: list[Step]) -> None:
    """The law holds for any order of any inputs; a status is never repeated; no output is above the largest input."""
    valve = StatusWatermarkValve(4)

    last, status = MIN_TIMESTAMP, ACTIVE
    for step in inputs:
        for out in feed(valve, step):
            if isinstance(out, WatermarkStatus):
                assert out is not status
                status = out
            else:
                assert status is ACTIVE
                assert out > last
                last = out

    assert valve.last_output == last
    assert last <= max((what for _, what in inputs if isinstance(what, int)), default=MIN_TIMESTAMP)


@given(inputs=st.lists(steps, max_size=80))
def test_the_heap_gives_what_a_scan_over_all_channels_would(inputs: list[Step]) -> None:
    """The valve's outputs are equal to a scan's step by step."""
    valve, model = StatusWatermarkValve(4), Model(4)

    for step in inputs:
        assert feed(valve, step) == model.apply(*step)
