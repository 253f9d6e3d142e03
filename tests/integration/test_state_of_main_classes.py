"""State whose classes are defined in the program itself goes on after its TaskManagers were killed."""

from pathlib import Path

import pytest

from tests.flowlet.client.programs import Fork, running

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from flowlet.common import Types
from flowlet.datastream import KeyedProcessFunction
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from tests.integration.jobs import environment, running_counts, task_managers

NUM_RECORDS = 12_000
NUM_KEYS = 7


class Color(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Place:
    number: int
    color: Color


@dataclass
class Total:
    count: int = 0


class Seen(NamedTuple):
    at: Place


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))
        self.by_place = runtime_context.get_map_state(MapStateDescriptor("by place"))
        self.first = runtime_context.get_list_state(ListStateDescriptor("first"))

    def process_element(self, value, ctx):
        total = self.total.value()
        if total is None:
            total = Total()
            self.first.add(Seen(Place(value % NUM_KEYS, Color.RED)))
        if type(total) is not Total:
            raise TypeError(f"a Total of another class: {type(total)!r} {id(type(total))} {id(Total)}")
        total.count += 1
        self.total.update(total)
        place = Place(value % 3, Color.BLUE if value % 2 else Color.RED)
        self.by_place.put(place, (self.by_place.get(place) or 0) + 1)
        assert all(type(key) is Place and type(key.color) is Color and key.color in Color for key in self.by_place.keys())
        assert sum(self.by_place.values()) == total.count, (list(self.by_place.items()), total)
        assert self.by_place.contains(Place(place.number, place.color))
        [seen] = self.first
        assert type(seen) is Seen and seen.at == Place(value % NUM_KEYS, Color.RED), seen
        yield value % NUM_KEYS, total.count


def paced(number):
    if number % 1000 == 0:
        time.sleep(0.1)
    return number


if __name__ == "__main__":
    env = environment(sys.argv[1])
    numbers = env.from_collection(list(range(NUM_RECORDS)), Types.LONG()).map(paced, output_type=Types.LONG()).set_parallelism(1)
    counts = numbers.key_by(KEY).process(Count())
    with counts.execute_and_collect("classes of the program") as results:
        found = [next(results)]  # handed out when a checkpoint is complete
        killed = task_managers()
        for each in killed:  # all: their state is read by processes that never saw the classes
            each.kill()
        found += results
    assert len(killed) == 2, killed
    assert Counter(found) == running_counts(NUM_RECORDS, NUM_KEYS)
    print("the counts are right")
"""  # noqa: E501
KEYS = {"a number": "lambda value: value % NUM_KEYS", "an object": "lambda value: Place(value % NUM_KEYS, Color.RED)"}


@pytest.mark.parametrize("key", KEYS)
def test_classes_of_the_program_are_the_same_ones_after_a_restart(key: str, tmp_path: Path) -> None:
    """Values, keys of maps, elements of lists and the keys of the stream have the program's classes; the function
    checks them at every record.
    """
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("KEY)", f"{KEYS[key]})"), encoding="utf-8")

    with running(str(program), str(tmp_path / "checkpoints"), fork=Fork.WITH_SERVER) as process:
        code, out, errors = process.end()

    assert (code, out) == (0, "the counts are right\n"), errors
