"""How long a record takes into a task with much keyed state, while checkpoints of it are taken and without them.

Side:     any; source and function run inside the TaskManagers.
Job:      a source in one TaskManager gives each key once, then 1,000 records per second, which change the value of
          their key in the other one.  Each is (key, monotonic ns at its creation); both processes read one clock, that
          of this machine.
Figures:  of the records of one run, without those of the first seconds after the keys; how many checkpoints became
          complete meanwhile.
Proof:    every record arrives once, in order; every key has a value.
"""

import json
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.jobs.pipeline import running
from bench.latency import END_TIMEOUT_S, PacedReader, wait_for_file
from bench.percentiles import RECORDS_PER_S, evaluated
from flowlet.common import Configuration, Types, WatermarkStrategy
from flowlet.datastream import CheckpointListener, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink, Source
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.operators.source_reader import SourceReader
from flowlet.records import Chunk

RECORDS_PER_CHUNK: Final = 1000
FILL_TIMEOUT_S: Final = 60.0
_SCATTER: Final = 7919  # a prime that divides no number of keys here
_PAIR: Final = Types.TUPLE([Types.LONG(), Types.LONG()])


class FillingReader:
    """Gives each key once, as fast as it goes; then paced records."""

    def __init__(self, num_keys: int, num_paced: int) -> None:
        self._num_keys = num_keys
        self._next_key = 0
        self._paced = PacedReader(num_paced)

    def poll_chunk(self) -> Chunk | None:
        """Return the next keys, or the next record when it is due."""
        start = self._next_key
        if start < self._num_keys:
            self._next_key = min(start + RECORDS_PER_CHUNK, self._num_keys)
            return Chunk([(key, 0) for key in range(start, self._next_key)])
        chunk = self._paced.poll_chunk()
        if chunk is None:
            return None
        [(number, sent_ns)] = chunk.values
        return Chunk([(number * _SCATTER % self._num_keys, sent_ns)])

    def close(self) -> None:
        """Do nothing: the reader holds no resource."""


@dataclass(frozen=True)
class FillingSource(Source):
    """The source that gives each key once and then the paced records, by one ``FillingReader``."""

    num_keys: int
    num_paced: int

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        """Return the one reader."""
        assert parallelism == 1
        return FillingReader(self.num_keys, self.num_paced)


class LatenciesWithState(KeyedProcessFunction, CheckpointListener):
    """Keeps a number per key, and how long each paced record took; writes a report at the end."""

    def __init__(self, report: Path) -> None:
        self._report = report
        self._latencies_ns: list[int] = []
        self._num_keys = 0
        self._num_checkpoints = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        """Ask for the state."""
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: KeyedProcessFunction.Context) -> None:
        """Change the state, and look at the clock."""
        _, sent_ns = value
        if sent_ns:
            assert self.last.value() is not None, "a key has lost its value"
            self._latencies_ns.append(time.monotonic_ns() - sent_ns)
        else:
            self._num_keys += 1
        self.last.update(sent_ns)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Count the checkpoints that had all keys."""
        self._num_checkpoints += bool(self._latencies_ns)

    def close(self) -> None:
        """Write the report: all records arrived.  The file appears whole or not at all."""
        partial_report = self._report.with_suffix(".part")
        report = {
            "latencies_ns": self._latencies_ns,
            "num_keys": self._num_keys,
            "num_checkpoints": self._num_checkpoints,
        }
        partial_report.write_text(json.dumps(report), encoding="ascii")
        partial_report.rename(self._report)


@dataclass(frozen=True)
class LatencyWithState:
    """The job.

    Args:
        num_keys: of the state.
        interval_ms: of the checkpoints; None: there are none.
        warm_up_s: after the last key; not counted.
        seconds: counted.
    """

    num_keys: int
    interval_ms: int | None
    warm_up_s: float
    seconds: float

    def build(self, environment: StreamExecutionEnvironment, folder: Path) -> None:
        """Put source and function into slots of their own, and so into TaskManagers of their own."""
        environment.set_buffer_timeout(0)
        if self.interval_ms is not None:
            environment.configure(Configuration.from_dict({"execution.checkpointing.dir": str(folder / "checkpoints")}))
            environment.enable_checkpointing(self.interval_ms)
        source = FillingSource(self.num_keys, self._num_paced)
        records = environment.from_source(source, WatermarkStrategy.no_watermarks(), "keys", _PAIR).slot_sharing_group(
            "sender"
        )
        latencies = records.key_by(lambda pair: pair[0], Types.LONG()).process(LatenciesWithState(folder / "latencies"))
        latencies.slot_sharing_group("receiver").sink_to(DiscardingSink())

    @property
    def _num_paced(self) -> int:
        return int((self.warm_up_s + self.seconds) * RECORDS_PER_S)

    def measure(self) -> dict[str, Any]:
        """Run one job in a fresh cluster; latencies in us.

        Raises:
            TimeoutError: the function did not see the end in time.
        """
        with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
            folder = Path(name)
            with Cluster(folder) as cluster, running(cluster, partial(self.build, folder=folder)):
                wait_for_file(folder / "latencies", FILL_TIMEOUT_S + self.warm_up_s + self.seconds + END_TIMEOUT_S)
            report = json.loads((folder / "latencies").read_text(encoding="ascii"))
        assert report["num_keys"] == self.num_keys, "a key was lost"
        assert len(report["latencies_ns"]) == self._num_paced, "a record was lost"
        counted = report["latencies_ns"][int(self.warm_up_s * RECORDS_PER_S) :]
        return {**evaluated(counted), "num_checkpoints": report["num_checkpoints"]}
