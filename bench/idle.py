"""CPU use of a cluster that has nothing to do.

Side:  any.
Unit:  percent of one core, over 10 s, the highest of the two TaskManagers; the JobManager's is in the details.
"""

import tempfile
import time
from pathlib import Path

from bench.cluster import Cluster
from bench.report import ProcessUse, Result

SETTLE_S = 3.0  # imports, registration and the first heartbeats are over by then
WINDOW_S = 10.0


def measure_once() -> dict[str, float]:
    """Return the percent of one core that each process uses."""
    with tempfile.TemporaryDirectory() as folder, Cluster(Path(folder)) as cluster:
        processes = {"jm": cluster.job_manager} | {f"tm{n}": tm for n, tm in enumerate(cluster.task_managers)}
        time.sleep(SETTLE_S)
        before, start = {name: ProcessUse.of(process.pid) for name, process in processes.items()}, time.monotonic()
        time.sleep(WINDOW_S)
        elapsed = time.monotonic() - start
        after = {name: ProcessUse.of(process.pid) for name, process in processes.items()}
    return {name: 100.0 * (after[name].cpu_s - before[name].cpu_s) / elapsed for name in processes}


def run(num_runs: int) -> list[Result]:
    """Measure ``num_runs`` fresh clusters."""
    samples = [measure_once() for _ in range(num_runs)]
    highest = [max(sample["tm0"], sample["tm1"]) for sample in samples]
    return [
        Result(
            "idle",
            "percent of one core, busiest TaskManager",
            highest,
            {"window_s": WINDOW_S, "percent_per_process": samples},
        )
    ]
