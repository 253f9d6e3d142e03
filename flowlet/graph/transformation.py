"""Transformations: the steps of a program, recorded by the DataStream API.

Transformations of streams of columns: windows, joins, selections of columns.

Side:       pure.
Invariants: a transformation knows its inputs, never its readers, so there is no cycle.  ``parallelism`` is set at
            creation, as in Flink.
Rules:      data only.  Functions and sources are kept as the user gave them; the client turns them into operators.  as
            ``transformation``.
Source:     Flink ``Transformation`` and its subclasses.
"""

from collections.abc import Callable, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, ClassVar

from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.graph.partitioner import Partitioner
from netstack.late import dataclass


class ChainingStrategy(Enum):
    """Whether an operator may be chained to others (Flink ``ChainingStrategy``)."""

    ALWAYS = "always"
    HEAD = "head"  # never chained to its input
    NEVER = "never"


@dataclass(eq=False, slots=True, kw_only=True)
class Transformation:
    """One step of a program; mutable until the graph is built, and compared by identity.

    ``is_internal``: whether it has no state and is part of another step, so that no user knows it and can give it a
        uid.
    """

    is_internal: ClassVar[bool] = False
    name: str
    input: "Transformation | None" = None
    output_type: TypeInformation = field(default_factory=PickledBytesTypeInfo)
    parallelism: int = 1
    max_parallelism: int | None = None  # None: the environment's
    buffer_timeout_ms: int | None = None  # None: the environment's
    uid: str | None = None
    uid_hash: str | None = None  # 32 hex digits: the operator's id, whatever its uid
    description: str | None = None
    slot_sharing_group: str | None = None  # None: the input's
    chaining: ChainingStrategy = ChainingStrategy.ALWAYS
    is_non_parallel: bool = False

    @property
    def operator_name(self) -> str:
        """The name of its operator."""
        return self.name

    @property
    def inputs(self) -> "Sequence[Transformation]":
        """The transformations that it reads, the operator's first input first."""
        return () if self.input is None else (self.input,)

    @property
    def key_selector(self) -> Any:
        """The key selector of its input; None if that is not keyed."""
        return self.input.key_selector if isinstance(self.input, PartitionTransformation) else None


@dataclass(eq=False, slots=True, kw_only=True)
class SourceTransformation(Transformation):
    """Records from ``source``: a connector, or an object with ``create_reader(subtask, parallelism)``."""

    source: Any
    is_bounded: bool = True
    strategy: WatermarkStrategy | None = None

    @property
    def operator_name(self) -> str:
        """The name after ``Source:``."""
        return f"Source: {self.name}"


@dataclass(eq=False, slots=True, kw_only=True)
class CollectionSourceTransformation(SourceTransformation):
    """The elements of ``source``, a list."""


@dataclass(eq=False, slots=True, kw_only=True)
class ArrowSourceTransformation(SourceTransformation):
    """The rows of ``source``: a ``pyarrow.Table``, or a function of subtask and parallelism that returns record batches
    of ``schema``.
    """

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
    """The records for which the function returns True."""

    function: Any


@dataclass(eq=False, slots=True, kw_only=True)
class AsyncWaitTransformation(Transformation):
    """Any number of records for each record, from up to ``capacity`` coroutines at a time."""

    function: Any
    timeout_ms: int  # 0: none
    capacity: int
    is_ordered: bool
    retry_strategy: Any = None


@dataclass(eq=False, slots=True, kw_only=True)
class ReduceTransformation(Transformation):
    """The running result per key of a function of two records; with ``emits_batches`` once per key and chunk.

    ``is_declared``: the function describes an aggregation (such as a sum), which is computed for whole chunks without
        calling it.
    """

    function: Any
    emits_batches: bool = False
    is_declared: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class SumTransformation(Transformation):
    """The running sum of one field per key; with ``emits_batches`` once per key and chunk."""

    position: int | str
    emits_batches: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class CountTransformation(Transformation):
    """The running number of records per key, as pairs: rows with ``field_names``, or tuples if None."""

    field_names: tuple[str, str] | None = None
    emits_batches: bool = False


@dataclass(eq=False, slots=True, kw_only=True)
class MapBatchesTransformation(Transformation):
    """The record batches of ``output_schema`` that a function makes of record batches of ``schema``."""

    function: Any
    schema: Any
    output_schema: Any


@dataclass(eq=False, slots=True, kw_only=True)
class ToColumnsTransformation(Transformation):
    """The records as columns of ``schema``."""

    schema: Any


@dataclass(eq=False, slots=True, kw_only=True)
class ToRecordsTransformation(Transformation):
    """The rows of columns as records."""


@dataclass(eq=False, slots=True, kw_only=True)
class ProcessTransformation(Transformation):
    """The results of a process function; with timers and a key if its input is keyed."""

    function: Any
    has_timers: bool = False  # whether the function overrides on_timer


@dataclass(eq=False, slots=True, kw_only=True)
class WindowTransformation(Transformation):
    """The results of windows of a keyed stream, as ``spec`` says, a ``WindowSpec``."""

    spec: Any


@dataclass(eq=False, slots=True, kw_only=True)
class SplitTransformation(Transformation):
    """Records sorted under names; for each set of names in ``selections`` there is a side output with the records under
    any of them.
    """

    function: Any
    selections: list[frozenset[str]] = field(default_factory=list)


@dataclass(eq=False, slots=True, kw_only=True)
class TimestampsAndWatermarksTransformation(Transformation):
    """The same records with the timestamps and watermarks of a ``WatermarkStrategy``."""

    strategy: Any


