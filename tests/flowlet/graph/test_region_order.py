"""The regions that run again together."""

from graphlib import CycleError

import pytest

from flowlet.graph.restart_backoff_strategy import RegionOrder

DIAMOND = RegionOrder.of([(), (0,), (0,), (1, 2), ()])  # 0 -> 1 and 2 -> 3; 4 alone


def test_stages_follow_from_who_reads_whom() -> None:
    """The longest way counts."""
    assert list(DIAMOND.stages) == [0, 1, 1, 2, 0]
    assert list(RegionOrder.of([(2,), (0,), ()]).stages) == [1, 2, 0]
    assert DIAMOND.is_staged
    assert not RegionOrder.of([(), ()]).is_staged


def test_a_failed_region_takes_with_it_who_has_begun_to_read_it() -> None:
    """A region that has not begun to read is left alone."""
    assert DIAMOND.involved([1], lambda _: False, {0, 1, 2}.__contains__) == {1}
    assert DIAMOND.involved([1], lambda _: False, {0, 1, 2, 3}.__contains__) == {1, 3}


def test_lost_results_are_made_again_as_far_back_as_needed() -> None:
    """All regions that read the results run again, too."""
    assert DIAMOND.involved([3], {1}.__contains__, {0, 1, 2, 3}.__contains__) == {1, 3}
    assert DIAMOND.involved([3], {0, 1}.__contains__, {0, 1, 2, 3}.__contains__) == {0, 1, 2, 3}


def test_a_circle_is_our_own_mistake() -> None:
    """Graphs have none."""
    with pytest.raises(CycleError):
        RegionOrder.of([(1,), (0,)])
