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
from flowlet.common.watermark_strategy import WatermarkAlignment
from flowlet.errors import JobGraphError, StorageError
from flowlet.graph.job_graph import is_id
from flowlet.graph.partitioner import Forward
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage, RemoteGateMessage, VertexMessage
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


def check_job_graph(job: JobGraphMessage, max_tasks: int) -> None:
    """Check that the job can be run.  Raises JobGraphError: it cannot; the message names the vertex or edge."""
    _require(is_id(job.job_id), f"a job id has 32 lower-case hex digits, got {job.job_id[:64]!r}")
    _check_name("the job's name", job.name)
    _require(job.vertices, "the job has no vertices")
    # Before all else that grows with the tasks: a huge parallelism must cost nothing here.
    num_tasks = sum(vertex.parallelism for vertex in job.vertices)
    _require(num_tasks <= max_tasks, f"the job has {num_tasks} tasks, the limit is {max_tasks}: lower the parallelism")
    _require(len(job.edges) <= MAX_EDGES, f"the job has {len(job.edges)} edges, the limit is {MAX_EDGES}")
    timeout_ms = job.client_heartbeat_timeout_ms
    _require(
        timeout_ms is None or 0 < timeout_ms <= MAX_TIMEOUT_MS,
        f"the client's heartbeat timeout is {timeout_ms} ms, it must be more than 0 and at most {MAX_TIMEOUT_MS}",
    )
    positions = _check_vertices(job)
    # Behind the vertices: it looks their ends up.
    _check_edges(job, positions)
    _check_restarts(job)
    check_shipped_files(job.code.files)
    checkpoints = job.settings.checkpoints
    directories = () if checkpoints is None else (checkpoints.directory, checkpoints.savepoint_directory)
    try:
        for directory in filter(None, directories):
            check_checkpoint_url(directory)
    except StorageError as error:
        raise JobGraphError(str(error)) from error


def _require(is_right: object, problem: str) -> None:
    if not is_right:
        raise JobGraphError(problem)


def _check_restarts(job: JobGraphMessage) -> None:
    """Refuse a job with remote gates that restarts without checkpoints.

    Data that producers pushed into a gate is gone after a failure, unless a checkpoint holds it: a second run would not
    see it.
    """
    gates = [vertex.remote_gate.name for vertex in job.vertices if vertex.remote_gate is not None]
    kind = job.settings.restart.kind
    _require(
        not gates or job.settings.takes_checkpoints or kind in (RestartKind.DEFAULT, RestartKind.NONE),
        f"a job with a remote gate ({', '.join(map(repr, gates[:1]))}) is not restarted without checkpoints: set "
        f"execution.checkpointing.interval, or restart-strategy.type to none, not {kind.value}",
    )


def without_code(job: JobGraphMessage) -> JobGraphMessage:
    """Return the graph with empty blobs: the JobManager keeps this one once the tasks are deployed for
    the last time.
    """
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


def _check_vertices(job: JobGraphMessage) -> dict[str, int]:
    positions: dict[str, int] = {}
    # By source: a task has the partitioners of its outputs.
    blobs = {vertex.id: [vertex.chain] for vertex in job.vertices}
    for edge in job.edges:
        blobs.setdefault(edge.source, []).append(edge.partitioner)
    main_bytes = sum(map(len, job.code.main_objects.values()))
    # Main objects travel with each task.
    code_bytes = Counter(dict.fromkeys(blobs, main_bytes))
    for vertex_id, of_vertex in blobs.items():
        code_bytes[vertex_id] += sum(map(len, of_vertex)) + sum(
            map(len, _pieces_of(of_vertex, job.code.pieces).values())
        )
    for position, vertex in enumerate(job.vertices):
        _require(vertex.id not in positions, f"the vertex id {vertex.id[:64]!r} occurs twice")
        positions[vertex.id] = position
        if vertex.split_set is not None:
            # Part of the limit: the JobManager keeps them as long as the job runs.
            code_bytes[vertex.id] += len(msgspec.msgpack.encode(vertex.split_set))
        _check_vertex(vertex)
        _require(
            code_bytes[vertex.id] <= MAX_CODE_BYTES_PER_VERTEX,
            f"vertex {vertex.name!r}: its code and data have {code_bytes[vertex.id]} bytes, the limit is "
            f"{MAX_CODE_BYTES_PER_VERTEX}; read large data in a source instead of shipping it with a function",
        )
    return positions


def _check_vertex(vertex: VertexMessage) -> None:
    _require(is_id(vertex.id), f"a vertex id has 32 lower-case hex digits, got {vertex.id[:64]!r}")
    # Behind the id: the message names it.
    _check_name(f"vertex {vertex.id}: its name", vertex.name)
    name = f"vertex {vertex.name!r}"
    num_operators = len(vertex.operator_names)
    _check_name(f"{name}: its slot sharing group", vertex.slot_sharing_group)
    _require(
        1 <= vertex.max_parallelism <= MAX_MAX_PARALLELISM,
        f"{name}: max parallelism {vertex.max_parallelism} is not within 1 to {MAX_MAX_PARALLELISM}",
    )
    _require(
        1 <= vertex.parallelism <= vertex.max_parallelism,
        f"{name}: parallelism {vertex.parallelism} is not within 1 to {vertex.max_parallelism}",
    )
    _require(
        1 <= num_operators <= MAX_OPERATORS_PER_VERTEX,
        f"{name}: {num_operators} operators, not 1 to {MAX_OPERATORS_PER_VERTEX}",
    )
    _require(
        len(vertex.operator_ids) in (0, num_operators) and all(map(is_id, vertex.operator_ids)),
        f"{name}: each of its operators has an id of 32 hex digits, or none has one",
    )
    _require(
        len(vertex.operator_uids) in (0, len(vertex.operator_ids))
        and all(len(uid) <= MAX_NAME_CHARS for uid in vertex.operator_uids),
        f"{name}: each of its operators has a uid of at most {MAX_NAME_CHARS} characters, or an empty one",
    )
    if vertex.watermark_alignment is not None:
        _check_alignment(name, vertex.watermark_alignment)
    if vertex.remote_gate is not None:
        _check_gate(name, vertex.remote_gate)
    if vertex.split_set is not None:
        _check_splits(name, vertex.split_set)
    for operator_name in vertex.operator_names:
        _check_name(f"{name}: an operator's name", operator_name)


