"""A program goes on from the savepoint, or an unaligned checkpoint, of another program whose main module defined its
classes, too.

The program's functions run in this process or in others.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.flowlet.client.programs import Fork, running

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import time
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from pathlib import Path
from typing import NamedTuple

from flowlet.common import Configuration, Types
from flowlet.datastream import KeyedProcessFunction, SourceFunction, StreamExecutionEnvironment
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor

CLASSES

FOLDER = Path(sys.argv[1])
IS_FIRST = sys.argv[2] == "first"


class Numbers(SourceFunction):
    def __init__(self, is_first):
        self.is_first, self.is_cancelled = is_first, False

    def run(self, ctx):
        for number in range(4):
            ctx.collect(number)
        while self.is_first and not self.is_cancelled:
            time.sleep(0.01)

    def cancel(self):
        self.is_cancelled = True


class Count(KeyedProcessFunction):
    def __init__(self, is_first, folder):
        self.is_first, self.folder = is_first, folder

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))
        self.by_place = runtime_context.get_map_state(MapStateDescriptor("by place"))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        if self.is_first:
            self.total.update((Total(value, [Color.RED]), {"color": Color.BLUE}))
            self.by_place.put(Place(value, Color.RED), Kept.Level.HIGH)
            self.seen.add(Seen(Color.BLUE, value))
            (self.folder / f"seen {value}").touch()
            return
        total, colors = self.total.value()
        (place, level), = self.by_place.items()
        (seen,) = self.seen
        assert type(total) is Total and total.tags[0] is Color.RED and colors["color"] is Color.BLUE, total
        assert type(place) is Place and place.color is Color.RED and self.by_place.get(Place(value, Color.RED)) is level
        assert level is Kept.Level.HIGH and type(seen) is Seen and seen.color is Color.BLUE and seen.number == value
        yield CHECKED


env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({
    "execution.checkpointing.savepoint-dir": str(FOLDER / "savepoints"), "state.backend.type": sys.argv[4],
    **({} if IS_FIRST else {"execution.state-recovery.path": next(map(str, (FOLDER / "savepoints").iterdir()))}),
})).set_parallelism(int(sys.argv[3]))
numbers = env.add_source(Numbers(IS_FIRST)).set_parallelism(1).uid("numbers")
counts = numbers.key_by(lambda value: value % 4).process(Count(IS_FIRST, FOLDER)).uid("count")
if IS_FIRST:
    counts.print()
    job = env.execute_async("first")
    while len(list(FOLDER.glob("seen *"))) < 4:
        time.sleep(0.01)
    job.stop_with_savepoint(False).result()
else:
    with counts.execute_and_collect("second") as results:
        print(sorted(results))
"""
CLASSES = """
class Color(Enum):
    RED = 1
    BLUE = 2

@dataclass(frozen=True)
class Place:
    number: int
    color: Color

@dataclass
class Total:
    count: int
    tags: list

class Seen(NamedTuple):
    color: Color
    number: int

class Kept:
    class Level(IntEnum):
        HIGH = 1
"""
CHANGED = (
    CLASSES.replace("RED = 1\n    BLUE = 2", "NEW = 1\n    BLUE = 3\n    RED = 2")
    .replace(
        "    count: int\n    tags: list",
        "    tags: list\n    count: int\n    more: list = field(default_factory=lambda: [7])",
    )
    .replace("color: Color\n    number: int\n\nclass Kept", "number: int\n    color: Color\n\nclass Kept")
)


def run(
    folder: Path, which: str, classes: str, checked: str, parallelism: int, backend: str, text: str = PROGRAM
) -> tuple[int, str, list[str]]:
    program = folder / f"{which}.py"
    program.write_text(text.replace("CLASSES", classes).replace("CHECKED", checked), encoding="utf-8")
    arguments = (str(program), str(folder), which, str(parallelism), backend)
    environment = {"FLOWLET_SECRET_FILE": str(folder / "secret")}
    # An executed program hashes texts in another way than the one whose savepoint it has.
    fork = Fork.NOTHING if (which, parallelism) == ("second", 1) else Fork.WITH_SERVER
    with running(*arguments, environment=environment, fork=fork) as process:
        return process.end()


@pytest.fixture(scope="module")
def savepoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Path]:
    """The folder with the savepoint of the first program, which several second ones start from."""

    @functools.cache
    def take(parallelism: int, backend: str) -> Path:
        folder = tmp_path_factory.mktemp("first")
        code, _, errors = run(folder, "first", CLASSES, "value", parallelism, backend)
        assert code == 0, errors
        return folder

    return take


