"""The way from a job graph to the messages that travel, and the client's heartbeats until the job is over."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, cast

import msgspec
import pytest
import structlog

from flowlet.client import executor
from flowlet.client.embedded import EmbeddedCluster
from flowlet.client.executor import execute, keep_job_alive, to_message
from flowlet.client.remote import ClusterClient, JobManagerApi, RemoteTarget
from flowlet.common.options.client_options import ClientHeartbeat
from flowlet.connectors.files.reader import TextLineReader, text_lines
from flowlet.connectors.split_reader import AssignedSource
from flowlet.errors import FlowletError, JobSubmissionError
from flowlet.graph.job_graph import JobEdge, JobGraph
from flowlet.graph.partitioner import KeyGroups, Rebalance
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.operators.process_operator import MapOperator
from flowlet.operators.source_operator import SourceOperator
from flowlet.rpc.requests import RpcConnectError, RpcStatusError
from flowlet.serde.deploy_blobs import load_chain, load_partitioner
from flowlet.shipping.bundle_maker import NeededCode
from flowlet.sinks.function_sink import DiscardSink
from flowlet.splits.split_kinds import FileSet
from tests.flowlet.client.jobs import source, vertex, word_count

NOWHERE = RemoteTarget("127.0.0.1", 1, secret=bytes(32))


def test_vertices_travel_with_their_settings_and_their_operators() -> None:
    job_graph, _ = word_count()

    message = to_message(job_graph)

    assert (message.job_id, message.name) == (job_graph.job_id, "word count")
    split, count = message.vertices
    assert (split.name, split.parallelism, split.max_parallelism) == ("split", 1, 128)
    assert split.slot_sharing_group == "default"
    assert (split.operator_names, count.operator_names) == (["Source", "flat map"], ["sum"])
    chain = [(each.operator.name, each.parent) for each in load_chain(split.chain, "split")]
    assert chain == [("Source", -1), ("flat map", 0)]
    assert count.parallelism == 2


def test_edges_travel_with_their_partitioner_and_what_people_call_it() -> None:
    job_graph, edge_id = word_count()

    shuffle, results = to_message(job_graph).edges

    assert [shuffle.source, shuffle.target] == [vertex.id for vertex in job_graph.vertices]
    assert shuffle.source_operator == 1
    assert (shuffle.is_pointwise, shuffle.ship_strategy, shuffle.buffer_timeout_ms) == (False, "HASH", 100)
    assert isinstance(load_partitioner(shuffle.partitioner, "split"), KeyGroups)
    assert (results.id, results.target, results.is_pointwise, results.ship_strategy) == (edge_id, None, True, "FORWARD")


def test_vertices_travel_in_topological_order_whatever_order_the_program_used() -> None:
    """The JobManager relies on it."""
    first, second = vertex("first", source([1])), vertex("second", DiscardSink())
    job_graph = JobGraph("j", vertices=[second, first], edges=[JobEdge(first.id, 0, second.id, Rebalance())])

    assert [each.name for each in to_message(job_graph).vertices] == ["first", "second"]


def test_a_function_that_cannot_travel_is_named_before_anything_is_started() -> None:
    lock = threading.Lock()
    locked = MapOperator(lambda value: (lock, value), name="locked")

    words = r"vertex 'v': operator 'locked' cannot be sent to a TaskManager: `lock`, in the closure of `<lambda>` "
    with pytest.raises(JobSubmissionError, match=words + r"\(_thread.lock\): "):
        execute(JobGraph("j", vertices=[vertex("v", source([1]), locked)]), NOWHERE)


def test_files_travel_as_plain_data_for_the_job_manager() -> None:
    """The files of a source reach the JobManager as plain data, because it opens no pickles."""
    files = FileSet(("a.txt", "b"), "latin-1", 1 << 20)
    job_graph = JobGraph("j", vertices=[vertex("v", SourceOperator(text_lines(files))), vertex("w", source([1]))])

    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(to_message(job_graph)), type=JobGraphMessage)

    assert [each.split_set for each in sent.vertices] == [files, None]


def test_a_source_with_an_enumerator_of_its_own_is_refused_with_the_reason() -> None:
    class Listing(AssignedSource[TextLineReader]):
        def create_enumerator(self) -> Any:
            return object()

    job_graph = JobGraph("j", vertices=[vertex("v", SourceOperator(Listing(TextLineReader, FileSet(()))))])

    reason = "vertex 'v': its source has an enumerator of its own, a object; the JobManager runs"
    with pytest.raises(JobSubmissionError, match=reason):
        execute(job_graph, NOWHERE)


class ScriptedClient:
    """A cluster's client, and the ``Target`` that opens it: takes every job."""

    needed_code = NeededCode.NOTHING

    def __init__(self, *, outlives_program: bool) -> None:
        self.outlives_program = outlives_program
        self.submitted: list[JobGraphMessage] = []
        self.num_begun = 0

    def open(self, needed_slots: int) -> ClusterClient:
        return cast(ClusterClient, self)

    def call(self, request: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        asyncio.run(request(self))

    async def submit(self, message: JobGraphMessage) -> None:
        self.submitted.append(message)

    def begin(self, request: Callable[[Any], Coroutine[Any, Any, None]]) -> None:
        self.num_begun += 1
        request(self).close()


@pytest.mark.parametrize(
    ("heartbeat", "outlives_program", "timeout_ms"),
    [(ClientHeartbeat(1, 7), True, 7), (ClientHeartbeat(1, 7), False, None), (None, True, None)],
)
def test_an_attached_job_needs_heartbeats_where_it_would_outlive_the_program(
    heartbeat: ClientHeartbeat | None, outlives_program: bool, timeout_ms: int | None
) -> None:
    """An embedded cluster ends with its program."""
    client = ScriptedClient(outlives_program=outlives_program)

    execute(replace(word_count()[0], client_heartbeat=heartbeat), client)

    assert [message.client_heartbeat_timeout_ms for message in client.submitted] == [timeout_ms]
    assert client.num_begun == (timeout_ms is not None)


def test_only_a_cluster_of_its_own_ends_with_the_program() -> None:
    assert (ClusterClient.outlives_program, EmbeddedCluster.outlives_program) == (True, False)


def test_a_source_with_too_many_splits_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The JobManager would refuse the request, and could not name the large part in it."""
    monkeypatch.setattr(executor, "_MAX_JOB_BYTES", 2 << 20)
    files = FileSet(tuple(f"{number:01000}" for number in range(3000)))
    job_graph = JobGraph("j", vertices=[vertex("small", source([1])), vertex("v", SourceOperator(text_lines(files)))])

    with pytest.raises(JobSubmissionError, match=r"vertex 'v' has \d+, 30\d+ of them are the splits of its source; "):
        execute(job_graph, NOWHERE)


class Receiver(JobManagerApi):
    """The JobManager's side of heartbeats: each ends as it is told."""

    def __init__(self, *ends: FlowletError | None) -> None:
        self.ends = list(ends)

    async def report_client_heartbeat(self, job_id: str, held_s: float) -> None:
        assert (job_id, held_s) == ("job", 2.5)
        end = self.ends.pop(0)
        if end is not None:
            raise end


@pytest.mark.parametrize("status", [404, 409])
async def test_heartbeats_come_at_their_interval_until_the_job_is_over(status: int) -> None:
    """A JobManager that does not answer, or answers with something else, is told again after a second; one line says
    so.
    """
    slept: list[float] = []
    trouble = RpcConnectError("JobManager 127.0.0.1:1: Connection refused")
    receiver = Receiver(
        None, trouble, trouble, RpcStatusError(500, ["internal error"]), None, RpcStatusError(status, ["over"])
    )

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    with structlog.testing.capture_logs() as logs:
        await keep_job_alive(receiver, "job", 2.5, sleep, clock=lambda: 0.0)

    assert slept == [2.5, 1.0, 1.0, 1.0, 2.5]
    assert receiver.ends == []
    assert [line["reason"] for line in logs] == [str(trouble)]
