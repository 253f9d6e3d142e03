"""Gates of jobs that take checkpoints: the promises for a write when the job starts again."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flowlet.common.configuration import Configuration
from flowlet.common.typeinfo import Types
from flowlet.datastream.data_stream import CloseableIterator, DataStream
from flowlet.errors import JobExecutionError
from flowlet.ingest import AttemptRefusedError, GateClient, GateError, GateLostError, PartitionOffer
from tests.flowlet.ingest.conftest import GateCluster, collecting, push
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

NUM_ROWS = 1_000
CHUNK = 50
ROWS = list(range(NUM_ROWS))
CHECKPOINT_MS = 50
HOURLY = {"execution.checkpointing.interval": "1 h", "execution.checkpointing.checkpoints-after-tasks-finish": "false"}
SELDOM = {"execution.checkpointing.interval": "1 s"}
RETAINED = {"execution.checkpointing.externalized-checkpoint-retention": "retain_on_cancellation"}
UNALIGNED = {"execution.checkpointing.unaligned.enabled": "true"}

fails_at: set[int] = set()  # records at which a function fails, once


def careful(number: int) -> int:
    if number in fails_at:
        fails_at.remove(number)
        raise RuntimeError(f"it fails at {number}")
    return number


class Running:
    """A job whose results a thread reads."""

    def __init__(self, results: CloseableIterator, pool: ThreadPoolExecutor) -> None:
        self.found: list[Any] = []
        self.results = results
        self._reading = pool.submit(self._read)

    def _read(self) -> None:
        for each in self.results:
            self.found.append(each)  # one by one, for the test to see

    def counted(self) -> "Counter[Any]":
        self._reading.result(PATIENCE_S)
        return Counter(self.found)


@contextmanager
def running(
    cluster: GateCluster,
    folder: Path,
    build: Callable[[DataStream], DataStream],
    options: dict[str, str] | None = None,
    producers: int = 1,
    *,
    is_counted: bool = True,
    parallelism: int | None = None,
) -> Iterator[Running]:
    env = cluster.environment()
    if parallelism is not None:
        env.set_parallelism(parallelism)
    settings = {
        "execution.checkpointing.dir": str(folder / "checkpoints"),
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "20",
        "restart-strategy.fixed-delay.delay": "10 ms",
        **(options or {}),
    }
    env.configure(Configuration.from_dict(settings))
    stream = build(env.from_remote_gate("clicks", type_info=Types.LONG(), producers=producers))
    with ThreadPoolExecutor(1) as pool, collecting(stream) as results:
        job = Running(results, pool)
        yield job
        if is_counted:
            job.counted()


def keyed(stream: DataStream) -> DataStream:
    return stream.key_by(lambda number: number % 7).map(careful, output_type=Types.LONG())


def in_turns(stream: DataStream) -> DataStream:
    return stream.map(careful, output_type=Types.LONG())


def shuffled(stream: DataStream) -> DataStream:
    """Fails on either side of the exchange."""
    keyed_stream = stream.map(careful, output_type=Types.LONG()).rebalance().key_by(lambda number: number % 7)
    return keyed_stream.map(careful, output_type=Types.LONG())


def newest_checkpoint(folder: Path) -> int:
    """0: none is complete."""
    complete = folder.glob("checkpoints/*/chk-*/_metadata")
    return max((int(each.parent.name.removeprefix("chk-")) for each in complete), default=0)


def push_slowly(gate: GateClient, rows: list[int], offer: PartitionOffer) -> int:
    with gate.open_partition(offer) as writer:
        for start in range(0, len(rows), CHUNK):
            writer.write_records(rows[start : start + CHUNK])
        writer.finish(PATIENCE_S)
    return writer.num_resumed


def give_up(gate: GateClient, job: Running, rows: list[int]) -> None:
    """Let the first attempt end when these rows are in."""
    first = gate.open_partition(PartitionOffer("job", 0))
    first.write_records(rows)
    spin_until(lambda: len(job.found) == len(rows))
    first.abort("its worker dies")


@pytest.fixture(autouse=True)
def no_old_failures() -> None:
    fails_at.clear()


@pytest.mark.parametrize("options", [{}, UNALIGNED], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("build", [keyed, in_turns, shuffled])
def test_a_call_goes_on_when_the_job_starts_again(
    build: Callable[[DataStream], DataStream],
    options: dict[str, str],
    make_cluster: Callable[..., GateCluster],
    tmp_path: Path,
) -> None:
    """Each row is in the results once: two subtasks, which fail one after the other."""
    fails_at.update({300, 701})
    cluster = make_cluster(1, 2)

    with running(cluster, tmp_path, build, options) as job:
        num_resumed = push_slowly(cluster.open(), ROWS, PartitionOffer("job", 0))

    assert not fails_at
    assert num_resumed >= 1
    assert job.counted() == Counter(ROWS)


def test_a_write_returns_when_a_checkpoint_holds_it_which_comes_before_its_time(
    cluster: GateCluster, tmp_path: Path
) -> None:
    """The interval is an hour: the gate asks for a checkpoint."""
    with running(cluster, tmp_path, keyed, HOURLY, producers=2) as job:
        gate = cluster.open()
        assert newest_checkpoint(tmp_path) == 0
        push(gate, [1, 2, 3])
        assert newest_checkpoint(tmp_path) == 1
        push(gate, [4], 1)

    assert job.counted() == Counter([1, 2, 3, 4])


def test_a_write_returns_when_it_is_processed_if_the_job_says_so(cluster: GateCluster, tmp_path: Path) -> None:
    with running(cluster, tmp_path, keyed, HOURLY | {"flowlet.gate.acknowledge": "processed"}, producers=2) as job:
        gate = cluster.open()
        push(gate, [1, 2, 3])
        assert newest_checkpoint(tmp_path) == 0
        push(gate, [4], 1)

    assert job.counted() == Counter([1, 2, 3, 4])


def test_a_call_that_may_keep_little_waits_for_checkpoints_and_asks_for_them(
    cluster: GateCluster, tmp_path: Path
) -> None:
    """The rows that the call keeps are bounded, whatever the interval is."""
    with running(cluster, tmp_path, in_turns, SELDOM) as job:
        push_slowly(cluster.open(max_kept_bytes=2_000), ROWS, PartitionOffer("job", 0))

    assert job.counted() == Counter(ROWS)


def test_an_attempt_of_another_process_brings_only_what_is_not_in(cluster: GateCluster, tmp_path: Path) -> None:
    """The first one is given up in the middle, the second one fails the job on its way; no row is in twice."""
    fails_at.add(800)

    with running(cluster, tmp_path, in_turns) as job:
        gate = cluster.open()
        give_up(gate, job, ROWS[:500])
        push_slowly(gate, ROWS, PartitionOffer("job", 0, attempt=1))

    assert job.counted() == Counter(ROWS)


def test_an_attempt_with_fewer_rows_is_refused(cluster: GateCluster, tmp_path: Path) -> None:
    """A shorter attempt is refused, because the gate cannot tell which of its rows are in already."""
    with running(cluster, tmp_path, in_turns) as job:
        gate = cluster.open()
        give_up(gate, job, [1, 2, 3])
        reason = "has 1 records for this subtask, of which 3 are in already: attempts must have the same"
        with pytest.raises(AttemptRefusedError, match=reason):
            push(gate, [1], attempt=1)
        push(gate, [1, 2, 3], attempt=2)

    assert job.counted() == Counter([1, 2, 3])


def test_where_attempts_may_differ_another_one_is_taken_from_its_beginning(
    cluster: GateCluster, tmp_path: Path
) -> None:
    """The job has each record at least once; but the calls of one attempt go on exactly."""
    fails_at.add(800)

    with running(cluster, tmp_path, in_turns, {"flowlet.gate.retries": "any-rows"}) as job:
        gate = cluster.open()
        give_up(gate, job, [-1, -2, -3])
        push_slowly(gate, ROWS, PartitionOffer("job", 0, attempt=1))

    assert job.counted() == Counter([-1, -2, -3, *ROWS])


def test_a_job_that_started_again_says_done_for_what_it_has_and_takes_what_it_lost(
    cluster: GateCluster, tmp_path: Path
) -> None:
    fails_at.add(700)

    with running(cluster, tmp_path, in_turns, producers=3) as job:
        gate = cluster.open()
        push(gate, ROWS[:100])
        push_slowly(gate, ROWS[100:], PartitionOffer("job", 1))
        assert not fails_at
        with cluster.open().open_partition(PartitionOffer("job", 0, attempt=1)) as again:
            assert again.is_counted
            again.write_records([-1])
            again.finish(PATIENCE_S)
        push(gate, [], 2)

    assert job.counted() == Counter(ROWS)


def test_a_call_ends_with_an_error_if_the_gate_does_not_come_back_in_time(cluster: GateCluster, tmp_path: Path) -> None:
    fails_at.add(0)

    with running(cluster, tmp_path, in_turns, {"restart-strategy.fixed-delay.delay": "1 h"}, is_counted=False):
        gate = cluster.open(resume_timeout_s=0.2)
        with pytest.raises(GateLostError, match=r"lost for 0.2 s \(resume_timeout_s, in Spark resumeTimeout\)"):
            push_slowly(gate, ROWS, PartitionOffer("job", 0))


def test_a_call_ends_at_once_with_a_job_that_fails_for_good(cluster: GateCluster, tmp_path: Path) -> None:
    fails_at.add(0)

    with running(cluster, tmp_path, in_turns, {"restart-strategy.fixed-delay.attempts": "0"}, is_counted=False):
        gate = cluster.open()
        with pytest.raises(GateError, match="it fails at 0"):
            push_slowly(gate, ROWS, PartitionOffer("job", 0))


def test_what_a_driver_says_of_a_write_is_in_a_checkpoint_when_the_call_returns(
    cluster: GateCluster, tmp_path: Path
) -> None:
    """A JobManager that is started again has not forgotten it."""
    with running(cluster, tmp_path, in_turns, HOURLY, producers=1) as job:
        gate = cluster.open(committed_job="job")
        push(gate, [1, 2])
        before = newest_checkpoint(tmp_path)
        gate.abort_write("given up")
        assert newest_checkpoint(tmp_path) == before + 1
        gate.commit("job", 1)

    assert job.counted() == Counter([1, 2])


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_that_starts_from_the_checkpoint_of_another_knows_its_partitions(
    parallelism: int, make_cluster: Callable[..., GateCluster], tmp_path: Path
) -> None:
    """A partition that was half in goes on with as many subtasks as before; with another number its rows that are in
    are unknown.
    """
    cluster = make_cluster(1, 2)
    with running(cluster, tmp_path, in_turns, RETAINED, producers=9, is_counted=False, parallelism=1) as former:
        gate = cluster.open()
        push(gate, ROWS[:10])
        half = gate.open_partition(PartitionOffer("job", 1))
        half.write_records(ROWS[10:15])
        spin_until(lambda: len(former.found) == 15)
        push(gate, ROWS[20:30], 2)  # with a checkpoint that has the half, too
        former.results.job_client.cancel()
        # Its last checkpoint may complete behind the request and the last result: the job says which one stays.
        with pytest.raises(JobExecutionError, match="was cancelled") as caught:
            former.results.job_client.get_job_execution_result().result()
        half.abort("its job has ended")
    (retained,) = re.findall(r"stays at (\S+);", str(caught.value))

    options = {"execution.state-recovery.path": retained}
    with running(cluster, tmp_path / "next", in_turns, options, producers=3, parallelism=parallelism) as job:
        gate = cluster.open()
        push(gate, ROWS[:10], attempt=1)
        if parallelism == 1:
            push(gate, ROWS[10:20], 1, attempt=1)
        else:
            reason = "was half in when its job was started with another parallelism"
            with pytest.raises(AttemptRefusedError, match=reason):
                push(gate, ROWS[10:20], 1, attempt=1)
            push(gate, [], 3)

    assert job.counted() == Counter(ROWS[15:20] if parallelism == 1 else [])
