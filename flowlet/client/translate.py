"""From a program to a running job: stream graph -> operators -> job graph -> executor.

Side:   shared.  The only module that knows both what users write (transformations, connectors) and what runs
        (operators); the DataStream API loads it by name when a job starts.
Source: Flink ``StreamingJobGraphGenerator``, the transformation translators, ``PipelineExecutor``.
"""

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.client.embedded import Sharing
from flowlet.client.executor import EmbeddedTarget, RemoteTarget, Target, execute
from flowlet.client.running_job import RunningJob
from flowlet.client.translation.declared_outputs import declared_outputs_of, is_fused
from flowlet.client.translation.gate_routing import routed_at_producers
from flowlet.client.translation.source_positions import warn_of_sources_without_position
from flowlet.common.job_client import SubmittedJob
from flowlet.common.job_settings import AFTER_TASKS_FINISH
from flowlet.common.options.python_options import DependencySettings
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.connectors.blocking_source import BlockingSource
from flowlet.connectors.sinks import DiscardSink, PrintSink
from flowlet.datastream.connectors.base import BuiltInSource, DiscardingSink, Sink
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.datastream.user_functions.source_function import SourceFunction
from flowlet.errors import JobGraphError
from flowlet.graph.chaining import build_job_graph
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.partitioner import KeyGroups
from flowlet.graph.stream_graph import StreamEdge, StreamGraph, StreamNode
from flowlet.graph.transformation import (
    ArrowSourceTransformation,
    AsyncWaitTransformation,
    BroadcastProcessTransformation,
    CoFlatMapTransformation,
    CollectionSourceTransformation,
    CoMapTransformation,
    CoProcessTransformation,
    CountTransformation,
    FilterTransformation,
    FlatMapTransformation,
    GlobalCommitTransformation,
    IntervalJoinTransformation,
    JoinColumnsTransformation,
    LocalWindowColumnsTransformation,
    MapBatchesTransformation,
    MapTransformation,
    OperatorTransformation,
    PrintTransformation,
    ProcessTransformation,
    ReduceTransformation,
    SelectColumnsTransformation,
    SinkFunctionTransformation,
    SinkTransformation,
    SourceTransformation,
    SplitTransformation,
    SumTransformation,
    TimestampsAndWatermarksTransformation,
    ToColumnsTransformation,
    ToRecordsTransformation,
    TwoInputTransformation,
    WindowColumnsTransformation,
    WindowTransformation,
)
from flowlet.keys.column_key import ColumnKey, ColumnValue
from flowlet.operators.co_functions import BroadcastProcessOperator, CoFlatMapOperator, CoMapOperator, SplitOperator
from flowlet.operators.process_operator import CoProcessOperator, ProcessOperator
from flowlet.operators.record_operators import FilterOperator, FlatMapOperator, MapOperator
from flowlet.operators.source_operator import CollectionSource, Source, SourceOperator
from flowlet.operators.timestamps_and_watermarks_operator import TimestampsAndWatermarksOperator
from flowlet.sinks.function_sink import FunctionSink
from flowlet.sinks.global_commit_operator import GlobalCommitOperator
from flowlet.sinks.sink_operator import SinkOperator
from flowlet.typed.value_conversion import changes_values
from netstack.late import is_instance_of_late


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
                "start them with that "
                "Python, and leave it out"
            )
        target = RemoteTarget(*address, retry=job_graph.client_retry)
    job = execute(job_graph, target, dependencies, keep)
    warn_of_sources_without_position(stream_graph)
    edges = tuple(edge.id for edge in job_graph.external_edges())
    return SubmittedJob(job, edges, runs_in_stages=stream_graph.exchanges_are_blocking)


def translate(stream_graph: StreamGraph) -> JobGraph:
    """The job graph of a program, with operators that can be pickled.

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
    """A BATCH job with a remote gate runs in one stage: whoever writes into the gate waits until the rows were
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
    """A cluster as wide as the widest vertex; in this process for parallelism 1, too, unless the job's files need
    processes of its own.

    Raises:
        JobGraphError: they do, and ``in_process`` is wanted.
    """
    dependencies = dependencies or DependencySettings()
    needs_process = dependencies.needs_own_process
    if in_process and needs_process is not None:
        raise JobGraphError(f"{needs_process} needs TaskManagers that are processes of their own: unset FLOWLET_LOCAL")
    parallelism = max(vertex.parallelism for vertex in job_graph.vertices)
    checkpoints = job_graph.settings.checkpoints
    # Checkpoints that stay, and savepoints, which any job with checkpoints may take, are for other clusters of this
    # user.
    is_kept = checkpoints is not None and (
        checkpoints.is_retained_on_failure
        or checkpoints.is_retained_on_cancellation
        or bool(checkpoints.savepoint_directory)
    )
    shares = Sharing.NONE if checkpoints is None else Sharing.WANTED
    if is_kept or job_graph.settings.recovery_path:
        shares = Sharing.NEEDED
    stays_in_process = in_process or (parallelism == 1 and needs_process is None)
    return EmbeddedTarget(
        parallelism, in_process=stays_in_process, shares_checkpoints=shares, python=dependencies.executable
    )


