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


def test_a_valve_needs_a_channel() -> None:
    with pytest.raises(ValueError, match="at least one"):
        StatusWatermarkValve(0)


def test_one_channel_passes_rising_watermarks() -> None:
    valve = StatusWatermarkValve(1)

    assert feed(valve, (0, 0), (0, 25)) == [0, 25]
    assert valve.last_output == 25


def test_one_channel_drops_watermarks_that_do_not_rise() -> None:
    assert feed(StatusWatermarkValve(1), (0, 25), (0, 18), (0, 25), (0, 42)) == [25, 42]


def test_one_channel_passes_changes_of_its_status_only() -> None:
    """Active from the start; idle, idle again, active."""
    valve = StatusWatermarkValve(1)

    assert feed(valve, (0, ACTIVE)) == []
    assert feed(valve, (0, IDLE)) == [IDLE]
    assert valve.is_output_idle
    assert feed(valve, (0, IDLE)) == []
    assert feed(valve, (0, ACTIVE)) == [ACTIVE]
    assert not valve.is_output_idle


def test_the_watermarks_of_an_idle_channel_are_ignored() -> None:
    """50 while idle is forgotten: once active, 50 counts as new."""
    valve = StatusWatermarkValve(1)

    assert feed(valve, (0, 25), (0, IDLE), (0, 50)) == [25, IDLE]
    assert valve.last_output == 25
    assert feed(valve, (0, ACTIVE), (0, 50)) == [ACTIVE, 50]


def test_nothing_comes_out_before_every_channel_has_a_watermark() -> None:
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 0), (1, 0)) == []
    assert feed(valve, (2, 0)) == [0]


def test_the_smallest_watermark_decides() -> None:
    valve = StatusWatermarkValve(3)
    feed(valve, (0, 0), (1, 0), (2, 0))

    assert feed(valve, (0, 12), (2, 8), (2, 10)) == []
    assert feed(valve, (1, 15)) == [10]
    assert feed(valve, (2, 17)) == [12]
    assert feed(valve, (0, 20)) == [15]


def test_falling_watermarks_change_nothing() -> None:
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 25), (1, 10), (2, 17)) == [10]
    assert feed(valve, (0, 12), (1, 8), (2, 15)) == []


def test_the_output_is_idle_exactly_when_all_channels_are() -> None:
    """The status changes only with the last channel to become idle, and the first to become active."""
    valve = StatusWatermarkValve(2)

    assert feed(valve, (0, IDLE)) == []
    assert feed(valve, (1, IDLE)) == [IDLE]
    assert feed(valve, (0, ACTIVE)) == [ACTIVE]
    assert feed(valve, (1, ACTIVE)) == []


def test_an_idle_channel_no_longer_holds_the_others_back() -> None:
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 15), (1, 10)) == []
    assert feed(valve, (2, IDLE)) == [10]
    assert feed(valve, (1, 18)) == [15]
    assert feed(valve, (0, 20)) == [18]


def test_channels_that_become_idle_one_by_one_raise_the_watermark() -> None:
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 25), (1, 10), (2, 17)) == [10]
    assert feed(valve, (1, IDLE)) == [17]
    assert feed(valve, (2, IDLE)) == [25]


def test_the_last_channel_to_become_idle_flushes_the_largest_watermark() -> None:
    """The watermark of that channel held the output back."""
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 10), (1, 5), (2, 3)) == [3]
    assert feed(valve, (0, IDLE), (1, IDLE)) == []
    assert feed(valve, (2, IDLE)) == [10, IDLE]


def test_a_channel_that_is_active_again_counts_once_it_caught_up() -> None:
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 10), (1, 7), (2, 3)) == [3]
    assert feed(valve, (2, IDLE)) == [7]
    assert feed(valve, (2, ACTIVE), (2, 5)) == []
    assert feed(valve, (2, 9)) == []
    assert feed(valve, (1, 12)) == [9]


def test_channels_that_are_active_but_behind_give_no_watermark() -> None:
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 10), (1, 7), (2, IDLE)) == [7]
    assert feed(valve, (2, ACTIVE), (0, IDLE), (1, IDLE)) == []
    assert valve.last_output == 7


def test_a_channel_behind_that_becomes_idle_flushes_nothing() -> None:
    """The watermark of that channel did not hold the output back."""
    valve = StatusWatermarkValve(2)

    assert feed(valve, (0, 7), (1, 10)) == [7]
    assert feed(valve, (0, IDLE)) == [10]
    assert feed(valve, (0, ACTIVE), (0, 9), (0, IDLE)) == []


