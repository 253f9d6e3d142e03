"""Transformations as a program makes them."""

from typing import Any

from flowlet.graph.partitioner import Partitioner
from flowlet.graph.transformation import (
    GraphValue,
    OperatorFactory,
    OperatorTransformation,
    PartitionTransformation,
    SourceTransformation,
    Transformation,
)

READ = OperatorFactory.of("flowlet.operators.source_operator:SourceOperator", source=GraphValue.SOURCE)
MAP = OperatorFactory.of("flowlet.operators.process_operator:MapOperator", function=str)


def source(name: str = "S", **changes: Any) -> SourceTransformation:
    return SourceTransformation(name=name, source=object(), factory=READ, **changes)


def mapped(upstream: Transformation | None, name: str = "Map", **changes: Any) -> OperatorTransformation:
    return OperatorTransformation(name=name, input=upstream, factory=MAP, **changes)


def partitioned(upstream: Transformation, partitioner: Partitioner) -> PartitionTransformation:
    return PartitionTransformation(name="Partition", input=upstream, partitioner=partitioner)
