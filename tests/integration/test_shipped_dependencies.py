"""Files that a program adds reach TaskManagers that were started elsewhere."""

import signal
import sys
import zipfile
from pathlib import Path

import pytest

from bench.cluster import Cluster, Process
from tests.flowlet.shipping.wheels import make_wheel
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

PROGRAM = """
import sys

from flowlet.common import Configuration
from flowlet.datastream import MapFunction, StreamExecutionEnvironment


class Named(MapFunction):
    def open(self, runtime_context):
        self.name = open(runtime_context.get_distributed_cache().get_file("greeting")).read()

    def map(self, value):
        return (*value, self.name)


def told(value):
    import helper
    from shapes.square import area
    import tinypackage

    with open("data.zip/numbers/offset.txt") as file:
        offset = int(file.read())
    return helper.named(value), area(value), tinypackage.VERSION, value + offset


if __name__ == "__main__":
    configuration = Configuration()
    if len(sys.argv) > 1:
        configuration.set_string("flowlet.jobmanager", sys.argv[1])
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.add_python_file("files/helper.py")
    env.add_python_file("files/folder")
    env.add_python_archive("files/data.zip")
    env.set_python_requirements("files/requirements.txt", "files/packages")
    env.register_cached_file("files/greeting.txt", "greeting")
    with env.set_parallelism(2).from_collection([1, 2]).map(told).map(Named()).execute_and_collect() as results:
        print(sorted(results))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of the program."""
    files = tmp_path / "program" / "files"
    (files / "folder" / "shapes").mkdir(parents=True)
    (files / "folder" / "shapes" / "__init__.py").write_text("")
    (files / "folder" / "shapes" / "square.py").write_text("def area(side):\n    return side * side\n")
    (files / "helper.py").write_text("def named(value):\n    return f'first {value}'\n")
    (files / "greeting.txt").write_text("hello")
    (files / "requirements.txt").write_text("tinypackage>=2\n")
    make_wheel(files / "packages", "tinypackage", "2.1", {"tinypackage.py": "VERSION = '2.1'\n"})
    with zipfile.ZipFile(files / "data.zip", "w") as archive:
        archive.writestr("numbers/offset.txt", "100")
    (tmp_path / "program" / "program.py").write_text(PROGRAM)
    return tmp_path / "program"


def run(cluster: Cluster, folder: Path, *command: str) -> Process:
    program = Process(
        [sys.executable, *command], log=folder / "program.log", environment=cluster.environment, cwd=folder
    )
    with program:
        program.wait(PATIENCE_S)
    return program


def test_files_folders_archives_and_requirements_are_there_on_a_cluster_and_as_they_were_changed(
    cluster: Cluster, folder: Path
) -> None:
    first = run(cluster, folder, "program.py", cluster.address)
    assert first.stdout == "[('first 1', 1, '2.1', 101, 'hello'), ('first 2', 4, '2.1', 102, 'hello')]\n", first.stderr

    (folder / "files" / "helper.py").write_text("def named(value):\n    return f'second {value}'\n")
    cluster.task_managers[0].send(signal.SIGKILL)
    cluster.start_task_manager()
    second = run(cluster, folder, "-m", "flowlet", "run", "-m", cluster.address, "program.py")

    assert second.stdout == "[('second 1', 1, '2.1', 101, 'hello'), ('second 2', 4, '2.1', 102, 'hello')]\n", (
        second.stderr
    )


def test_the_same_program_without_a_cluster(tmp_path: Path, folder: Path) -> None:
    program = Process([sys.executable, "program.py"], log=folder / "program.log", cwd=folder)
    with program:
        program.wait(PATIENCE_S)

    assert program.stdout == "[('first 1', 1, '2.1', 101, 'hello'), ('first 2', 4, '2.1', 102, 'hello')]\n", (
        program.stderr
    )
