"""Promises of the transformations."""

from flowlet.common import Types
from flowlet.graph.partitioner import KeyGroups, Rebalance
from flowlet.graph.transformation import (
    MapTransformation,
    PartitionTransformation,
    SourceTransformation,
    Transformation,
)


def partitioned(upstream: Transformation, partitioner: KeyGroups | Rebalance) -> MapTransformation:
    return MapTransformation(
        name="Map",
        input=PartitionTransformation(name="Partition", input=upstream, partitioner=partitioner),
        function=str,
    )


def test_a_transformation_knows_how_its_input_is_keyed() -> None:
    source = SourceTransformation(name="numbers", source=object())

    assert source.key_selector is None
    assert MapTransformation(name="Map", input=source, function=str).key_selector is None
    assert partitioned(source, Rebalance()).key_selector is None
    assert partitioned(source, KeyGroups(len)).key_selector is len
    assert MapTransformation(name="Map", input=partitioned(source, KeyGroups(len)), function=str).key_selector is None


def test_two_equal_looking_transformations_are_two_operators() -> None:
    one, other = (SourceTransformation(name="numbers", source=None) for _ in range(2))

    assert one != other
    assert len({one, other}) == 2


def test_records_may_be_anything_unless_declared() -> None:
    assert SourceTransformation(name="numbers", source=None).output_type == Types.PICKLED_BYTE_ARRAY()
