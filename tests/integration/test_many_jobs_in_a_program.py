"""A program keeps no object of the clusters that its jobs had."""

from pathlib import Path

import pytest

from tests.flowlet.client.programs import running

pytestmark = pytest.mark.slow

PROGRAM = """
import gc, sys
from collections import Counter

from flowlet.datastream import StreamExecutionEnvironment

def environment():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(int(sys.argv[1]))
    return env

def run_jobs():
    env = environment()
    env.from_collection([1, 2, 3]).map(lambda number: number + 1).execute_and_collect().close()
    env = environment()
    env.from_collection([1, 2, 3]).map(lambda number: number + 1).print()
    env.execute()
    env = environment()
    env.from_collection([1, 2, 3]).map(lambda number: number / 0).print()
    try:
        env.execute()
    except Exception as error:
        del error

def count():
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects())

run_jobs()
found = count()
print({name: found[name] for name in sys.argv[2:] if found[name]}, file=sys.stderr)
"""

OF_A_CLUSTER = (
    "JobManager",
    "RestApi",
    "Dispatcher",
    "JobMaster",
    "SlotPool",
    "RequestVerifier",
    "TaskExecutor",
    "EmbeddedCluster",
    "RpcClient",
)
OF_THE_WEB_LIBRARY = ("Application", "AppRunner", "ClientSession", "UrlDispatcher")


@pytest.mark.parametrize("parallelism", [1, 2])
def test_nothing_of_a_former_cluster_is_left_in_the_program(tmp_path: Path, parallelism: int) -> None:
    """A program that runs thousands of jobs does not grow, whether a job has succeeded, failed, or was closed by its
    reader.
    """
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)

    with running(str(file), str(parallelism), *OF_A_CLUSTER, *OF_THE_WEB_LIBRARY) as program:
        code, _, errors = program.end()

    assert (code, errors) == (0, ["{}"])
