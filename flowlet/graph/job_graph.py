"""``JobGraph``: vertices, each of which becomes ``parallelism`` tasks, and the edges between them.

Side:       pure.
Invariants: after ``validate()``: ids are unique, edges join existing vertices, there is no cycle, each chained operator
            is after its parent, a forward edge joins equal parallelisms, a keyed edge has as many key groups as its
            consumer.
Units:      buffer timeouts in milliseconds; -1: never by timer, 0: after every chunk.
Source:     Flink ``JobGraph``, ``JobVertex``, ``JobEdge``.
Rules:      operators are opaque here (``Chained``), because this package must not import the runtime.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any, Protocol

from flowlet.common.execution_config import MAX_MAX_PARALLELISM
from flowlet.common.job_settings import JobSettings
from flowlet.common.options.client_options import ClientHeartbeat, ClientRetry
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import DEFAULT_MAX_PARALLELISM, Forward, KeyGroups, Partitioner
from netstack.late import dataclass

DEFAULT_SLOT_SHARING_GROUP = "default"
DEFAULT_BUFFER_TIMEOUT_MS = 100  # Flink's execution.buffer-timeout.interval
_HEX_DIGITS = frozenset("0123456789abcdef")


class Chained(Protocol):
    """An operator of a chain.

    One implementer: ``ChainedOperator`` stands on a floor above.
    """

    @property
    def operator(self) -> Any:
        """The operator, which has a ``name``."""

    @property
    def parent(self) -> int:
        """The index of the operator that it reads; -1 for the head."""


@dataclass(frozen=True, slots=True)
class JobVertex:
    """A chain of operators that run in one task."""

    id: str  # 32 hex digits
    name: str
    parallelism: int
    max_parallelism: int = DEFAULT_MAX_PARALLELISM
    chain: Sequence[Chained] = ()
    slot_sharing_group: str = DEFAULT_SLOT_SHARING_GROUP

    @property
    def operator_names(self) -> list[str]:
        """The operators' names, in chain order."""
        return [chained.operator.name for chained in self.chain]

    def __str__(self) -> str:
        return f"vertex {self.name!r} ({self.id[:8]})"


@dataclass(frozen=True, slots=True)
class JobEdge:
    """An edge from the operator with index ``source_operator`` in the chain of ``source`` to the head of ``target``.

    ``target`` None: the client reads it.  ``tag``: the side output; None: the main output.  ``input_id``: of the
    target's head, from 1.
    ``id``: of the intermediate data set; by default derived from the other fields, so that equal graphs have equal ids.
    """

    source: str
    source_operator: int
    target: str | None
    partitioner: Partitioner
    buffer_timeout_ms: int = DEFAULT_BUFFER_TIMEOUT_MS
    name: str = ""
    id: str = ""  # 32 hex digits
    tag: str | None = None
    input_id: int = 1
    is_blocking: bool = False  # its results are written completely before they are read

    def __post_init__(self) -> None:
        if not self.id:
            parts = (self.source, self.source_operator, self.target, self.partitioner.ship_strategy, self.name)
            object.__setattr__(self, "id", stable_id("edge", *parts))

    @property
    def is_external(self) -> bool:
        """Whether the client reads this edge."""
        return self.target is None

    def __str__(self) -> str:
        return (
            f"edge {self.name or self.id[:8]!r} ({self.source[:8]} -> "
            f"{'client' if self.target is None else self.target[:8]})"
        )


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A job as it is submitted; immutable.  The caller must not change the sequences."""

    name: str
    job_id: str = field(default_factory=lambda: os.urandom(16).hex())  # 32 hex digits
    vertices: Sequence[JobVertex] = ()
    edges: Sequence[JobEdge] = ()
    client_heartbeat: ClientHeartbeat | None = None  # None: the job goes on without its client
    client_retry: ClientRetry = field(default_factory=ClientRetry)
    settings: JobSettings = field(default_factory=JobSettings)

    def vertex(self, vertex_id: str) -> JobVertex:
        """The vertex with this id.  Raises JobGraphError: there is none."""
        for vertex in self.vertices:
            if vertex.id == vertex_id:
                return vertex
        raise JobGraphError(f"job {self.name!r} has no vertex {vertex_id!r}")

    def inputs_of(self, vertex_id: str) -> list[JobEdge]:
        """The edges that end at a vertex, in the graph's order."""
        return [edge for edge in self.edges if edge.target == vertex_id]

    def outputs_of(self, vertex_id: str) -> list[JobEdge]:
        """The edges that begin at a vertex, including external ones, in the graph's order."""
        return [edge for edge in self.edges if edge.source == vertex_id]

    def external_edges(self) -> list[JobEdge]:
        """The edges that the client reads."""
        return [edge for edge in self.edges if edge.is_external]

    def topological_order(self) -> list[JobVertex]:
        """The vertices, each after all that it reads; otherwise in the graph's order.

        Raises:
            JobGraphError: the graph has a cycle; the message names its vertices.
        """
        waiting = {vertex.id: vertex for vertex in self.vertices}
        order: list[JobVertex] = []
        while waiting:
            ready = [
                vertex
                for vertex in waiting.values()
                if not any(edge.source in waiting for edge in self.inputs_of(vertex.id))
            ]
            if not ready:
                names = ", ".join(repr(vertex.name) for vertex in waiting.values())
                raise JobGraphError(
                    f"job {self.name!r} has a cycle through or before these vertices: {names}; remove an edge"
                )
            order.extend(ready)
            for vertex in ready:
                del waiting[vertex.id]
        return order

    def validate(self) -> None:
        """Check everything that can be known before the job runs.

        Raises:
            JobGraphError: names the vertex or edge, what is wrong and what to do.
        """
        if not self.vertices:
            raise JobGraphError(f"job {self.name!r} has no vertices: add at least a source and something that reads it")
        if not is_id(self.job_id):
            raise JobGraphError(f"job {self.name!r}: a job id has 32 lower-case hex digits, got {self.job_id!r}")
        _check_unique(self.name, "vertex id", (vertex.id for vertex in self.vertices))
        _check_unique(self.name, "edge id", (edge.id for edge in self.edges))
        by_id = {vertex.id: vertex for vertex in self.vertices}
        for vertex in self.vertices:
            _check_vertex(vertex)
        for edge in self.edges:
            _check_edge(edge, by_id)
        self.topological_order()


