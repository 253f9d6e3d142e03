"""Producers and gates over real sockets, in one process."""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common.typeinfo import Types
from flowlet.datastream.process_functions import KeyedProcessFunction, ProcessFunction
from flowlet.errors import JobSubmissionError
from flowlet.ingest import AttemptRefusedError, GateClient, GateEndedError, PartitionOffer
from flowlet.ingest.runtime import producer_runtime
from tests.flowlet.ingest.conftest import GateCluster, collecting, counts_of, push
from tests.waiting import PATIENCE_S


def test_what_a_producer_pushes_comes_out_of_the_gate(cluster: GateCluster) -> None:
    """In order, and ``finish`` means that it was processed; the gate ends after the partition that it waited for."""
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
    with collecting(env.from_remote_gate("clicks", producers=1).process(WithTimestamp())) as results:
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


def test_records_of_one_key_meet_at_one_subtask(make_cluster: Callable[[int], GateCluster]) -> None:
    """A ``key_by`` right behind the gate is done by the producers: whichever of them sends a key, its records meet, and travel once."""
    cluster = make_cluster(2)
    env = cluster.environment()
    keyed = env.from_remote_gate("clicks", producers=2).key_by(lambda record: record[0]).process(WithSubtask())
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


def test_a_keyed_gate_is_one_task_with_what_reads_it(make_cluster: Callable[[int], GateCluster]) -> None:
    """No shuffle is left behind the gate, also if two operators read the same keyed stream; two selectors leave a shuffle each."""
    cluster = make_cluster(2)
    env = cluster.environment()
    keyed = env.from_remote_gate("one").key_by(lambda record: record[0])
    keyed.process(WithSubtask()).union(keyed.process(WithSubtask())).print()
    client = env.execute_async("one")
    assert client.metrics()["vertices"][0]["name"].split(" ->")[0] == "Source: Gate one"
    assert {edge["ship_strategy"] for node in client.metrics()["plan"]["nodes"] for edge in node.get("inputs", [])} <= {"FORWARD"}
    client.cancel()

    gate = env.from_remote_gate("two")
    gate.key_by(lambda record: record[0]).process(WithSubtask()).print()
    gate.key_by(lambda record: record[1]).process(WithSubtask()).print()
    client = env.execute_async("two")
    assert "HASH" in {edge["ship_strategy"] for node in client.metrics()["plan"]["nodes"] for edge in node.get("inputs", [])}
    client.cancel()


def test_without_a_key_the_subtasks_share_the_records(make_cluster: Callable[[int], GateCluster]) -> None:
    cluster = make_cluster(2)
    env = cluster.environment()
    with collecting(env.from_remote_gate("clicks", type_info=Types.LONG(), producers=1).map(lambda number: number)) as results:
        push(cluster.open(), list(range(1000)))

        assert sorted(results) == list(range(1000))


def test_a_gate_ends_when_every_subtask_has_all_partitions(make_cluster: Callable[[int], GateCluster]) -> None:
    """Partitions come in any order, from any job, and one after the other or at the same time; each counts once, with all its attempts."""
    cluster = make_cluster(2)
    env = cluster.environment()
    with collecting(env.from_remote_gate("clicks", producers=3).map(lambda record: record)) as results:
        gate = cluster.open()
        push(gate, ["b"], partition=1)
        push(gate, ["b again"], partition=1, attempt=1)
        with gate.open_partition(PartitionOffer("job", 0)) as first, gate.open_partition(PartitionOffer("other job", 0)) as second:
            first.write_records(["a"])
            second.write_records(["c"])
            second.finish(PATIENCE_S)
            first.finish(PATIENCE_S)

        assert Counter(results) == Counter(["a", "b", "b again", "c"])


