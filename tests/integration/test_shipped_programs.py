"""A program with modules of its own, and with files that it adds, runs on TaskManagers that were started elsewhere."""

import signal
import sys
import zipfile
from pathlib import Path

import pytest

from bench.cluster import Cluster, Process
from tests.flowlet.shipping.wheels import make_wheel
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

LIMITS = "DEAR = 1000\n"
PRICES = """
from dataclasses import dataclass

import limits


@dataclass(frozen=True)
class Price:
    cents: int


def dear(price):
    return price.cents > limits.DEAR
"""
LAZILY = "def rounded(value):\n    return value // 1\n"
PROGRAM = """
import pickle
import sys
from pathlib import Path

import limits
from rules.prices import Price, dear

from flowlet.common import Configuration
from flowlet.datastream import MapFunction, StreamExecutionEnvironment


class Model:
    def __init__(self, factor):
        self.factor = factor

    def predict(self, value):
        return value * self.factor


class Predict(MapFunction):
    def __init__(self, file):
        self.file = file

    def open(self, runtime_context):
        self.model = pickle.loads(Path(self.file).read_bytes())  # names __main__.Model

    def map(self, value):
        from rules import lazily  # imported by tasks alone

        return Price(lazily.rounded(self.model.predict(value)))


def checked(price):
    if dear(price):
        raise ValueError(f"too dear: {price}")
    return price


if __name__ == "__main__":
    address, file, *values = sys.argv[1:]
    Path(file).write_bytes(pickle.dumps(Model(3)))
    environment = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({"flowlet.jobmanager": address}))
    prices = environment.set_parallelism(2).from_collection(list(map(int, values))).map(Predict(file))
    with prices.key_by(lambda price: price.cents).map(checked).execute_and_collect() as results:
        found = list(results)
    assert all(type(price) is Price for price in found)
    print(sorted(price.cents for price in found))
"""  # noqa: E501


def run(folder: Path, *command: str, cluster: Cluster | None = None) -> Process:
    """Run ``python COMMAND`` in a folder to its end."""
    environment = None if cluster is None else cluster.environment
    program = Process([sys.executable, *command], log=folder / "program.log", environment=environment, cwd=folder)
    with program:
        program.wait(PATIENCE_S)
    return program


def test_modules_beside_the_program_and_classes_of_its_main_module_are_found(cluster: Cluster, tmp_path: Path) -> None:
    folder = tmp_path / "program"
    (folder / "rules").mkdir(parents=True)
    for name, text in {
        "limits.py": LIMITS,
        "rules/prices.py": PRICES,
        "rules/lazily.py": LAZILY,
        "program.py": PROGRAM,
    }.items():
        (folder / name).write_text(text)

    # Started from elsewhere: the program's folder is not the working directory.
    command = (str(folder / "program.py"), cluster.address, str(folder / "model"))
    first = run(tmp_path, *command, "1", "2", "3", cluster=cluster)
    assert first.stdout == "[3, 6, 9]\n", first.stderr

    # The next job brings what the user has changed meanwhile.
    (folder / "limits.py").write_text("DEAR = 5\n")
    second = run(tmp_path, *command, "1", "2", cluster=cluster)
    assert "ValueError: too dear: Price(cents=6)" in second.stderr


# ---------------------------------------------------------------- files that a program adds

WITH_FILES = """
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
FIRST = "[('first 1', 1, '2.1', 101, 'hello'), ('first 2', 4, '2.1', 102, 'hello')]\n"


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
    (tmp_path / "program" / "program.py").write_text(WITH_FILES)
    return tmp_path / "program"


def test_files_folders_archives_and_requirements_are_there_on_a_cluster_and_as_they_were_changed(
    cluster: Cluster, folder: Path
) -> None:
    first = run(folder, "program.py", cluster.address, cluster=cluster)
    assert first.stdout == FIRST, first.stderr

    (folder / "files" / "helper.py").write_text("def named(value):\n    return f'second {value}'\n")
    cluster.task_managers[0].send(signal.SIGKILL)
    cluster.start_task_manager()
    second = run(folder, "-m", "flowlet", "run", "-m", cluster.address, "program.py", cluster=cluster)

    assert second.stdout == FIRST.replace("first", "second"), second.stderr


def test_the_same_program_without_a_cluster(folder: Path) -> None:
    program = run(folder, "program.py")

    assert program.stdout == FIRST, program.stderr