def stable_id(*parts: object) -> str:
    """32 hex digits derived from the parts, the same in every process."""
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_id(text: object) -> bool:
    """Whether this is 32 lower-case hex digits."""
    return isinstance(text, str) and len(text) == 32 and _HEX_DIGITS.issuperset(text)


def slots_by_group(job_graph: JobGraph) -> dict[str, int]:
    """The number of slots that each slot sharing group needs: the largest parallelism in it."""
    slots: dict[str, int] = {}
    for vertex in job_graph.vertices:
        slots[vertex.slot_sharing_group] = max(slots.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return slots


def needed_slots(job_graph: JobGraph) -> int:
    """The number of slots that the job needs."""
    return sum(slots_by_group(job_graph).values())


def _check_unique(job: str, what: str, ids: Iterable[str]) -> None:
    seen: set[str] = set()
    for item in ids:
        if item in seen:
            raise JobGraphError(
                f"job {job!r}: the {what} {item!r} occurs twice; give each its own (equal edges differ by their name)"
            )
        seen.add(item)


def _check_vertex(vertex: JobVertex) -> None:
    if not is_id(vertex.id):
        raise JobGraphError(f"vertex {vertex.name!r}: an id has 32 lower-case hex digits, got {vertex.id!r}")
    if not vertex.name:
        raise JobGraphError(f"vertex {vertex.id}: it needs a name")
    if not vertex.slot_sharing_group:
        raise JobGraphError(f"{vertex}: the name of its slot sharing group is empty; use 'default'")
    if not 1 <= vertex.max_parallelism <= MAX_MAX_PARALLELISM:
        raise JobGraphError(
            f"{vertex}: its max parallelism must be from 1 to {MAX_MAX_PARALLELISM}, got {vertex.max_parallelism}"
        )
    if vertex.parallelism < 1:
        raise JobGraphError(f"{vertex}: its parallelism must be 1 or more, got {vertex.parallelism}")
    if vertex.parallelism > vertex.max_parallelism:
        raise JobGraphError(
            f"{vertex}: its parallelism {vertex.parallelism} exceeds its max parallelism {vertex.max_parallelism}; "
            "lower the one or raise the other"
        )
    if not vertex.chain:
        raise JobGraphError(f"{vertex}: its chain is empty; it needs at least one operator")
    for index, chained in enumerate(vertex.chain):
        is_valid = chained.parent == -1 if index == 0 else 0 <= chained.parent < index
        if not is_valid:
            expected = "-1, because it is the head" if index == 0 else f"one of 0..{index - 1}, an operator before it"
            raise JobGraphError(
                f"{vertex}: operator {index} of its chain has parent {chained.parent}; it must be {expected}"
            )


def _check_edge(edge: JobEdge, vertices: dict[str, JobVertex]) -> None:
    if not is_id(edge.id):
        raise JobGraphError(f"{edge}: an id has 32 lower-case hex digits, got {edge.id!r}")
    if edge.buffer_timeout_ms < -1:
        raise JobGraphError(
            f"{edge}: its buffer timeout must be -1 (never), 0 (at once) or milliseconds, got {edge.buffer_timeout_ms}"
        )
    source = vertices.get(edge.source)
    if source is None:
        raise JobGraphError(f"{edge}: it begins at {edge.source!r}, which is no vertex of this job")
    if not 0 <= edge.source_operator < len(source.chain):
        raise JobGraphError(
            f"{edge}: it begins at operator {edge.source_operator} of {source}, which has {len(source.chain)}"
        )
    if edge.target is None:
        if not isinstance(edge.partitioner, Forward):
            raise JobGraphError(
                f"{edge}: the client reads it, so its partitioner must be Forward, not {edge.partitioner.ship_strategy}"
            )
        return
    target = vertices.get(edge.target)
    if target is None:
        raise JobGraphError(f"{edge}: it ends at {edge.target!r}, which is no vertex of this job")
    if isinstance(edge.partitioner, Forward) and source.parallelism != target.parallelism:
        raise JobGraphError(
            f"{edge}: a forward edge needs equal parallelisms, but {source} has {source.parallelism} and {target} has "
            f"{target.parallelism}; use rebalance() or set the same parallelism"
        )
    if isinstance(edge.partitioner, KeyGroups) and edge.partitioner.max_parallelism != target.max_parallelism:
        raise JobGraphError(
            f"{edge}: it has {edge.partitioner.max_parallelism} key groups, but {target} has max parallelism "
            f"{target.max_parallelism}; both must be the same"
        )
