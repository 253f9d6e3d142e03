"""Faults of producers and gates as the other side sees them: over real sockets, and with processes that are killed."""

import os
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
import structlog

from flowlet.common.job_client import JobClient
from flowlet.common.typeinfo import Types
from flowlet.common.types import Row
from flowlet.datastream.stream_execution_environment import StreamExecutionEnvironment
from flowlet.errors import JobExecutionError
from flowlet.ingest import (
    AttemptRefusedError,
    GateAccessError,
    GateClient,
    GateEndedError,
    GateEndpoint,
    GateError,
    GateLostError,
    GateNotFoundError,
    GateTypeError,
    GateUnreachableError,
    PartitionOffer,
    close_producers,
    finish_gate,
    open_gate,
    partition_push,
    runtime,
)
from flowlet.ingest import runtime as stall
from flowlet.serde.pickles import program_pickle
from flowlet.tm.task_executor import TaskExecutorConfig
from netstack.config import NetstackConfig
from netstack.offering_network import OfferedPartition
from netstack.transport import network_channel
from netstack.transport.network_channel import describe_address
from netstack.wire.offer_messages import GateIdentity
from tests.flowlet.client.jobs import hold, reached, released
from tests.flowlet.ingest.conftest import (
    GateCluster,
    collecting,
    counts_of,
    endlessly,
    in_processes,
    push,
    read,
    refused,
    running_gate,
    write_secret,
)
from tests.flowlet.ingest.cut import Cut
from tests.flowlet.ingest.producer_process import producer_process
from tests.waiting import PATIENCE_S, spin_until

pytestmark = pytest.mark.slow

# ---------------------------------------------------------------- the gate is not there


def test_an_unknown_gate_is_named_with_those_that_there_are(cluster: GateCluster) -> None:
    client = running_gate(cluster, "other")
    with refused(GateNotFoundError, r"'no such' at JobManager 127.*no job has a gate 'no such'.*\['other'\]"):
        cluster.open("no such")
    client.cancel()


