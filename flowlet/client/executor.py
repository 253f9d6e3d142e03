"""Runs a job graph: on a cluster inside this program, or on one that runs already.

A job that needs its client hears from it as long as it runs.

Side:   shared.
Source: Flink ``PipelineExecutor``, ``EmbeddedExecutor``, ``ClientUtils.reportHeartbeatPeriodically``.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from flowlet.client.program.user_frames import from_user_frame, is_users_file
from flowlet.client.remote import ClusterClient, JobManagerApi
from flowlet.client.running_job import RunningJob
from flowlet.common.options.client_options import ClientHeartbeat
from flowlet.common.options.python_options import DependencySettings
from flowlet.errors import FlowletError, JobSubmissionError
from flowlet.graph.job_graph import JobEdge, JobGraph, JobVertex, needed_slots
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage, RemoteGateMessage, VertexMessage
from flowlet.messages.program_bundle import ProgramBundle, pieces_of
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, split_set_of
from flowlet.rpc.requests import MAX_MESSAGE_BYTES, RpcStatusError
from flowlet.serde.deploy_blobs import describe_largest, dump_chain, dump_partitioner, share_containers
from flowlet.serde.pickles import program_pickle
from flowlet.shipping.bundle_maker import NeededCode, PackedBundle, pack, program_code
from flowlet.splits.split_kinds import SplitSet
from flowlet.task.operator_services import operator_id_of
from netstack.late import is_instance_of_late
from netstack.log_lines import LogLines

if TYPE_CHECKING:
    from flowlet.connectors.gates.reader import RemoteGateSource


_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_RETRY_S: Final = 1.0  # the JobManager takes a client whose connection has ended for one that has
_log = LogLines(__name__)


async def keep_job_alive(
    api: JobManagerApi,
    job_id: str,
    interval_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> None:
    """Report every ``interval_s`` until the job has ended, or this is cancelled.

    A JobManager that cannot be told is tried again.
    """
    problem: str | None = None
    while True:
        due_s = clock() + interval_s
        try:
            await api.report_client_heartbeat(job_id, interval_s)
        except FlowletError as error:
            if isinstance(error, RpcStatusError) and error.status in (_NOT_FOUND, _CONFLICT):
                return
            if problem is None:
                _log.warning(
                    "the JobManager was not told that this job's client is there; trying again",
                    job=job_id,
                    reason=str(error),
                )
            problem = str(error)
            due_s = min(due_s, clock() + _RETRY_S)
        else:
            problem = None
        await sleep(max(0.0, due_s - clock()))


_MAX_JOB_BYTES: Final = MAX_MESSAGE_BYTES - 1024  # the difference is more than the message gains until it is sent


class Target(Protocol):
    """A cluster that jobs can run on."""

    @property
    def needed_code(self) -> NeededCode:
        """The part of the program that its TaskManagers lack."""

    def open(self, needed_slots: int) -> ClusterClient:
        """Make a client of a cluster that has, or may get, that many slots."""


def execute(
    job_graph: JobGraph,
    target: Target,
    dependencies: DependencySettings | None = None,
    keep: Callable[[RunningJob], None] | None = None,
) -> RunningJob:
    """Start a job; returns when the JobManager has taken it.  Ctrl-C before that takes it back.

    Args:
        job_graph: what runs.
        target: where.
        dependencies: the files that travel with it.
        keep: called with the job before the JobManager is asked.  A Ctrl-C can come when this has returned and the
            caller has no hold of the result yet: a caller that kept the job can take it back then, too.

    Raises:
        JobSubmissionError: the JobManager did not take it, or a function cannot be sent to a TaskManager.
        FlowletError: there is no cluster, or it could not be started.
    """
    dependencies = dependencies or DependencySettings()
    client = job = None
    try:
        code = program_code(target.needed_code, is_users_file, ships_modules=dependencies.ships_modules)
        with pack(dependencies, code) as packed:
            message = to_message(job_graph, packed.bundle)
            _check_size(job_graph, message)
            client = target.open(needed_slots(job_graph))
            job = RunningJob(client, message.job_id, message.name, message.settings)
            if keep is not None:
                keep(job)
            _submit(message, client, job_graph.client_heartbeat if client.outlives_program else None, packed)
        return job
    except BaseException as error:
        if job is not None and isinstance(error, KeyboardInterrupt):
            job.cancel_after_interrupt()  # the JobManager may have taken it, and its answer may be on the way
        if client is not None:
            client.close()
        if isinstance(error, FlowletError):
            # The cause from the user's code on, such as a ``__getstate__`` that raised; the rest is ours, and stands in
            # the error's text.
            cause = error.__cause__
            trace = None if cause is None else from_user_frame(cause.__traceback__)
            raise error from None if cause is None or trace is None else cause.with_traceback(trace)
        raise


def _submit(
    message: JobGraphMessage,
    client: ClusterClient,
    heartbeat: ClientHeartbeat | None,
    packed: PackedBundle,
) -> None:
    if heartbeat is not None:
        message = msgspec.structs.replace(message, client_heartbeat_timeout_ms=heartbeat.timeout_ms)
    if packed.bundle.files:
        client.call(lambda api: api.ship(packed))
    client.call(lambda api: api.submit(message))
    if heartbeat is not None:
        # Until the client is closed.
        client.begin(lambda api: keep_job_alive(api, message.job_id, heartbeat.interval_ms / 1000))


def _check_size(job_graph: JobGraph, message: JobGraphMessage) -> None:
    """Check the size of a job.

    Raises JobSubmissionError: the job is too large to be sent; the message names its largest part.
    """
    blobs = [*message.code.main_objects.values(), *message.code.pieces.values()]
    blobs += [vertex.chain for vertex in message.vertices] + [edge.partitioner for edge in message.edges]
    size = sum(map(len, blobs))
    if size <= _MAX_JOB_BYTES:  # else it is not encoded: it may be larger than memory, or than msgpack takes
        size = len(msgspec.msgpack.encode(message))
    if size <= _MAX_JOB_BYTES:
        return
    pieces = message.code.pieces
    split_sizes = {vertex.id: len(msgspec.msgpack.encode(vertex.split_set)) for vertex in message.vertices}
    sizes = {
        vertex.id: len(vertex.chain)
        + sum(map(len, pieces_of([vertex.chain], pieces).values()))
        + split_sizes[vertex.id]
        for vertex in message.vertices
    }
    largest = max(message.vertices, key=lambda vertex: sizes[vertex.id])
    chain = next(vertex.chain for vertex in job_graph.vertices if vertex.id == largest.id)
    split_bytes = split_sizes[largest.id]
    reason = describe_largest(chain)
    if 2 * split_bytes > sizes[largest.id]:
        reason = f"{split_bytes} of them are the splits of its source"
    copies = sum(2 * len(vertex.chain) > sizes[largest.id] for vertex in message.vertices)
    others = ""
    if copies > 1:
        others = (
            f"; {copies - 1} more vertices are as large: each has its own copy of what consists of many small objects"
        )
    raise JobSubmissionError(
        f"the functions of job {job_graph.name!r} have {size} bytes, the limit is {MAX_MESSAGE_BYTES}: vertex "
        f"{largest.name!r} has {sizes[largest.id]}, {reason}{others}; read large data in open() of a function class, "
        "from a file that every TaskManager can read or that env.register_cached_file() sends"
    )


def to_message(job_graph: JobGraph, code: ProgramBundle | None = None) -> JobGraphMessage:
    """Make the message of a job, with operators and partitioners as opaque blobs; ``code``: the code that the operators
    need besides.

    An object that is large in several of the blobs travels once.

    Raises:
        JobSubmissionError: something in it cannot be sent; names the vertex or edge.
    """
    pieces: dict[bytes, bytes] = {}
    vertices, edges = job_graph.topological_order(), job_graph.edges
    roots = [*(list(vertex.chain) for vertex in vertices), *(edge.partitioner for edge in edges)]
    blobs = [dump_chain(vertex.chain, vertex.name, vertex.parallelism, pieces) for vertex in vertices]
    blobs += [dump_partitioner(edge.partitioner, edge.name or edge.id, pieces) for edge in edges]
    blobs = share_containers(roots, blobs, pieces)
    return JobGraphMessage(
        job_graph.job_id,
        job_graph.name,
        list(map(_vertex_message, vertices, blobs)),
        list(map(_edge_message, edges, blobs[len(vertices) :])),
        code=msgspec.structs.replace(code or ProgramBundle(), pieces=pieces),
        settings=job_graph.settings,
    )


def _vertex_message(vertex: JobVertex, chain: bytes) -> VertexMessage:
    head = vertex.chain[0].operator
    operator = head if isinstance(head, SourceOperator) else None
    strategy = None if operator is None else operator.strategy
    return VertexMessage(
        id=vertex.id,
        name=vertex.name,
        parallelism=vertex.parallelism,
        max_parallelism=vertex.max_parallelism,
        slot_sharing_group=vertex.slot_sharing_group,
        operator_names=vertex.operator_names,
        chain=chain,
        watermark_alignment=None if strategy is None else strategy.alignment,
        remote_gate=None if operator is None else _remote_gate(operator.source),
        split_set=None if operator is None else _split_set(operator.source, vertex.name),
        operator_ids=[operator_id_of(each.operator, vertex.id, index).hex() for index, each in enumerate(vertex.chain)],
        operator_uids=[each.operator.uid for each in vertex.chain],
    )


def _split_set(source: Source, vertex: str) -> SplitSet | None:
    enumerator = getattr(source, "create_enumerator", lambda: None)()
    if enumerator is None:
        return split_set_of(source)
    raise JobSubmissionError(
        f"vertex {vertex!r}: its source has an enumerator of its own, a {type(enumerator).__name__}; the JobManager "
        "runs no code of users and knows only those of flowlet, so let each reader find its share"
    )


def _remote_gate(source: Source) -> RemoteGateMessage | None:
    if not is_instance_of_late(source, "flowlet.connectors.gates.reader", "RemoteGateSource"):
        return None
    gate = cast("RemoteGateSource", source)
    key_blob = b"" if gate.key_groups is None else dump_partitioner(gate.key_groups, f"gate {gate.name}")
    return RemoteGateMessage(
        gate.name,
        repr(gate.type_info),
        gate.fingerprint,
        program_pickle.dumps(gate.type_info),
        key_blob,
        gate.producers,
    )


def _edge_message(edge: JobEdge, partitioner: bytes) -> EdgeMessage:
    return EdgeMessage(
        id=edge.id,
        source=edge.source,
        source_operator=edge.source_operator,
        target=edge.target,
        is_pointwise=edge.partitioner.is_pointwise,
        ship_strategy=edge.partitioner.ship_strategy,
        partitioner=partitioner,
        buffer_timeout_ms=edge.buffer_timeout_ms,
        tag=edge.tag,
        input_id=edge.input_id,
        is_blocking=edge.is_blocking,
    )
