"""From a program to a running job: stream graph -> operators -> job graph -> executor.

Side:   shared.  Resolves the factories that transformations name; the DataStream API loads this module by name when a
        job starts.
Rules:  as in PyFlink, records are converted to their declared types where they leave the Python functions that are
        fused: at every edge but one between two functions in one chain, the first of which has no other reader.  If
        everything that reads a remote gate is keyed by one selector and has one parallelism, the gate takes that
        parallelism and that number of key groups over, its producers send each record to the subtask that owns its key,
        and the edges behind it go forward: records travel once.  In any other case, or if the selector has ``open`` or
        ``close``, producers send in turns, and the job shuffles as it does behind any source.
Source: Flink ``StreamingJobGraphGenerator``, the transformation translators, ``PipelineExecutor``; PyFlink
        ``PythonOperatorChainingOptimizer``, ``DataStream._align_output_type`` for ``print``.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.client.embedded import EmbeddedTarget
from flowlet.client.executor import Target, execute
from flowlet.client.remote import RemoteTarget
from flowlet.client.running_job import RunningJob
from flowlet.common.job_client import SubmittedJob
from flowlet.common.job_settings import AFTER_TASKS_FINISH, JobSettings
from flowlet.common.options.python_options import DependencySettings
from flowlet.common.typeinfo import ArrowTypeInfo, PickledBytesTypeInfo, TypeInformation
from flowlet.datastream.connectors.base import DiscardingSink, Sink
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.datastream.user_functions.function import CheckpointedFunction, has_life_cycle
from flowlet.datastream.user_functions.source_function import SourceFunction, can_be_replayed
from flowlet.errors import ConfigError, JobGraphError
from flowlet.graph.chaining import build_job_graph, is_chainable
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.partitioner import Forward, KeyGroups
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from flowlet.graph.transformation import GraphValue, OperatorFactory, SourceTransformation
from flowlet.keys.column_key import ColumnKey, ColumnValue
from flowlet.operators.event_time_stream import TimestampsAndWatermarksOperator
from flowlet.operators.source_operator import SourceOperator
from flowlet.rpc.secret import load_or_create_secret
from flowlet.sinks.function_sink import DiscardSink
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.typed.record_conversion import DeclaredOutput
from netstack.late import is_instance_of_late
from netstack.log_lines import LogLines

_log = LogLines(__name__)
_BEGINS_ANEW = (
    "it begins anew after a restart, and records that it emits again count again; override restore_position(), or make "
    "it a CheckpointedFunction, to prevent that"
)
_PUSHED = (
    "flowlet.gate.acknowledge is processed, so partitions that producers pushed since the last checkpoint are lost by "
    "a restart, also if they were acknowledged"
)


def submit(
    stream_graph: StreamGraph,
    address: tuple[str, int] | None,
    in_process: bool,  # noqa: FBT001  # the API's seam
    keep: Callable[[RunningJob], None],
) -> SubmittedJob:
    """Start the job of a program.

    Args:
        stream_graph: the program.
        address: host and port of the JobManager; None: a new cluster for this job alone.
        in_process: whether a new cluster stays in this process whatever the parallelism.
        keep: called with the job before the JobManager is asked for it; see ``execute``.

    Raises:
        JobGraphError: the program is not valid.
        JobSubmissionError: the JobManager did not take it, or a function cannot be sent to a TaskManager.
        FlowletError: there is no cluster, or it could not be started.
    """
    job_graph, dependencies = translate(stream_graph), stream_graph.settings.dependencies
    if address is None:
        target: Target = embedded_target(job_graph, in_process=in_process, dependencies=dependencies)
    else:
        if dependencies.executable is not None:
            raise JobGraphError(
                f"set_python_executable({dependencies.executable!r}) has no effect on TaskManagers that run already: "
                "start them with that Python, and leave it out"
            )
        target = RemoteTarget(*address, retry=job_graph.client_retry)
    return submit_to(target, stream_graph, job_graph, keep)


def submit_to(
    target: Target, stream_graph: StreamGraph, job_graph: JobGraph, keep: Callable[[RunningJob], None]
) -> SubmittedJob:
    """Start the job of a program, which is this job graph, at a cluster; arguments and errors as of ``submit``."""
    job = execute(job_graph, target, stream_graph.settings.dependencies, keep)
    warn_of_sources_without_position(stream_graph)
    edges = tuple(edge.id for edge in job_graph.external_edges())
    return SubmittedJob(job, edges, runs_in_stages=stream_graph.exchanges_are_blocking)


def translate(stream_graph: StreamGraph) -> JobGraph:
    """Make the job graph of a program, with operators that can be pickled.

    Raises:
        JobGraphError: a source or sink is of a kind that nothing can run; the message names the operator.
    """

    def chained(operator: StreamOperator, parent: int, edge: StreamEdge | None) -> ChainedOperator:
        if edge is None:
            return ChainedOperator(operator, parent)
        key_selector = edge.partitioner.key_selector if isinstance(edge.partitioner, KeyGroups) else None
        return ChainedOperator(operator, parent, edge.tag, key_selector, takes_unconverted=is_fused(edge, stream_graph))

    stream_graph = _streaming_behind_gates(routed_at_producers(stream_graph))
    return build_job_graph(stream_graph, lambda node: _identified(node, stream_graph), chained)


def _streaming_behind_gates(stream_graph: StreamGraph) -> StreamGraph:
    """Run a BATCH job with a remote gate in one stage: the producer that writes into the gate waits until the rows were
    processed.
    """
    settings = stream_graph.settings
    steps = [node.transformation for node in stream_graph.nodes.values()]
    if settings.job.batch is None or not any(
        isinstance(each, SourceTransformation) and isinstance(each.source, RemoteGate) for each in steps
    ):
        return stream_graph
    batch = replace(settings.job.batch, is_blocking=False)
    return replace(stream_graph, settings=replace(settings, job=replace(settings.job, batch=batch)))


def embedded_target(
    job_graph: JobGraph, *, in_process: bool, dependencies: DependencySettings | None = None
) -> EmbeddedTarget:
    """Make a cluster as wide as the widest vertex; in this process for parallelism 1, too, unless the job's files need
    processes of its own.

    Raises:
        JobGraphError: they do, and ``in_process`` is wanted.
        ConfigError: see ``_checkpoint_secret``.
    """
    dependencies = dependencies or DependencySettings()
    if in_process:
        check_fits_this_process(dependencies, "unset FLOWLET_LOCAL")
    parallelism = max(vertex.parallelism for vertex in job_graph.vertices)
    return EmbeddedTarget(
        parallelism,
        in_process=in_process or (parallelism == 1 and dependencies.needs_own_process is None),
        checkpoint_secret=_checkpoint_secret(job_graph.settings),
        python=dependencies.executable,
    )


def check_fits_this_process(dependencies: DependencySettings, remedy: str) -> None:
    """Raise JobGraphError, with what to do, if the files of a job need processes of their own."""
    needs_process = dependencies.needs_own_process
    if needs_process is not None:
        raise JobGraphError(f"{needs_process} needs TaskManagers that are processes of their own: {remedy}")


def _checkpoint_secret(settings: JobSettings) -> bytes | None:
    """Return the secret of this user's clusters, which can start jobs from checkpoints that stay, and from savepoints,
    which any job with checkpoints may take; None: there are none.

    Raises ConfigError: there can be no secret, and the job keeps checkpoints, or starts from one.
    """
    checkpoints = settings.checkpoints
    is_needed = bool(settings.recovery_path) or (
        checkpoints is not None
        and (
            checkpoints.is_retained_on_failure
            or checkpoints.is_retained_on_cancellation
            or bool(checkpoints.savepoint_directory)
        )
    )
    try:
        return load_or_create_secret() if is_needed or checkpoints is not None else None
    except ConfigError as error:
        if is_needed:
            raise
        _log.warning("a savepoint of this job could be read by no other cluster", reason=str(error))
        return None


def operator_of(node: StreamNode, *, is_batch: bool) -> StreamOperator:
    """Make the operator by the factory of a transformation.

    Raises:
        JobGraphError: see ``translate``; or there is no such factory, or it takes other arguments.
    """
    step = node.transformation
    values: dict[GraphValue, Any] = {
        GraphValue.IS_BATCH: is_batch,
        GraphValue.IS_STREAMING: not is_batch,
        GraphValue.STEP_NAME: step.name,
        GraphValue.PARALLELISM: step.parallelism,
    }
    if isinstance(step, SourceTransformation):
        values[GraphValue.SOURCE] = step.source
    operator: StreamOperator = _made(step.factory, node.name, values, name=node.name)
    return operator


def _made(factory: OperatorFactory, operator: str, values: Mapping[GraphValue, Any], **arguments: Any) -> Any:
    """Make the object that a factory describes; ``operator``: the name, for errors."""
    module, _, name = factory.target.partition(":")
    try:
        make = getattr(importlib.import_module(module), name)
    except (AttributeError, ImportError, ValueError) as error:
        raise JobGraphError(
            f"operator {operator!r}: its factory {factory.target!r} cannot be loaded: {error}"
        ) from error
    for argument, value in factory.arguments.items():
        match value:
            case OperatorFactory():
                arguments[argument] = _made(value, operator, values)
            case GraphValue():
                arguments[argument] = values[value]
            case _:
                arguments[argument] = value
    try:
        return make(**arguments)
    except TypeError:
        _check_arguments(make, arguments, f"operator {operator!r}: its factory {factory.target!r}")
        raise


def _check_arguments(make: Any, arguments: Mapping[str, Any], what: str) -> None:
    import inspect  # only a factory that failed needs it

    try:
        inspect.signature(make).bind(**arguments)
    except TypeError as error:
        raise JobGraphError(f"{what} takes other arguments than {', '.join(sorted(arguments))}: {error}") from error


def sink_operator(sink: Sink, type_info: TypeInformation, *, name: str) -> StreamOperator:
    """Make the operator that writes records of a declared type into a sink.

    Raises:
        JobGraphError: nothing can run it.
    """
    if isinstance(sink, DiscardingSink):
        return DiscardSink(name=name)
    if is_instance_of_late(sink, "flowlet.connectors.files.api", "FileSink"):
        from flowlet.connectors.files.sink import RunningFileSink

        return SinkOperator(RunningFileSink(sink, type_info), name=name)  # type: ignore[arg-type]  # a FileSink
    if type(sink).create_writer is Sink.create_writer:
        known = "DiscardingSink(), a FileSink, a sink with create_writer() or print()"
        raise JobGraphError(f"operator {name!r}: a {type(sink).__name__} cannot be run; use {known}")
    return SinkOperator(sink, name=name)


def _identified(node: StreamNode, stream_graph: StreamGraph) -> StreamOperator:
    """Make the operator of a node, with the settings of the whole job."""
    operator = operator_of(node, is_batch=stream_graph.is_batch)
    operator.operator_id = bytes.fromhex(node.hash)
    operator.uid = node.transformation.uid or ""
    operator.sorted_inputs = _sorted_inputs(node, stream_graph)
    if node.transformation.inputs_read_last and stream_graph.exchanges_are_blocking:
        # With pipelined exchanges a producer of both inputs would wait for ever.
        operator.inputs_read_last = node.transformation.inputs_read_last
    operator.declared_outputs = declared_outputs_of(node, stream_graph)
    if isinstance(operator, SourceOperator):
        operator.latency_tracking_interval_ms = stream_graph.settings.environment.latency_tracking_interval_ms
    checkpoints = stream_graph.settings.job.checkpoints
    if (
        isinstance(operator, SinkOperator)
        and operator.commits
        and checkpoints is not None
        and checkpoints.is_periodic
        and not checkpoints.after_tasks_finish
    ):
        raise JobGraphError(
            f"operator {operator.name!r} commits its last records with the checkpoint at the end of its task: set "
            f"{AFTER_TASKS_FINISH} to true"
        )
    if isinstance(operator, TimestampsAndWatermarksOperator | SourceOperator):
        operator.auto_watermark_interval_ms = stream_graph.settings.environment.auto_watermark_interval_ms
    return operator


def _sorted_inputs(node: StreamNode, stream_graph: StreamGraph) -> tuple[Any, ...]:
    """Return, in BATCH mode, the key selector of each input that is sorted by it, or None; empty if none is."""
    batch = stream_graph.settings.job.batch
    edges = stream_graph.inputs_of(node.id)
    if not stream_graph.is_batch or batch is None or not batch.sorts_inputs or not edges:
        return ()
    selectors: list[Any] = [None] * max(edge.input_id for edge in edges)
    for edge in edges:
        if isinstance(edge.partitioner, KeyGroups):
            selector = edge.partitioner.key_selector
            # Inputs with keys of a function and of a column meet: both are sorted by the value.
            selectors[edge.input_id - 1] = ColumnValue(selector.name) if isinstance(selector, ColumnKey) else selector
    return tuple(selectors) if any(each is not None for each in selectors) else ()


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
    """Return the outputs of an operator whose records are converted, by side output; None is the main one."""
    step = node.transformation
    outputs = graph.outputs_of(node.id)
    found: dict[str | None, TypeInformation] = {}
    # A source gives records of its declared type; what a user's function emits is not sure to be.
    comes_typed = isinstance(step, SourceTransformation) and not isinstance(step.source, SourceFunction)
    is_passed_on = step.passes_records_on and not any(is_fused(edge, graph) for edge in graph.inputs_of(node.id))
    if not comes_typed and not is_passed_on:
        found[None] = step.output_type
    found |= {edge.tag: edge.side_type for edge in outputs if edge.tag is not None and edge.side_type is not None}
    collected = {edge.tag for edge in outputs if edge.target is None}
    return {
        tag: DeclaredOutput(type_info, is_collected=tag in collected)
        for tag, type_info in found.items()
        if not isinstance(type_info, PickledBytesTypeInfo | ArrowTypeInfo)
    }


def routed_at_producers(graph: StreamGraph) -> StreamGraph:
    """Return the graph with the edges behind its gates as the rules above want them."""
    for node in list(graph.nodes.values()):
        key_groups = _key_groups_behind(graph, node)
        if key_groups is not None:
            graph = _routed(graph, node, key_groups)
    return graph


def _key_groups_behind(graph: StreamGraph, node: StreamNode) -> KeyGroups | None:
    """Return the key groups by which producers can route for all readers of this gate; None: there are none."""
    step, edges = node.transformation, graph.outputs_of(node.id)
    if not isinstance(step, SourceTransformation) or not isinstance(step.source, RemoteGate) or not edges:
        return None
    if isinstance(step.source.type_info, ArrowTypeInfo):
        return None  # a producer has messages in hand, not the batches that a selector wants
    first = edges[0].partitioner
    if not isinstance(first, KeyGroups):
        return None
    if has_life_cycle(first.key_selector):
        return None  # nobody opens it at a producer
    shapes = set()
    for edge in edges:
        # Identity, not equality: two selectors that look alike may differ in what they close over.
        if (
            edge.target is None
            or not isinstance(edge.partitioner, KeyGroups)
            or edge.partitioner.key_selector is not first.key_selector
        ):
            return None
        target = graph.nodes[edge.target]
        shapes.add((target.parallelism, target.max_parallelism, target.slot_sharing_group))
    return first if len(shapes) == 1 else None


def _routed(graph: StreamGraph, node: StreamNode, key_groups: KeyGroups) -> StreamGraph:
    edges = graph.outputs_of(node.id)
    assert edges[0].target is not None, "keyed edges end at operators"
    target = graph.nodes[edges[0].target]
    step = node.transformation
    assert isinstance(step, SourceTransformation), "a gate is a source"
    gate = replace(
        node,
        parallelism=target.parallelism,
        max_parallelism=target.max_parallelism,
        transformation=replace(
            step, source=replace(step.source, key_groups=key_groups), parallelism=target.parallelism
        ),
    )
    forward: list[StreamEdge] = [
        replace(edge, partitioner=Forward()) if edge in edges else edge for edge in graph.edges
    ]
    return replace(graph, nodes={**graph.nodes, node.id: gate}, edges=forward)


def warn_of_sources_without_position(stream_graph: StreamGraph) -> None:
    """Log a warning per source of a job with checkpoints that keeps no position."""
    if stream_graph.settings.job.checkpoints is None:
        return
    for name, consequence in sources_without_position(stream_graph):
        _log.warning(
            "a source has no position in checkpoints", job=stream_graph.name, source=name, consequence=consequence
        )


def sources_without_position(stream_graph: StreamGraph) -> Iterator[tuple[str, str]]:
    """Give name and consequence of each source without a position; not of a user's own ``Source``, whose readers are
    made in the tasks and warn there.
    """
    for node in stream_graph.nodes.values():
        step = node.transformation
        if not isinstance(step, SourceTransformation):
            continue
        match step.source:
            case RemoteGate() if not stream_graph.settings.job.acknowledges_checkpointed:
                yield node.name, _PUSHED
            case SourceFunction() as function if not can_be_replayed(function) and not isinstance(
                function, CheckpointedFunction
            ):
                yield node.name, _BEGINS_ANEW
            case _:
                pass
