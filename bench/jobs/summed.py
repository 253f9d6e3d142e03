"""A sink for jobs that end on request: it counts rows and adds up one number of each, and writes both down at the end.

Side:   task; the check runs anywhere.
Proof:  rows that are lost, doubled or changed in that number are noticed, at 1 ns per row of columns.
"""

import json
from pathlib import Path
from typing import Final

from bench.jobs.checked import WrongOutputError
from flowlet.chain.stream_operator import StreamOperator
from flowlet.records import Chunk

_REPORT: Final = "summed-"


class SummingSink(StreamOperator):
    """Counts rows, and sums their first field, which is an int."""

    takes_chunks = True

    def __init__(self, folder: Path) -> None:
        self.name = "summing sink"
        self._folder = folder
        self._num_rows = 0
        self._sum = 0

    def process_chunk(self, chunk: Chunk) -> None:
        """Look at one column."""
        self._num_rows += len(chunk)
        if chunk.columns is None:
            self._sum += sum(row[0] for row in chunk.values)
            return
        column = chunk.columns.fields[0]
        numbers = column.numbers()
        self._sum += sum(column) if numbers is None or numbers.is_valid is not None else int(numbers.array.sum())

    def finish(self) -> None:
        """Write the report: all rows came.  The file appears whole or not at all."""
        file = self._folder / f"{_REPORT}{self.ctx.subtask}"
        partial = file.with_suffix(".part")
        partial.write_text(json.dumps([self._num_rows, self._sum]), encoding="ascii")
        partial.rename(file)


def check_summed(folder: Path, num_rows: int, total: int) -> None:
    """Check the reports of a job's sinks.

    Raises:
        WrongOutputError: they have another number of rows, or another sum.
    """
    found = [json.loads(file.read_text(encoding="ascii")) for file in folder.glob(f"{_REPORT}*[0-9]")]
    if not found:
        raise WrongOutputError("no sink reported")
    rows, sums = (sum(each) for each in zip(*found, strict=True))
    if (rows, sums) != (num_rows, total):
        raise WrongOutputError(f"{rows} rows with the sum {sums} instead of {num_rows} with {total}")
