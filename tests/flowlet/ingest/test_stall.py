"""When a wait for credit is too long."""

from flowlet.ingest.stall import WARN_AFTER_S, StallWatch


def test_a_stall_is_reported_once_and_the_next_one_again() -> None:
    """Ten seconds of one wait, not of many short ones together."""
    now_s = 0.0
    watch = StallWatch(lambda: now_s)

    for _ in range(3):
        watch.mark_start()
        now_s += WARN_AFTER_S - 1
        assert watch.overdue_s() is None
        watch.mark_end()
    watch.mark_start()
    now_s += WARN_AFTER_S
    assert watch.overdue_s() == WARN_AFTER_S
    now_s += 3600
    assert watch.overdue_s() is None
    watch.mark_end()
    assert repr(watch) == "<StallWatch idle>"
    watch.mark_start()
    now_s += 11
    assert watch.overdue_s() == 11
