"""A program with modules of its own runs on TaskManagers that were started elsewhere."""

from pathlib import Path

import pytest

from bench.cluster import Cluster, Process
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


def run(cluster: Cluster, folder: Path, *values: int) -> Process:
    program = cluster.start(
        str(folder / "program.py"), cluster.address, str(folder / "model"), *map(str, values), name="program"
    )
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

    first = run(cluster, folder, 1, 2, 3)
    assert first.stdout == "[3, 6, 9]\n", first.stderr

    # The next job brings what the user has changed meanwhile.
    (folder / "limits.py").write_text("DEAR = 5\n")
    second = run(cluster, folder, 1, 2)
    assert "ValueError: too dear: Price(cents=6)" in second.stderr
