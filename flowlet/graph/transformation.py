"""Transformations: what the DataStream API writes down while a program is built.

Side:       pure.
Invariants: a tree: each transformation knows its input and never what reads it.  ``parallelism`` is set when it is made, as in Flink.
Rules:      data only.  Functions and sources are kept as the user gave them; the client turns them into operators.
Source:     Flink ``Transformation`` and its subclasses.
Absent:     transformations with two inputs, side outputs.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from flowlet.graph.partitioner import Partitioner


class ChainingStrategy(Enum):
    """Whether an operator may share a task with its neighbours (Flink ``ChainingStrategy``)."""

    ALWAYS = "always"
    HEAD = "head"  # never with the one before it
    NEVER = "never"


@dataclass(eq=False, slots=True, kw_only=True)
class Transformation:
    """One step of a program.

    Ownership: mutable until the graph is built; identity is what counts.
    """

    name: str
    input: "Transformation | None" = None
    output_type: TypeInformation = field(default_factory=PickledBytesTypeInfo)
    parallelism: int = 1
    max_parallelism: int | None = None  # None: the environment's
    buffer_timeout_ms: int | None = None  # None: the environment's
    uid: str | None = None
    description: str | None = None
    slot_sharing_group: str | None = None  # None: the input's
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    is_non_parallel: bool = False

    @property
    def operator_name(self) -> str:
        """The name under which it runs."""
        return self.name

    @property
    def key_selector(self) -> Any:
        """How its input is keyed; None when it is not."""
        return self.input.key_selector if isinstance(self.input, PartitionTransformation) else None


@dataclass(eq=False, slots=True, kw_only=True)
class SourceTransformation(Transformation):
    """Records from ``source``: a connector, or an object with ``create_reader(subtask, parallelism)``."""

    source: Any
    is_bounded: bool = True

    @property
    def operator_name(self) -> str:
        """Its name behind ``Source:``."""
        return f"Source: {self.name}"


@dataclass(eq=False, slots=True, kw_only=True)
class CollectionSourceTransformation(SourceTransformation):
    """The elements of ``source``, a list."""


@dataclass(eq=False, slots=True, kw_only=True)
class MapTransformation(Transformation):
    """One record for each record."""

    function: Any


@dataclass(eq=False, slots=True, kw_only=True)
class FlatMapTransformation(Transformation):
    """Any number of records for each record."""

    function: Any


@dataclass(eq=False, slots=True, kw_only=True)
class FilterTransformation(Transformation):
    """Only the records for which the function says yes."""

    function: Any


@dataclass(eq=False, slots=True, kw_only=True)
class AsyncWaitTransformation(Transformation):
    """Any number of records for each record, from coroutines of which up to ``capacity`` run at the same time."""

    function: Any
    timeout_ms: int  # 0: none
    capacity: int
    is_ordered: bool
    retry_strategy: Any = None


@dataclass(eq=False, slots=True, kw_only=True)
class ReduceTransformation(Transformation):
    """The running result of a function of two records, per key."""

    function: Any


@dataclass(eq=False, slots=True, kw_only=True)
class SumTransformation(Transformation):
    """The running sum of one field, per key."""

    position: int | str


@dataclass(eq=False, slots=True, kw_only=True)
class PrintTransformation(Transformation):
    """Writes each record to the standard output of its TaskManager."""

    identifier: str | None = None

    @property
    def operator_name(self) -> str:
        """Its name behind ``Sink:``."""
        return f"Sink: {self.name}"


@dataclass(eq=False, slots=True, kw_only=True)
class SinkTransformation(Transformation):
    """Hands each record to ``sink``, a connector."""

    sink: Any

    @property
    def operator_name(self) -> str:
        """Its name before ``Writer``, as Flink calls the writing half of a sink."""
        return f"{self.name}: Writer"


@dataclass(eq=False, slots=True, kw_only=True)
class CollectTransformation(Transformation):
    """Not an operator: the client reads the input itself."""


@dataclass(eq=False, slots=True, kw_only=True)
class PartitionTransformation(Transformation):
    """Not an operator: says how records travel from its input to whatever reads it."""

    partitioner: Partitioner

    @property
    def key_selector(self) -> Any:
        """The selector when the partitioning is by key, else None."""
        return getattr(self.partitioner, "key_selector", None)
