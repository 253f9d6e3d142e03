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


def test_a_window_that_grows_keeps_its_state_where_it_was() -> None:
    windows, merges = MergingWindowSet(SESSIONS, {TimeWindow(0, 5): TimeWindow(0, 5)}), Merges()

    assert windows.add(TimeWindow(4, 9), merges) == TimeWindow(0, 9)

    assert windows.mapping == {TimeWindow(0, 9): TimeWindow(0, 5)}
    assert merges.seen == [(TimeWindow(0, 9), [TimeWindow(0, 5)], TimeWindow(0, 5), [])]


def test_a_window_inside_another_one_changes_nothing() -> None:
    windows, merges = MergingWindowSet(SESSIONS, {TimeWindow(0, 9): TimeWindow(0, 5)}), Merges()

    assert windows.add(TimeWindow(2, 7), merges) == TimeWindow(0, 9)

    assert windows.mapping == {TimeWindow(0, 9): TimeWindow(0, 5)}
    assert merges.seen == []


def test_the_same_window_again_keeps_its_state() -> None:
    """Flink loses it, if a gap that depends on the record gives the very window that others grew to."""
    windows, merges = MergingWindowSet(SESSIONS, {TimeWindow(0, 9): TimeWindow(0, 5)}), Merges()

    assert windows.add(TimeWindow(0, 9), merges) == TimeWindow(0, 9)

    assert windows.mapping == {TimeWindow(0, 9): TimeWindow(0, 5)}


def test_a_window_between_two_makes_them_one_with_the_state_of_the_first() -> None:
    one, two = TimeWindow(0, 5), TimeWindow(8, 13)
    windows, merges = MergingWindowSet(SESSIONS, {two: two, one: one}), Merges()

    assert windows.add(TimeWindow(4, 9), merges) == TimeWindow(0, 13)

    assert windows.mapping == {TimeWindow(0, 13): one}
    assert merges.seen == [(TimeWindow(0, 13), [one, two], one, [two])]
    windows.check_invariants()


def test_a_window_that_covers_another_one_takes_its_state() -> None:
    windows, merges = MergingWindowSet(SESSIONS, {TimeWindow(2, 7): TimeWindow(2, 7)}), Merges()

    assert windows.add(TimeWindow(0, 20), merges) == TimeWindow(0, 20)

    assert windows.mapping == {TimeWindow(0, 20): TimeWindow(2, 7)}


def test_an_assigner_cannot_merge_windows_that_are_not_there() -> None:
    class Inventing(EventTimeSessionWindows[Any]):
        def merge_windows(
            self, windows: Iterable[TimeWindow], callback: MergingWindowAssigner.MergeCallback[TimeWindow]
        ) -> None:
            callback.merge([TimeWindow(70, 80), *windows], TimeWindow(0, 80))

    windows = MergingWindowSet(Inventing(5), {})

    with pytest.raises(FlowletError, match="which it was not given"):
        windows.add(TimeWindow(0, 5), Merges())