def test_the_last_channel_to_become_idle_flushes_nothing_if_it_was_behind() -> None:
    """The largest watermark goes out only with a channel that held the output back."""
    valve = StatusWatermarkValve(3)

    assert feed(valve, (0, 5), (1, 10), (2, 20), (2, IDLE), (0, IDLE)) == [5, 10]
    assert feed(valve, (0, ACTIVE), (1, IDLE)) == []
    assert feed(valve, (0, IDLE)) == [IDLE]
    assert valve.last_output == 10


def test_an_idle_channel_behind_does_not_release_the_others() -> None:
    """The channel ahead speaks for itself with its next watermark."""
    valve = StatusWatermarkValve(3)
    feed(valve, (0, 5), (1, 10), (2, 20), (2, IDLE), (0, IDLE))

    assert feed(valve, (0, ACTIVE), (1, IDLE), (2, ACTIVE), (0, IDLE)) == []
    assert feed(valve, (2, 21)) == [21]


def test_the_last_watermark_passes() -> None:
    valve = StatusWatermarkValve(1)

    assert valve.input_watermark(0, MAX_WATERMARK) == [MAX_WATERMARK]


def test_a_finished_channel_beside_idle_ones_does_not_push_the_watermark_to_infinity() -> None:
    """The output becomes idle instead; the idle channel comes back and its watermarks count (FLINK-38477)."""
    valve = StatusWatermarkValve(2)
    feed(valve, (0, 10), (1, 20))

    assert feed(valve, (0, MAX_TIMESTAMP)) == [20]
    assert feed(valve, (1, IDLE)) == [IDLE]
    assert feed(valve, (1, ACTIVE), (1, 30)) == [ACTIVE, 30]


def test_a_channel_that_finishes_beside_idle_ones_leaves_the_output_idle() -> None:
    """The other channels are idle before this one finishes."""
    valve = StatusWatermarkValve(3)
    feed(valve, (0, 10), (1, 20), (2, 20))

    assert feed(valve, (1, IDLE), (2, IDLE)) == []
    assert feed(valve, (0, MAX_TIMESTAMP)) == [20, IDLE]
    assert valve.last_output == 20


def test_the_last_watermark_comes_once_every_channel_has_finished() -> None:
    valve = StatusWatermarkValve(2)

    assert feed(valve, (0, MAX_TIMESTAMP), (0, MAX_TIMESTAMP)) == []
    assert feed(valve, (1, 5)) == [5]
    assert feed(valve, (1, MAX_TIMESTAMP), (1, MAX_TIMESTAMP)) == [MAX_TIMESTAMP]


def test_an_idle_channel_may_finish() -> None:
    """The last channel may be idle when it finishes: then the output is active again and at its end."""
    valve = StatusWatermarkValve(2)

    assert feed(valve, (0, 7), (1, 7), (0, IDLE)) == [7]
    assert feed(valve, (0, MAX_TIMESTAMP)) == []
    assert feed(valve, (1, IDLE)) == [IDLE]
    assert feed(valve, (1, MAX_TIMESTAMP)) == [ACTIVE, MAX_TIMESTAMP]
    assert not valve.is_output_idle


def test_a_finished_channel_says_nothing_any_more() -> None:
    valve = StatusWatermarkValve(2)
    feed(valve, (0, 3), (0, MAX_TIMESTAMP))

    assert feed(valve, (0, IDLE), (0, ACTIVE), (0, 50)) == []
    assert valve.channel_state(0) is ChannelState.FINISHED


def test_who_holds_the_watermark_back_can_be_asked() -> None:
    """The answer is the slowest active channels; neither idle nor finished ones."""
    valve = StatusWatermarkValve(4)
    feed(valve, (0, 5), (1, 9), (2, 5), (2, IDLE), (3, MAX_TIMESTAMP))

    assert valve.held_back_by() == [0]
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
            return (
                []
                if state is ChannelState.IDLE and not self.all_in(ChannelState.FINISHED)
                else self.less(may_advance=True)
            )
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
        rest = [
            watermark
            for watermark, state in zip(self.watermarks, self.states, strict=True)
            if state is ChannelState.IDLE
        ]
        out = self.to(max(rest)) if may_advance else []
        self.idle = True
        return [*out, IDLE]

    def awake(self) -> list[int | WatermarkStatus]:
        was_idle, self.idle = self.idle, False
        return [ACTIVE] if was_idle else []

    def least(self) -> int:
        aligned = [
            watermark
            for watermark, state in zip(self.watermarks, self.states, strict=True)
            if state is ChannelState.ALIGNED
        ]
        return min(aligned, default=MIN_TIMESTAMP)

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
