"""A ``Work`` as a Bytewax dataflow; run by the Python of ``.venv-bytewax``, which knows of this repository what needs
no package.

Every process is one worker; several exchange records over TCP.
Usage: ``bytewax_work_job.py PROCESS ADDRESSES OPTIONS``, OPTIONS being a JSON object: work, folder.  Without addresses:
       one process.
"""

import itertools
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import DynamicSource, StatelessSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.testing import cluster_main

from bench.jobs.work import Collected, Input, Work, imported

RECORDS_PER_BATCH = 1000  # like our sources; not measured


class Share(StatelessSourcePartition):  # type: ignore[misc]  # Bytewax is not installed here
    """The share of one worker."""

    def __init__(self, records: Iterator[Any], start_file: Path) -> None:
        self.records = records
        self.start_file = start_file
        self.has_started = False

    def next_batch(self) -> list[Any]:
        """Return some records."""
        if not self.has_started:
            self.has_started = True
            self.start_file.write_text(str(time.monotonic_ns()))
        batch = list(itertools.islice(self.records, RECORDS_PER_BATCH))
        if not batch:
            raise StopIteration
        return batch


class Source(DynamicSource):  # type: ignore[misc]  # Bytewax is not installed here
    """The share of this process's worker; its records are made before the processes meet, so that all workers start
    together.
    """

    def __init__(self, content: Input, worker: int, num_workers: int, start_file: Path) -> None:
        self.records = content.records(worker, num_workers)
        self.start_file = start_file

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Share:
        """Return the share of this worker."""
        return Share(self.records, self.start_file)


class Collecting(StatelessSinkPartition):  # type: ignore[misc]  # Bytewax is not installed here
    """Looks at every output, as our sinks do; notes when the last one came."""

    def __init__(self, collected: Collected) -> None:
        self.collected = collected
        self.end_ns = 0

    def write_batch(self, items: list[tuple[str, int]]) -> None:
        """Take some outputs."""
        self.collected.add(items)
        self.end_ns = time.monotonic_ns()

    def close(self) -> None:
        """Write the report: the input is over."""
        self.end_ns = time.monotonic_ns()


class Sink(DynamicSink):  # type: ignore[misc]  # Bytewax is not installed here
    """Has one part per worker; there is one worker per process."""

    def __init__(self, partition: Collecting) -> None:
        self.partition = partition

    def build(self, step_id: str, worker_index: int, worker_count: int) -> Collecting:
        """Return the sink of this worker."""
        return self.partition


def main(process: int, addresses: list[str], options: dict[str, Any]) -> None:
    """Build and run the dataflow; write what the sink saw, as Flink's does."""
    work, folder = Work.from_options(options["work"]), Path(options["folder"])
    partition = Collecting(Collected(work.outputs))
    flow = Dataflow("work")
    inputs = []
    for number, each in enumerate(work.inputs):
        source = Source(each, process, len(addresses) or 1, folder / f"start-{number}-{process}")
        inputs.append(op.input(f"input {number}", flow, source))
    op.output("sink", imported(f"{work.flows}:{work.program}")(*inputs), Sink(partition))
    cluster_main(flow, addresses, process, worker_count_per_proc=1)
    collected = partition.collected
    head = f"{collected.num_outputs}\t0\t{partition.end_ns}\n"
    text = head + "".join(f"{text}\t{number}\n" for text, number in collected.numbers.items())
    (folder / f"sink-{process}").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), [address for address in sys.argv[2].split(",") if address], json.loads(sys.argv[3]))
