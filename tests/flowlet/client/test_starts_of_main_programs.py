"""A program runs however it was started: objects of its main module are found under the name of the module then."""

import textwrap
from collections.abc import Mapping

import pytest

from tests.flowlet.client.programs import Programs

_STARTED = """\
import multiprocessing, pickle, runpy, sys
from dataclasses import dataclass
from typing import Generic, TypeVar
from flowlet.datastream import MapFunction, StreamExecutionEnvironment

T = TypeVar("T")

@dataclass(slots=True)
class Event:
    number: int

class Box(Generic[T]):
    def __init__(self, inside: T): self.inside = inside

class Doubling(MapFunction):
    def open(self, runtime_context):
        import __main__
        self._known = pickle.loads(pickled).number, __main__.helper(1)
    def map(self, event): return Box(Event(helper(event.number) + self._known[0] + self._known[1]))

def helper(number): return 2 * number

pickled = b"\\x80\\x04c__main__\\nEvent\\n)\\x81N}\\x8c\\x06numberK\\x00s\\x86b."

def job():
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(int(sys.argv[1]))
    stream = env.from_collection([Event(1), Event(2)]).map(Doubling())
    with stream.key_by(lambda box: box.inside.number).map(lambda box: box).execute_and_collect() as results:
        found = list(results)
    print(sorted(box.inside.number for box in found), {type(box) for box in found} == {Box}, type(found[0].inside) is Event, flush=True)
"""  # noqa: E501
_SPAWNING = """
if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[2]).Process(target=job)
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""
# The main module is another one, which has nothing of it.
_RUNPY = "import runpy\nif __name__ == '__main__':\n    runpy.run_path(__file__, run_name='job')\nelse:\n"
_STARTS = {
    "spawn": (["program.py", "PARALLELISM", "spawn"], _STARTED + _SPAWNING),
    "forkserver": (["program.py", "PARALLELISM", "forkserver"], _STARTED + _SPAWNING),
    "fork": (["program.py", "PARALLELISM", "fork"], _STARTED + _SPAWNING),
    "spawn of a module": (["-m", "program", "PARALLELISM", "spawn"], _STARTED + _SPAWNING),
    "module": (["-m", "program", "PARALLELISM"], _STARTED + "job()\n"),
    "text": (["-c", _STARTED + "job()\n", "PARALLELISM"], ""),
    "runpy": (["program.py", "PARALLELISM"], _RUNPY + textwrap.indent(_STARTED + "job()\n", "    ")),
}


# By how the program is started: with which parallelisms it runs in each "make test"; with the others now and then.
_OFTEN: Mapping[str, str] = {"spawn": "12", "fork": "2", "text": "2", "module": "2", "runpy": "12"}


@pytest.mark.parametrize(
    ("start", "parallelism"),
    [
        pytest.param(
            start, parallelism, marks=pytest.mark.slow if parallelism in _OFTEN.get(start, "") else pytest.mark.long
        )
        for start in _STARTS
        for parallelism in "12"
    ],
)
def test_a_program_runs_however_it_was_started(start: str, parallelism: str, programs: Programs) -> None:
    """The program may also be started by runpy, or in a process of multiprocessing, where the main module has another
    name.
    """
    arguments, text = _STARTS[start]
    if start == "runpy":
        # __main__ is another module.
        text = text.replace("__main__.helper(1)", "2").replace("pickle.loads(pickled).number", "0")

    found = programs.lines(text, *(parallelism if each == "PARALLELISM" else each for each in arguments))

    assert found == ["[4, 6] True True"]
