"""The parts of the TaskManagers' time per record: py-spy looks at them while a job runs, and every sample is put down
to one part.

Side:   any.
Needs:  py-spy (the extra ``bench``) and the right to trace one's own processes.
Sample: threads that hold the interpreter, 100 times per second.  A sample belongs to the innermost of its frames that
        is one of ours or of the user, so that the callees of a user's function (``json``, ``re``) count as the user's;
        ``copy`` and picklers count for themselves.  Work before the clock starts (modules are imported, sources make
        their records) belongs to no part.
Figure: nanoseconds of CPU per record: the part's share of the samples times the CPU seconds that the TaskManagers used
        in that run.  py-spy slows the run down, so a rate is not taken from it.
"""

import signal
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from bench.cluster import Cluster, Process
from bench.jobs.pipeline import Deployment, Run

_RATE: Final = "100"  # with 250 py-spy falls behind on a busy machine
_END_TIMEOUT_S: Final = 60.0
_READY: Final = "Sampling process"
USER: Final = "users' functions"
BENCH: Final = "the bench's source and sink"
UNKNOWN: Final = "other"
_SOURCES_AND_SINKS: Final = ("bench/jobs/checked.py", "bench/jobs/checked_work.py", "bench/jobs/work.py")
# Work before the clock starts: modules are loaded, the records of the sources are made.
_BEFORE_THE_CLOCK: Final = ("importlib._bootstrap", "create_reader (")
_STANDARD: Final = {"copy.py": "copy", "pickle.py": "pickle", "cloudpickle.py": "pickle", "copyreg.py": "pickle"}


def why_missing() -> str | None:
    """Return what is not installed; None if profiles can be taken."""
    return None if _py_spy().exists() else "py-spy is not installed: make .venv/installed-bench"


def _py_spy() -> Path:
    return Path(sys.executable).with_name("py-spy")


class ProfiledCluster(Cluster):
    """A cluster whose TaskManagers are sampled from the time when all of them are there until the block is left.

    Life cycle: a context manager; after the block ``stacks`` has the samples.
    """

    def __init__(
        self,
        folder: Path,
        *,
        stacks: list[str],
        num_task_managers: int,
        task_manager_options: Sequence[str],
        pins: bool,
    ) -> None:
        super().__init__(
            folder, num_task_managers=num_task_managers, task_manager_options=task_manager_options, pins=pins
        )
        self.stacks = stacks
        self._profile_folder = folder
        self._profilers = ExitStack()
        self._outputs: list[tuple[Process, Path]] = []

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            for number, task_manager in enumerate(self.task_managers):
                self._outputs.append(self._look_at(task_manager, number))
        except BaseException:
            self._profilers.close()
            super().__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._profilers:
                for profiler, output in self._outputs:
                    # First py-spy, then the traced processes: one that ends while it is traced is never reaped if its
                    # tracer hangs.
                    profiler.send(signal.SIGINT)
                    profiler.expect_success(_END_TIMEOUT_S)
                    self.stacks += output.read_text(encoding="utf-8").splitlines()
        finally:
            super().__exit__(kind, value, trace)

    def _look_at(self, task_manager: Process, number: int) -> tuple[Process, Path]:
        output = self._profile_folder / f"stacks-{number}.txt"
        options = [
            "--pid",
            str(task_manager.pid),
            "--rate",
            _RATE,
            "--gil",
            "--full-filenames",
            "--format",
            "raw",
            "--output",
            str(output),
        ]
        profiler = Process([str(_py_spy()), "record", *options], log=self._profile_folder / f"py-spy-{number}.log")
        self._profilers.enter_context(profiler)
        profiler.wait_for_line(_READY)
        return profiler, output


@dataclass(frozen=True)
class ProfiledDeployment(Deployment):
    """A deployment whose runs leave ``stacks``."""

    stacks: list[str] = field(default_factory=list)

    def cluster(self, folder: Path) -> Cluster:
        """Return a cluster to be entered; its TaskManagers are sampled."""
        options = self.task_manager_options
        return ProfiledCluster(
            folder,
            stacks=self.stacks,
            num_task_managers=self.num_task_managers,
            task_manager_options=options,
            pins=self.pins,
        )


def ns_per_record(stacks: Iterable[str], run: Run, num_records: int) -> dict[str, float]:
    """Return the CPU nanoseconds per record and part, the most expensive first."""
    parts, num_samples = Counter[str](), 0
    for line in stacks:
        frames, _, count = line.rpartition(" ")
        num_samples += int(count)
        if not any(mark in frames for mark in _BEFORE_THE_CLOCK):
            parts[part_of(frames.split(";"))] += int(count)
    total_ns = 1e9 * sum(run.details["cpu_s_per_tm"]) / num_records
    return {part: total_ns * count / num_samples for part, count in parts.most_common()}


def part_of(frames: Sequence[str]) -> str:
    """Return the part of the innermost frame that belongs to one; frames come outermost first, each as ``function
    (file:line)``.
    """
    for frame in reversed(frames):
        file = frame.rpartition(" (")[2].rpartition(":")[0]
        if part := _part_of_file(file):
            return part
    return UNKNOWN


def _part_of_file(file: str) -> str | None:
    if part := _STANDARD.get(file.rpartition("/")[2]):
        return part
    if "<generated" in file:
        return "flowlet: generated loops"
    for package in ("flowlet", "netstack"):
        _, found, rest = file.rpartition(f"/{package}/")
        if found and "/site-packages/" not in rest:
            return f"{package}: {rest.partition('/')[0].removesuffix('.py')}" if package == "flowlet" else package
    if "/bench/jobs/" in file:
        return BENCH if file.endswith(_SOURCES_AND_SINKS) else USER
    return None
