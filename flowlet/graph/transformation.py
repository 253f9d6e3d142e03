"""Transformations: what the DataStream API writes down while a program is built.

Side:       pure.
Invariants: each transformation knows its inputs and never what reads it, so there is no
            cycle.  ``parallelism`` is set when it is made, as in Flink.
Rules:      data only.  Functions and sources are kept as the user gave them; the client turns them into operators.
Source:     Flink ``Transformation`` and its subclasses.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from flowlet.common.watermark_strategy import WatermarkStrategy
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
    def inputs(self) -> "Sequence[Transformation]":
        """What it reads, the operator's first input first."""
        return () if self.input is None else (self.input,)

    @property
    def key_selector(self) -> Any:
        """How its input is keyed; None when it is not."""
        return self.input.key_selector if isinstance(self.input, PartitionTransformation) else None


@dataclass(eq=False, slots=True, kw_only=True)
class SourceTransformation(Transformation):
    """Records from ``source``: a connector, or an object with ``create_reader(subtask, parallelism)``."""

    source: Any
    is_bounded: bool = True
    strategy: WatermarkStrategy | None = None

    @property
    def operator_name(self) -> str:
        """Its name behind ``Source:``."""
        return f"Source: {self.name}"


@dataclass(eq=False, slots=True, kw_only=True)
class CollectionSourceTransformation(SourceTransformation):
    """The elements of ``source``, a list."""


@dataclass(eq=False, slots=True, kw_only=True)
class ArrowSourceTransformation(SourceTransformation):
    """The rows of ``source``: a ``pyarrow.Table``, or a function of subtask and parallelism that gives record batches of ``schema``."""

    schema: Any


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
    """The running result of a function of two records, per key; with ``emits_batches`` once per key and chunk.

    ``is_declared``: the function says what it does, so that it need not be called, and chunks are done at once.
    """

    function: Any
    emits_batches: bool = False
    is_declared: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class SumTransformation(Transformation):
    """The running sum of one field, per key; with ``emits_batches`` once per key and chunk."""

    position: int | str
    emits_batches: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class CountTransformation(Transformation):
    """Keys with the number of their records so far; ``field_names``: of the rows that they are, None: they are tuples."""

    field_names: tuple[str, str] | None = None
    emits_batches: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class MapBatchesTransformation(Transformation):
    """What a function makes of record batches of ``schema``: record batches of ``output_schema``."""

    function: Any
    schema: Any
    output_schema: Any


@dataclass(eq=False, slots=True, kw_only=True)
class ToColumnsTransformation(Transformation):
    """Records as rows of ``schema``."""

    schema: Any


@dataclass(eq=False, slots=True, kw_only=True)
class ToRecordsTransformation(Transformation):
    """Rows of columns as records."""


@dataclass(eq=False, slots=True, kw_only=True)
class ProcessTransformation(Transformation):
    """What a process function makes of each record; with timers and a key when its input is keyed."""

    function: Any
    has_timers: bool = False  # whether it does anything when one fires


@dataclass(eq=False, slots=True, kw_only=True)
class SplitTransformation(Transformation):
    """Records that are sorted under names; ``selections`` are the sets of names that somebody reads, each a side output of its own."""

    function: Any
    selections: list[frozenset[str]] = field(default_factory=list)


@dataclass(eq=False, slots=True, kw_only=True)
class TimestampsAndWatermarksTransformation(Transformation):
    """The same records with timestamps, and watermarks among them, as a ``WatermarkStrategy`` says."""

    strategy: Any


@dataclass(eq=False, slots=True, kw_only=True)
class OperatorTransformation(Transformation):
    """An operator that this package knows nothing of: ``make_operator`` gives it when the job starts; called with its name."""

    make_operator: Callable[[str], Any]


@dataclass(eq=False, slots=True, kw_only=True)
class TwoInputTransformation(Transformation):
    """A function of two streams: those of ``input`` and those of ``second_input``."""

    second_input: Transformation
    function: Any

    @property
    def inputs(self) -> Sequence[Transformation]:
        """Both."""
        # Not super(): a dataclass with slots is another class than the one its methods were written in.
        return (*Transformation.inputs.__get__(self), self.second_input)

    @property
    def second_key_selector(self) -> Any:
        """How the second input is keyed; None when it is not."""
        return self.second_input.key_selector if isinstance(self.second_input, PartitionTransformation) else None


@dataclass(eq=False, slots=True, kw_only=True)
class CoMapTransformation(TwoInputTransformation):
    """One record for each record of either stream."""


@dataclass(eq=False, slots=True, kw_only=True)
class CoFlatMapTransformation(TwoInputTransformation):
    """Any number of records for each record of either stream."""


@dataclass(eq=False, slots=True, kw_only=True)
class CoProcessTransformation(TwoInputTransformation):
    """What a process function of two streams makes of them."""


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


@dataclass(eq=False, slots=True, kw_only=True)
class UnionTransformation(Transformation):
    """Not an operator: what reads it reads all of ``streams``."""

    streams: Sequence[Transformation]

    @property
    def inputs(self) -> Sequence[Transformation]:
        """All of them."""
        return self.streams


@dataclass(eq=False, slots=True, kw_only=True)
class SideOutputTransformation(Transformation):
    """Not an operator: what reads it reads the side output ``tag_id`` of its input."""

    tag_id: str


def selection_tag(names: frozenset[str]) -> str:
    """The id of the side output of a split that holds the records with at least one of the names."""
    return f"select:{sorted(names)!r}"
