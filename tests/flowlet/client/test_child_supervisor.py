"""A child that dies gets a successor, until too many died or the cluster ends."""

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
    """A policy without delays, whose limit is given."""

    def __init__(self, max_deaths: int) -> None:
        super().__init__()
        self._left = max_deaths

    def child_died(self, now_s: float) -> float | None:
        super().child_died(now_s)
        self._left -= 1
        return None if self._left < 0 else 0.0


class Cluster:
    """A supervisor whose children are a shell script's."""

    def __init__(self, max_deaths: int = 100) -> None:
        self.started: queue.Queue[tuple[int, TaskManagerOptions]] = queue.Queue()
        self.problems: list[Exception] = []
        self._forwarder = OutputForwarder()
        self.supervisor = ChildSupervisor(self._forwarder, AtOnce(max_deaths), self._launch)

    def _launch(self, options: TaskManagerOptions) -> TaskManagerProcess:
        if self.problems:
            raise self.problems.pop()
        child = launch(options, self._forwarder)
        self.started.put((child.pid, options))
        return child

    def start(self, *num_slots: int) -> None:
        self.supervisor.start(
            [TaskManagerOptions("127.0.0.1:1", Path("/s"), Path("/p"), each) for each in num_slots], PATIENCE_S
        )

    def next_started(self) -> tuple[int, int]:
        """Process id and number of slots."""
        pid, options = self.started.get(timeout=PATIENCE_S)
        return pid, options.num_slots


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
    pid, _ = cluster.next_started()

    os.kill(pid, signal.SIGKILL)
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
    pid, _ = cluster.next_started()
    assert printed.read_text(encoding="ascii") == "all\n"

    os.kill(pid, signal.SIGKILL)
    cluster.next_started()

    assert capsys.readouterr().out.startswith("record 1\nhalf a line")


def test_it_gives_up_in_the_end_and_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_script(monkeypatch, tmp_path, TELLS + "exec sleep 1000")
    cluster = Cluster(max_deaths=1)
    cluster.start(1)

    for _ in range(2):
        os.kill(cluster.next_started()[0], signal.SIGKILL)
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
    pid, _ = cluster.next_started()
    cluster.problems.append(problem)

    os.kill(pid, signal.SIGKILL)
    cluster.next_started()

    assert cluster.supervisor.ends()[1:] == ["a TaskManager process could not be started: no more processes"]


def test_children_that_end_after_the_stop_of_replacing_are_not_replaced(cluster: Cluster) -> None:
    cluster.start(1)
    pid, _ = cluster.next_started()

    cluster.supervisor.stop_replacing()
    os.kill(pid, signal.SIGKILL)
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
    os.kill(cluster.next_started()[0], signal.SIGKILL)
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
