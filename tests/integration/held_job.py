"""A job with checkpoints whose source stands still in the middle of its data until the test lets it go on.

Side: any.
"""

import asyncio
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.cluster import Cluster
from flowlet.common import Configuration, WatermarkStrategy
from flowlet.common.typeinfo import Types
from flowlet.datastream import CloseableIterator, KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import Source
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.records import Chunk
from flowlet.rpc.http import RpcClient
from flowlet.rpc.secret import load_secret
from tests.waiting import PATIENCE_S

NUM_RECORDS = 2_000
NUM_KEYS = 7
BALLAST_BYTES = 64 * 1024  # per key: such a state is a file of its own
CHECKPOINT_MS = 200


class HeldReader:
    """Reads half of the numbers, then none until the file exists, then the rest."""

    def __init__(self, go: Path) -> None:
        self._go = go
        self._next = 0

    def poll_chunk(self) -> Chunk | None:
        if self._next == NUM_RECORDS // 2 and not self._go.exists():
            time.sleep(0.005)
            return Chunk([])
        if self._next == NUM_RECORDS:
            return None
        self._next += 100
        return Chunk(list(range(self._next - 100, self._next)))

    def snapshot_position(self) -> int:
        return self._next

    def restore_position(self, position: int) -> None:
        self._next = position

    def close(self) -> None:
        pass


class HeldSource(Source):
    def __init__(self, go: Path) -> None:
        self._go = go

    def create_reader(self, subtask: int, parallelism: int) -> HeldReader:
        return HeldReader(self._go)


class CountWithBallast(KeyedProcessFunction):
    """Counts per key, and keeps more state than it needs."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.ballast = runtime_context.get_state(ValueStateDescriptor("ballast", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if count == 1:
            self.ballast.update(os.urandom(BALLAST_BYTES))
        yield value % NUM_KEYS, count


class HeldJob:
    """One run of the job on a cluster of processes.

    Args:
        options: more of them, above all where checkpoints go.
        reads: whether the client reads the results from the beginning.
    """

    def __init__(self, cluster: Cluster, go: Path, options: dict[str, str], *, reads: bool = True) -> None:
        self.cluster = cluster
        self._go = go
        configuration = Configuration()
        for name, value in {"flowlet.jobmanager": cluster.address, **options}.items():
            configuration.set_string(name, value)
        env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(1)
        env.enable_checkpointing(CHECKPOINT_MS)
        numbers = env.from_source(HeldSource(go), WatermarkStrategy.no_watermarks(), "held", Types.LONG())
        counted = numbers.key_by(lambda number: number % NUM_KEYS).process(
            CountWithBallast(), output_type=Types.TUPLE([Types.LONG(), Types.LONG()])
        )
        results = counted.execute_and_collect("held")
        assert isinstance(results, CloseableIterator)
        self._results = results
        self._found: list[tuple[int, int]] = []
        self._failure: Exception | None = None
        self._reading = threading.Thread(target=self._read, name="reads results")
        if reads:
            self.read()
        (job,) = [each for each in self._get("/jobs/overview")["jobs"] if each["state"] in ("CREATED", "RUNNING")]
        self.job_id = str(job["jid"])

    def __enter__(self) -> "HeldJob":
        return self

    def __exit__(self, *_: object) -> None:
        self._results.close()
        if self._reading.is_alive():
            self._reading.join(PATIENCE_S)

    def read(self) -> None:
        """Begin to read the results; a checkpoint is complete only when its client has read what came before it."""
        self._reading.start()

    def _read(self) -> None:
        try:
            self._found += self._results
        except Exception as error:  # noqa: BLE001 - let_go() raises it
            self._failure = error

    def _get(self, path: str) -> Any:
        host, _, port = self.cluster.address.rpartition(":")

        async def ask() -> Any:
            async with RpcClient(host, int(port), load_secret(self.cluster.secret_file)) as client:
                return json.loads((await client.request("GET", path)).body)

        return asyncio.run(ask())

    def checkpoints(self) -> list[dict[str, Any]]:
        """The history, the newest first."""
        found: list[dict[str, Any]] = self._get(f"/jobs/{self.job_id}/checkpoints")["history"]
        return found

    def wait_for_checkpoint(self, is_wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The newest checkpoint that is wanted; the job goes on meanwhile."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for each in self.checkpoints():
                if is_wanted(each):
                    return each
            time.sleep(0.02)  # asks again; ended by the deadline
        raise AssertionError(f"no such checkpoint: {self.checkpoints()[:5]}")

    def wait_for_completed(self, after: int = 0) -> int:
        """The id of a checkpoint above ``after`` that is complete."""
        return int(self.wait_for_checkpoint(lambda each: each["status"] == "COMPLETED" and each["id"] > after)["id"])

    def wait_for_failed(self, after: int = 0) -> dict[str, Any]:
        """Wait for a checkpoint above ``after`` that has failed."""
        return self.wait_for_checkpoint(lambda each: each["status"] == "FAILED" and each["id"] > after)

    def runs_in(self, pid: int) -> bool:
        """Whether its tasks run in this process."""
        return any(each["pid"] == pid and not each["freeSlots"] for each in self._get("/taskmanagers")["taskmanagers"])

    def restarts(self) -> int:
        """How often the job has started again."""
        return sum(1 for _ in self._get(f"/jobs/{self.job_id}/exceptions")["exceptionHistory"]["entries"])

    def let_go(self) -> "Counter[tuple[int, int]]":
        """Let the source go on to its end; all results."""
        self._go.touch()
        self._reading.join(PATIENCE_S)
        assert not self._reading.is_alive(), "the job does not end"
        if self._failure is not None:
            raise self._failure
        return Counter(self._found)


def expected() -> "Counter[tuple[int, int]]":
    """Return each count of each key once."""
    sizes = Counter(number % NUM_KEYS for number in range(NUM_RECORDS))
    return Counter((key, count) for key, size in sizes.items() for count in range(1, size + 1))
