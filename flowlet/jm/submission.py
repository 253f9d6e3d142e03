"""Validates a submitted job before the JobManager accepts it.

Side:   pure.
Source: Flink ``JobSubmitHandler``, the checks of ``JobGraph``.
Rules:  the client has checked the graph, too, but the JobManager trusts nothing that it sends, and limits every size.
"""

from collections import Counter

import msgspec

from flowlet.common.execution_config import MAX_MAX_PARALLELISM
from flowlet.common.job_settings import RestartKind
from flowlet.common.options.client_options import MAX_TIMEOUT_MS
from flowlet.common.paths import check_checkpoint_url
from flowlet.errors import JobGraphError, StorageError
from flowlet.graph.job_graph import is_id
from flowlet.graph.partitioner import Forward
from flowlet.messages import control_messages as messages
from flowlet.messages.program_bundle import ProgramBundle, check_shipped_files, pieces_of
from flowlet.splits.split_kinds import FileSet, HybridSplits, SplitSet
from netstack.wire.offer_messages import FINGERPRINT_BYTES, MAX_GATE_NAME_BYTES

MAX_NAME_CHARS = 1_000
MAX_OPERATORS_PER_VERTEX = 1_000
MAX_EDGES = 10_000
MAX_INPUTS_PER_OPERATOR = 63  # Flink's: an input selection has one bit for each
# In each interval every subtask of an aligned source costs a report and an announcement.
MIN_ALIGNMENT_INTERVAL_MS = 10
MAX_ALIGNMENT_INTERVAL_MS = 3_600_000
MAX_GATE_PRODUCERS = 1_000_000  # the gate remembers each one that is complete
MAX_GATE_CODE_BYTES = 1024 * 1024  # unlike other code it is kept as long as the job is known
# A task travels as one message of at most 64 MiB: its operators, its outputs' partitioners and the addresses of its
# channels.
MAX_CODE_BYTES_PER_VERTEX = 48 * 1024 * 1024


def check_job_graph(job: messages.JobGraphMessage, max_tasks: int) -> None:
    """Check that the job can be run.  Raises JobGraphError: it cannot; the message names the vertex or edge."""
    if not is_id(job.job_id):
        raise JobGraphError(f"a job id has 32 lower-case hex digits, got {job.job_id[:64]!r}")
    _check_name("the job's name", job.name)
    if not job.vertices:
        raise JobGraphError("the job has no vertices")
    num_tasks = sum(vertex.parallelism for vertex in job.vertices)
    if num_tasks > max_tasks:
        raise JobGraphError(f"the job has {num_tasks} tasks, the limit is {max_tasks}: lower the parallelism")
    if len(job.edges) > MAX_EDGES:
        raise JobGraphError(f"the job has {len(job.edges)} edges, the limit is {MAX_EDGES}")
    timeout_ms = job.client_heartbeat_timeout_ms
    if timeout_ms is not None and not 0 < timeout_ms <= MAX_TIMEOUT_MS:
        raise JobGraphError(
            f"the client's heartbeat timeout is {timeout_ms} ms, it must be more than 0 and at most {MAX_TIMEOUT_MS}"
        )
    positions = _check_vertices(job)
    _check_edges(job, positions)
    _check_restarts(job)
    check_shipped_files(job.code.files)
    if job.settings.checkpoints is not None:
        for directory in filter(
            None, (job.settings.checkpoints.directory, job.settings.checkpoints.savepoint_directory)
        ):
            _check_directory(directory)


def _check_restarts(job: messages.JobGraphMessage) -> None:
    """What producers pushed into a gate is gone after a failure, unless a checkpoint holds it: a second run would not
    see it.
    """
    gates = [vertex.remote_gate.name for vertex in job.vertices if vertex.remote_gate is not None]
    if not gates or job.settings.takes_checkpoints:
        return
    if job.settings.restart.kind not in (RestartKind.DEFAULT, RestartKind.NONE):
        kind = job.settings.restart.kind.value
        raise JobGraphError(
            f"a job with a remote gate ({gates[0]!r}) is not restarted without checkpoints: set "
            f"execution.checkpointing.interval, or restart-strategy.type to none, not {kind}"
        )


def _check_directory(directory: str) -> None:
    try:
        check_checkpoint_url(directory)
    except StorageError as error:
        raise JobGraphError(str(error)) from error


def without_code(job: messages.JobGraphMessage) -> messages.JobGraphMessage:
    """The same graph with empty blobs: what the JobManager keeps once the tasks are deployed for the last time."""
    return msgspec.structs.replace(
        job,
        vertices=[msgspec.structs.replace(vertex, chain=b"", split_set=None) for vertex in job.vertices],
        edges=[msgspec.structs.replace(edge, partitioner=b"") for edge in job.edges],
        code=ProgramBundle(),
    )


