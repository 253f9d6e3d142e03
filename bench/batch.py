"""A BATCH job over more data than memory: generated pairs, sorted by key, in bounded memory.

Side:    any; the source runs inside the TaskManagers.
Job:     pairs (an int, a text of 1,000 characters) -> by key -> count of each key -> one record with the numbers of
         keys and pairs.  Three stages: every pair is written by its producer, read, sorted by key (in files, except
         for the part that ``execution.sorted-inputs.memory`` holds) and read again.
Cluster: two TaskManagers of one slot each, whose resident memory is sampled.
Proof:   every pair is counted once, and every key is emitted once.
"""

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

import numpy as np

from bench.cluster import Cluster
from bench.report import ProcessUse, Result
from flowlet.common import Configuration
from flowlet.datastream import RuntimeExecutionMode, StreamExecutionEnvironment

GB: Final = 10**9
PAYLOAD_CHARS: Final = 1_000
PAIR_BYTES: Final = PAYLOAD_CHARS + 8
ROWS_OF_BATCH: Final = 2_000
NUM_KEYS: Final = 100_000
NUM_TEXTS: Final = 64
PARALLELISM: Final = 2
MIB: Final = 1024 * 1024
SAMPLE_EVERY_S: Final = 0.5
QUICK_GB: Final = 0.01


def parse_options(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the options of this case."""
    parser = argparse.ArgumentParser(prog="python -m bench batch")
    parser.add_argument(
        "--gb", type=float, default=10.0, help="how much data is generated, in 10^9 bytes (default: 10)"
    )
    parser.add_argument("--memory", default="128 mb", help="of each task for sorting (default: 128 mb)")
    parser.add_argument(
        "--directory", type=Path, help="where files are kept (default: the system's folder for temporary files)"
    )
    return vars(parser.parse_args(arguments))


class Pairs:
    """Makes the record batches of one subtask; keys are spread over all numbers, so that no run of them is sorted."""

    def __init__(self, num_pairs: int) -> None:
        self._num_pairs = num_pairs

    def __call__(self, subtask: int, parallelism: int) -> Iterator[Any]:
        """Yield the batches of ``subtask``."""
        import pyarrow as pa  # in the TaskManagers, too

        rng = np.random.default_rng(subtask)
        texts = pa.array([chr(97 + number % 26) * PAYLOAD_CHARS for number in range(NUM_TEXTS)])
        left = self._num_pairs // parallelism + (subtask < self._num_pairs % parallelism)
        while left:
            rows = min(left, ROWS_OF_BATCH)
            left -= rows
            keys = rng.integers(0, NUM_KEYS, rows)
            yield pa.record_batch({"key": pa.array(keys), "payload": texts.take(pa.array(keys % NUM_TEXTS))})


def run(
    runs: int, *, quick: bool = False, gb: float = 10.0, memory: str = "128 mb", directory: Path | None = None
) -> list[Result]:
    """Measure the seconds of the job, with the memory of its processes."""
    size = QUICK_GB if quick else gb
    seconds: list[float] = []
    details: dict[str, Any] = {}
    for _ in range(runs):
        taken, details = one_run(round(size * GB / PAIR_BYTES), memory, directory)
        seconds.append(taken)
    return [Result(f"batch, {size:g} GB of pairs sorted by key", "s", seconds, details)]


def one_run(num_pairs: int, memory: str, directory: Path | None) -> tuple[float, dict[str, Any]]:
    """Return the seconds of the job, and the memory that the processes needed."""
    with tempfile.TemporaryDirectory(dir=directory) as name:
        folder = Path(name)
        (folder / "files").mkdir()
        with (
            patch.dict(os.environ, TMPDIR=str(folder / "files")),
            Cluster(folder, num_task_managers=PARALLELISM) as cluster,
        ):
            pids = [each.pid for each in cluster.task_managers]
            started = [ProcessUse.of(pid).rss_bytes for pid in pids]
            with patch.dict(os.environ, cluster.environment), RssSampler(pids) as sampler:
                start = time.monotonic()
                found = counted(cluster.address, num_pairs, memory)
                seconds = time.monotonic() - start
            cpu_s = [ProcessUse.of(pid).cpu_s for pid in pids]
        left = [
            path.name for path in (folder / "files").iterdir() if path.name.startswith(("netstack-", "flowlet-sort-"))
        ]
    if found[1] != num_pairs or found[0] > NUM_KEYS:
        raise ValueError(
            f"{num_pairs} pairs of at most {NUM_KEYS} keys were made, and {found[1]} of {found[0]} keys counted"
        )
    return seconds, {
        "pairs": num_pairs,
        "keys": found[0],
        "memory of sorters": memory,
        "MiB of each TaskManager at its start": [rss // MIB for rss in started],
        "MiB of each TaskManager at most": [rss // MIB for rss in sampler.most],
        "CPU seconds of each TaskManager": [round(each, 1) for each in cpu_s],
        "files left": left,
    }


def counted(address: str, num_pairs: int, memory: str) -> tuple[int, int]:
    """Return the numbers of keys and of pairs."""
    import pyarrow as pa

    options = {"flowlet.jobmanager": address, "execution.sorted-inputs.memory": memory}
    environment = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options))
    with closing(environment.set_parallelism(PARALLELISM).set_runtime_mode(RuntimeExecutionMode.BATCH)):
        pairs = environment.from_arrow(Pairs(num_pairs), pa.schema({"key": pa.int64(), "payload": pa.string()}))
        counts = pairs.key_by("key").count().to_records().map(lambda row: ("all", 1, row["count"]))
        totals = counts.key_by(lambda record: record[0]).reduce(
            lambda one, other: ("all", one[1] + other[1], one[2] + other[2])
        )
        (total,) = list(totals.execute_and_collect())
    return total[1], total[2]


class RssSampler:
    """Looks at the resident memory of processes now and then.  Life cycle: a context manager."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = pids
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rss", daemon=True)
        self.most = [0] * len(pids)

    def __enter__(self) -> "RssSampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._is_over.wait(SAMPLE_EVERY_S):
            self.most = [
                max(most, ProcessUse.of(pid).rss_bytes) for most, pid in zip(self.most, self._pids, strict=True)
            ]
