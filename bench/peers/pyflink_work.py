"""A ``Work`` in PyFlink as a contender, on a cluster of ``bench/peers/flink_cluster.py``.

Side:    any.
Program: the very file that runs in flowlet; its imports of flowlet are answered by PyFlink's modules, whose names are
         equal.
Mode:    ``thread``: Python runs inside the TaskManager's JVM, which is PyFlink's quick one.
Rate:    the source already runs while the Python behind it still starts.  So the clock starts when the records of all
         readers are ready in Python, where records are looked up there, and with the first record at a sink, where the
         source gives lines.
"""

import os
import tempfile
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from bench.jobs import checked_work
from bench.jobs.pipeline import Run
from bench.jobs.work import Work
from bench.peers.flink import read_reports
from bench.peers.flink_cluster import ROOT, FlinkCluster, versions
from bench.peers.pyflink import run_script
from bench.rounds import Contender

_SCRIPT: Final = Path(__file__).parent / "pyflink_work_job.py"
_JOB_TIMEOUT_S: Final = 600.0
_SAME_NAMES: Final = (
    "common",
    "common/time",
    "common/watermark_strategy",
    "datastream",
    "datastream/functions",
    "datastream/state",
    "datastream/window",
)  # of flowlet's modules and PyFlink's


class WorkCluster(FlinkCluster):
    """A cluster whose Python finds this repository's programs, and PyFlink where they import flowlet.

    Threading: one thread.  Life cycle: a context manager; inside, all slots are there.
    """

    def __init__(self, names: Path) -> None:
        super().__init__()
        self._python_path = os.pathsep.join(map(str, (names, ROOT)))  # the names first: the root has flowlet itself

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables by which Flink's programs and our Python find their files."""
        return super().environment | {"PYTHONPATH": self._python_path}


def start_cluster(stack: ExitStack) -> WorkCluster:
    """Return a cluster that ``stack`` ends."""
    names = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-names-")))
    write_names(names)
    return stack.enter_context(WorkCluster(names))


def write_names(folder: Path) -> None:
    """Write modules of flowlet's names that have everything of PyFlink's modules of these names."""
    packages = {name.rpartition("/")[0] for name in _SAME_NAMES if "/" in name} | {""}
    for name in _SAME_NAMES:
        module = folder / "flowlet" / (f"{name}/__init__.py" if name in packages else f"{name}.py")
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text(f"from pyflink.{name.replace('/', '.')} import *\n", encoding="ascii")
    (folder / "flowlet" / "__init__.py").write_text("", encoding="ascii")


def contender(cluster: FlinkCluster, work: Work) -> Contender:
    """Return the work in thread mode."""
    details = {"num_records": work.num_records}
    return Contender(
        f"{work.name}, PyFlink, thread mode",
        partial(run_once, cluster, work),
        is_peer=True,
        details=details,
        versions=versions(),
    )


def run_once(cluster: FlinkCluster, work: Work) -> Run:
    """Run one job and check it.

    Raises:
        ProcessError: it failed.
        WrongOutputError: its results differ from those of the plain loop.
    """
    checked_work.expected(work)  # computed now, not during the measured run
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        folder = Path(name)
        files = [_lines_file(work, number, folder) for number in range(len(work.inputs))]
        options = {"work": work.as_options(), "mode": "thread", "folder": name, "files": files}
        load = run_script(cluster, _SCRIPT, options, folder, _JOB_TIMEOUT_S)
        reports = read_reports(folder, str)
        ready = [int(file.read_text(encoding="ascii")) for file in folder.glob("ready-*")]
    checked_work.check(work, reports)
    seconds = replace(reports, start_ns=max(ready)).seconds if ready else reports.seconds_from_first_output
    return Run(work.num_records / seconds, seconds, load.cores)


def _lines_file(work: Work, number: int, folder: Path) -> str | None:
    content = work.inputs[number]
    if not checked_work.is_text(content):
        return None
    file = folder / f"lines-{number}.txt"
    file.write_text("\n".join(content.ready()) + "\n", encoding="utf-8")
    return str(file)