def operator_of(node: StreamNode, *, is_batch: bool) -> StreamOperator:
    """The operator that does what a transformation says.

    Raises:
        JobGraphError: see ``translate``.
    """
    step = node.transformation
    match step:
        case SourceTransformation():
            return _source_of(step, node.name, is_batch=is_batch)
        case MapTransformation():
            return MapOperator(step.function, step.key_selector, name=node.name)
        case FlatMapTransformation():
            return FlatMapOperator(step.function, step.key_selector, name=node.name)
        case FilterTransformation():
            return FilterOperator(step.function, step.key_selector, name=node.name)
        case AsyncWaitTransformation():
            from flowlet.async_io.async_wait_operator import AsyncWaitOperator  # here and below, as most jobs have none

            return AsyncWaitOperator(
                step.function,
                timeout_ms=step.timeout_ms,
                capacity=step.capacity,
                is_ordered=step.is_ordered,
                retry_strategy=step.retry_strategy,
                name=node.name,
            )
        case ReduceTransformation() | SumTransformation() | CountTransformation():
            return _aggregation_of(step, node.name, is_batch=is_batch)
        case MapBatchesTransformation() | ToColumnsTransformation() | ToRecordsTransformation():
            return _column_operator(step, node.name)
        case (
            SelectColumnsTransformation()
            | LocalWindowColumnsTransformation()
            | WindowColumnsTransformation()
            | JoinColumnsTransformation()
        ):
            columns = importlib.import_module("flowlet.client.translation.translate_columns")
            return columns.operator_on_columns(step, node.name, is_batch=is_batch)  # type: ignore[no-any-return]  # it is loaded by name
        case ProcessTransformation():
            return ProcessOperator(step.function, step.key_selector, is_batch=is_batch, name=node.name)
        case WindowTransformation():
            from flowlet.windows.window_operator import WindowOperator

            return WindowOperator(step.spec, step.key_selector, is_batch=is_batch, name=node.name)
        case CoMapTransformation():
            return CoMapOperator(step.function, _key_selectors(step), name=node.name)
        case CoFlatMapTransformation():
            return CoFlatMapOperator(step.function, _key_selectors(step), name=node.name)
        case CoProcessTransformation():
            return CoProcessOperator(step.function, _key_selectors(step), is_batch=is_batch, name=node.name)
        case BroadcastProcessTransformation():
            return BroadcastProcessOperator(
                step.function, step.descriptors, step.key_selector, is_batch=is_batch, name=node.name
            )
        case IntervalJoinTransformation():
            return _interval_join_of(step, node.name, is_batch=is_batch)
        case SplitTransformation():
            return SplitOperator(step.function, step.selections, name=node.name)
        case TimestampsAndWatermarksTransformation():
            return TimestampsAndWatermarksOperator(step.strategy, emits_watermarks=not is_batch, name=node.name)
        case OperatorTransformation():
            operator: StreamOperator = step.make_operator(node.name)
            return operator
        case PrintTransformation() | SinkTransformation():
            return _sink_of(step, node.name)
        case GlobalCommitTransformation():
            return GlobalCommitOperator(step.sink, name=node.name)
        case SinkFunctionTransformation():
            return FunctionSink(step.function, name=node.name)
        case _:
            raise JobGraphError(f"operator {node.name!r}: no operator is known for a {type(step).__name__}")


def _aggregation_of(
    step: ReduceTransformation | SumTransformation | CountTransformation, name: str, *, is_batch: bool
) -> StreamOperator:
    """Keyed aggregations give running results, or final ones in BATCH mode."""
    emitted = {"emit_on_finish": is_batch, "emits_batches": step.emits_batches and not is_batch}
    match step:
        case ReduceTransformation():
            from flowlet.operators.keyed_reduce_operator import KeyedReduceOperator

            reduce = KeyedReduceOperator(step.key_selector, step.function, name=name, **emitted)
            # As in PyFlink the result so far is kept in its declared type: the function sees its names, for example.
            reduce.result_type = step.output_type if changes_values(step.output_type) and not step.is_declared else None
            return reduce
        case SumTransformation():
            from flowlet.operators.keyed_sum_operator import KeyedSumOperator

            return KeyedSumOperator(step.key_selector, step.position, name=name, **emitted)
        case CountTransformation():
            from flowlet.operators.keyed_count_operator import KeyedCountOperator

            return KeyedCountOperator(step.key_selector, field_names=step.field_names, name=name, **emitted)


