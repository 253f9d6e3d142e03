"""Runs a ``Work`` on TaskManagers: sources that look records up, the program, and sinks whose outputs are compared with
a plain loop's.

Side:   any; sources and sinks run inside the TaskManagers.
Proof:  every run, timed or not: as many outputs as the loop gave, and for every text its last number, or the sum of its
        numbers.  No text may come out of two subtasks where last numbers are compared.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from bench.jobs.checked import CheckedSink, Keep, MarkedReader, Reports, check_last_values, check_num_outputs, pairs_of
from bench.jobs.pipeline import Deployment, Run, into_operator, run_program
from bench.jobs.work import Found, Input, Outputs, Work, add_up, imported
from flowlet.chain.loop_code import LoopCode
from flowlet.common import Types, WatermarkStrategy
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import Source
from flowlet.records import Chunk

RECORDS_PER_CHUNK: Final = 1000  # as the engine's own sources give; not measured here
_LONGS: Final = 1 << 64
_READERS_PER_INPUT: Final = 1000  # the files of several inputs' readers have different names


@dataclass(frozen=True)
class InputSource(Source):
    """The records of one input; every reader has its share."""

    folder: Path
    content: Input
    number: int

    def create_reader(self, subtask: int, parallelism: int) -> MarkedReader:
        """Return the reader of one subtask; the time to make its records is not measured."""
        chunks = in_chunks(self.content.records(subtask, parallelism))
        return MarkedReader(chunks, self.folder, _READERS_PER_INPUT * self.number + subtask)


def in_chunks(records: Iterator[Any]) -> Iterator[Chunk]:
    """Yield the records; they are looked up one after the other, as for the plain loop."""
    while values := list(itertools.islice(records, RECORDS_PER_CHUNK)):
        yield Chunk(values)


class AddingSink(CheckedSink):
    """Adds the numbers of every text up."""

    def _write_kept(self, code: LoopCode, record: str) -> None:
        text, number, sums = code.variable("text"), code.variable("number"), code.bind(self._last, "sums")
        code.line(f"{text}, {number} = {record}")
        code.line(f"{sums}[{text}] = {sums}.get({text}, 0) + {number}")

    def process_chunk(self, chunk: Chunk) -> None:
        """Count and add."""
        self._num_records += len(chunk)
        add_up(self._last, pairs_of(chunk))


@lru_cache(maxsize=64)
def expected(work: Work) -> Found:
    """Return the results of the plain loop."""
    loop = imported(f"{work.loops}:{work.program}")
    found: Found = loop(*(each.records() for each in work.inputs))
    return found


def check(work: Work, reports: Reports) -> None:
    """Compare with the plain loop.

    Raises:
        WrongOutputError: something else came out.
    """
    found = expected(work)
    check_num_outputs(reports, found.num_outputs)
    if work.outputs is Outputs.SUM:
        # A sum may be more than a long of Java holds, which then goes on from the smallest one.
        check_last_values(summed(reports), {text: number % _LONGS for text, number in found.numbers.items()})
    else:
        check_last_values(reports, found.numbers)


def summed(reports: Reports) -> Reports:
    """Return the reports as one sink's that added up all numbers, as Java's longs do."""
    numbers: dict[str, int] = {}
    for sink in reports.sinks:
        add_up(numbers, sink.last.items())
    numbers = {text: number % _LONGS for text, number in numbers.items()}
    first = reports.sinks[0]
    return Reports(reports.start_ns, (type(first)(first.num_records, first.end_ns, numbers),))


def build(work: Work, environment: StreamExecutionEnvironment, folder: Path) -> None:
    """Build the program between its sources and sinks."""
    inputs = []
    for number, each in enumerate(work.inputs):
        source, record_type = InputSource(folder, each, number), Types.STRING() if is_text(each) else None
        inputs.append(
            environment.from_source(source, WatermarkStrategy.no_watermarks(), f"input {number}", record_type)
        )
    program = imported(f"{work.streams}:{work.program}")
    kind = AddingSink if work.outputs is Outputs.SUM else CheckedSink
    make = partial(kind, folder, Keep(0, expected(work).num_outputs))
    into_operator(program(*inputs), "checked sink", make)


def is_text(content: Input) -> bool:
    """Whether the records are lines of text."""
    return content.make.endswith("_line")


def run(work: Work, deployment: Deployment) -> Run:
    """Run the work once, in a fresh cluster."""
    return run_program(partial(build, work), work.num_records, partial(check, work), deployment)
