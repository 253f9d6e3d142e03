"""The time after which a wait for credit, or for the job, is too long."""

from flowlet.ingest.runtime import CREDIT, NO_CREDIT_QUESTION_S, WARN_AFTER_S, StallWatch


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


def test_a_wait_that_begins_while_the_one_before_is_reported_is_reported_too() -> None:
    """The writer goes on and waits again between two steps of the look."""
    now_s, writes = 0.0, False

    def clock() -> float:
        nonlocal writes
        if writes:
            writes = False
            watch.mark_end()
            watch.mark_start()
        return now_s

    watch = StallWatch(clock)
    watch.mark_start()
    now_s = WARN_AFTER_S
    writes = True
    assert watch.overdue_s() == WARN_AFTER_S
    now_s += WARN_AFTER_S

    assert watch.overdue_s() == WARN_AFTER_S


def test_the_jobmanager_is_asked_again_and_again_during_one_wait() -> None:
    """The gate may be slow at the first question and gone at the second."""
    now_s = 0.0
    watch = StallWatch(lambda: now_s)
    now_s = 100.0
    assert not watch.is_question_due(), "it does not wait"
    watch.mark_start()

    asked_s = []
    for _ in range(25):
        if watch.is_question_due():
            asked_s.append(now_s - 100)
        now_s += 1

    assert asked_s == [NO_CREDIT_QUESTION_S, 2 * NO_CREDIT_QUESTION_S]


def test_a_wait_says_what_it_is_for() -> None:
    """Buffer pools say nothing: they wait for credit."""
    watch = StallWatch(lambda: 0.0)

    watch.mark_start("all operators and sinks")
    assert watch.awaited == "all operators and sinks"
    watch.mark_end()
    watch.mark_start()

    assert watch.awaited == CREDIT