def _sink_of(step: PrintTransformation | SinkTransformation, name: str) -> StreamOperator:
    match step:
        case PrintTransformation():
            return PrintSink(step.identifier, step.output_type, name=name)
        case SinkTransformation(sink=DiscardingSink()):
            return DiscardSink(name=name)
        case SinkTransformation() if is_instance_of_late(
            step.sink, "flowlet.datastream.connectors.file_sink", "FileSink"
        ):
            from flowlet.connectors.files.file_sink_writer import RunningFileSink

            return SinkOperator(RunningFileSink(step.sink, step.output_type), name=name)
        case _:
            if type(step.sink).create_writer is not Sink.create_writer:
                return SinkOperator(step.sink, name=name)
            known = "DiscardingSink(), a FileSink, a sink with create_writer() or print()"
            raise JobGraphError(f"operator {name!r}: a {type(step.sink).__name__} cannot be run; use {known}")


def _column_operator(
    step: MapBatchesTransformation | ToColumnsTransformation | ToRecordsTransformation, name: str
) -> StreamOperator:
    # Only jobs with columns need pyarrow, whose import takes longer than all of ours.
    from flowlet.operators.record_batches import MapBatchesOperator, ToColumnsOperator, ToRecordsOperator

    match step:
        case MapBatchesTransformation():
            return MapBatchesOperator(step.function, step.schema, step.output_schema, name=name)
        case ToColumnsTransformation():
            return ToColumnsOperator(step.schema, name=name)
        case _:
            return ToRecordsOperator(name=name)


def _identified(node: StreamNode, stream_graph: StreamGraph) -> StreamOperator:
    """The operator of a node with what the whole job says about it."""
    operator = operator_of(node, is_batch=stream_graph.is_batch)
    operator.operator_id = bytes.fromhex(node.hash)
    operator.uid = node.transformation.uid or ""
    operator.sorted_inputs = _sorted_inputs(node, stream_graph)
    if isinstance(node.transformation, BroadcastProcessTransformation) and stream_graph.exchanges_are_blocking:
        operator.inputs_read_last = (0,)  # with pipelined exchanges a producer of both inputs would wait for ever
    operator.declared_outputs = declared_outputs_of(node, stream_graph)
    if isinstance(operator, SourceOperator):
        operator.latency_tracking_interval_ms = stream_graph.settings.latency_tracking_interval_ms
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
        operator.auto_watermark_interval_ms = stream_graph.settings.auto_watermark_interval_ms
    return operator


def _sorted_inputs(node: StreamNode, stream_graph: StreamGraph) -> tuple[Any, ...]:
    """In BATCH mode, the key selector of each input that is sorted by it, or None; empty if none is."""
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


def _key_selectors(step: TwoInputTransformation) -> tuple[Any, Any] | None:
    """Those of both inputs; None where one is not keyed: the function sees no keys then."""
    selectors = (step.key_selector, step.second_key_selector)
    return None if None in selectors else selectors


def _interval_join_of(step: IntervalJoinTransformation, name: str, *, is_batch: bool) -> StreamOperator:
    from flowlet.joins.interval_join_operator import IntervalJoinOperator

    selectors = _key_selectors(step)
    assert selectors is not None, "the streams of an interval join are keyed"
    return IntervalJoinOperator(
        step.function, selectors, step.bounds, late_tags=step.late_tags, is_batch=is_batch, name=name
    )


def _source_of(step: SourceTransformation, name: str, *, is_batch: bool) -> SourceOperator:
    return SourceOperator(_reading(step), strategy=_needed(step), emits_watermarks=not is_batch, name=name)


def _reading(step: SourceTransformation) -> Source:
    if isinstance(step, CollectionSourceTransformation):
        return CollectionSource(step.source)
    if isinstance(step, ArrowSourceTransformation):
        from flowlet.connectors.arrow_table_source import ArrowTableSource  # see above
        from flowlet.operators.record_batches import ArrowSource

        return ArrowSource(step.source, step.schema) if callable(step.source) else ArrowTableSource(step.source)
    if isinstance(step.source, BuiltInSource):
        from flowlet.client.translation.built_in_sources import runtime_source

        return runtime_source(step.source, step.name, step.parallelism)
    if isinstance(step.source, RemoteGate):
        from flowlet.connectors.remote_gate_source import RemoteGateSource
        from flowlet.ingest.event_time import EventTimeColumn

        gate = step.source
        event_time = None if gate.event_time is None else EventTimeColumn(gate.event_time, gate.event_time_position)
        return RemoteGateSource(gate.name, gate.type_info, gate.producers, gate.key_groups, event_time)
    if isinstance(step.source, SourceFunction):
        return BlockingSource(step.source)
    source: Source = step.source
    return source


def _needed(step: SourceTransformation) -> WatermarkStrategy | None:
    """None for a strategy that leaves everything as the source gives it; lines of text have no timestamps to follow."""
    strategy = step.strategy
    if strategy is None or strategy.is_refined:
        return strategy
    has_lines = is_instance_of_late(step.source, "flowlet.datastream.connectors.file_system", "FileSource")
    return strategy if strategy.reads_timestamps and not has_lines else None
