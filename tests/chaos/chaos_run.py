"""One run: the job, the faults of its plan one after another, and the verdict on its results.

Invariants: every planned fault is seen to have happened, or the run fails.  No process that was not attacked ends or
            loses its session.
Units:      seconds.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from flowlet.common import Configuration
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from tests.chaos.chaos_cluster import ChaosCluster
from tests.chaos.chaos_generator import Result, Scale
from tests.chaos.chaos_job import Stage, build, read_files
from tests.chaos.chaos_oracle import Verdict, judge
from tests.chaos.chaos_plan import Harm, RunPlan

PATIENCE_S: Final = 60.0  # for each step; far more than any step takes on a busy machine
MIN_CHECKPOINTS: Final = 3
_POLL_S: Final = 0.03
_RUNNING: Final = ("RUNNING", "FINISHED")


class ChaosError(AssertionError):
    """A run went wrong; the message says what and where."""


@dataclass
class RunReport:
    """A report of a run.  ``recoveries``: how long each restart took, from the fault until all tasks ran again."""

    plan: RunPlan
    happened: list[str] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    num_checkpoints: int = 0
    num_failed_checkpoints: int = 0
    num_restarts: int = 0
    seconds: float = 0.0
    verdict: Verdict | None = None
    problem: str | None = None

    @property
    def is_right(self) -> bool:
        return self.problem is None and self.verdict is not None and self.verdict.is_right

    def __str__(self) -> str:
        recoveries = ", ".join(f"{each:.1f}" for each in self.recoveries) or "none"
        state = "ok" if self.is_right else f"FAILED: {self.problem or self.verdict}"
        return (
            f"seed {self.plan.seed}: {state}; {self.seconds:.1f} s; {self.plan}; checkpoints {self.num_checkpoints} "
            f"(+{self.num_failed_checkpoints} failed); recovered in {recoveries} s; faults: {'; '.join(self.happened)}"
        )


class ResultReader:
    """Reads the results on a thread, and pauses when it is told to."""

    def __init__(self, results: CloseableIterator) -> None:
        self._results = results
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self.found: list[Result] = []  # appended by the thread
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._read, name="reads results", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has read everything, or failed."""
        return not self._thread.is_alive()

    def pause(self) -> None:
        self._may_go_on.clear()

    def go_on(self) -> None:
        self._may_go_on.set()

    def close(self) -> None:
        """Cancel the job if it still runs."""
        self.go_on()
        with suppress(Exception):
            self._results.close()
        self._thread.join(PATIENCE_S)

    def _read(self) -> None:
        try:
            for result in self._results:
                self._may_go_on.wait(PATIENCE_S)  # waits for the end of a pause; ended by the run
                self.found.append(result)
        except Exception as error:  # noqa: BLE001 - the run asks for it
            self.failure = error