def _pieces_of(blobs: list[bytes], pieces: dict[bytes, bytes]) -> dict[bytes, bytes]:
    try:
        return pieces_of(blobs, pieces)
    except (KeyError, msgspec.DecodeError) as error:
        raise JobGraphError(
            f"a large part of the job's functions is missing or damaged: {type(error).__name__}: {error}"
        ) from error


def _check_vertices(job: messages.JobGraphMessage) -> dict[str, int]:
    positions: dict[str, int] = {}
    blobs = {vertex.id: [vertex.chain] for vertex in job.vertices}
    for edge in job.edges:
        blobs.setdefault(edge.source, []).append(edge.partitioner)
    main_bytes = sum(map(len, job.code.main_objects.values()))
    code_bytes = Counter({vertex.id: main_bytes + _path_bytes(vertex) for vertex in job.vertices})
    for vertex_id, of_vertex in blobs.items():
        code_bytes[vertex_id] += sum(map(len, of_vertex)) + sum(
            map(len, _pieces_of(of_vertex, job.code.pieces).values())
        )
    for position, vertex in enumerate(job.vertices):
        if vertex.id in positions:
            raise JobGraphError(f"the vertex id {vertex.id[:64]!r} occurs twice")
        positions[vertex.id] = position
        _check_vertex(vertex)
        if code_bytes[vertex.id] > MAX_CODE_BYTES_PER_VERTEX:
            raise JobGraphError(
                f"vertex {vertex.name!r}: its code and data have {code_bytes[vertex.id]} bytes, the limit is "
                f"{MAX_CODE_BYTES_PER_VERTEX}; read large data in a source instead of shipping it with a function"
            )
    return positions


def _path_bytes(vertex: messages.VertexMessage) -> int:
    return 0 if vertex.split_set is None else len(msgspec.msgpack.encode(vertex.split_set))


def _check_vertex(vertex: messages.VertexMessage) -> None:
    if not is_id(vertex.id):
        raise JobGraphError(f"a vertex id has 32 lower-case hex digits, got {vertex.id[:64]!r}")
    _check_name(f"vertex {vertex.id}: its name", vertex.name)
    _check_name(f"vertex {vertex.name!r}: its slot sharing group", vertex.slot_sharing_group)
    if not 1 <= vertex.max_parallelism <= MAX_MAX_PARALLELISM:
        raise JobGraphError(
            f"vertex {vertex.name!r}: max parallelism {vertex.max_parallelism} is not within 1 to {MAX_MAX_PARALLELISM}"
        )
    if not 1 <= vertex.parallelism <= vertex.max_parallelism:
        raise JobGraphError(
            f"vertex {vertex.name!r}: parallelism {vertex.parallelism} is not within 1 to {vertex.max_parallelism}"
        )
    if not 1 <= len(vertex.operator_names) <= MAX_OPERATORS_PER_VERTEX:
        raise JobGraphError(
            f"vertex {vertex.name!r}: {len(vertex.operator_names)} operators, not 1 to {MAX_OPERATORS_PER_VERTEX}"
        )
    if vertex.operator_ids and (
        len(vertex.operator_ids) != len(vertex.operator_names) or not all(map(is_id, vertex.operator_ids))
    ):
        raise JobGraphError(
            f"vertex {vertex.name!r}: each of its operators has an id of 32 hex digits, or none has one"
        )
    if len(vertex.operator_uids) not in (0, len(vertex.operator_ids)) or any(
        len(uid) > MAX_NAME_CHARS for uid in vertex.operator_uids
    ):
        raise JobGraphError(
            f"vertex {vertex.name!r}: each of its operators has a uid of at most {MAX_NAME_CHARS} characters, or an "
            "empty one"
        )
    if vertex.watermark_alignment is not None:
        _check_alignment(vertex.name, vertex.watermark_alignment)
    if vertex.remote_gate is not None:
        _check_gate(vertex.name, vertex.remote_gate)
    if vertex.split_set is not None:
        _check_splits(vertex.name, vertex.split_set)
    for name in vertex.operator_names:
        _check_name(f"vertex {vertex.name!r}: an operator's name", name)


def _check_splits(vertex_name: str, split_set: SplitSet) -> None:
    if isinstance(split_set, HybridSplits):
        if not split_set.sources:
            raise JobGraphError(f"vertex {vertex_name!r}: a hybrid source has at least one source")
        for each in split_set.sources:
            _check_splits(vertex_name, each)
    elif isinstance(split_set, FileSet) and split_set.split_bytes is not None and split_set.split_bytes < 1:
        raise JobGraphError(
            f"vertex {vertex_name!r}: its splits must have at least 1 byte, not {split_set.split_bytes}"
        )


