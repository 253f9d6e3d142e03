"""A job with much keyed state: records of many keys, each counted in a ``ValueState``, with checkpoints or without.

Side:     any; sources and sinks run inside the TaskManagers.
Records:  (key, 1); all keys come once per cycle, in a scattered order, so that a checkpoint finds every key changed.
Proof:    one output per record, and the last count of every key is exact; the JobManager says which checkpoints were
          complete.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.cluster import Cluster
from bench.jobs.checked import Keep, MarkedReader, Reports, WrongOutputError, check_last_values, check_num_outputs
from bench.jobs.pipeline import TWO_TASK_MANAGERS, Deployment, Run, into_sink, run_program
from bench.jobs.words import CountInState
from flowlet.common import Configuration, Types, WatermarkStrategy
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.connectors import Source
from flowlet.records import Chunk
from flowlet.rpc.http import RpcClient
from flowlet.rpc.secret import load_or_create_secret

RECORDS_PER_CHUNK: Final = 1000
_SCATTER: Final = 7919  # a prime that divides no number of keys here
_PAIR: Final = Types.TUPLE([Types.LONG(), Types.LONG()])


@dataclass(frozen=True)
class CyclingSource(Source):
    """``num_records`` records of ``num_keys`` keys; every reader has a share of them."""

    folder: Path
    num_records: int
    num_keys: int

    def create_reader(self, subtask: int, parallelism: int) -> MarkedReader:
        """Return the reader of one subtask."""
        start, stop = self.num_records * subtask // parallelism, self.num_records * (subtask + 1) // parallelism
        return MarkedReader(self._chunks(start, stop), self.folder, subtask)

    def _chunks(self, start: int, stop: int) -> Iterator[Chunk]:
        num_keys = self.num_keys
        for at in range(start, stop, RECORDS_PER_CHUNK):
            yield Chunk([(number * _SCATTER % num_keys, 1) for number in range(at, min(at + RECORDS_PER_CHUNK, stop))])


def _key_of(pair: tuple[int, int]) -> int:
    return pair[0]


@dataclass(frozen=True)
class CountedKeys:
    """The job.

    Args:
        num_keys: of the state.
        num_records: a multiple of ``num_keys``.
        interval_ms: of the checkpoints; None: there are none.
    """

    num_keys: int
    num_records: int
    interval_ms: int | None

    def build(self, environment: StreamExecutionEnvironment, folder: Path) -> None:
        """Build the program."""
        if self.interval_ms is not None:
            checkpoints = folder / "checkpoints"
            checkpoints.mkdir()
            environment.configure(Configuration.from_dict({"execution.checkpointing.dir": str(checkpoints)}))
            environment.enable_checkpointing(self.interval_ms)
        source = CyclingSource(folder, self.num_records, self.num_keys)
        records = environment.from_source(source, WatermarkStrategy.no_watermarks(), "cycling keys", _PAIR)
        counts = records.key_by(_key_of, Types.LONG()).process(CountInState(), _PAIR)
        into_sink(counts, folder, Keep.last_cycles(self.num_records, self.num_keys, environment.get_parallelism()))

    def check(self, reports: Reports) -> None:
        """Check that there is one output per record, and that every key ends at the number of cycles."""
        check_num_outputs(reports, self.num_records)
        check_last_values(reports, dict.fromkeys(range(self.num_keys), self.num_records // self.num_keys))

    def run(self, deployment: Deployment = TWO_TASK_MANAGERS) -> Run:
        """Run the job once, in a fresh cluster.

        Raises:
            WrongOutputError: an output is wrong, or there was no complete checkpoint.
        """
        run = run_program(
            self.build,
            self.num_records,
            self.check,
            deployment,
            observe=partial(_checkpoints, self.interval_ms is not None),
        )
        if self.interval_ms is not None and not run.details["num_completed"]:
            raise WrongOutputError(f"no checkpoint was complete in {run.seconds:.1f} s; take more records")
        return run


def _checkpoints(has_checkpoints: bool, cluster: Cluster, job_id: str) -> dict[str, Any]:  # noqa: FBT001 - given by name of its job
    if not has_checkpoints:
        return {}
    document = asyncio.run(_document(cluster, job_id))
    complete = [each for each in document["history"] if each["status"] == "COMPLETED"]
    subtasks = [
        part["checkpoint"]
        for each in complete
        for task in each["tasks"].values()
        for part in task["subtasks"]
        if "checkpoint" in part
    ]
    return {
        "num_completed": document["counts"]["completed"],
        "num_failed": document["counts"]["failed"],
        "end_to_end_ms": [each["end_to_end_duration"] for each in complete],
        "state_bytes": max((each["state_size"] for each in complete), default=0),
        "longest_sync_ms": max((part["sync"] for part in subtasks), default=0),
        "longest_async_ms": max((part["async"] for part in subtasks), default=0),
    }


async def _document(cluster: Cluster, job_id: str) -> dict[str, Any]:
    host, _, port = cluster.address.rpartition(":")
    async with RpcClient(host, int(port), load_or_create_secret(cluster.secret_file)) as client:
        answer = await client.request("GET", f"/jobs/{job_id}/checkpoints")
    document: dict[str, Any] = json.loads(answer.body)
    return document