@pytest.mark.parametrize(
    ("parallelism", "backend"), [(1, "hashmap"), (2, "hashmap"), pytest.param(1, "rocksdb", marks=pytest.mark.long)]
)
def test_instances_in_a_savepoint_become_those_of_the_changed_program(
    parallelism: int, backend: str, savepoints: Callable[[int, str], Path]
) -> None:
    """Members and fields go by name, and a new field gets its default; ``is``, ``==`` and ``isinstance`` hold, in the
    process and in children.
    """
    if backend == "rocksdb":
        pytest.importorskip("rocksdict")

    checked = "total.count, total.more"
    code, out, errors = run(savepoints(parallelism, backend), "second", CHANGED, checked, parallelism, backend)

    assert (code, out) == (0, "[(0, [7]), (1, [7]), (2, [7]), (3, [7])]\n"), errors


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_class_that_is_gone_is_named_with_its_state(parallelism: int, savepoints: Callable[[int, str], Path]) -> None:
    """A job whose state needs a class that is gone fails before it processes a record."""
    without = CLASSES.replace("class Total", "class Sum") + "\nTotal = None\n"

    code, _, errors = run(savepoints(parallelism, "hashmap"), "second", without, "value", parallelism, "hashmap")

    assert code != 0
    assert any(
        "the state of operator 'KeyedProcess', 'total': class Total of the program is in the state, and is not found"
        in line
        for line in errors
    )


IN_FLIGHT = """
import sys
import time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment

CLASSES

FOLDER = Path(sys.argv[1])
IS_FIRST = sys.argv[2] == "first"


def made(number):
    if not IS_FIRST:
        with open(FOLDER / "made again", "a") as file:
            file.write(f"{number}\\n")
    return Reading(number=number, color=Color.RED)


def slow(reading):
    if IS_FIRST:
        time.sleep(0.05)  # what makes the back pressure; ended by the cancel
    assert type(reading) is Reading and reading.color is Color.RED, reading
    return CHECKED


env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({
    "execution.checkpointing.dir": str(FOLDER / "checkpoints"), "execution.checkpointing.interval": "300 ms",
    "execution.checkpointing.unaligned.enabled": "true",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    **({} if IS_FIRST else {"execution.state-recovery.path": str(max((FOLDER / "checkpoints").rglob("_metadata")).parent)}),
}))
env.set_parallelism(int(sys.argv[3]))
readings = env.from_collection(range(2000)).map(made).set_parallelism(1).uid("readings").rebalance()
found = readings.map(slow).set_parallelism(2).uid("slow")
if IS_FIRST:
    found.print()
    job = env.execute_async("first")
    while not list((FOLDER / "checkpoints").rglob("chk-3")):  # the one before is complete then, and is kept
        time.sleep(0.01)
    job.cancel().result()
else:
    with found.execute_and_collect("second") as results:
        found = list(results)
    made_again = (FOLDER / "made again").read_text().split() if (FOLDER / "made again").exists() else []
    print(len(found) > len(made_again), len(found) == len(set(found)), max(found))
"""  # noqa: E501
COLORS, CHANGED_COLORS = "class Color(Enum):\n    RED = 1\n", "class Color(Enum):\n    BLUE = 1\n    RED = 2\n"
FIELDS, CHANGED_FIELDS = (
    "    number: int\n    color: Color\n",
    "    color: Color\n    number: int\n    unit: str = 'm'\n",
)


@pytest.mark.parametrize(
    ("decorator", "base"),
    [("@dataclass", ""), ("", "(typing.NamedTuple)"), ("", "(msgspec.Struct)")],
    ids=["dataclass", "tuple", "struct"],
)
def test_records_in_flight_in_an_unaligned_checkpoint_become_instances_of_the_changed_program(
    decorator: str, base: str, tmp_path: Path
) -> None:
    """Each record comes once; records that were in flight are not made again.

    Few are pickled, many travel as columns of their fields.
    """
    reading = f"import msgspec, typing\n{decorator}\nclass Reading{base}:\n"
    code, _, errors = run(tmp_path, "first", COLORS + reading + FIELDS, "reading.number", 2, "", IN_FLIGHT)
    assert code == 0, errors

    code, out, errors = run(
        tmp_path, "second", CHANGED_COLORS + reading + CHANGED_FIELDS, "reading.number, reading.unit", 2, "", IN_FLIGHT
    )

    assert (code, out) == (0, "True True (1999, 'm')\n"), errors
