"""A cluster of real processes that is attacked, and what it must be able to do afterwards.

Units:  seconds, MiB.
"""

import os
import re
import resource
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import psutil
import pytest

from bench.cluster import Process
from flowlet.ingest import close_producers
from flowlet.rpc.secret import load_secret
from tests.attack.bystander import END_S, Bystander
from tests.attack.jobs import run_new_job
from tests.attack.rows import Row, write_row
from tests.chaos.soak_samples import Sample, sample
from tests.waiting import PATIENCE_S

NEW_JOB_S: Final = 20.0  # within which a new job must be done after an attack
SLOTS: Final = 8
_SETTLE_S: Final = 15.0  # within which connections and threads of an ended attack are gone
# Within which children of a user's function are gone, and those that came back into the engine.
_CHILDREN_S: Final = 5.0
_MORE_FDS, _MORE_THREADS, _MORE_MIB = 6, 4, 96
_REGISTERED: Final = r"^TaskManager (\S+) listening on \S+:(\d+), registered at \S+$"


@dataclass
class TaskManager:
    """A TaskManager and its own data about itself when it registered."""

    process: Process
    tm_id: str
    data_port: int


@dataclass
class Round:
    """One attack under way.

    ``outcome``: the attack writes here what the product did.  ``release``: ends the attack once the bystander has
        ended.
    """

    arena: "Arena"
    row: Row
    bystander: Bystander | None
    release: Callable[[], object] = lambda: None

    def outcome(self, text: str) -> None:
        self.row.outcome = text