def test_a_gate_without_a_number_ends_when_it_is_told_to(cluster: GateCluster) -> None:
    """What is open goes on to its end, what is offered later is refused, in words that name the gate; being told twice is fine."""
    env = cluster.environment()
    env.from_remote_gate("clicks").print()
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

    assert counts_of(client) | {"type": ""} == {
        "name": "clicks",
        "producers": None,
        "type": "",
        "is-finishing": True,
        "completed": 1,
        "subtasks": counts_of(client)["subtasks"],
    }
    with pytest.raises(GateEndedError, match=r"gate 'clicks' has ended: its job .* is FINISHED"):
        cluster.open()


def wait_refused(open_partition: Callable[[PartitionOffer], Any]) -> None:
    """The JobManager has told the TaskManager to finish, but when that arrives nobody tells us: offer until it has."""
    for attempt in range(10_000):
        open_partition(PartitionOffer("job", 1, attempt)).abort("not yet")


def test_an_attempt_is_taken_once(cluster: GateCluster) -> None:
    """Whatever became of it; a retry has another number, another epoch is another partition."""
    env = cluster.environment()
    with collecting(env.from_remote_gate("clicks", producers=2).map(lambda record: record)) as results:
        gate = cluster.open()
        push(gate, ["a"])
        with pytest.raises(AttemptRefusedError, match=r"partition 0 \(attempt 0, .*gate 'clicks'.*another attempt number"):
            gate.open_partition(PartitionOffer("job", 0))
        push(gate, ["b"], attempt=1)
        with gate.open_partition(PartitionOffer("job", 0, epoch=1)) as writer:
            writer.write_records(["c"])
            writer.finish(PATIENCE_S)

        assert list(results) == ["a", "b", "c"]


def test_an_aborted_attempt_counts_as_one_and_its_retry_as_new(cluster: GateCluster) -> None:
    """The records of the aborted attempt may have been processed; the partition is complete with the retry alone."""
    env = cluster.environment()
    results: set[Any] = set()
    with collecting(env.from_remote_gate("clicks", producers=1).map(lambda record: record)) as iterator:
        gate = cluster.open()
        with pytest.raises(ZeroDivisionError):
            fail_halfway(gate, PartitionOffer("job", 0))
        with gate.open_partition(PartitionOffer("job", 0, 1)) as writer:
            writer.write_records(["half", "whole"])
            writer.finish(PATIENCE_S)
        results = set(iterator)

    assert results == {"half", "whole"}


def fail_halfway(gate: GateClient, offer: PartitionOffer) -> None:
    with gate.open_partition(offer) as writer:
        writer.write_records(["half"])
        raise ZeroDivisionError


def test_two_running_jobs_cannot_have_one_gate(cluster: GateCluster) -> None:
    env = cluster.environment()
    env.from_remote_gate("clicks").print()
    client = env.execute_async("first")
    env.from_remote_gate("clicks").print()
    with pytest.raises(JobSubmissionError, match=r"the running job 'first' .* has a gate 'clicks' already; choose another name"):
        env.execute_async("second")
    client.cancel()


def test_one_connection_serves_all_partitions_of_a_gate(make_cluster: Callable[[int], GateCluster]) -> None:
    """Whoever looked it up, and however often: one per TaskManager."""
    cluster = make_cluster(2)
    env = cluster.environment()
    with collecting(env.from_remote_gate("clicks", producers=3).map(lambda record: record)) as results:
        for partition in range(3):
            push(cluster.open(), [partition], partition)
        assert producer_runtime().offering.num_connections == 2

        assert sorted(results) == [0, 1, 2]


def test_large_records_and_many_buffers(cluster: GateCluster) -> None:
    """A record that spans hundreds of buffers, between small ones."""
    env = cluster.environment()
    with collecting(env.from_remote_gate("clicks", producers=1).map(len)) as results:
        with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
            for _ in range(3):
                writer.write_records([b"small", bytes(5_000_000)])
            writer.finish(PATIENCE_S)

        assert list(results) == [5, 5_000_000] * 3
