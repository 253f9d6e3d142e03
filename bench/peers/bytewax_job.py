"""A Bytewax word count; run by the Python of ``.venv-bytewax``, which knows nothing of this repository.

Every process is one worker; they exchange words over TCP.
Usage: ``bytewax_job.py PROCESS ADDRESSES OPTIONS``, OPTIONS being a JSON object: count, lines, folder.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

LINES_PER_BATCH = 200


class Lines(StatelessSourcePartition):  # type: ignore[misc]  # Bytewax is not installed here
    """The share of one worker, looked up line by line."""

    def __init__(self, options: dict[str, Any], worker: int, num_workers: int) -> None:
        self.lines = options["ready_lines"]
        self.next = options["count"] * worker // num_workers
        self.end = options["count"] * (worker + 1) // num_workers
        self.start_file = Path(options["folder"], f"start-{worker}")
        self.has_started = False

    def next_batch(self) -> list[str]:
        """Return some lines."""
        if not self.has_started:
            self.has_started = True
            self.start_file.write_text(str(time.monotonic_ns()))
        if self.next == self.end:
            raise StopIteration
        lines, size, at = self.lines, len(self.lines), self.next
        self.next = min(at + LINES_PER_BATCH, self.end)
        return [lines[number % size] for number in range(at, self.next)]


class Source(DynamicSource):  # type: ignore[misc]  # Bytewax is not installed here
    """Gives one share per worker."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Lines:
        """Return the share of this worker."""
        return Lines(self.options, worker_index, worker_count)


class Counting(StatelessSinkPartition):  # type: ignore[misc]  # Bytewax is not installed here
    """Counts records; at the end, the last count of every word is among the records that it kept."""

    def __init__(self) -> None:
        self.num_records = 0
        self.kept: list[list[tuple[str, int]]] = []

    def write_batch(self, items: list[tuple[str, int]]) -> None:
        """Keep everything: a run has few records."""
        self.num_records += len(items)
        self.kept.append(items)


class Sink(DynamicSink):  # type: ignore[misc]  # Bytewax is not installed here
    """Has one part per worker; there is one worker per process."""

    partition = Counting()

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Counting:
        """Return the sink of this worker."""
        return self.partition


def count(state: int | None, value: int) -> tuple[int, int]:
    """Count: the user's reduce function."""
    total = (state or 0) + value
    return total, total


def main(process: int, addresses: list[str], options: dict[str, Any]) -> None:
    """Build and run the dataflow; write what the sink saw, as Flink's does."""
    options["ready_lines"] = Path(options["lines"]).read_text().splitlines()
    sink = Sink()
    flow = Dataflow("wordcount")
    lines = op.input("lines", flow, Source(options))
    words = op.flat_map("split", lines, lambda line: [(word, 1) for word in line.split()])
    counts = op.stateful_map("count", words, count)
    op.output("sink", counts, sink)
    cluster_main(flow, addresses, process, worker_count_per_proc=1)
    end_ns = time.monotonic_ns()
    last: dict[str, int] = {}
    for items in sink.partition.kept:
        last.update(items)
    head = f"{sink.partition.num_records}\t0\t{end_ns}\n"
    Path(options["folder"], f"sink-{process}").write_text(
        head + "".join(f"{word}\t{value}\n" for word, value in last.items())
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2].split(","), json.loads(sys.argv[3]))
