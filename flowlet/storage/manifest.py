"""``CheckpointManifest``: what a complete checkpoint consists of.

Side: pure.
"""

import msgspec

from flowlet.rpc.control_messages import StateHandle


class SubtaskEntry(msgspec.Struct, frozen=True):
    """One subtask's part: the fields of ``CheckpointAcknowledged``."""

    vertex_id: str
    subtask: int
    state: StateHandle | None = None
    is_finished: bool = False
    channels: StateHandle | None = None
    shared: list[StateHandle] = []
    has_union_state: bool = False
    is_by_key: bool = False
    operators: list[str] = []


class SourceEntry(msgspec.Struct, frozen=True):
    """The state of one source's split enumerator."""

    vertex_id: str
    state: bytes


class VertexEntry(msgspec.Struct, frozen=True):
    """One vertex, as another program must have it to go on; ``operators`` by id in hex, with their names."""

    vertex_id: str
    name: str
    parallelism: int
    max_parallelism: int
    operators: dict[str, str]
    uids: dict[str, str] = {}  # by id, of those that have one


class EdgeEntry(msgspec.Struct, frozen=True):
    """One edge between vertices: partition ``output`` of ``source`` is gate ``gate`` of ``target``, whose id is that of
    its first operator.

    ``source_operator``: the id of the operator that emits into it.  ``input_id``: of the reader, from 1.  ``tag``: the
        side output.
    """

    source: str
    output: int
    target: str
    gate: int
    source_operator: str
    input_id: int = 1
    tag: str | None = None
    is_by_key: bool = False


class CheckpointManifest(msgspec.Struct, frozen=True):
    """A complete checkpoint or savepoint; ``parallelisms`` by vertex id."""

    job_id: str
    job_name: str
    checkpoint_id: int
    timestamp_ms: int
    parallelisms: dict[str, int]
    subtasks: list[SubtaskEntry]
    sources: list[SourceEntry] = []
    vertices: list[VertexEntry] = []
    is_savepoint: bool = False
    edges: list[EdgeEntry] = []  # those between vertices, in the order of the job; older manifests have none