class ChaosRun:
    """One run on a cluster.

    Life cycle: ``start``, the steps of the faults, ``finish``, ``close``.  Threading: one thread.
    """

    def __init__(self, cluster: ChaosCluster, plan: RunPlan, folder: Path, scale: Scale, seconds: float) -> None:
        folder.mkdir(parents=True)
        self.cluster = cluster
        self.plan = plan
        self.scale = scale
        self.stage = Stage(folder)
        self.report = RunReport(plan)
        self._seconds = seconds
        self._reader: ResultReader | None = None
        self._env: StreamExecutionEnvironment | None = None
        self.job_id = ""
        self._completed: set[int] = set()
        self._failed: set[int] = set()
        self._last: dict[str, Any] = {}
        self.attacked: set[int] = set()  # processes that may lose their session
        self._num_lines = len(cluster.job_manager_lines())
        self._job_manager = cluster.job_manager

    @property
    def reader(self) -> ResultReader:
        """The reader of the results; there is one after ``start``."""
        assert self._reader is not None, "started before"
        return self._reader

    @property
    def checkpoints(self) -> Path:
        return self.cluster.disk / f"run-{self.plan.seed}" / self.job_id

    def start(self) -> None:
        """Submit the job, and wait for its first complete checkpoint."""
        options = {
            **dict(self.plan.options),
            "flowlet.jobmanager": self.cluster.address,
            "execution.checkpointing.dir": str(self.cluster.disk / f"run-{self.plan.seed}"),
        }
        if "state.backend.type" in options:
            options["state.backend.rocksdb.localdir"] = str(self.cluster.local_disk)
        before = {each["jid"] for each in self.cluster.get("/jobs/overview")["jobs"]}
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options))
        self._env = env.set_parallelism(self.plan.parallelism)
        results: Any = build(self._env, self.scale, self.stage, self._seconds).execute_and_collect(
            f"chaos {self.plan.seed}"
        )
        self._reader = ResultReader(results)
        (self.job_id,) = {each["jid"] for each in self.cluster.get("/jobs/overview")["jobs"]} - before
        self.wait_for_checkpoints(1)

    # ---------------------------------------------------------------- what the job does

    def look(self) -> dict[str, Any] | None:
        """The job's document; None: the JobManager does not answer."""
        self._check_processes()
        if self.reader.failure is not None:
            raise ChaosError(f"the client failed: {type(self.reader.failure).__name__}: {self.reader.failure}")
        document: dict[str, Any] | None = self.cluster.get(f"/jobs/{self.job_id}")
        checkpoints = self.cluster.get(f"/jobs/{self.job_id}/checkpoints")
        if checkpoints is not None:
            self._completed |= {each["id"] for each in checkpoints["history"] if each["status"] == "COMPLETED"}
            self._failed |= {each["id"] for each in checkpoints["history"] if each["status"] == "FAILED"}
        if document is not None:
            self._last = document
            if document["state"] in ("FAILED", "CANCELED"):
                raise ChaosError(f"the job is {document['state']}: {str(document['failure'])[:1000]}")
        return document

    def wait_for(
        self, what: str, condition: Callable[[], object], *, poll_s: float = _POLL_S, patience_s: float = PATIENCE_S
    ) -> None:
        """Look again and again until the condition is true.

        Raises:
            ChaosError: it did not become true in time, or something else went wrong meanwhile.
        """
        deadline = time.monotonic() + patience_s
        while not condition():
            if time.monotonic() > deadline:
                raise ChaosError(f"{what}: not within {patience_s:.0f} s; the job: {self.describe()}")
            time.sleep(poll_s)  # asks again; ended by the deadline

    def wait_for_checkpoints(self, count: int) -> None:
        """Wait until ``count`` more checkpoints are complete."""
        self.look()
        before = len(self._completed)

        def has_completed() -> bool:
            self.look()
            if self.reader.is_over and self.reader.failure is None:
                raise ChaosError("the job has ended before its faults")
            return len(self._completed) >= before + count

        self.wait_for(f"{count} more complete checkpoints", has_completed)

    def num_failed_checkpoints(self) -> int:
        self.look()
        return len(self._failed)

    def num_restarts(self) -> int:
        """How often the job has started again, as far as the present JobManager knows."""
        document = self.look()
        return -1 if document is None else int(document["numRestarts"])

    def wait_recovered(self, since_s: float, restarts_before: int) -> None:
        """Wait until the job has started again and all its tasks run."""

        def runs_again() -> bool:
            document = self.look()
            if document is None or document["numRestarts"] <= restarts_before or document["state"] not in _RUNNING:
                return False
            return all(each["state"] in _RUNNING for vertex in document["vertices"] for each in vertex["subtasks"])

        self.wait_for("the job runs again", runs_again)
        self.report.recoveries.append(time.monotonic() - since_s)

    def describe(self) -> str:
        vertices = self._last.get("vertices", [])
        states = {
            f"{vertex['name'][:20]}/{each['subtask']}": each["state"]
            for vertex in vertices
            for each in vertex["subtasks"]
        }
        job = (
            f"{self._last.get('state')}, restarts {self._last.get('numRestarts')}, {states}, checkpoints "
            f"{len(self._completed)}"
        )
        return f"{job}; {[place.process for place in self.cluster.places]}"

    # ---------------------------------------------------------------- the end

    def finish(self, patience_s: float = PATIENCE_S) -> None:
        """Let the sources hurry, read everything, and judge it."""
        missing = MIN_CHECKPOINTS - len(self._completed)
        self.wait_for_checkpoints(max(1, missing))
        self.stage.hurry.touch()

        def is_over() -> bool:
            if not self.reader.is_over:
                self.look()
            return self.reader.is_over

        self.wait_for("the end of the job", is_over, patience_s=patience_s)
        if self.reader.failure is not None:
            raise ChaosError(f"the client failed: {type(self.reader.failure).__name__}: {self.reader.failure}")
        self._check_processes()
        self.check_sessions()
        self._check_restarts()
        self.report.verdict = judge(self.scale, self.reader.found)
        # The order of files says nothing about the order of records.
        in_files = judge(self.scale, sorted(read_files(self.stage.results)))
        if not in_files.is_right:
            raise ChaosError(f"the files are wrong: {in_files}; the client: {self.report.verdict}")

    def close(self) -> None:
        """End the job if it still runs."""
        if self._reader is not None:
            self._reader.close()
        if self._env is not None:
            with suppress(Exception):
                self._env.close()
        self.report.num_checkpoints = len(self._completed)
        self.report.num_failed_checkpoints = len(self._failed)
        self.report.num_restarts = int(self._last.get("numRestarts", 0))

    def _check_processes(self) -> None:
        ended = [place for place in self.cluster.places if not place.may_end and not place.process.is_running]
        if ended:
            logs = "\n".join(place.process.stderr[-3000:] for place in ended)
            raise ChaosError(
                f"processes that were not attacked have ended: {[place.process for place in ended]}\n{logs}"
            )
        if self._job_manager is self.cluster.job_manager and not self.cluster.job_manager.is_running:
            raise ChaosError(f"the JobManager has ended: {self.cluster.job_manager.stderr[-3000:]}")

    def job_manager_replaced(self) -> None:
        self._job_manager, self._num_lines = self.cluster.job_manager, 0

    def check_sessions(self) -> None:
        """Check that only processes that were attacked have lost their session.

        Raises:
            ChaosError: another one has.
        """
        for line in self.cluster.job_manager_lines()[self._num_lines :]:
            if line.get("event") == "TaskManager lost" and not any(
                f"pid {pid})" in line["location"] for pid in self.attacked
            ):
                raise ChaosError(f"a TaskManager that was not attacked has lost its session: {line}")

    def _check_restarts(self) -> None:
        is_strict = dict(self.plan.options)["execution.checkpointing.tolerable-failed-checkpoints"] == "0"
        harms = {Harm.RESTART, Harm.CHECKPOINTS} if is_strict else {Harm.RESTART}
        harmful = [each.kind for each in self.plan.faults if each.kind.harm in harms]
        restarts = int(self._last.get("numRestarts", 0))
        if not harmful and restarts:
            entries = self.cluster.get(f"/jobs/{self.job_id}/exceptions")
            raise ChaosError(
                f"no fault was to restart the job, and it has restarted {restarts} times: {str(entries)[:1500]}"
            )
