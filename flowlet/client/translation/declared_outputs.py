"""Which records of a program are converted to their declared types, and where.

Side:   pure.
Rules:  as in PyFlink, records are converted where they leave the Python functions that are fused: at every edge but one
        between two functions in one chain, the first of which has no other reader.
Source: PyFlink ``PythonOperatorChainingOptimizer``; ``DataStream._align_output_type`` for ``print``.
"""

from typing import Final

from flowlet.common.typeinfo import ArrowTypeInfo, PickledBytesTypeInfo, RowTypeInfo, TypeInformation
from flowlet.datastream.user_functions.source_function import SourceFunction
from flowlet.graph.chaining import is_chainable
from flowlet.graph.partitioner import Forward
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from flowlet.graph.transformation import (
    CountTransformation,
    FilterTransformation,
    FlatMapTransformation,
    MapBatchesTransformation,
    MapTransformation,
    PrintTransformation,
    ProcessTransformation,
    SinkTransformation,
    SourceTransformation,
    SplitTransformation,
    TimestampsAndWatermarksTransformation,
    ToColumnsTransformation,
    ToRecordsTransformation,
)
from flowlet.typed.record_conversion import DeclaredOutput

# What PyFlink fuses with the function before it.
_FUSED: Final = (MapTransformation, FlatMapTransformation, FilterTransformation, ProcessTransformation)
# These emit records that they were given, and those were converted on their way to them.
_PASSING_ON: Final = (FilterTransformation, SplitTransformation, TimestampsAndWatermarksTransformation)
# Columns have types of their own, and what a sink hands to its committer is no record.
_OF_OTHER_TYPES: Final = (
    CountTransformation,
    MapBatchesTransformation,
    SinkTransformation,
    ToColumnsTransformation,
    ToRecordsTransformation,
)


def is_fused(edge: StreamEdge, graph: StreamGraph) -> bool:
    """Whether the reader of an edge gets records as the function before it returned them."""
    if edge.target is None or edge.tag is not None or len(graph.outputs_of(edge.source)) != 1:
        return False
    source, target = graph.nodes[edge.source].transformation, graph.nodes[edge.target].transformation
    if (
        isinstance(source, SourceTransformation)
        or not isinstance(edge.partitioner, Forward)
        or not is_chainable(edge, graph)
    ):
        return False
    if isinstance(target, PrintTransformation):
        return isinstance(source.output_type, RowTypeInfo)  # PyFlink makes the text of a row in Python
    return isinstance(target, _FUSED)


def declared_outputs_of(node: StreamNode, graph: StreamGraph) -> dict[str | None, DeclaredOutput]:
    """The outputs of an operator whose records are converted, by side output; None is the main one."""
    step, outputs = node.transformation, graph.outputs_of(node.id)
    found: dict[str | None, TypeInformation] = {}
    if not isinstance(step, _OF_OTHER_TYPES) and not _comes_typed(step) and not _is_passed_on(node, graph):
        found[None] = step.output_type
    found |= {edge.tag: edge.side_type for edge in outputs if edge.tag is not None and edge.side_type is not None}
    collected = {edge.tag for edge in outputs if edge.target is None}
    return {
        tag: DeclaredOutput(type_info, is_collected=tag in collected)
        for tag, type_info in found.items()
        if not isinstance(type_info, PickledBytesTypeInfo | ArrowTypeInfo)
    }


def _comes_typed(step: object) -> bool:
    """Whether a source gives records of its declared type; what a user's function emits is not sure to be."""
    return isinstance(step, SourceTransformation) and not isinstance(step.source, SourceFunction)


def _is_passed_on(node: StreamNode, graph: StreamGraph) -> bool:
    inputs = graph.inputs_of(node.id)
    return isinstance(node.transformation, _PASSING_ON) and not any(is_fused(edge, graph) for edge in inputs)
