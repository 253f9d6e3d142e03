"""The REST documents of a job, in Flink's field names where Flink has the field; and what a job waits for, in words.

Side:   pure.
Units:  times in milliseconds since the epoch, -1 for "not yet" as in Flink; durations in milliseconds.
Source: Flink ``JobDetailsInfo``, ``JobDetails``, ``ExecutionJobVertex.getAggregateJobVertexState``,
        ``JobExceptionsInfoWithHistory``.
Ours:   ``subtasks`` of a vertex, with ``attempt-number``, ``metrics-of-all-attempts``, ``watermark-lag`` and ``stuck``;
        ``gates``, ``mark-waits-for``, ``failure``, ``cancel-reason``, ``numRestarts``, ``restarts``,
        ``retained-checkpoint``, ``restart-strategy`` and ``why-no-restart`` of a job; ``stuck-tasks`` of an overview.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from flowlet.graph.execution_graph import Execution, ExecutionGraph
from flowlet.graph.restart_backoff_strategy import FailedRun
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import InputChannelDescriptor, JobGraphMessage, VertexMessage
from flowlet.records import MAX_TIMESTAMP, MIN_TIMESTAMP

if TYPE_CHECKING:
    from flowlet.jm.job_master import JobMaster

Document = dict[str, object]
_NO_METRICS: Final = messages.TaskMetrics()
_MAX_RESTARTS: Final = 10  # of a document, which is asked for every second
_MAX_CAUSE_CHARS: Final = 300
# Counts of a task from its start on, which add up over its attempts.
_COUNTERS: Final = (
    "num_records_in",
    "num_records_out",
    "num_bytes_in_local",
    "num_bytes_in_remote",
    "num_bytes_out",
    "accumulated_busy_ms",
    "accumulated_idle_ms",
    "accumulated_back_pressured_ms",
)
# A vertex is in the first of these states that any of its subtasks is in.  FINISHED is not here: all subtasks must have
# finished.
_PRECEDENCE: Final = (
    ExecutionState.FAILED,
    ExecutionState.CANCELING,
    ExecutionState.CANCELED,
    ExecutionState.INITIALIZING,
    ExecutionState.RUNNING,
)
_BEFORE: Final = (ExecutionState.DEPLOYING, ExecutionState.SCHEDULED, ExecutionState.CREATED)
_NOTHING: Final = Counter[str]()


def job_document(master: "JobMaster", now_ms: int) -> Document:
    """Make the document of ``GET /jobs/:jobid``."""
    graph = master.graph
    return {
        "jid": master.job.job_id,
        "name": master.job.name,
        "state": graph.status.name,
        **_times_of(graph, now_ms),
        "now": now_ms,
        "isStoppable": False,
        "maxParallelism": max(vertex.max_parallelism for vertex in master.job.vertices),
        "timestamps": {status.name: time_ms for status, time_ms in graph.timestamps.items()},
        "status-counts": _state_counts(graph.executions.values()),
        "vertices": [_vertex_document(master, vertex, now_ms) for vertex in master.job.vertices],
        "plan": _plan(master.job),
        "gates": master.gates.documents(),
        "mark-waits-for": mark_waits_for(master),
        "failure": msgspec.to_builtins(graph.failure),
        "cancel-reason": graph.cancel_reason,
        "retained-checkpoint": master.checkpoints.retained_path(graph.status),
        "numRestarts": graph.attempt_number,
        # The newest first: a job that restarts for weeks would make the document ever longer.
        "restarts": [_restart_document(master, run) for run in list(reversed(graph.restarted_runs))[:_MAX_RESTARTS]],
        "restart-strategy": str(graph.strategy),
        "why-no-restart": graph.why_no_restart,
    }


def exceptions_document(master: "JobMaster", max_exceptions: int) -> Document:
    """Make the document of ``GET /jobs/:jobid/exceptions``: why the last runs failed, the newest first."""
    runs = list(reversed(master.graph.failed_runs))[:max_exceptions]
    entries = [
        {
            **_exception_document(master, run.root),
            "concurrentExceptions": [_exception_document(master, each) for each in run.concurrent],
        }
        for run in runs
    ]
    return {"exceptionHistory": {"entries": entries, "truncated": len(runs) < master.graph.num_failed_runs}}


def counters_of(metrics: messages.TaskMetrics) -> Counter[str]:
    """Return the counters that add up over a subtask's attempts: records, bytes, busy times and the other times."""
    return Counter({name: getattr(metrics, name) for name in _COUNTERS})


