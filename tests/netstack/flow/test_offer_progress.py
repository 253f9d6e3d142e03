"""How far a partition is that was offered to several subtasks."""

from netstack.flow.offer_book import OfferProgress, Stage

FIRST, SECOND = ValueError("first"), ValueError("second")


def test_the_slowest_subtask_says_how_far_it_is() -> None:
    progress = OfferProgress(2)
    progress.advance(0, Stage.PROCESSED)
    assert progress.stage_of(None) == 0
    assert progress.late_subtasks(Stage.REQUESTED) == [1]
    progress.advance(1, Stage.REQUESTED)
    progress.advance(0, Stage.REQUESTED)  # it was further
    assert progress.stage_of(None) is Stage.REQUESTED
    assert progress.late_subtasks(Stage.PROCESSED) == [1]


def test_to_leave_is_the_end_only_after_everything_was_processed() -> None:
    progress = OfferProgress(2)
    progress.advance(0, Stage.PROCESSED)
    progress.leave(0, FIRST)
    assert progress.failure is None
    progress.leave(1, SECOND)
    assert progress.failure is SECOND


def test_a_lost_way_is_a_failure_unless_that_subtask_was_through() -> None:
    """Processed is not enough: whether it saw the end of the partition, and counted it, nobody knows."""
    progress = OfferProgress(2)
    for subtask in range(2):
        progress.advance(subtask, Stage.PROCESSED)
    progress.leave(0, FIRST)
    progress.lose(0, FIRST)
    assert progress.failure is None
    progress.lose(1, SECOND)
    progress.fail(FIRST)
    assert progress.failure is SECOND
    assert repr(progress) == "<OfferProgress ['ENDED', 'PROCESSED'], failed: second>"


def test_nothing_fails_after_the_end() -> None:
    progress = OfferProgress(1)
    progress.advance(0, Stage.ENDED)
    progress.fail(FIRST)
    assert progress.failure is None