def test_no_jobmanager_is_said_in_time(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with refused(
        GateUnreachableError, f"gate 'clicks': JobManager {address}: Connection refused: .*start a JobManager"
    ):
        open_gate("clicks", jobmanager=address, secret_file=write_secret(bytes(32), tmp_path))
    close_producers()


def test_a_jobmanager_that_says_nothing_is_not_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with refused(GateUnreachableError, r"no answer within 0\.2 s"):
            open_gate("clicks", jobmanager=address, timeout_s=0.2, secret_file=write_secret(bytes(32), tmp_path))
    close_producers()


def test_another_secret_opens_nothing(cluster: GateCluster, tmp_path: Any) -> None:
    (tmp_path / "other").mkdir()
    secret_file = write_secret(bytes(32), tmp_path / "other")
    for ask in (open_gate, finish_gate):
        with refused(GateAccessError, r"gate 'clicks'.*do both use the same secret file"):
            ask("clicks", jobmanager=cluster.address, secret_file=secret_file)


@pytest.mark.parametrize(
    ("change", "expected", "text"),
    [
        ({"token": bytes(32)}, GateAccessError, "does not accept the token: look the gate up again"),
        ({"expires_ms": 1}, GateAccessError, "does not accept the token"),
        ({"fingerprint": bytes(16)}, GateTypeError, r"gate 'clicks' takes Long, .*its type is Long there"),
    ],
    ids=["wrong token", "old token", "wrong type"],
)
def test_a_description_that_is_not_right_is_refused(
    cluster: GateCluster, change: dict[str, Any], expected: type[Exception], text: str
) -> None:
    """The refusal names the gate and is in time; other producers' data is not touched by it."""
    client = running_gate(cluster, type_info=Types.LONG())
    gate = cluster.open()
    wrong = GateClient(replace(gate.description, **change))
    with refused(expected, rf"partition 1 .*{text}") as raised:
        wrong.open_partition(PartitionOffer("job", 1))
    push(gate, [1])

    assert "'clicks'" in str(raised.value)
    client.cancel()


def test_connection_and_answer_share_the_time_of_an_offer(
    cluster: GateCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time that dialling a slow TaskManager took is not there for the wait that follows."""
    client = running_gate(cluster)
    gate = cluster.open(timeout_s=1.0)
    clock = [0.0]

    async def dialled_for_long(_access: object, _places: object, _offered: object, timeout_s: float) -> None:
        clock[0] += 0.9 * timeout_s

    monkeypatch.setattr(runtime.producer_runtime().offering, "offer", dialled_for_long)
    waits: list[float | None] = []
    monkeypatch.setattr(partition_push, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(
        OfferedPartition, "wait_for", lambda _self, _stage, timeout_s, _num_first: waits.append(timeout_s)
    )
    with pytest.raises(GateLostError, match=r"subtasks \[0\] of gate 'clicks'.* did not answer within 1 s"):
        gate.open_partition(PartitionOffer("job", 1))
    monkeypatch.undo()

    assert waits == [pytest.approx(0.1)]
    client.cancel()


def test_a_connection_takes_nothing_more_when_its_token_has_expired(
    cluster: GateCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partition that was opened before the expiry goes on to its end."""
    client = running_gate(cluster, producers=1)
    gate = cluster.open()
    with gate.open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([1])
        monkeypatch.setattr(GateIdentity, "is_expired", lambda _self, _now_ms: True)
        with refused(GateAccessError, r"partition 1 .*the token for gate 'clicks'.*look gate 'clicks'.* up again"):
            gate.open_partition(PartitionOffer("job", 1))
        writer.finish(PATIENCE_S)
    client.get_job_execution_result().result()


def test_a_token_for_one_gate_is_none_for_another(cluster: GateCluster) -> None:
    """A token is refused even by a gate of its own job on its own TaskManager."""
    env = cluster.environment()
    env.from_remote_gate("one", allow_pickle=True).union(env.from_remote_gate("two", allow_pickle=True)).print()
    client = env.execute_async()
    thief = GateClient(replace(cluster.open("one").description, name="two"))
    with refused(GateAccessError, "gate 'two'"):
        thief.open_partition(PartitionOffer("job", 0))
    push(cluster.open("two"), [1])
    client.cancel()


def test_a_gate_that_is_not_there_yet_is_waited_for(cluster: GateCluster) -> None:
    """A producer waits as long as it says; then the error names gate, JobManager and time.

    A gate that has ended may come again, too.
    """
    running_gate(cluster).cancel()
    reason = rf"gate 'clicks' did not appear at JobManager {cluster.address} within 0.3 s.*at last: .*'clicks'"
    with pytest.raises(GateError, match=reason):
        cluster.open(wait_for_gate_s=0.3)
    with ThreadPoolExecutor(1) as pool:
        opened = pool.submit(cluster.open, wait_for_gate_s=PATIENCE_S)
        client = running_gate(cluster)

        push(opened.result(PATIENCE_S), [1])
    client.cancel()


# ---------------------------------------------------------------- the gate goes


def test_a_cancelled_job_ends_producers_that_wait_for_credit(cluster: GateCluster) -> None:
    """Producers end at once, though the gate's task is stuck in user code; later offers hear that the job has ended."""
    client = running_gate(cluster, held="cancelled")
    gate = cluster.open()
    writer = gate.open_partition(PartitionOffer("job", 0))

    error = ended_by_cancel(client, lambda: endlessly(writer), "cancelled")

    assert "its job was cancelled or has failed" in str(error)
    spin_until(lambda: client.get_job_status().result().is_globally_terminal_state())
    with refused(GateEndedError, r"gate 'clicks'.*its job has ended"):
        gate.open_partition(PartitionOffer("job", 1))
    with refused(GateEndedError, r"gate 'clicks' has ended: its job 'job of clicks' is CANCELED"):
        cluster.open()


def ended_by_cancel(client: JobClient, call: Callable[[], Any], held: str) -> GateEndedError:
    """Return the error with which ``call`` ends when the job is cancelled, which holds meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(call)
        assert reached[held].wait(PATIENCE_S)
        client.cancel()
        with refused(GateEndedError, "gate 'clicks'") as raised:
            waiting.result(PATIENCE_S)
        released[held].set()
    return raised.value


def test_a_cancelled_job_ends_a_producer_that_waits_to_be_finished(cluster: GateCluster) -> None:
    client = running_gate(cluster, held="finishing")
    with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([1])

        ended_by_cancel(client, writer.finish, "finishing")


def test_a_job_that_fails_says_so_to_its_producers(cluster: GateCluster) -> None:
    env = cluster.environment()
    env.from_remote_gate("clicks", allow_pickle=True).map(lambda number: 1 // number).print()
    client = env.execute_async("counting")
    gate = cluster.open(committed_job="job")
    text = r"job 'counting' is FAIL.*ZeroDivisionError.*subtask 0"
    with gate.open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([1, 0])
        reason = rf"gate 'clicks': its (task has failed|job was cancelled or has failed).*{text}"
        with pytest.raises(GateEndedError, match=reason):
            writer.finish(PATIENCE_S)

    with pytest.raises(JobExecutionError, match="ZeroDivisionError"):
        client.get_job_execution_result().result()
    with pytest.raises(GateEndedError, match=f"gate 'clicks'.*its job has ended.*{text}"):
        gate.open_partition(PartitionOffer("job", 0, 1))
    with pytest.raises(GateEndedError, match=f"the results of write 'job' are lost: {text}"):
        gate.commit("job", 1)
    with pytest.raises(GateAccessError, match=r"gate 'clicks'.*authentication failed"):
        GateClient(replace(gate.description, token=bytes(32))).commit("job", 1)
    with pytest.raises(GateAccessError, match=r"gate 'clocks'.*authentication failed"):
        GateClient(replace(gate.description, name="clocks")).commit("job", 1)


def test_a_taskmanager_that_is_gone_is_a_lost_gate(cluster: GateCluster) -> None:
    running_gate(cluster)
    gate = cluster.open()
    with gate.open_partition(PartitionOffer("job", 0)) as writer:
        cluster.stop_task_manager(0)
        with refused((GateLostError, GateEndedError), "gate 'clicks'"):
            endlessly(writer)
        with pytest.raises(GateLostError, match="the writer has ended"):
            writer.finish()
    with refused(GateUnreachableError, r"partition 1 .*is the TaskManager of gate 'clicks'.* still there"):
        gate.open_partition(PartitionOffer("job", 1))


def test_a_taskmanager_that_is_killed_is_a_lost_gate(tmp_path: Any) -> None:
    """A process of its own, killed while it is pushed to; the job fails."""

    def build(env: StreamExecutionEnvironment) -> None:
        env.from_remote_gate("clicks", allow_pickle=True).print()

    with in_processes(1, build, tmp_path) as (cluster, job, gate):
        with gate.open_partition(PartitionOffer("job", 0)) as writer:
            writer.write_records([1])
            os.kill(cluster.pids()[0], signal.SIGKILL)
            with refused(GateLostError, r"partition 0 .*gate 'clicks'"):
                endlessly(writer)
        with pytest.raises(JobExecutionError):
            job.wait(PATIENCE_S)


def test_a_finish_that_takes_too_long_is_an_aborted_attempt(cluster: GateCluster) -> None:
    client = running_gate(cluster, held="slow")
    with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([1])
        assert reached["slow"].wait(PATIENCE_S)
        reason = r"gate 'clicks'.*no more time to wait for all operators and sinks .*subtasks \[0\]"
        with pytest.raises(GateLostError, match=reason):
            writer.finish(0.0)
    released["slow"].set()
    spin_until(lambda: counts_of(client)["subtasks"][0]["num_aborted"] == 1)
    client.cancel()


# ---------------------------------------------------------------- the producer goes


def test_a_producer_that_is_killed_made_an_aborted_attempt(cluster: GateCluster) -> None:
    """The task of the gate reads on, the producer's retry is a new attempt, and the gate ends after it."""
    client = running_gate(cluster, producers=1)
    with producer_process(cluster, "for-ever", stdout=subprocess.PIPE, text=True) as producer:
        assert producer.stdout is not None
        assert producer.stdout.readline() == "pushing\n"
        producer.send_signal(signal.SIGKILL)
    spin_until(lambda: counts_of(client)["subtasks"][0]["num_aborted"] == 1)

    push(cluster.open(), [1], job="doomed", attempt=1)

    client.get_job_execution_result().result()
    assert counts_of(client)["subtasks"] == [{"num_open": 0, "num_completed": 1, "num_aborted": 1, "num_refused": 0}]


def test_a_connection_that_drops_aborts_its_attempts_on_both_sides(
    cluster: GateCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempts of all partitions on the connection are aborted; a retry over another connection is taken."""
    client = running_gate(cluster, producers=2)
    gate = cluster.open()
    endpoint = gate.description.endpoints[0]
    cut = Cut(endpoint.host, endpoint.port)
    relay = ("127.0.0.1", cut.port)
    through = GateClient(replace(gate.description, endpoints=(GateEndpoint(*relay),)))
    # The producer believes that it dialled the gate itself, as if a router stood in between: a relay elsewhere would be
    # refused.
    monkeypatch.setattr(
        network_channel,
        "describe_address",
        lambda name: describe_address((endpoint.host, endpoint.port) if name == relay else name),
    )
    writers = [through.open_partition(PartitionOffer("job", number)) for number in range(2)]
    for writer in writers:
        writer.write_records([1])
    cut.cut()

    for number, writer in enumerate(writers):
        with refused(GateLostError, rf"partition {number} .*gate 'clicks'.*push the partition again"):
            writer.finish()
    spin_until(lambda: counts_of(client)["subtasks"][0]["num_aborted"] == 2)
    for number in range(2):
        push(gate, [1], number, attempt=1)
    client.get_job_execution_result().result()


class Bomb:
    """Pickled, it wants to run a call wherever it is read."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return os._exit, (3,)


def doubled(depth: int) -> tuple[Any, ...]:
    """Return a tuple of 2 ** depth parts in a few bytes of pickle; ``hash`` looks at each of them."""
    value: tuple[Any, ...] = ()
    for _ in range(depth):
        value = (value, value)
    return value


def lying(gate: GateClient) -> GateClient:
    """Return a producer with the gate's token that sends any objects."""
    return GateClient(replace(gate.description, type_blob=program_pickle.dumps(Types.PICKLED_BYTE_ARRAY())))


@pytest.mark.parametrize(
    "record",
    [(Bomb(),), (doubled(30),), ("text",), (2**63,), (1, 2), [1], None, {"f0": 1}],
    ids=["code", "shared tuples", "a text", "65 bits", "two fields", "a list", "None", "a dict"],
)
def test_a_gate_with_a_type_reads_records_of_this_type_alone(cluster: GateCluster, record: Any) -> None:
    """A token lets no producer run code or stop the task: the attempt is aborted, its producer is told, the task
    continues.
    """
    client = running_gate(cluster, type_info=Types.TUPLE([Types.LONG()]), producers=1)
    gate = cluster.open()
    with lying(gate).open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([(1,)] * 40 + [record])
        with pytest.raises(GateTypeError, match=r"gate 'clicks'.*no form of .*gate 'clicks'"):
            writer.finish(PATIENCE_S)
    push(gate, [(None,), (2,)], attempt=1)

    client.get_job_execution_result().result()
    assert counts_of(client)["subtasks"][0]["num_aborted"] == 1


def test_a_record_of_another_type_is_refused_before_it_is_sent(cluster: GateCluster) -> None:
    """The error names gate, type and part; the writer goes on with records that fit."""
    declared = Types.ROW_NAMED(["user", "clicks"], [Types.STRING(), Types.LONG()])
    client = running_gate(cluster, type_info=declared, producers=1)
    with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
        reason = r"record 1: field 'clicks': 'many' is of type str, not Long; gate 'clicks' .* takes RowTypeInfo"
        with pytest.raises(GateTypeError, match=reason):
            writer.write_records([Row(user="a", clicks=1), Row(user="a", clicks="many")])
        refusals: list[tuple[dict[str, list[Any]], str]] = [
            (
                {"user": ["a"], "click": [1]},
                r"column 'clicks' is missing: gate 'clicks' .* takes user, clicks; there are user, click$",
            ),
            ({"user": ["a"], "clicks": [1], "more": [1]}, "column 'more' is not one of gate 'clicks'"),
            ({"user": ["a"]}, "column 'clicks' is missing: gate 'clicks'"),
        ]
        for columns, reason in refusals:
            with pytest.raises(GateTypeError, match=reason):
                writer.write_batch(pyarrow.record_batch(columns))
        writer.write_records([])
        writer.write_records([Row(user="a", clicks=None)])
        writer.write_batch(pyarrow.record_batch({"user": ["a"], "clicks": [1]}))
        writer.finish(PATIENCE_S)
    client.get_job_execution_result().result()


def test_more_producers_than_a_gate_takes_wait_for_each_other(make_cluster: Callable[..., GateCluster]) -> None:
    """The number of producers may be any; one that waits too long hears for what, and for how long."""
    cluster = make_cluster(2, 1, TaskExecutorConfig(network=NetstackConfig(max_producers_per_gate=1)))
    with ThreadPoolExecutor(7) as pool, read(cluster, producers=8) as results:
        gate, hasty = cluster.open(), cluster.open(wait_for_room_s=0.01)
        with gate.open_partition(PartitionOffer("job", 0)) as first:
            text = r"partition 9 .*no room at gate 'clicks'.*within 0.01 s \(wait_for_room_s.*--max-producers-per-gate"
            with pytest.raises(AttemptRefusedError, match=text):
                hasty.open_partition(PartitionOffer("job", 9))
            pushes = [pool.submit(push, gate, [number] * 2, number) for number in range(1, 8)]
            first.write_records([0, 0])
            first.finish(PATIENCE_S)
        for each in pushes:
            each.result(PATIENCE_S)

        assert sorted(results) == sorted([*range(8)] * 2)


def test_a_crowd_of_producers_leaves_network_memory_to_others(make_cluster: Callable[..., GateCluster]) -> None:
    """The one producer too many hears which option limits it, or waits; other jobs of the TaskManager run; a producer
    that ends makes room.
    """
    network = NetstackConfig(network_memory_bytes=8 * 1024 * 1024)  # 256 buffers, half of which are 16 producers'
    cluster = make_cluster(1, 2, TaskExecutorConfig(num_slots=2, network=network))
    env, other = cluster.environment().set_parallelism(1), cluster.environment().set_parallelism(1)
    env.from_remote_gate("clicks", allow_pickle=True).print()
    client = env.execute_async()
    gate, hasty = cluster.open(), cluster.open(wait_for_room_s=0.01)
    writers = [gate.open_partition(PartitionOffer("crowd", number)) for number in range(16)]

    reason = r"within 0.01 s .*'clicks' has no network memory.*128 .* 50 %.*--producer-memory-percent"
    with refused(AttemptRefusedError, reason):
        hasty.open_partition(PartitionOffer("crowd", 16))
    with collecting(other.from_collection(list(range(100))).key_by(lambda number: number % 7)) as results:
        assert sorted(record for _, record in results) == list(range(100))
    writers[0].abort("it makes room")
    spin_until(lambda: counts_of(client)["subtasks"][0]["num_aborted"] == 1)
    writers[0] = gate.open_partition(PartitionOffer("crowd", 16))
    for writer in writers:
        writer.finish(PATIENCE_S)

    counts = {"num_open": 0, "num_completed": 16, "num_aborted": 1, "num_refused": 1}
    spin_until(lambda: counts_of(client)["subtasks"][0] == counts)
    client.cancel()


# ---------------------------------------------------------------- nobody reads


def test_a_stall_parks_the_producer_and_is_warned_of(cluster: GateCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No more than both sides' buffers, 2 MB, is under way; the warning names the gate; afterwards everything comes
    out.
    """
    monkeypatch.setattr(stall, "WARN_AFTER_S", 0.05)
    monkeypatch.setattr(runtime, "_CHECK_INTERVAL_S", 0.01)
    env = cluster.environment()
    gate = env.from_remote_gate("clicks", producers=1, type_info=Types.STRING())
    stream = gate.map(lambda text: hold("stalled", text))
    records = ["x" * 1000] * 40
    num_written = 0

    def write() -> None:
        nonlocal num_written
        with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
            for _ in range(150):
                writer.write_records(records)
                num_written += len(records)
            writer.finish(PATIENCE_S)

    with structlog.testing.capture_logs() as logs, ThreadPoolExecutor(1) as pool, collecting(stream) as results:
        writing = pool.submit(write)
        assert reached["stalled"].wait(PATIENCE_S)
        spin_until(lambda: bool(warnings_in(logs)))
        assert num_written < 4_000  # half of them are measured
        released["stalled"].set()
        received = sum(1 for _ in results)
        writing.result(PATIENCE_S)

    assert received == num_written == 6_000
    assert "'clicks'" in warnings_in(logs)[0]["waits_for"]


def warnings_in(logs: Any) -> list[Any]:
    return [each for each in logs if each["event"].startswith("a producer waits for credit")]


def test_producers_that_abort_again_and_again_fill_no_disk(cluster: GateCluster) -> None:
    """Each attempt is counted; of so many at once not each has a line in the TaskManager's log."""
    client = running_gate(cluster)
    gate = cluster.open()
    with structlog.testing.capture_logs() as logs:
        for attempt in range(30):
            gate.open_partition(PartitionOffer("job", 0, attempt)).abort("it changed its mind")
        spin_until(lambda: counts_of(client)["subtasks"][0]["num_aborted"] == 30)

    told = [each for each in logs if each["event"] == "an attempt to push a partition was aborted"]
    assert 1 <= len(told) < 30
    client.cancel()
