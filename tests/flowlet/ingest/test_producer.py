"""Producers and gates over real sockets, in one process."""

from collections import Counter, defaultdict
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import pytest

from flowlet.common.job_client import JobClient
from flowlet.common.typeinfo import Types
from flowlet.datastream.user_functions.process_functions import KeyedProcessFunction, ProcessFunction
from flowlet.errors import JobSubmissionError
from flowlet.ingest import AttemptRefusedError, GateClient, GateEndedError, GateWriteError, PartitionOffer
from flowlet.ingest.runtime import producer_runtime
from tests.flowlet.ingest.conftest import GateCluster, collecting, counts_of, push, read
from tests.waiting import PATIENCE_S, spin_until


def test_what_a_producer_pushes_comes_out_of_the_gate(cluster: GateCluster) -> None:
    """Records come in order, and ``finish`` means that they were processed; the gate ends after the partition that it
    waited for.
    """
    env = cluster.environment()
    stream = env.from_remote_gate("clicks", type_info=Types.LONG(), producers=1).map(lambda number: number + 1)
    with collecting(stream) as results:
        with cluster.open().open_partition(PartitionOffer("a job", 0)) as writer:
            for start in range(0, 10_000, 1000):
                writer.write_records(list(range(start, start + 1000)))
            writer.finish(PATIENCE_S)

        assert list(results) == list(range(1, 10_001))


def test_timestamps_travel_with_the_records(cluster: GateCluster) -> None:
    env = cluster.environment()
    with collecting(env.from_remote_gate("clicks", producers=1, allow_pickle=True).process(WithTimestamp())) as results:
        with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
            writer.write_records(["a", "b"], [17, 18])
            writer.write_records(["c"])
            writer.finish(PATIENCE_S)

        assert list(results) == [("a", 17), ("b", 18), ("c", None)]


