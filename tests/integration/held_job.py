"""A job with checkpoints whose source stands still in the middle of its data until the test lets it go on.

Side: any.
"""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench.cluster import Cluster
from flowlet.common import WatermarkStrategy
from flowlet.common.typeinfo import Types
from flowlet.datastream import KeyedProcessFunction, RuntimeContext
from flowlet.datastream.connectors import Source
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.records import Chunk
from tests.integration.jobs import PAIR, CountInState, ask, collected, environment, running_counts
from tests.waiting import PATIENCE_S

NUM_RECORDS = 2_000
NUM_KEYS = 7
BALLAST_BYTES = 64 * 1024  # per key: such a state is a file of its own


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


class CountWithBallast(CountInState):
    """Counts per key, and keeps more state than it needs."""

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self.ballast = runtime_context.get_state(ValueStateDescriptor("ballast", Types.PICKLED_BYTE_ARRAY()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Any:
        if self.count.value() is None:
            self.ballast.update(os.urandom(BALLAST_BYTES))
        yield from super().process_element((value % NUM_KEYS, 1), ctx)


class HeldJob:
    """One run of the job on a cluster of processes.

    Args:
        checkpoints: where they go.
        options: more of them.
        reads: whether the client reads the results from the beginning.
    """

    def __init__(
        self,
        cluster: Cluster,
        go: Path,
        checkpoints: Path | str,
        options: Mapping[str, str] = MappingProxyType({}),
        *,
        reads: bool = True,
    ) -> None:
        self.cluster = cluster
        self._go = go
        env = environment(checkpoints, options, interval_ms=200, parallelism=1, cluster=cluster)
        numbers = env.from_source(HeldSource(go), WatermarkStrategy.no_watermarks(), "held", Types.LONG())
        keyed = numbers.key_by(lambda number: number % NUM_KEYS)
        self._results = collected(keyed.process(CountWithBallast(), output_type=PAIR), "held")
        self.job_id = str(self._results.job_client.get_job_id())
        self._found: list[tuple[int, int]] = []
        self._failure: Exception | None = None
        self._reading = threading.Thread(target=self._read, name="reads results")
        if reads:
            self.read()

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

    def checkpoints(self) -> list[dict[str, Any]]:
        """The history, the newest first."""
        found: list[dict[str, Any]] = ask(self.cluster, f"/jobs/{self.job_id}/checkpoints")["history"]
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
        found = ask(self.cluster, "/taskmanagers")["taskmanagers"]
        return any(each["pid"] == pid and not each["freeSlots"] for each in found)

    def restarts(self) -> int:
        """How often the job has started again."""
        return len(ask(self.cluster, f"/jobs/{self.job_id}/exceptions")["exceptionHistory"]["entries"])

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
    return running_counts(NUM_RECORDS, NUM_KEYS)
