"""``JobGraph``: vertices, each of which becomes ``parallelism`` tasks, and the edges between them.

Side:       pure.
Invariants: ids are unique, edges join existing vertices, there is no cycle, each chained operator is after its parent,
            a forward edge joins equal parallelisms, a keyed edge has as many key groups as its consumer, the client
            reads forward edges only.  ``build_job_graph`` makes it so, and the JobManager checks what it can see of it.
Units:      buffer timeouts in milliseconds; -1: never by timer, 0: after every chunk.
Source:     Flink ``JobGraph``, ``JobVertex``, ``JobEdge``.
Rules:      operators are opaque here (``Chained``), because this package must not import the runtime.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import field
from typing import Any, Protocol

from flowlet.common.job_settings import JobSettings
from flowlet.common.options.client_options import ClientHeartbeat, ClientRetry
from flowlet.errors import JobGraphError
from flowlet.graph.partitioner import DEFAULT_MAX_PARALLELISM, Partitioner
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

    def __str__(self) -> str:
        return (
            f"edge {self.name or self.id[:8]!r} ({self.source[:8]} -> "
            f"{'client' if self.target is None else self.target[:8]})"
        )


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A job as it is submitted; immutable.

    The caller must not change the sequences.
    """

    name: str
    job_id: str = field(default_factory=lambda: os.urandom(16).hex())  # 32 hex digits
    vertices: Sequence[JobVertex] = ()
    edges: Sequence[JobEdge] = ()
    client_heartbeat: ClientHeartbeat | None = None  # None: the job goes on without its client
    client_retry: ClientRetry = field(default_factory=ClientRetry)
    settings: JobSettings = field(default_factory=JobSettings)

    def external_edges(self) -> list[JobEdge]:
        """List the edges that the client reads."""
        return [edge for edge in self.edges if edge.target is None]

    def topological_order(self) -> list[JobVertex]:
        """Sort the vertices, each after all that it reads; otherwise in the graph's order.

        Raises:
            JobGraphError: the graph has a cycle; the message names its vertices.
        """
        waiting = {vertex.id: vertex for vertex in self.vertices}
        order: list[JobVertex] = []
        while waiting:
            read = {edge.target for edge in self.edges if edge.source in waiting}
            ready = [vertex for vertex in waiting.values() if vertex.id not in read]
            if not ready:
                names = ", ".join(repr(vertex.name) for vertex in waiting.values())
                raise JobGraphError(
                    f"job {self.name!r} has a cycle through or before these vertices: {names}; remove an edge"
                )
            order.extend(ready)
            for vertex in ready:
                del waiting[vertex.id]
        return order


def stable_id(*parts: object) -> str:
    """Derive 32 hex digits from the parts; equal parts give equal digits in every process."""
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_id(text: object) -> bool:
    """Whether ``text`` is 32 lower-case hex digits."""
    return isinstance(text, str) and len(text) == 32 and _HEX_DIGITS.issuperset(text)


def needed_slots(job_graph: JobGraph) -> int:
    """Count the slots that the job needs: for each slot sharing group the largest parallelism in it."""
    slots: dict[str, int] = {}
    for vertex in job_graph.vertices:
        slots[vertex.slot_sharing_group] = max(slots.get(vertex.slot_sharing_group, 0), vertex.parallelism)
    return sum(slots.values())
