"""Promises of the transformations."""

from flowlet.common import Types
from flowlet.graph.partitioner import KeyGroups, Rebalance
from flowlet.graph.transformation import (
    GraphValue,
    OperatorFactory,
    OperatorTransformation,
    PartitionTransformation,
    SourceTransformation,
    Transformation,
    key_selector_of,
)

READ = OperatorFactory.of("flowlet.operators.source_operator:SourceOperator", source=GraphValue.SOURCE)
MAP = OperatorFactory.of("flowlet.operators.process_operator:MapOperator", function=str)


def partitioned(upstream: Transformation, partitioner: KeyGroups | Rebalance) -> PartitionTransformation:
    return PartitionTransformation(name="Partition", input=upstream, partitioner=partitioner)


def test_only_a_stream_behind_key_by_is_keyed() -> None:
    """A stream of another partitioning is not keyed, nor is the output of an operator on a keyed stream."""
    source = SourceTransformation(name="numbers", source=object(), factory=READ)
    keyed = partitioned(source, KeyGroups(len))

    assert key_selector_of(source) is None
    assert key_selector_of(partitioned(source, Rebalance())) is None
    assert key_selector_of(keyed) is len
    assert key_selector_of(OperatorTransformation(name="Map", input=keyed, factory=MAP)) is None


def test_an_operator_has_its_name_with_what_flink_puts_around_it() -> None:
    source = SourceTransformation(name="{x}", source=None, factory=READ)
    written = OperatorTransformation(name="files", label="{}: Writer", input=source, factory=MAP)

    assert (source.operator_name, written.operator_name) == ("Source: {x}", "files: Writer")


def test_two_equal_looking_transformations_are_two_operators() -> None:
    one, other = (SourceTransformation(name="numbers", source=None, factory=READ) for _ in range(2))

    assert one != other
    assert len({one, other}) == 2


def test_records_may_be_anything_unless_declared() -> None:
    assert SourceTransformation(name="numbers", source=None, factory=READ).output_type == Types.PICKLED_BYTE_ARRAY()