def _check_splits(vertex: str, split_set: SplitSet) -> None:
    if isinstance(split_set, HybridSplits):
        _require(split_set.sources, f"{vertex}: a hybrid source has at least one source")
        # Each kind has its own rules, also inside of a hybrid source.
        for each in split_set.sources:
            _check_splits(vertex, each)
    elif isinstance(split_set, FileSet) and split_set.split_bytes is not None:
        _require(
            split_set.split_bytes >= 1, f"{vertex}: its splits must have at least 1 byte, not {split_set.split_bytes}"
        )


def _check_gate(vertex: str, gate: RemoteGateMessage) -> None:
    _require(
        1 <= len(gate.name.encode()) <= MAX_GATE_NAME_BYTES and gate.name.isprintable(),
        f"{vertex}: the name of its remote gate must have 1 to {MAX_GATE_NAME_BYTES} printable bytes",
    )
    name = f"gate {gate.name!r}"
    _require(
        len(gate.fingerprint) == FINGERPRINT_BYTES,
        f"{name}: the fingerprint of its type has {len(gate.fingerprint)} bytes, not {FINGERPRINT_BYTES}",
    )
    _require(
        gate.producers is None or 1 <= gate.producers <= MAX_GATE_PRODUCERS,
        f"{name}: {gate.producers} producers, not 1 to {MAX_GATE_PRODUCERS}",
    )
    _require(
        len(gate.type_blob) + len(gate.key_blob) <= MAX_GATE_CODE_BYTES,
        f"{name}: its type and key selector have more than {MAX_GATE_CODE_BYTES} bytes",
    )


def _check_alignment(vertex: str, alignment: WatermarkAlignment) -> None:
    _check_name(f"{vertex}: its watermark alignment group", alignment.group)
    _require(
        alignment.max_drift_ms >= 0
        and MIN_ALIGNMENT_INTERVAL_MS <= alignment.update_interval_ms <= MAX_ALIGNMENT_INTERVAL_MS,
        f"{vertex}: watermark alignment with a drift of {alignment.max_drift_ms} ms (at least 0) and an update "
        f"interval of {alignment.update_interval_ms} ms, which must be {MIN_ALIGNMENT_INTERVAL_MS} to "
        f"{MAX_ALIGNMENT_INTERVAL_MS}",
    )


def _check_edges(job: JobGraphMessage, positions: dict[str, int]) -> None:
    seen: set[str] = set()
    for edge in job.edges:
        _require(is_id(edge.id), f"an edge id has 32 lower-case hex digits, got {edge.id[:64]!r}")
        name = f"edge {edge.id}"
        # An id names an edge's partitions: two edges with one id would share them.
        _require(edge.id not in seen, f"the edge id {edge.id} occurs twice")
        seen.add(edge.id)
        _check_name(f"{name}: its ship strategy", edge.ship_strategy)
        if edge.tag is not None:
            _check_name(f"{name}: the tag of its side output", edge.tag)
        _require(
            1 <= edge.input_id <= MAX_INPUTS_PER_OPERATOR,
            f"{name}: input {edge.input_id} is not within 1 to {MAX_INPUTS_PER_OPERATOR}",
        )
        _require(
            edge.buffer_timeout_ms >= -1,
            f"{name}: its buffer timeout must be at least -1, it is {edge.buffer_timeout_ms} ms",
        )
        _check_ends(edge, job.vertices, positions)


def _check_ends(edge: EdgeMessage, vertices: list[VertexMessage], positions: dict[str, int]) -> None:
    name = f"edge {edge.id}"
    _require(edge.source in positions, f"{name}: its source {edge.source[:64]!r} is no vertex")
    source = vertices[positions[edge.source]]
    _require(
        0 <= edge.source_operator < len(source.operator_names),
        f"{name}: vertex {source.name!r} has no operator {edge.source_operator}",
    )
    # The client reads it.
    if edge.target is None:
        return
    _require(edge.target in positions, f"{name}: its target {edge.target[:64]!r} is no vertex")
    target = vertices[positions[edge.target]]
    _require(
        # So there is no cycle, which would never be deployed in order.
        positions[edge.target] > positions[edge.source],
        f"{name}: {target.name!r} comes before {source.name!r}; vertices must be in topological order",
    )
    _require(
        edge.ship_strategy != Forward.ship_strategy or source.parallelism == target.parallelism,
        f"{name}: FORWARD, but {source.name!r} has parallelism {source.parallelism} and {target.name!r} "
        f"{target.parallelism}",
    )


def _check_name(what: str, name: str) -> None:
    _require(1 <= len(name) <= MAX_NAME_CHARS, f"{what} has {len(name)} characters, not 1 to {MAX_NAME_CHARS}")
