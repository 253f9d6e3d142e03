"""Which records of a program are converted to their declared types, and where.

Side:   pure.
Rules:  as in PyFlink, records are converted where they leave the Python functions that are fused: at every edge but one
        between two functions in one chain, the first of which has no other reader.
Source: PyFlink ``PythonOperatorChainingOptimizer``; ``DataStream._align_output_type`` for ``print``.
"""

from flowlet.common.typeinfo import ArrowTypeInfo, PickledBytesTypeInfo, TypeInformation
from flowlet.datastream.user_functions.source_function import SourceFunction
from flowlet.graph.chaining import is_chainable
from flowlet.graph.partitioner import Forward
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from flowlet.graph.transformation import OperatorTransformation, SourceTransformation
from flowlet.typed.record_conversion import DeclaredOutput


def is_fused(edge: StreamEdge, graph: StreamGraph) -> bool:
    """Whether the reader of an edge gets records as the function before it returned them."""
    if edge.target is None or edge.tag is not None or len(graph.outputs_of(edge.source)) != 1:
        return False
    return (
        graph.nodes[edge.target].transformation.takes_unconverted
        and not isinstance(graph.nodes[edge.source].transformation, SourceTransformation)
        and isinstance(edge.partitioner, Forward)
        and is_chainable(edge, graph)
    )


def declared_outputs_of(node: StreamNode, graph: StreamGraph) -> dict[str | None, DeclaredOutput]:
    """The outputs of an operator whose records are converted, by side output; None is the main one."""
    step = node.transformation
    outputs = graph.outputs_of(node.id)
    found: dict[str | None, TypeInformation] = {}
    if not _comes_typed(step) and not _is_passed_on(node, graph):
        found[None] = step.output_type
    found |= {edge.tag: edge.side_type for edge in outputs if edge.tag is not None and edge.side_type is not None}
    collected = {edge.tag for edge in outputs if edge.target is None}
    return {
        tag: DeclaredOutput(type_info, is_collected=tag in collected)
        for tag, type_info in found.items()
        if not isinstance(type_info, PickledBytesTypeInfo | ArrowTypeInfo)
    }


def _comes_typed(step: OperatorTransformation) -> bool:
    """Whether a source gives records of its declared type; what a user's function emits is not sure to be."""
    return isinstance(step, SourceTransformation) and not isinstance(step.source, SourceFunction)


def _is_passed_on(node: StreamNode, graph: StreamGraph) -> bool:
    inputs = graph.inputs_of(node.id)
    return node.transformation.passes_records_on and not any(is_fused(edge, graph) for edge in inputs)