@dataclass(eq=False, slots=True, kw_only=True)
class OperatorTransformation(Transformation):
    """An operator that this package does not know; when the job starts, ``make_operator`` makes it from its name."""

    make_operator: Callable[[str], Any]


@dataclass(eq=False, slots=True, kw_only=True)
class TwoInputTransformation(Transformation):
    """A function of two streams, ``input`` and ``second_input``."""

    second_input: Transformation
    function: Any

    @property
    def inputs(self) -> Sequence[Transformation]:
        """Both inputs."""
        # super() fails here: ``slots=True`` makes a new class, which the method does not know.
        return (*Transformation.inputs.__get__(self), self.second_input)

    @property
    def second_key_selector(self) -> Any:
        """The key selector of the second input; None if that is not keyed."""
        return self.second_input.key_selector if isinstance(self.second_input, PartitionTransformation) else None


@dataclass(eq=False, slots=True, kw_only=True)
class CoMapTransformation(TwoInputTransformation):
    """One record for each record of either stream."""


@dataclass(eq=False, slots=True, kw_only=True)
class CoFlatMapTransformation(TwoInputTransformation):
    """Any number of records for each record of either stream."""


@dataclass(eq=False, slots=True, kw_only=True)
class CoProcessTransformation(TwoInputTransformation):
    """The results of a process function of two streams."""


@dataclass(eq=False, slots=True, kw_only=True)
class IntervalJoinTransformation(TwoInputTransformation):
    """The results of a function of two records of one key that lie close together in time.

    ``bounds``: in milliseconds from the first record to the second, both inclusive.  ``late_tags``: ids of the side
        outputs for late
    records of either input; None: they are dropped.
    """

    bounds: tuple[int, int]
    late_tags: tuple[str | None, str | None]


@dataclass(eq=False, slots=True, kw_only=True)
class BroadcastProcessTransformation(TwoInputTransformation):
    """The results of a process function of a stream and a broadcast stream; ``descriptors``: of the states that the
    latter changes.
    """

    descriptors: Sequence[Any]


@dataclass(eq=False, slots=True, kw_only=True)
class PrintTransformation(Transformation):
    """Writes each record to the standard output of its TaskManager."""

    identifier: str | None = None

    @property
    def operator_name(self) -> str:
        """The name after ``Sink:``."""
        return f"Sink: {self.name}"


@dataclass(eq=False, slots=True, kw_only=True)
class SinkTransformation(Transformation):
    """Hands each record to ``sink``, a connector."""

    sink: Any

    @property
    def operator_name(self) -> str:
        """The name before ``Writer``, Flink's name for the writing part of a sink."""
        return f"{self.name}: Writer"


@dataclass(eq=False, slots=True, kw_only=True)
class GlobalCommitTransformation(Transformation):
    """Commits what all subtasks of its input, a ``SinkTransformation`` of ``sink``, have committed."""

    sink: Any

    @property
    def operator_name(self) -> str:
        """Flink's name for this part of a sink."""
        return f"{self.name}: Global Committer"


@dataclass(eq=False, slots=True, kw_only=True)
class SinkFunctionTransformation(Transformation):
    """Calls ``function`` with each record."""

    function: Any

    @property
    def operator_name(self) -> str:
        """The name after ``Sink:``."""
        return f"Sink: {self.name}"


@dataclass(eq=False, slots=True, kw_only=True)
class CollectTransformation(Transformation):
    """Not an operator: the client reads the input itself."""


@dataclass(eq=False, slots=True, kw_only=True)
class PartitionTransformation(Transformation):
    """Not an operator: how records go from its input to its readers."""

    partitioner: Partitioner

    @property
    def key_selector(self) -> Any:
        """The key selector if it partitions by key, else None."""
        return getattr(self.partitioner, "key_selector", None)


@dataclass(eq=False, slots=True, kw_only=True)
class UnionTransformation(Transformation):
    """Not an operator: its readers read all of ``streams``."""

    streams: Sequence[Transformation]

    @property
    def inputs(self) -> Sequence[Transformation]:
        """All of ``streams``."""
        return self.streams


@dataclass(eq=False, slots=True, kw_only=True)
class SideOutputTransformation(Transformation):
    """Not an operator: its readers read the side output ``tag_id`` of its input."""

    tag_id: str


def selection_tag(names: frozenset[str]) -> str:
    """The id of the side output of a split with the records under any of these names."""
    return f"select:{sorted(names)!r}"


@dataclass(eq=False, slots=True, kw_only=True)
class SelectColumnsTransformation(Transformation):
    """The columns of ``schema`` at these ``positions``."""

    is_internal: ClassVar[bool] = True
    positions: tuple[int, ...]
    schema: Any


@dataclass(eq=False, slots=True, kw_only=True)
class LocalWindowColumnsTransformation(Transformation):
    """Parts of windows, made of columns of ``schema`` before they travel; ``layout``: how they do."""

    is_internal: ClassVar[bool] = True
    aggregation: Any
    schema: Any
    layout: Any


@dataclass(eq=False, slots=True, kw_only=True)
class WindowColumnsTransformation(Transformation):
    """Aggregations over windows of columns of ``schema``.

    ``late_tag``: the side output of rows that are too late.  ``layout``: of the parts that come in the place of rows;
        None: rows come.
    """

    aggregation: Any
    schema: Any
    late_tag: str | None = None
    layout: Any = None


@dataclass(eq=False, slots=True, kw_only=True)
class JoinColumnsTransformation(TwoInputTransformation):
    """Rows of two streams of columns with equal keys in the same window; ``function``: the description of the join."""
