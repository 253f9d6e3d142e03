"""Gates of jobs that take checkpoints: what a write can rely on when the job starts again."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlet.common.typeinfo import Types
from flowlet.datastream.closeable_iterator import CloseableIterator
from flowlet.datastream.data_stream import DataStream
from flowlet.ingest import GateClient, PartitionOffer
from tests.flowlet.ingest.conftest import GateCluster, push
from tests.waiting import PATIENCE_S

NUM_ROWS = 1_000
CHUNK = 50
CHECKPOINT_MS = 50

fails_at: set[int] = set()  # records at which a function fails, once


def careful(number: int) -> int:
    if number in fails_at:
        fails_at.remove(number)
        raise RuntimeError(f"it fails at {number}")
    return number


class Running:
    """A job whose results a thread reads."""

    def __init__(self, results: CloseableIterator) -> None:
        self.found: list[Any] = []
        self.error: Exception | None = None
        self.results = results
        self.thread = threading.Thread(target=self._read, daemon=True)

    def _read(self) -> None:
        try:
            for each in self.results:
                self.found.append(each)
        except Exception as error:  # noqa: BLE001 - for the test's thread
            self.error = error

    def counted(self) -> "Counter[Any]":
        self.thread.join(PATIENCE_S)
        assert self.error is None
        assert not self.thread.is_alive()
        return Counter(self.found)


@contextmanager
def running(
    cluster: GateCluster, folder: Path, build: Callable[[DataStream], DataStream], producers: int | None = 1, **options: str
) -> Iterator[Running]:
    env = cluster.environment()
    settings = {
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "20",
        "restart-strategy.fixed-delay.delay": "10 ms",
        **options,
    }
    for name, value in settings.items():
        env.get_config()
        env._configuration.set_string(name, value)
    results = build(env.from_remote_gate("clicks", type_info=Types.LONG(), producers=producers)).execute_and_collect("gates")
    assert isinstance(results, CloseableIterator)
    job = Running(results)
    with results:
        job.thread.start()
        yield job
        job.counted()


def keyed(stream: DataStream) -> DataStream:
    return stream.key_by(lambda number: number % 7).map(careful, output_type=Types.LONG())


def in_turns(stream: DataStream) -> DataStream:
    return stream.map(careful, output_type=Types.LONG())


def push_slowly(gate: GateClient, rows: list[int], offer: PartitionOffer) -> int:
    with gate.open_partition(offer) as writer:
        for start in range(0, len(rows), CHUNK):
            writer.write_records(rows[start : start + CHUNK])
        writer.finish(PATIENCE_S)
    return writer.num_resumed


@pytest.mark.parametrize("build", [keyed, in_turns])
def test_a_call_goes_on_when_the_job_starts_again(build: Callable[[DataStream], DataStream], cluster: GateCluster, tmp_path: Path) -> None:
    fails_at.update({300, 700})

    with running(cluster, tmp_path, build) as job:
        num_resumed = push_slowly(cluster.open(), list(range(NUM_ROWS)), PartitionOffer("job", 0))

    assert num_resumed >= 1
    assert job.counted() == Counter(range(NUM_ROWS))
