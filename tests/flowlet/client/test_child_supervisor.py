"""A child that dies gets a successor soon, until too many died or the cluster ends."""

import os
import queue
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flowlet.client.child_supervisor import ChildSupervisor, RespawnPolicy
from flowlet.client.children import OutputForwarder, TaskManagerOptions, TaskManagerProcess
from flowlet.errors import FlowletError
from tests.flowlet.client.executed_children import join_tellers, launch
from tests.waiting import PATIENCE_S


class AtOnce(RespawnPolicy):
    """A policy without delays, whose limit the test sets."""

    left = 100

    def child_died(self, now_s: float) -> float | None:
        super().child_died(now_s)
        self.left -= 1
        return None if self.left < 0 else 0.0


class Cluster:
    """A supervisor whose children are a shell script's."""

    def __init__(self) -> None:
        self.started: queue.Queue[tuple[int, TaskManagerOptions]] = queue.Queue()
        self.problems: list[Exception] = []
        self._forwarder = OutputForwarder()
        self.policy = AtOnce()
        self.supervisor = ChildSupervisor(self._forwarder, self.policy, self._launch)

    def _launch(self, options: TaskManagerOptions) -> TaskManagerProcess:
        if self.problems:
            raise self.problems.pop()
        child = launch(options, self._forwarder)
        self.started.put((child.pid, options))
        return child

    def start(self, *num_slots: int) -> None:
        options = [TaskManagerOptions("127.0.0.1:1", Path("/s"), Path("/p"), each) for each in num_slots]
        self.supervisor.start(options, PATIENCE_S)

    def next_started(self) -> tuple[int, int]:
        """Return process id and number of slots."""
        pid, options = self.started.get(timeout=PATIENCE_S)
        return pid, options.num_slots

    def kill_next(self) -> int:
        pid, _ = self.next_started()
        os.kill(pid, signal.SIGKILL)
        return pid


# The last of the arguments before the options is the descriptor to tell the program by.
TELLS = 'while [ "$1" != --jobmanager ]; do status=$1; shift; done\necho ready > /proc/self/fd/$status\n'


def use_script(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    script = folder / "task_manager"
    script.write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Cluster]:
    use_script(monkeypatch, tmp_path, TELLS + "exec sleep 1000")
    made = Cluster()
    yield made
    made.supervisor.stop()


def test_a_killed_child_gets_a_successor_with_the_same_options(cluster: Cluster) -> None:
    cluster.start(1, 2)
    first, second = cluster.next_started(), cluster.next_started()

    os.kill(second[0], signal.SIGKILL)
    third = cluster.next_started()

    assert (first[1], second[1], third[1]) == (1, 2, 2)
    assert third[0] != second[0]


def test_the_end_of_a_child_is_told(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    cluster.start(1)

    pid = cluster.kill_next()
    cluster.next_started()

    end = f"TaskManager process {pid} ended by SIGKILL; its standard error may say more"
    assert cluster.supervisor.ends() == [end]
    assert any("is replaced" in record.getMessage() and end in record.getMessage() for record in caplog.records)


def test_what_a_dead_child_printed_last_is_shown(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = tmp_path / "printed"
    os.mkfifo(printed)
    use_script(
        monkeypatch, tmp_path, f"{TELLS}echo record 1\nprintf 'half a line'\necho all > '{printed}'\nexec sleep 1000"
    )
    cluster.start(1)
    assert printed.read_text(encoding="ascii") == "all\n"

    cluster.kill_next()
    cluster.next_started()

    assert capsys.readouterr().out.startswith("record 1\nhalf a line")


def test_it_gives_up_in_the_end_and_says_so(cluster: Cluster) -> None:
    cluster.policy.left = 1
    cluster.start(1)

    for _ in range(2):
        cluster.kill_next()
    while len(ends := cluster.supervisor.ends()) < 3:
        continue
    cluster.supervisor.stop()

    assert ends[-1] == "2 TaskManagers died within 60 s, so no more are started"
    assert cluster.started.empty()
    assert cluster.supervisor.pids() == []


@pytest.mark.parametrize("problem", [OSError("no more processes"), FlowletError("no more processes")])
def test_a_successor_that_cannot_be_started_is_tried_again(cluster: Cluster, problem: Exception) -> None:
    """Whether the system refuses it, or the process that forks."""
    cluster.start(1)
    cluster.problems.append(problem)

    cluster.kill_next()
    cluster.next_started()

    assert cluster.supervisor.ends()[1:] == ["a TaskManager process could not be started: no more processes"]


def test_children_that_end_after_the_stop_of_replacing_are_not_replaced(cluster: Cluster) -> None:
    cluster.start(1)

    cluster.supervisor.stop_replacing()
    cluster.kill_next()
    cluster.supervisor.stop()

    assert cluster.started.empty()


def test_stop_ends_children_and_successors_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_script(monkeypatch, tmp_path, TELLS + "exec sleep 1000")
    join_tellers()  # of the tests before
    before = psutil.Process().num_fds()
    cluster = Cluster()
    cluster.start(1, 1)
    cluster.kill_next()
    pids = [cluster.next_started()[0] for _ in range(2)]

    cluster.supervisor.stop()
    join_tellers()

    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert psutil.Process().num_fds() == before


def test_a_child_that_ends_before_it_is_ready_is_an_error_and_the_rest_is_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_script(monkeypatch, tmp_path, "exit 3")
    cluster = Cluster()

    with pytest.raises(FlowletError, match="ended with exit code 3 before it was ready"):
        cluster.start(1, 1)
    cluster.supervisor.stop()

    assert cluster.supervisor.ends() == []


def test_delays_double_and_the_sixth_death_within_a_minute_is_the_last() -> None:
    policy = RespawnPolicy()

    delays = [policy.child_died(now_s) for now_s in (0.0, 1.0, 2.0, 3.0, 4.0, 59.0)]

    assert delays == [0.1, 0.2, 0.4, 0.8, 1.6, None]
    assert policy.describe_limit() == "6 TaskManagers died within 60 s, so no more are started"


def test_deaths_are_forgotten_after_a_minute() -> None:
    policy = RespawnPolicy()
    for now_s in range(5):
        policy.child_died(float(now_s))

    assert policy.child_died(60.0) == 1.6  # the first of them is forgotten
    assert policy.child_died(1000.0) == 0.1


def test_one_death_a_minute_never_ends_it() -> None:
    policy = RespawnPolicy()

    assert {policy.child_died(60.0 * minute) for minute in range(100)} == {0.1}
