"""Programs that run one job each, in their own process or in TaskManagers that are its children."""

from pathlib import Path

from tests.flowlet.client.programs import Fork, running

HEAD = """
import ctypes, os, sys, threading, time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

from flowlet.datastream import MapFunction, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(int(os.environ["PARALLELISM"]))

def run(function, *records):
    env.from_collection(list(records)).map(function).print()
    env.execute()
"""


def written(folder: Path, text: str, name: str = "program.py") -> str:
    file = folder / name
    file.write_text(HEAD + text)
    return str(file)


def lines_of(out: str) -> list[str]:
    """Return the printed lines, without the numbers of subtasks."""
    return sorted(line.partition("> ")[2] or line for line in out.splitlines())


def outcome(
    *arguments: str, parallelism: int, fork: Fork = Fork.NOTHING, **environment: str
) -> tuple[int, list[str], list[str]]:
    with running(*arguments, environment={"PARALLELISM": str(parallelism), **environment}, fork=fork) as program:
        code, out, errors = program.end()
    return code, lines_of(out), errors