class Arena:
    """One JobManager and two TaskManagers, each with several slots.  Life cycle: a context manager."""

    def __init__(
        self, folder: Path, seed: int, *, module: str = "flowlet.tm", environment: dict[str, str] | None = None
    ) -> None:
        self.seed = seed
        self.folder = folder
        self.secret_file = folder / "secret"
        self._module = module  # that TaskManagers are started with
        # As a user runs it: without the checks that the tests turn on.
        self._environment = {
            "FLOWLET_SECRET_FILE": str(self.secret_file),
            "NETSTACK_DEBUG": "0",
            "FLOWLET_HEARTBEAT_INTERVAL_S": "2",  # of data connections; the defaults are 10 s and 60 s
            "FLOWLET_HEARTBEAT_TIMEOUT_S": "10",
        } | (environment or {})
        self._stack = ExitStack()
        self._num_started = 0
        self._num_attacks = 0
        self.task_managers: list[TaskManager] = []

    def __enter__(self) -> Self:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        try:
            self._start_job_manager()
            self._replace_lost()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self.processes:  # one that was stopped does not hear SIGTERM
            with suppress(psutil.Error):
                psutil.Process(each.pid).resume()
        self._stack.close()

    def _start_job_manager(self) -> None:
        short = ("--heartbeat-interval-s", "1", "--heartbeat-timeout-s", "8")  # the default is 50 s
        self.job_manager = self.start("-m", "flowlet.jm", "--port", "0", *short, name="jm")
        self.address = self.job_manager.wait_for_line(r"^JobManager listening on http://(\S+)$", PATIENCE_S).group(1)
        self.secret = load_secret(self.secret_file)

    @property
    def control_port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def processes(self) -> list[Process]:
        return [self.job_manager, *(each.process for each in self.task_managers)]

    def start(self, *args: str, name: str, environment: dict[str, str] | None = None) -> Process:
        """Start ``python ARGS`` in the environment of this cluster; it ends with the cluster."""
        self._num_started += 1
        log = self.folder / f"{self._num_started} {name}.log"
        return self._stack.enter_context(
            Process([sys.executable, *args], log=log, environment=self._environment | (environment or {}))
        )

    def start_task_manager(
        self, *options: str, jobmanager: str | None = None, environment: dict[str, str] | None = None
    ) -> Process:
        place = ("--jobmanager", jobmanager or self.address, "--slots", str(SLOTS), "--parent-pid", str(os.getpid()))
        return self.start("-m", self._module, *place, *options, name="tm", environment=environment)

    def _replace_lost(self) -> None:
        if not self.job_manager.is_running:
            for each in self.task_managers:
                each.process.close()
            self._start_job_manager()
        for each in self.task_managers:
            if not each.process.is_running:
                each.process.close()
        self.task_managers = [each for each in self.task_managers if each.process.is_running]
        fresh = [self.start_task_manager() for _ in range(2 - len(self.task_managers))]
        for process in fresh:
            found = process.wait_for_line(_REGISTERED, PATIENCE_S)
            self.task_managers.append(TaskManager(process, found[1], int(found[2])))

    def replace_task_managers(self, pids: Collection[int]) -> None:
        """Replace the processes that an attack has spoilt, so that the next attack is not blamed for them."""
        for each in self.task_managers:
            if each.process.pid in pids:
                each.process.send(signal.SIGKILL)
                each.process.wait(10)
        self._replace_lost()

    def restart(self) -> None:
        """Start a JobManager in place of one that was killed, with TaskManagers of its own."""
        self.job_manager.wait(10)
        self._replace_lost()

    def logs(self) -> str:
        """Return the last warnings and errors of each process, and other output, such as a traceback."""
        texts = []
        for each in self.processes:
            lines = [line for line in each.stderr.splitlines() if '"level": "info"' not in line]
            texts += [f"--- {each!r}", *(line[:400] for line in lines[-6:])]
        return "\n".join(texts)

    @contextmanager
    def attack(
        self,
        name: str,
        *,
        may_end: str = "",
        may_fail: str = "",
        has_bystander: bool = True,
        end_s: float = END_S,
        more_mib: float = _MORE_MIB,
    ) -> Iterator[Round]:
        """Attack inside the block; afterwards the bystander, a new job, and what the processes hold are checked, and a
        row is written.

        Args:
            name: of the attack, for the table.
            may_end: the attack may end a TaskManager; then this pattern is in the reason of the bystander's failure.
            may_fail: the bystander may fail, with this pattern in the reason, but no process may end.
            end_s: the bystander ends, or fails, within this time after the attack.
            has_bystander: whether a job runs beside the attack.
            more_mib: how much memory each process may keep for good.
        """
        self._num_attacks += 1
        seed = self.seed * 1000 + self._num_attacks
        row = Row(name)
        before = {each.pid: sample(each.pid) for each in self.processes}
        bystander, is_spoilt = None, False
        try:
            if has_bystander:
                bystander = Bystander(self.address, self.secret_file, f"bystander {self._num_attacks}", seed)
                bystander.wait_until_running()
            round_ = Round(self, row, bystander)
            try:
                yield round_
            finally:
                ended, bystander = bystander, None
                reason = ended.end(end_s, round_.release) if ended is not None else None
            if ended is not None:
                self._judge_bystander(row, ended, reason, may_end or may_fail)
            self._judge_processes(may_end)
            row.new_job = f"{run_new_job(self.address, NEW_JOB_S, seed):.1f} s"
            row.growth = self._judge_growth(before, more_mib)
        except BaseException as error:
            if isinstance(error, AssertionError):
                error.add_note(self.logs())
            if row.outcome == "failed" and not isinstance(error, pytest.skip.Exception):
                row.outcome = f"FAILED: {str(error)[:150]}"
            else:
                row.outcome += f"; FAILED: {str(error)[:150]}"
            is_spoilt = True
            raise
        finally:
            if bystander is not None:
                with suppress(AssertionError):
                    bystander.end()
            close_producers()
            write_row(row)
            self.replace_task_managers([each.process.pid for each in self.task_managers] if is_spoilt else [])

    def _judge_bystander(self, row: Row, bystander: Bystander, reason: str | None, pattern: str) -> None:
        if reason is None:
            row.bystander = f"right ({bystander.num_pushed}, pause {bystander.longest_pause_s:.1f} s)"
            return
        row.bystander = f"failed: {reason[:120]}"
        assert pattern, f"the bystander failed: {reason}"
        assert re.search(pattern, reason), f"the bystander's failure does not tell {pattern!r}: {reason}"
        row.bystander = f"told: {reason.partition('failed: ')[2][:60] or reason[:60]}"

    def _judge_processes(self, may_end: str) -> None:
        deadline = time.monotonic() + _CHILDREN_S
        while (children := self._children()) and time.monotonic() < deadline:
            time.sleep(0.05)
        lines = [" ".join(each.cmdline()) for each in children]
        for each in children:
            each.kill()
        assert not lines, f"children of TaskManagers are left (killed now): {lines}"
        ended = [each for each in self.processes if not each.is_running]
        assert may_end or not ended, f"ended: {ended}"
        assert self.job_manager.is_running, f"the JobManager ended: {self.job_manager.stderr[-3000:]}"
        if ended:
            self._replace_lost()

    def _children(self) -> list[psutil.Process]:
        found = []
        for process in self.processes:
            with suppress(psutil.Error):
                found += [
                    each for each in psutil.Process(process.pid).children() if each.status() != psutil.STATUS_ZOMBIE
                ]
        return found

    def _judge_growth(self, before: dict[int, Sample | None], more_mib: float) -> str:
        deadline = time.monotonic() + _SETTLE_S
        while True:
            grown = []
            largest: dict[str, float] = {"MiB": 0, "fds": 0, "threads": 0}
            for process in self.processes:
                now, then = sample(process.pid), before.get(process.pid)
                if now is None or then is None:
                    continue
                mib, fds, threads = now.rss_mib - then.rss_mib, now.fds - then.fds, now.threads - then.threads
                more = {"MiB": mib, "fds": fds, "threads": threads}
                limits = {"MiB": more_mib, "fds": _MORE_FDS, "threads": _MORE_THREADS}
                grown += [f"{process!r}: {then} -> {now}" for kind, limit in limits.items() if more[kind] > limit]
                largest = {kind: max(value, more[kind]) for kind, value in largest.items()}
            if not grown:
                return ", ".join(f"{value:+.0f} {kind}" for kind, value in largest.items())
            assert time.monotonic() < deadline, f"grown after {_SETTLE_S:.0f} s: {grown}"
            time.sleep(0.1)


def environment_seed() -> int:
    return int(os.environ.get("FLOWLET_ATTACK_SEED", "0"))


def is_full_run() -> bool:
    """Whether ``make attack`` runs; else only samples do."""
    return os.environ.get("FLOWLET_ATTACK") == "1"


def within(seconds: float, condition: Callable[[], object], what: str) -> float:
    """Wait for ``condition()``; how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"{what}: not within {seconds:g} s"
        time.sleep(0.02)
    return time.monotonic() - start
