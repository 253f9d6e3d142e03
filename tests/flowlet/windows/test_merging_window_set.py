"""Source: Flink ``MergingWindowSetTest``."""

from collections.abc import Iterable
from typing import Any

import pytest

from flowlet.common import Time
from flowlet.datastream.window import EventTimeSessionWindows, MergingWindowAssigner, TimeWindow
from flowlet.errors import FlowletError
from flowlet.windows.window_states import MergingWindowSet

SESSIONS = EventTimeSessionWindows.with_gap(Time.milliseconds(5))


class Merges:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def __call__(self, *merge: Any) -> None:
        self.seen.append(merge)


def test_a_window_alone_keeps_its_own_state() -> None:
    windows, merges = MergingWindowSet(SESSIONS, {}), Merges()

    assert windows.add(TimeWindow(0, 5), merges) == TimeWindow(0, 5)
    assert windows.add(TimeWindow(10, 15), merges) == TimeWindow(10, 15)

    assert windows.mapping == {TimeWindow(0, 5): TimeWindow(0, 5), TimeWindow(10, 15): TimeWindow(10, 15)}
    assert merges.seen == []


@pytest.mark.parametrize(
    ("former", "state", "added", "result"),
    [
        pytest.param((0, 5), (0, 5), (4, 9), (0, 9), id="it grows"),
        pytest.param((0, 9), (0, 5), (2, 7), (0, 9), id="a window inside of it"),
        # Flink loses the state, if a gap that depends on the record gives the very window that others grew to.
        pytest.param((0, 9), (0, 5), (0, 9), (0, 9), id="the same window again"),
        pytest.param((2, 7), (2, 7), (0, 20), (0, 20), id="a window that covers it"),
    ],
)
def test_a_window_keeps_its_state_where_it_was(
    former: tuple[int, int], state: tuple[int, int], added: tuple[int, int], result: tuple[int, int]
) -> None:
    windows, merges = MergingWindowSet(SESSIONS, {TimeWindow(*former): TimeWindow(*state)}), Merges()

    assert windows.add(TimeWindow(*added), merges) == TimeWindow(*result)

    assert windows.mapping == {TimeWindow(*result): TimeWindow(*state)}
    told: list[Any] = [(TimeWindow(*result), [TimeWindow(*former)], TimeWindow(*state), [])] if result != former else []
    assert merges.seen == told


def test_a_window_between_two_makes_them_one_with_the_state_of_the_first() -> None:
    one, two = TimeWindow(0, 5), TimeWindow(8, 13)
    windows, merges = MergingWindowSet(SESSIONS, {two: two, one: one}), Merges()

    assert windows.add(TimeWindow(4, 9), merges) == TimeWindow(0, 13)

    assert windows.mapping == {TimeWindow(0, 13): one}
    assert merges.seen == [(TimeWindow(0, 13), [one, two], one, [two])]
    windows.check_invariants()


def test_an_assigner_cannot_merge_windows_that_are_not_there() -> None:
    class Inventing(EventTimeSessionWindows[Any]):
        def merge_windows(
            self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
        ) -> None:
            callback.merge([TimeWindow(70, 80), *windows], TimeWindow(0, 80))

    windows = MergingWindowSet(Inventing(5), {})

    with pytest.raises(FlowletError, match="which it was not given"):
        windows.add(TimeWindow(0, 5), Merges())