def _restart_document(master: "JobMaster", run: FailedRun) -> Document:
    failure = run.root
    cause = " ".join(f"{failure.exception_type}: {failure.message}".split()).removesuffix(":")
    return {
        "failed": failure.timestamp_ms,
        "restarted": -1 if run.restarted_ms is None else run.restarted_ms,
        "task": _task_of(master, failure) or None,
        "taskManagerId": failure.tm_id or None,
        "cause": cause if len(cause) <= _MAX_CAUSE_CHARS else f"{cause[: _MAX_CAUSE_CHARS - 3]}...",
    }


def _task_of(master: "JobMaster", failure: messages.FailureInfo) -> str:
    # By name, which is all that a failure says of its vertex.
    parallelism = next((vertex.parallelism for vertex in master.job.vertices if vertex.name == failure.task_name), 0)
    return f"{failure.task_name} ({failure.subtask + 1}/{parallelism})" if failure.subtask >= 0 else failure.task_name


def _exception_document(master: "JobMaster", failure: messages.FailureInfo) -> Document:
    return {
        "exceptionName": failure.exception_type,
        "stacktrace": failure.traceback or f"{failure.exception_type}: {failure.message}",
        "timestamp": failure.timestamp_ms,
        "failureLabels": {},
        "taskName": _task_of(master, failure) or None,
        "endpoint": None,
        "taskManagerId": failure.tm_id or None,
    }


def job_overview_item(master: "JobMaster", now_ms: int) -> Document:
    """Make one item of ``GET /jobs/overview``."""
    graph = master.graph
    counts = {state.lower(): count for state, count in _state_counts(graph.executions.values()).items()}
    return {
        "jid": master.job.job_id,
        "name": master.job.name,
        "state": graph.status.name,
        **_times_of(graph, now_ms),
        "last-modification": max(graph.timestamps.values()),
        "tasks": {"total": len(graph.executions), **counts},
        "stuck-tasks": len(master.stuck),
    }


def vertex_metrics_document(
    document: Mapping[str, Any], vertex_id: str, wanted: Sequence[str]
) -> list[Document] | None:
    """Make the answer to ``GET /jobs/:jobid/vertices/:vertexid/metrics`` from the job's document.

    A name is ``subtask.operator.metric``, as Flink's; some metrics of users have further names with a part behind it
    (``.rate`` of a meter; ``.sum``, ``.min`` and ``.max`` of a distribution).  Of several operators of one name in a
    chain the second is ``operator#2``, and so on.  ``wanted``: the names to answer; empty: all.  None: there is no such
    vertex.
    """
    vertex = next((each for each in document["vertices"] if each["id"] == vertex_id), None)
    if vertex is None:
        return None
    values = {name: value for subtask in vertex["subtasks"] for name, value in _subtask_metrics(subtask)}
    return [{"id": name, "value": value} for name, value in values.items() if not wanted or name in wanted]


# Records that an operator drops on purpose, by reason: fields of ``OperatorMetrics``, and their names over REST,
# which are in Flink's style.
_DROPPED: Final = {
    "num_late_records_dropped": "numLateRecordsDropped",
    "num_unassigned_records_dropped": "numUnassignedRecordsDropped",
    "num_null_records_dropped": "numNullRecordsDropped",
    "num_unparsable_records_dropped": "numUnparsableRecordsDropped",
    "num_schema_records_dropped": "numSchemaRecordsDropped",
    "num_unparsable_fields_nulled": "numUnparsableFieldsNulled",
    "num_lost_committables": "numLostCommittables",
}


