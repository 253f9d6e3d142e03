"""``CheckpointManifest``: what a complete checkpoint consists of.

Side: pure.
"""

import msgspec

from flowlet.rpc.control_messages import StateHandle


class SubtaskEntry(msgspec.Struct, frozen=True):
    """One subtask's part."""

    vertex_id: str
    subtask: int
    state: StateHandle | None = None
    is_finished: bool = False


class SourceEntry(msgspec.Struct, frozen=True):
    """The state of one source's split enumerator."""

    vertex_id: str
    state: bytes


class CheckpointManifest(msgspec.Struct, frozen=True):
    """A complete checkpoint; ``parallelisms`` by vertex id."""

    job_id: str
    job_name: str
    checkpoint_id: int
    timestamp_ms: int
    parallelisms: dict[str, int]
    subtasks: list[SubtaskEntry]
    sources: list[SourceEntry] = []
