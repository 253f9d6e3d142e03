"""The threads that write checkpoints."""

import os
import threading
from collections.abc import Iterator

import pytest
import structlog

from flowlet.errors import FlowletError
from flowlet.tm.task_checkpointing import SnapshotPool
from tests.waiting import PATIENCE_S, spin_until


@pytest.fixture
def pool() -> Iterator[SnapshotPool]:
    made = SnapshotPool("snapshots of tm-1", num_threads=2)
    yield made
    assert made.close(PATIENCE_S)


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("snapshots of tm-1")}


def test_a_pool_without_work_has_no_threads(pool: SnapshotPool) -> None:
    assert names() == set()


def test_calls_run_on_named_threads_as_many_as_are_needed_and_no_more(pool: SnapshotPool) -> None:
    """Two calls that wait for each other need two threads; a third one waits for one of them."""
    meeting, go_on, seen = threading.Barrier(3), threading.Event(), []

    def meet() -> None:
        meeting.wait(PATIENCE_S)
        seen.append(threading.current_thread().name)
        assert go_on.wait(PATIENCE_S)

    pool.execute(meet)
    pool.execute(meet)
    meeting.wait(PATIENCE_S)
    pool.execute(lambda: seen.append("third"))
    spin_until(lambda: len(seen) == 2)
    go_on.set()
    spin_until(lambda: len(seen) == 3)

    assert seen[2] == "third"
    assert set(seen[:2]) == names() == {"snapshots of tm-1 1", "snapshots of tm-1 2"}


def test_an_idle_thread_takes_the_next_call(pool: SnapshotPool) -> None:
    idents: list[int] = []
    for _ in range(3):
        num_before = len(idents)
        pool.execute(lambda: idents.append(threading.get_ident()))
        spin_until(lambda num_before=num_before: len(idents) > num_before and pool._num_idle == 1)  # type: ignore[misc]

    assert len(set(idents)) == 1


@pytest.mark.parametrize("error", [ValueError("bad"), SystemExit(3)])
def test_a_call_that_raises_is_logged_and_ends_no_thread(pool: SnapshotPool, error: BaseException) -> None:
    done = threading.Event()

    def fail() -> None:
        raise error

    with structlog.testing.capture_logs() as lines:
        pool.execute(fail)
        pool.execute(done.set)
        assert done.wait(PATIENCE_S)

    assert [line["event"] for line in lines] == ["a snapshot failed"]


def test_a_closed_pool_drops_what_waits_and_what_comes() -> None:
    pool, reached, release, seen = SnapshotPool("closing", num_threads=1), threading.Event(), threading.Event(), []

    def hold() -> None:
        reached.set()
        assert release.wait(PATIENCE_S)
        seen.append("under way")

    pool.execute(hold)
    assert reached.wait(PATIENCE_S)
    pool.execute(lambda: seen.append("waits"))

    assert not pool.close(0), "a call runs, which nobody can interrupt"
    pool.execute(lambda: seen.append("too late"))
    release.set()

    assert pool.close(PATIENCE_S)
    assert seen == ["under way"]
    assert "0 calls wait" in repr(pool)


def test_a_child_that_a_call_forks_ends_there(pool: SnapshotPool) -> None:
    """A user's pickling code may fork; the child must not go on as a second TaskManager."""
    children: list[int] = []

    def fork() -> None:
        child = os.fork()
        if child:
            children.append(child)

    pool.execute(fork)
    spin_until(lambda: children)

    _, status = os.waitpid(children[0], 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_calls_wait_for_the_threads_that_there_are_if_no_more_can_be_started(
    pool: SnapshotPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first call is refused at once if there is no thread: nothing would ever run it."""
    go_on, seen = threading.Event(), []

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(
            FlowletError, match="no thread can be started for snapshots of tm-1: can't start new thread"
        ):
            pool.execute(lambda: seen.append("refused"))
    pool.execute(lambda: go_on.wait(PATIENCE_S))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pool.execute(lambda: seen.append("late"))
    go_on.set()

    spin_until(lambda: seen == ["late"])