class WithTimestamp(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value, ctx.timestamp()


class WithSubtask(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield ctx.get_current_key(), value[1], self._subtask


@pytest.mark.parametrize(
    ("options", "select"),
    [
        ({"allow_pickle": True}, lambda record: record[0]),
        ({"type_info": Types.TUPLE([Types.STRING(), Types.LONG()])}, lambda record: record[0]),
        ({"type_info": Types.TUPLE([Types.STRING(), Types.LONG()])}, itemgetter(0)),
    ],
    ids=["any objects", "typed", "typed, known field"],
)
def test_records_of_one_key_meet_at_one_subtask(
    make_cluster: Callable[[int], GateCluster], options: dict[str, Any], select: Callable[[Any], Any]
) -> None:
    """A ``key_by`` right behind the gate is done by the producers: whichever of them sends a key, its records meet, and
    travel once.
    """
    cluster = make_cluster(2)
    env = cluster.environment()
    keyed = env.from_remote_gate("clicks", producers=2, **options).key_by(select).process(WithSubtask())
    with collecting(keyed) as results:
        gate = cluster.open()
        for partition in range(2):
            push(gate, [(f"user {number % 50}", number) for number in range(partition, 1000, 2)], partition)

        rows = list(results)

    assert gate.description.is_keyed
    assert sorted(number for _, number, _ in rows) == list(range(1000))
    subtasks = defaultdict(set)
    for key, _, subtask in rows:
        subtasks[key].add(subtask)
    assert {len(each) for each in subtasks.values()} == {1}
    assert {subtask for each in subtasks.values() for subtask in each} == {0, 1}


def ship_strategies(client: JobClient) -> set[str]:
    return {edge["ship_strategy"] for node in client.metrics()["plan"]["nodes"] for edge in node.get("inputs", [])}


def test_a_keyed_gate_is_one_task_with_what_reads_it(make_cluster: Callable[[int], GateCluster]) -> None:
    """No shuffle is left behind the gate, even if two operators read one keyed stream; two selectors leave one each."""
    cluster = make_cluster(2)
    env = cluster.environment()
    keyed = env.from_remote_gate("one", allow_pickle=True).key_by(lambda record: record[0])
    keyed.process(WithSubtask()).union(keyed.process(WithSubtask())).print()
    client = env.execute_async("one")
    assert client.metrics()["vertices"][0]["name"].split(" ->")[0] == "Source: Gate one"
    assert ship_strategies(client) <= {"FORWARD"}
    client.cancel()

    gate = env.from_remote_gate("two", allow_pickle=True)
    gate.key_by(lambda record: record[0]).process(WithSubtask()).print()
    gate.key_by(lambda record: record[1]).process(WithSubtask()).print()
    client = env.execute_async("two")
    assert "HASH" in ship_strategies(client)
    client.cancel()


def test_without_a_key_the_subtasks_share_the_records(make_cluster: Callable[[int], GateCluster]) -> None:
    cluster = make_cluster(2)
    env = cluster.environment()
    gate = env.from_remote_gate("clicks", type_info=Types.LONG(), producers=1)
    with collecting(gate.map(lambda number: number)) as results:
        push(cluster.open(), list(range(1000)))

        assert sorted(results) == list(range(1000))


def test_a_gate_ends_when_one_write_has_all_partitions(make_cluster: Callable[[int], GateCluster]) -> None:
    """The repetition of a failed write ends the gate when it is whole: partitions of the first attempt are not added
    up.
    """
    cluster = make_cluster(2)
    with read(cluster, producers=3) as results:
        gate = cluster.open()
        for partition in range(2):
            push(gate, [f"failed {partition}"], partition, job="first run")
        first, second = (gate.open_partition(PartitionOffer("job", number)) for number in range(2))
        with first, second:
            first.write_records(["a"])
            second.write_records(["b"])
            second.finish(PATIENCE_S)
            first.finish(PATIENCE_S)
        push(gate, ["other epoch"], 2, epoch=1)
        push(gate, ["c"], 2)

        assert Counter(results) == Counter(["failed 0", "failed 1", "a", "b", "other epoch", "c"])


def test_a_counted_partition_is_not_taken_again(make_cluster: Callable[[int], GateCluster]) -> None:
    """The worker of the first attempt died before it could tell: the next attempt succeeds and sends nothing, also when
    the job has finished.
    """
    cluster = make_cluster(2)
    with read(cluster, producers=2) as results:
        gate = cluster.open()
        push(gate, ["a"])
        spin_until(lambda: counts_of(results.job_client)["completed"] == 1)

        push(gate, ["a again"], attempt=1)
        push(gate, ["b"], 1)
        assert sorted(results) == ["a", "b"]

        results.job_client.get_job_execution_result().result()
        with gate.open_partition(PartitionOffer("job", 1, attempt=1)) as writer:
            assert writer.is_counted
            writer.finish()
        push(gate, ["a, without saying that it is a retry"], attempt=0)
        with pytest.raises(GateEndedError, match="gate 'clicks'"):
            push(gate, ["c"], 2)


def test_the_partitions_of_a_write_that_will_be_committed_count_with_the_commit(cluster: GateCluster) -> None:
    """A write that is aborted counts nothing, and one of the wrong size is told so; the gate goes on."""
    with read(cluster, producers=2) as results:
        failed, wrong, whole = (cluster.open(committed_job=job) for job in ("failed", "wrong", "whole"))
        for partition in range(2):
            push(failed, ["failed"], partition, job="failed")
        failed.abort_write("failed")
        push(wrong, ["wrong"], job="wrong")
        reason = r"gate 'clicks'.*'wrong' .* has 1 partitions, .* waits for a write of 2"
        with pytest.raises(GateWriteError, match=reason):
            wrong.commit("wrong", 1)
        with pytest.raises(GateWriteError, match="aborted before"):
            failed.commit("failed", 2)
        for partition in range(2):
            push(whole, ["whole"], partition, job="whole")
        whole.commit("whole", 2)

        assert Counter(results) == Counter(failed=2, wrong=1, whole=2)
        results.job_client.get_job_execution_result().result()
        whole.commit("whole", 2)


def test_a_gate_without_a_number_ends_when_it_is_told_to(cluster: GateCluster) -> None:
    """Open partitions go on to their end, later ones are refused in words that name the gate, and a second order is
    fine.
    """
    env = cluster.environment()
    env.from_remote_gate("clicks", allow_pickle=True).print()
    client = env.execute_async()
    gate = cluster.open()
    with gate.open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([1])
        client.finish_gate("clicks").result()
        client.finish_gate("clicks").result()
        with pytest.raises(GateEndedError, match=r"partition 1 .* gate 'clicks' takes no more partitions"):
            wait_refused(gate.open_partition)
        writer.write_records([2])
        writer.finish(PATIENCE_S)

    client.get_job_execution_result().result()

    counts = counts_of(client)
    del counts["type"], counts["subtasks"]
    assert counts == {"name": "clicks", "producers": None, "is-finishing": True, "completed": 1}
    with pytest.raises(GateEndedError, match=r"gate 'clicks' has ended: its job .* is FINISHED"):
        cluster.open()


def wait_refused(open_partition: Callable[[PartitionOffer], Any]) -> None:
    """Offer partitions until one is refused: the JobManager has told the TaskManager to finish, but no message tells us
    when that has arrived.
    """
    for attempt in range(10_000):
        open_partition(PartitionOffer("job", 1, attempt)).abort("not yet")


def test_an_attempt_is_taken_once(cluster: GateCluster) -> None:
    """Another epoch is another partition."""
    with read(cluster) as results:
        gate = cluster.open()
        push(gate, ["a"])
        reason = r"partition 0 \(attempt 0, .*gate 'clicks'.*another attempt number"
        with pytest.raises(AttemptRefusedError, match=reason):
            gate.open_partition(PartitionOffer("job", 0))
        push(gate, ["b"], epoch=1)
        results.job_client.finish_gate("clicks").result()

        assert list(results) == ["a", "b"]


def test_an_aborted_attempt_counts_as_one_and_its_retry_as_new(cluster: GateCluster) -> None:
    """The records of the aborted attempt may have been processed; the partition is complete with the retry alone."""
    with read(cluster, producers=1) as results:
        gate = cluster.open()
        with pytest.raises(ZeroDivisionError):
            fail_halfway(gate, PartitionOffer("job", 0))
        push(gate, ["half", "whole"], attempt=1)

        assert set(results) == {"half", "whole"}


def fail_halfway(gate: GateClient, offer: PartitionOffer) -> None:
    with gate.open_partition(offer) as writer:
        writer.write_records(["half"])
        raise ZeroDivisionError


def test_two_running_jobs_cannot_have_one_gate(cluster: GateCluster) -> None:
    env = cluster.environment()
    env.from_remote_gate("clicks", allow_pickle=True).print()
    client = env.execute_async("first")
    env.from_remote_gate("clicks", allow_pickle=True).print()
    reason = r"the running job 'first' .* has a gate 'clicks' already; choose another name"
    with pytest.raises(JobSubmissionError, match=reason):
        env.execute_async("second")
    client.cancel()


def test_one_connection_serves_all_partitions_of_a_gate(make_cluster: Callable[[int], GateCluster]) -> None:
    """A program has one connection per TaskManager, however often the gate was looked up."""
    cluster = make_cluster(2)
    with read(cluster, producers=3) as results:
        for partition in range(3):
            push(cluster.open(), [partition], partition)
        assert producer_runtime().offering.num_connections == 2

        assert sorted(results) == [0, 1, 2]


def test_large_records_and_many_buffers(cluster: GateCluster) -> None:
    """A record that spans hundreds of buffers, between small ones."""
    env = cluster.environment()
    with collecting(env.from_remote_gate("clicks", producers=1, allow_pickle=True).map(len)) as results:
        with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
            for _ in range(3):
                writer.write_records([b"small", bytes(5_000_000)])
            writer.finish(PATIENCE_S)

        assert list(results) == [5, 5_000_000] * 3
