"""Transformations: the steps of a program, recorded by the DataStream API; and the factories of their operators.

Side:       pure.
Invariants: a transformation knows its inputs, never its readers, so there is no cycle.  ``parallelism`` is set at
            creation, as in Flink.
Rules:      data only.  Functions and sources are kept as the user gave them.  A transformation names what makes its
            operator, so that neither this package nor the API imports the runtime; the client resolves the name when
            the job starts, and only operators travel.
Source:     Flink ``Transformation`` and its subclasses, ``StreamOperatorFactory``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, Self

from flowlet.common.typeinfo import PickledBytesTypeInfo, TypeInformation
from flowlet.graph.partitioner import KeyGroups, Partitioner
from netstack.late import dataclass


class ChainingStrategy(Enum):
    """Whether an operator may be chained to others (Flink ``ChainingStrategy``)."""

    ALWAYS = "always"
    HEAD = "head"  # never chained to its input
    NEVER = "never"


class GraphValue(Enum):
    """An argument of a factory that is not known before the graph is complete."""

    IS_BATCH = "is_batch"  # whether the job runs in BATCH mode
    IS_STREAMING = "is_streaming"  # the opposite
    STEP_NAME = "step_name"  # the transformation's, as the user knows it
    PARALLELISM = "parallelism"
    SOURCE = "source"  # that of a ``SourceTransformation``


@dataclass(frozen=True, slots=True)
class OperatorFactory:
    """A factory of an operator, called when the job starts: ``target("package.module:name")(**arguments, name=...)``.

    An argument may be a ``GraphValue``; or a factory, whose object takes its place (this one is given no ``name``).
    """

    target: str
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, target: str, /, **arguments: Any) -> Self:
        """Make the factory of a class or function of the runtime; a test resolves each one that the product names."""
        return cls(target, arguments)


@dataclass(eq=False, slots=True, kw_only=True)
class Transformation:
    """One step of a program; mutable until the graph is built, and compared by identity."""

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
        """The name of the step's operator."""
        return self.name

    @property
    def inputs(self) -> "Sequence[Transformation]":
        """The transformations that it reads, the operator's first input first."""
        return () if self.input is None else (self.input,)


@dataclass(eq=False, slots=True, kw_only=True)
class OperatorTransformation(Transformation):
    """An operator, which ``factory`` makes.

    Args:
        second_input: of an operator with two inputs.
        label: the operator's name, with ``{}`` for that of the step.
        is_sink: whether it ends a stream, for the plan.
        is_internal: whether it has no state and is part of another step, so that no user knows it and can give it a
            uid.
        takes_single_records: whether it processes single records behind a ``key_by``, and nothing else: no timers of
            the clock, no chunks.
        takes_unconverted: whether PyFlink fuses it with the function before it, whose results it gets as they are.
        passes_records_on: whether it emits records that it was given, which were converted on their way to it.
        inputs_read_last: positions of the inputs that wait for the end of the others where exchanges are blocking.
    """

    factory: OperatorFactory
    second_input: Transformation | None = None
    label: str = "{}"
    is_sink: bool = False
    is_internal: bool = False
    takes_single_records: bool = False
    takes_unconverted: bool = False
    passes_records_on: bool = False
    inputs_read_last: tuple[int, ...] = ()

    @property
    def operator_name(self) -> str:
        """The name with Flink's additions, such as ``Source:``."""
        return self.label.format(self.name)

    @property
    def inputs(self) -> Sequence[Transformation]:
        """Its inputs, one or two."""
        return tuple([each for each in (self.input, self.second_input) if each is not None])


@dataclass(eq=False, slots=True, kw_only=True)
class SourceTransformation(OperatorTransformation):
    """Records from ``source``: elements, a connector, or an object with ``create_reader(subtask, parallelism)``."""

    source: Any
    label: str = "Source: {}"
    is_bounded: bool = True


@dataclass(eq=False, slots=True, kw_only=True)
class CollectTransformation(Transformation):
    """Marks a stream that the client reads itself; it is no operator."""


@dataclass(eq=False, slots=True, kw_only=True)
class PartitionTransformation(Transformation):
    """The way in which records go from its input to its readers; it is no operator."""

    partitioner: Partitioner


@dataclass(eq=False, slots=True, kw_only=True)
class UnionTransformation(Transformation):
    """Several ``streams`` of which its readers read all; it is no operator."""

    streams: Sequence[Transformation]

    @property
    def inputs(self) -> Sequence[Transformation]:
        """All of ``streams``."""
        return self.streams


@dataclass(eq=False, slots=True, kw_only=True)
class SideOutputTransformation(Transformation):
    """The side output ``tag_id`` of its input, for its readers; it is no operator."""

    tag_id: str


def key_selector_of(stream: Transformation) -> Any:
    """Return the key selector of a stream that was made by ``key_by``; None for any other."""
    match stream:
        case PartitionTransformation(partitioner=KeyGroups() as by_key):
            return by_key.key_selector
        case _:
            return None


def selection_tag(names: frozenset[str]) -> str:
    """Make the id of the side output of a split with the records under any of these names."""
    return f"select:{sorted(names)!r}"
