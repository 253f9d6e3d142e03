"""Promises of ``WatermarkAlignmentGroups``.

Source: Flink ``SourceCoordinatorAlignmentTest``, ``WatermarkAggregatorTest``.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.jm.alignment.watermark_alignment import MaxAllowedWatermark, SourceSubtask, WatermarkAlignmentGroups
from flowlet.operators.source_event_time import SourceAlignment
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP

DRIFT = 1000


def groups_of(*sources: tuple[str, str, int]) -> WatermarkAlignmentGroups:
    """Of sources with group and drift."""
    groups = WatermarkAlignmentGroups()
    for source, group, drift_ms in sources:
        groups.add_source(source, WatermarkAlignment(group, drift_ms, 100))
    return groups


def report(groups: WatermarkAlignmentGroups, subtask: int, timestamp: int, source: str = "s") -> None:
    groups.report(SourceSubtask(source, subtask), timestamp)


def announced(groups: WatermarkAlignmentGroups, group: str = "g") -> dict[tuple[str, int], int]:
    return {(order.receiver.source_id, order.receiver.subtask): order.timestamp for order in groups.announce(group)}


def test_the_slowest_subtask_decides() -> None:
    groups = groups_of(("s", "g", DRIFT))
    assert groups.announce("g") == []

    report(groups, 0, 42)
    assert announced(groups) == {("s", 0): 1042}
    report(groups, 1, 44)
    assert announced(groups) == {("s", 0): 1042, ("s", 1): 1042}
    report(groups, 0, 5000)
    assert announced(groups) == {("s", 0): 1044, ("s", 1): 1044}


def test_an_idle_subtask_holds_nobody_back() -> None:
    """All idle: everybody may run as far as it can."""
    groups = groups_of(("s", "g", DRIFT))
    report(groups, 0, MAX_TIMESTAMP)
    assert announced(groups) == {("s", 0): MAX_TIMESTAMP}

    report(groups, 1, 44)
    assert announced(groups) == {("s", 0): 1044, ("s", 1): 1044}
    report(groups, 0, 42)
    assert announced(groups)["s", 1] == 1042


def test_groups_do_not_know_each_other() -> None:
    groups = groups_of(("s", "g", DRIFT), ("t", "h", DRIFT))

    report(groups, 0, 42)
    report(groups, 0, 5000, source="t")

    assert announced(groups, "g") == {("s", 0): 1042}
    assert announced(groups, "h") == {("t", 0): 6000}


def test_sources_of_one_group_wait_for_each_other_each_with_its_own_drift() -> None:
    groups = groups_of(("s", "g", DRIFT), ("t", "g", 10))

    report(groups, 0, 42)
    report(groups, 0, 50, source="t")

    assert announced(groups) == {("s", 0): 1042, ("t", 0): 52}


def test_the_limit_does_not_wrap_around() -> None:
    groups = groups_of(("s", "g", DRIFT))

    report(groups, 0, MAX_TIMESTAMP - 1)
    assert announced(groups) == {("s", 0): MAX_TIMESTAMP}
    report(groups, 0, MIN_TIMESTAMP)
    assert announced(groups) == {("s", 0): MIN_TIMESTAMP + DRIFT}


def test_a_subtask_that_failed_counts_again_once_it_reports() -> None:
    groups = groups_of(("s", "g", DRIFT))
    report(groups, 0, 42)
    report(groups, 1, 100)

    groups.forget(SourceSubtask("s", 0))
    groups.forget(SourceSubtask("s", 0))
    assert announced(groups) == {("s", 1): 1100}
    report(groups, 0, 7)

    assert announced(groups)["s", 1] == 1007


def test_a_source_has_one_group() -> None:
    with pytest.raises(ValueError, match="belongs to the alignment group 'g' already"):
        groups_of(("s", "g", DRIFT), ("s", "h", DRIFT))


def test_a_source_without_a_group_cannot_report() -> None:
    with pytest.raises(KeyError):
        report(groups_of(), 0, 5)


def test_a_group_is_announced_as_often_as_its_most_impatient_source_asks() -> None:
    groups = WatermarkAlignmentGroups()
    groups.add_source("s", WatermarkAlignment("g", 1, 500))
    groups.add_source("t", WatermarkAlignment("g", 1, 200))
    groups.add_source("u", WatermarkAlignment("h", 1, 300))

    assert groups.update_intervals_ms() == {"g": 200, "h": 300}


def test_orders_name_their_receiver() -> None:
    groups = groups_of(("s", "g", DRIFT))
    report(groups, 3, 1)

    assert groups.announce("g") == [MaxAllowedWatermark(SourceSubtask("s", 3), 1001)]
    assert repr(groups) == "<WatermarkAlignmentGroups g at 1>"


@given(speeds=st.lists(st.integers(1, 500), min_size=2, max_size=4), drift=st.integers(0, 400))
def test_sources_of_different_speed_stay_together_and_none_starves(speeds: list[int], drift: int) -> None:
    """Every source goes on for ever; none is further ahead of the slowest than drift, samples and one step allow."""
    groups = groups_of(("s", "g", drift))
    sources = [SourceAlignment(num_samples=1) for _ in speeds]
    watermarks = [0] * len(speeds)

    for _ in range(100):
        for subtask, (source, speed) in enumerate(zip(sources, speeds, strict=True)):
            if not source.must_wait:
                watermarks[subtask] += speed
                source.watermark_emitted(watermarks[subtask])
            report(groups, subtask, source.sample())
        for order in groups.announce("g"):
            sources[order.receiver.subtask].allow(order.timestamp)
        assert max(watermarks) - min(watermarks) <= drift + 2 * max(speeds)

    # In every round at least the slowest of the (at most four) sources runs.
    assert min(watermarks) >= min(speeds) * 20
