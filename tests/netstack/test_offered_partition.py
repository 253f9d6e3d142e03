"""The progress of a partition that was offered to several subtasks."""

from collections.abc import Iterator

import pytest

from netstack.errors import ResourceClosedError
from netstack.flow.offer_book import Stage
from netstack.offering_network import OfferedPartition
from tests.netstack.partition.producing import Producing

FIRST, SECOND = ResourceClosedError("first"), ResourceClosedError("second")


@pytest.fixture
def offered() -> Iterator[OfferedPartition]:
    producing = Producing(2)
    yield OfferedPartition(producing.partition, 2)
    producing.close()


def test_the_slowest_subtask_says_how_far_it_is(offered: OfferedPartition) -> None:
    offered.advanced(0, Stage.PROCESSED)
    assert not offered.wait_for(Stage.QUEUED, 0)
    assert offered.wait_for(Stage.PROCESSED, 0, num_first=1)
    assert offered.late_subtasks(Stage.REQUESTED) == [1]
    offered.advanced(1, Stage.REQUESTED)
    offered.advanced(0, Stage.REQUESTED)  # it was further
    assert offered.wait_for(Stage.REQUESTED, 0)
    assert offered.late_subtasks(Stage.PROCESSED) == [1]


def test_to_leave_is_the_end_only_after_everything_was_processed(offered: OfferedPartition) -> None:
    offered.advanced(0, Stage.PROCESSED)
    offered.left(0, FIRST)
    assert (offered.failure, offered.partition.is_released) == (None, False)
    offered.left(1, SECOND)
    assert (offered.failure, offered.partition.is_released) == (SECOND, True)


def test_a_lost_way_is_a_failure_unless_that_subtask_was_through(offered: OfferedPartition) -> None:
    """A connection that is lost after all records were processed is a failure: the subtask may not have seen the
    end.
    """
    for subtask in range(2):
        offered.advanced(subtask, Stage.PROCESSED)
    offered.left(0, FIRST)
    offered.lost(0, FIRST)
    assert offered.failure is None
    offered.lost(1, SECOND)
    offered.abort(FIRST)
    assert offered.failure is SECOND
    assert repr(offered).startswith("<OfferedPartition ['ENDED', 'PROCESSED'], failed: second, ")


def test_nothing_fails_after_the_end(offered: OfferedPartition) -> None:
    """The partition does, if the producer wants it."""
    for subtask in range(2):
        offered.advanced(subtask, Stage.ENDED)
    offered.lost(0, FIRST)
    assert (offered.failure, offered.partition.is_released) == (None, False)
    offered.abort(FIRST)
    assert (offered.failure, offered.partition.is_released) == (None, True)