def _check_gate(vertex_name: str, gate: messages.RemoteGateMessage) -> None:
    if not 1 <= len(gate.name.encode()) <= MAX_GATE_NAME_BYTES or not gate.name.isprintable():
        raise JobGraphError(
            f"vertex {vertex_name!r}: the name of its remote gate must have 1 to {MAX_GATE_NAME_BYTES} printable bytes"
        )
    if len(gate.fingerprint) != FINGERPRINT_BYTES:
        raise JobGraphError(
            f"gate {gate.name!r}: the fingerprint of its type has {len(gate.fingerprint)} bytes, not "
            f"{FINGERPRINT_BYTES}"
        )
    if gate.producers is not None and not 1 <= gate.producers <= MAX_GATE_PRODUCERS:
        raise JobGraphError(f"gate {gate.name!r}: {gate.producers} producers, not 1 to {MAX_GATE_PRODUCERS}")
    if len(gate.type_blob) + len(gate.key_blob) > MAX_GATE_CODE_BYTES:
        raise JobGraphError(f"gate {gate.name!r}: its type and key selector have more than {MAX_GATE_CODE_BYTES} bytes")


def _check_alignment(vertex_name: str, alignment: messages.WatermarkAlignmentMessage) -> None:
    _check_name(f"vertex {vertex_name!r}: its watermark alignment group", alignment.group)
    if (
        alignment.max_drift_ms < 0
        or not MIN_ALIGNMENT_INTERVAL_MS <= alignment.update_interval_ms <= MAX_ALIGNMENT_INTERVAL_MS
    ):
        raise JobGraphError(
            f"vertex {vertex_name!r}: watermark alignment with a drift of {alignment.max_drift_ms} ms (at least 0) and "
            f"an update interval of {alignment.update_interval_ms} ms, which must be {MIN_ALIGNMENT_INTERVAL_MS} to "
            f"{MAX_ALIGNMENT_INTERVAL_MS}"
        )


def _check_edges(job: messages.JobGraphMessage, positions: dict[str, int]) -> None:
    seen: set[str] = set()
    for edge in job.edges:
        if not is_id(edge.id):
            raise JobGraphError(f"an edge id has 32 lower-case hex digits, got {edge.id[:64]!r}")
        if edge.id in seen:
            raise JobGraphError(f"the edge id {edge.id} occurs twice")
        seen.add(edge.id)
        _check_name(f"edge {edge.id}: its ship strategy", edge.ship_strategy)
        if edge.tag is not None:
            _check_name(f"edge {edge.id}: the tag of its side output", edge.tag)
        if not 1 <= edge.input_id <= MAX_INPUTS_PER_OPERATOR:
            raise JobGraphError(f"edge {edge.id}: input {edge.input_id} is not within 1 to {MAX_INPUTS_PER_OPERATOR}")
        if edge.buffer_timeout_ms < -1:
            raise JobGraphError(
                f"edge {edge.id}: its buffer timeout must be at least -1, it is {edge.buffer_timeout_ms} ms"
            )
        _check_ends(edge, job.vertices, positions)


def _check_ends(edge: messages.EdgeMessage, vertices: list[messages.VertexMessage], positions: dict[str, int]) -> None:
    if edge.source not in positions:
        raise JobGraphError(f"edge {edge.id}: its source {edge.source[:64]!r} is no vertex")
    source = vertices[positions[edge.source]]
    if not 0 <= edge.source_operator < len(source.operator_names):
        raise JobGraphError(f"edge {edge.id}: vertex {source.name!r} has no operator {edge.source_operator}")
    if edge.target is None:
        return
    if edge.target not in positions:
        raise JobGraphError(f"edge {edge.id}: its target {edge.target[:64]!r} is no vertex")
    target = vertices[positions[edge.target]]
    if positions[edge.target] <= positions[edge.source]:
        raise JobGraphError(
            f"edge {edge.id}: {target.name!r} comes before {source.name!r}; vertices must be in topological order"
        )
    if edge.ship_strategy == Forward.ship_strategy and source.parallelism != target.parallelism:
        raise JobGraphError(
            f"edge {edge.id}: FORWARD, but {source.name!r} has parallelism {source.parallelism} and {target.name!r} "
            f"{target.parallelism}"
        )


def _check_name(what: str, name: str) -> None:
    if not 1 <= len(name) <= MAX_NAME_CHARS:
        raise JobGraphError(f"{what} has {len(name)} characters, not 1 to {MAX_NAME_CHARS}")
