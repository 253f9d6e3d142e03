"""A JobManager that keeps its jobs keeps their files, too, and TaskManagers that come later get
them from the next one.
"""

import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from bench.cluster import Cluster
from flowlet.common import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

NUM_RECORDS = 8_000
NUM_KEYS = 3
PACE_S = 0.1  # of 1000 records


def keyed_by_the_shipped_module(number: int) -> tuple[int, int]:
    import a_shipped_module  # type: ignore[import-not-found]  # it is where the tasks run

    if number % 1000 == 0:
        time.sleep(PACE_S)
    return a_shipped_module.key_of(number), 1


def test_files_outlive_all_processes_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_shipped_module.py").write_text(f"def key_of(number):\n    return number % {NUM_KEYS}\n")
    (tmp_path / "cluster").mkdir()
    with Cluster(
        tmp_path / "cluster", job_manager_options=("--job-store", str(tmp_path / "jobs")), pins=False
    ) as cluster:
        monkeypatch.setenv("FLOWLET_SECRET_FILE", str(cluster.secret_file))
        options = {"flowlet.jobmanager": cluster.address, "execution.checkpointing.dir": str(tmp_path / "checkpoints")}
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options)).set_parallelism(2)
        env.enable_checkpointing(100).add_python_file(str(tmp_path / "a_shipped_module.py"))
        numbers = (
            env.from_collection(list(range(NUM_RECORDS)), Types.LONG())
            .map(keyed_by_the_shipped_module)
            .set_parallelism(1)
        )
        results = numbers.key_by(lambda record: record[0]).sum(1).execute_and_collect("shipped")
        assert isinstance(results, CloseableIterator)

        with results:
            found = [next(results)]
            for process in (*cluster.task_managers, cluster.job_manager):
                process.send(signal.SIGKILL)
            cluster.job_manager.wait(PATIENCE_S)
            (tmp_path / "a_shipped_module.py").unlink()
            cluster.start_job_manager()
            cluster.start_task_manager()
            cluster.start_task_manager()
            found += results

    sizes = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
    assert Counter(found) == Counter((key, count) for key, size in sizes.items() for count in range(1, size + 1))