def _subtask_metrics(subtask: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    seen = Counter[str]()
    for operator in subtask["metrics"]["operators"]:
        name = operator["name"]
        # Counted in the order of the chain, so that a number means one operator in every document.
        seen[name] += 1
        scope = f"{subtask['subtask']}.{name}" if seen[name] == 1 else f"{subtask['subtask']}.{name}#{seen[name]}"
        yield f"{scope}.numRecordsIn", operator["num_records_in"]
        yield f"{scope}.numRecordsOut", operator["num_records_out"]
        for name, shown in _DROPPED.items():
            # 0: the document of a job that ended at an earlier JobManager may lack the field.
            yield f"{scope}.{shown}", operator.get(name, 0)
        for metric in operator.get("user_metrics", ()):
            yield f"{scope}.{metric['name']}", metric.get("value")
            # By what is there: each kind of metric has parts of its own.
            for part in ("rate", "sum", "min", "max"):
                if part in metric:
                    yield f"{scope}.{metric['name']}.{part}", metric[part]


def channel_document(channel: InputChannelDescriptor) -> Document:
    """Describe one channel that the client reads; ids in hex."""
    document: Document = msgspec.to_builtins(channel)
    return document | {"partition": channel.partition.hex(), "producer": channel.producer.hex()}


def vertex_status(states: Sequence[ExecutionState]) -> ExecutionState:
    """Derive the state of a vertex from the states of its subtasks."""
    for state in _PRECEDENCE:
        if state in states:
            return state
    # Some have finished, others not yet begun: the vertex is under way.
    if ExecutionState.FINISHED in states:
        return ExecutionState.FINISHED if set(states) == {ExecutionState.FINISHED} else ExecutionState.RUNNING
    # The furthest one first: the vertex has got so far.
    return next(state for state in _BEFORE if state in states)


def _vertex_document(master: "JobMaster", vertex: VertexMessage, now_ms: int) -> Document:
    executions = master.graph.executions_of(vertex.id)
    # Of the newest attempts alone: what ran before a restart is not this run.
    starts = [execution.start_ms for execution in executions if execution.start_ms is not None]
    ends = [execution.end_ms for execution in executions if execution.end_ms is not None]
    # The end of the last subtask, not of any: a vertex runs as long as one of them does.
    is_over = len(ends) == len(executions)
    return {
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "status": vertex_status([execution.state for execution in executions]).value,
        **_times(min(starts) if starts else -1, max(ends) if is_over else -1, now_ms),
        "tasks": _state_counts(executions),
        "metrics": _vertex_metrics(
            [master.metrics.get(execution.attempt, _NO_METRICS) for execution in executions], is_over=is_over
        ),
        "operators": vertex.operator_names,
        "subtasks": [_subtask_document(master, execution, now_ms) for execution in executions],
    }


def _subtask_document(master: "JobMaster", execution: Execution, now_ms: int) -> Document:
    location, stuck = master.locations.get(execution.attempt), master.stuck.get(execution.attempt)
    start_ms = -1 if execution.start_ms is None else execution.start_ms
    metrics = master.metrics.get(execution.attempt, _NO_METRICS)
    # A restart must not let a count fall: rates are computed from it.
    all_attempts = {
        name: getattr(metrics, name) + master.former.get(execution.key, _NOTHING)[name] for name in _COUNTERS
    }
    return {
        "subtask": execution.subtask,
        "state": execution.state.value,
        "host": None if location is None else location.data_host,
        "tm_id": None if location is None else location.tm_id,
        "attempt": execution.attempt.hex(),
        "attempt-number": execution.attempt_number,
        **_times(start_ms, -1 if execution.end_ms is None else execution.end_ms, now_ms),
        "metrics": msgspec.to_builtins(metrics),
        "metrics-of-all-attempts": all_attempts,
        "watermark-lag": _watermark_lag_ms(metrics, now_ms),
        "failure": msgspec.to_builtins(execution.failure),
        "stuck": None
        if stuck is None
        else {"waited-ms": stuck.waited_ms, "operator": stuck.operator, "stack": stuck.stack},
    }


def _watermark_lag_ms(metrics: messages.TaskMetrics, now_ms: int) -> int | None:
    """Return how far the task's watermark is behind the clock; None before the first watermark and after
    ``MAX_WATERMARK``.
    """
    # The operator that is furthest behind.
    watermark = min((operator.current_output_watermark for operator in metrics.operators), default=MIN_TIMESTAMP)
    return None if watermark in (MIN_TIMESTAMP, MAX_TIMESTAMP) else now_ms - watermark


def _vertex_metrics(metrics: Sequence[messages.TaskMetrics], *, is_over: bool) -> Document:
    values = {
        "read-bytes": sum(each.num_bytes_in_local + each.num_bytes_in_remote for each in metrics),
        "write-bytes": sum(each.num_bytes_out for each in metrics),
        "read-records": sum(each.num_records_in for each in metrics),
        "write-records": sum(each.num_records_out for each in metrics),
    }
    return {
        **values,
        **{f"{name}-complete": is_over for name in values},
        "accumulated-backpressured-time": sum(each.accumulated_back_pressured_ms for each in metrics),
        "accumulated-idle-time": sum(each.accumulated_idle_ms for each in metrics),
        "accumulated-busy-time": sum(each.accumulated_busy_ms for each in metrics),
    }


def _plan(job: JobGraphMessage) -> Document:
    return {
        "jid": job.job_id,
        "name": job.name,
        "type": "STREAMING",
        "nodes": [_plan_node(job, vertex) for vertex in job.vertices],
    }


def _plan_node(job: JobGraphMessage, vertex: VertexMessage) -> Document:
    inputs = [edge for edge in job.edges if edge.target == vertex.id]
    return {
        "id": vertex.id,
        "parallelism": vertex.parallelism,
        "operator": "",
        "description": vertex.name,
        "inputs": [
            {"num": number, "id": edge.source, "ship_strategy": edge.ship_strategy, "exchange": "pipelined_bounded"}
            for number, edge in enumerate(inputs)
        ],
    }


def _state_counts(executions: Iterable[Execution]) -> dict[str, int]:
    counts = Counter(execution.state for execution in executions)
    return {state.value: counts[state] for state in ExecutionState}


def _times_of(graph: ExecutionGraph, now_ms: int) -> Document:
    end_ms = graph.timestamps[graph.status] if graph.status.is_globally_terminal_state() else -1
    # The first of all: a job that restarts enters a state anew, with a later time.
    return _times(min(graph.timestamps.values()), end_ms, now_ms)


def _times(start_ms: int, end_ms: int, now_ms: int) -> Document:
    if start_ms == -1:
        return {"start-time": -1, "end-time": end_ms, "duration": -1}
    return {"start-time": start_ms, "end-time": end_ms, "duration": (now_ms if end_ms == -1 else end_ms) - start_ms}


def mark_waits_for(master: "JobMaster") -> list[str]:
    """List the tasks that have not passed the completion mark on its way."""
    return [
        f"{master.task_name(each)} (subtask {master.graph.executions[each].subtask})"
        for each in master.gates.missing
        if each in master.graph.executions  # else it is of a run that has ended
    ]


def describe_stuck(master: "JobMaster") -> str:
    """Explain why a job still holds its slots."""
    places = [
        f"{master.task_name(attempt)!r} on {master.locations[attempt].tm_id} in\n{stuck.stack}"
        for attempt, stuck in master.stuck.items()
    ]
    state = f"job {master.job.name!r} is {master.graph.status.name}"
    return f"{state} and keeps its slots, because cancelled tasks of it do not end: {'; '.join(places)}"
