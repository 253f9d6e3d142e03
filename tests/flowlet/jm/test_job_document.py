"""Tests of ``flowlet.jm.job_document``: names, sums and times."""

import itertools
from collections.abc import Mapping

import msgspec
import pytest

from flowlet.graph.execution_graph import ExecutionGraph
from flowlet.jm.job_document import (
    Document,
    counters_of,
    job_document,
    job_overview_item,
    vertex_metrics_document,
    vertex_status,
)
from flowlet.jm.job_master import JobMaster
from flowlet.jm.scheduler import attempt_id, new_executions, next_attempt
from flowlet.messages.control_messages import OperatorMetrics, RegisterTaskManager, TaskMetrics, UserMetric
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import JobGraphMessage
from tests.flowlet.graph.events import (
    CancelRequested,
    ExecutionReported,
    RestartDue,
    SlotsAllocated,
    fixed_delay,
    handle,
)
from tests.flowlet.jm.recorder import PLACE, Recorder
from tests.flowlet.jm.scripted_task_manager import (
    COLLECT_ID,
    JOB_ID,
    SINK_ID,
    SOURCE_ID,
    edge,
    user_failure,
    word_count,
)

JOB = word_count(sinks=2)
SOURCE, SINK_0, SINK_1 = (
    attempt_id(JOB_ID, SOURCE_ID, 0),
    attempt_id(JOB_ID, SINK_ID, 0),
    attempt_id(JOB_ID, SINK_ID, 1),
)
LOCATIONS = dict.fromkeys((SOURCE, SINK_0, SINK_1), PLACE)


def shown(
    job: JobGraphMessage,
    graph: ExecutionGraph,
    metrics: Mapping[bytes, TaskMetrics] = {},
    locations: Mapping[bytes, RegisterTaskManager] = {},
) -> JobMaster:
    """Return a job of which this is known."""
    master = JobMaster(job, Recorder(), lambda: 0)
    master.graph = graph
    master.metrics |= metrics
    master.locations |= locations
    return master


def waiting() -> JobMaster:
    return shown(JOB, ExecutionGraph(new_executions(JOB), 1_000))


def running(**metrics: TaskMetrics) -> JobMaster:
    """Return a job that was deployed at 2,000."""
    by_attempt = {"source": SOURCE, "sink_0": SINK_0, "sink_1": SINK_1}
    master = shown(JOB, waiting().graph, {by_attempt[name]: value for name, value in metrics.items()}, LOCATIONS)
    handle(master.graph, SlotsAllocated(dict.fromkeys(LOCATIONS, "tm-1")), 2_000)
    return master


def report(master: JobMaster, attempt: bytes, state: ExecutionState, now_ms: int) -> None:
    failure = user_failure() if state is ExecutionState.FAILED else None
    handle(master.graph, ExecutionReported(attempt, "tm-1", state, failure), now_ms)


def part(document: object, *path: str | int) -> object:
    for step in path:
        document = document[step]  # type: ignore[index]  # documents are nested lists and dicts
    return document


def as_json(document: Document) -> Document:
    """Return the document, which comes back from JSON as it was."""
    assert msgspec.json.decode(msgspec.json.encode(document)) == document
    return document


def test_a_waiting_job_has_no_times_of_tasks() -> None:
    document = job_document(waiting(), 1_500)

    assert (document["state"], document["start-time"]) == ("CREATED", 1_000)
    assert (document["end-time"], document["duration"]) == (-1, 500)
    assert part(document, "vertices", 0, "start-time") == -1
    assert part(document, "vertices", 0, "duration") == -1
    assert part(document, "vertices", 0, "subtasks", 0, "host") is None


def test_a_running_job_runs_since_its_deployment() -> None:
    document = job_document(running(), 2_500)

    assert document["timestamps"] == {"CREATED": 1_000, "RUNNING": 2_000}
    assert part(document, "vertices", 1, "start-time") == 2_000
    assert part(document, "vertices", 1, "duration") == 500
    assert part(document, "vertices", 1, "subtasks", 1, "tm_id") == "tm-1"
    assert part(document, "vertices", 1, "subtasks", 1, "subtask") == 1


def test_a_vertex_has_ended_with_its_last_subtask() -> None:
    master = running()
    report(master, SINK_0, ExecutionState.FINISHED, 3_000)
    early = job_document(master, 3_500)
    report(master, SINK_1, ExecutionState.FINISHED, 4_000)
    late = job_document(master, 9_000)

    assert (part(early, "vertices", 1, "status"), part(early, "vertices", 1, "end-time")) == ("RUNNING", -1)
    assert (part(late, "vertices", 1, "status"), part(late, "vertices", 1, "end-time")) == ("FINISHED", 4_000)
    assert part(late, "vertices", 1, "duration") == 2_000
    assert part(late, "vertices", 1, "metrics", "read-records-complete") is True
    assert part(late, "vertices", 0, "metrics", "read-records-complete") is False


def test_metrics_are_summed_over_the_subtasks() -> None:
    one = TaskMetrics(
        1, 2, 4, 8, num_bytes_out=16, accumulated_idle_ms=32, accumulated_busy_ms=64, accumulated_back_pressured_ms=128
    )

    metrics = part(job_document(running(sink_0=one, sink_1=one), 2_500), "vertices", 1, "metrics")

    assert metrics == {
        "read-records": 2,
        "write-records": 4,
        "read-bytes": 24,
        "write-bytes": 32,
        "read-records-complete": False,
        "write-records-complete": False,
        "read-bytes-complete": False,
        "write-bytes-complete": False,
        "accumulated-idle-time": 64,
        "accumulated-busy-time": 128,
        "accumulated-backpressured-time": 256,
    }


def test_a_failed_job_shows_its_cause_and_each_tasks_own() -> None:
    master = running()
    report(master, SOURCE, ExecutionState.FAILED, 3_000)

    document = as_json(job_document(master, 3_500))

    assert document["state"] == "FAILING"
    failure = part(document, "vertices", 0, "subtasks", 0, "failure")
    assert document["failure"] == failure == msgspec.to_builtins(user_failure())
    assert part(document, "vertices", 1, "subtasks", 0, "failure") is None
    assert document["status-counts"] == {state.value: 0 for state in ExecutionState} | {"FAILED": 1, "CANCELING": 2}


def fail_and_restart(master: JobMaster, now_ms: int, message: str = "boom") -> None:
    """The source fails, the other tasks end, and 10 ms later the next attempts begin."""
    graph = master.graph
    source, *sinks = graph.executions.values()
    handle(graph, ExecutionReported(source.attempt, "tm-1", ExecutionState.FAILED, user_failure(message)), now_ms)
    for each in sinks:
        handle(graph, ExecutionReported(each.attempt, "tm-1", ExecutionState.CANCELED, None), now_ms)
    handle(graph, RestartDue([next_attempt(JOB_ID, each) for each in graph.executions.values()]), now_ms + 10)
    handle(graph, SlotsAllocated(dict.fromkeys(graph.executions, "tm-1")), now_ms + 10)


def restarting(attempts: int) -> JobMaster:
    """Return a job that may restart, deployed at 2,000."""
    graph = ExecutionGraph(new_executions(JOB), 1_000, fixed_delay(attempts, 10))
    handle(graph, SlotsAllocated(dict.fromkeys(LOCATIONS, "tm-1")), 2_000)
    return shown(JOB, graph, {}, LOCATIONS)


def test_the_last_ten_restarts_have_their_times_and_causes() -> None:
    """The newest restart comes first, each cause in one short line."""
    master = restarting(100)
    for number in range(12):
        fail_and_restart(master, 3_000 + 100 * number, f"boom\n {number}" if number < 11 else "x" * 1_000)

    document = job_document(master, 9_000)

    restarts = document["restarts"]
    assert isinstance(restarts, list)
    assert document["numRestarts"] == 12
    assert [each["restarted"] for each in restarts] == [4_110 - 100 * number for number in range(10)]
    assert restarts[1] == {
        "failed": user_failure().timestamp_ms,
        "restarted": 4_010,
        "task": "source (1/1)",
        "taskManagerId": "tm-1",
        "cause": "builtins.ValueError: boom 10",
    }
    assert (len(restarts[0]["cause"]), restarts[0]["cause"][-4:]) == (300, "x...")


def test_a_restart_that_is_due_is_not_yet_and_a_last_failure_is_none() -> None:
    master = restarting(1)
    report(master, SOURCE, ExecutionState.FAILED, 3_000)
    due = job_document(master, 3_500)
    master = restarting(1)
    fail_and_restart(master, 3_000)
    report(master, next(iter(master.graph.executions)), ExecutionState.FAILED, 4_000)
    failed = job_document(master, 4_500)

    assert (due["state"], part(due, "restarts", 0, "restarted")) == ("RESTARTING", -1)
    assert failed["state"] == "FAILING"
    assert [each["restarted"] for each in failed["restarts"]] == [3_010]  # type: ignore[attr-defined]  # as above


def test_a_restart_that_a_cancel_forestalled_is_none() -> None:
    master = restarting(1)
    report(master, SOURCE, ExecutionState.FAILED, 3_000)
    handle(master.graph, CancelRequested(), 3_500)

    assert job_document(master, 4_000)["restarts"] == []


def test_the_counters_of_all_attempts_are_beside_those_of_the_newest() -> None:
    """Records, bytes and times are counted; the metrics of a vertex are of the newest attempts, as Flink's."""
    newest = TaskMetrics(num_records_in=5, num_bytes_out=50, accumulated_busy_ms=7, num_checkpoints=3)
    master = running(sink_0=newest)
    former = {
        master.graph.executions[SINK_0].key: counters_of(
            TaskMetrics(num_records_in=100, num_bytes_out=1, num_checkpoints=9)
        )
    }

    master.former |= former
    vertex = part(job_document(master, 2_500), "vertices", 1)

    assert part(vertex, "subtasks", 0, "metrics", "num_records_in") == part(vertex, "metrics", "read-records") == 5
    assert part(vertex, "subtasks", 0, "metrics-of-all-attempts") == {
        "num_records_in": 105,
        "num_records_out": 0,
        "num_bytes_in_local": 0,
        "num_bytes_in_remote": 0,
        "num_bytes_out": 51,
        "accumulated_busy_ms": 7,
        "accumulated_idle_ms": 0,
        "accumulated_back_pressured_ms": 0,
    }
    assert part(vertex, "subtasks", 1, "metrics-of-all-attempts", "num_records_in") == 0


def test_an_ended_jobs_duration_stands_still() -> None:
    master = waiting()
    handle(master.graph, CancelRequested(), 3_000)

    document = as_json(job_overview_item(master, 9_000))

    assert (document["state"], document["end-time"]) == ("CANCELED", 3_000)
    assert (document["duration"], document["last-modification"]) == (2_000, 3_000)
    assert part(document, "tasks", "canceled") == part(document, "tasks", "total") == 3


def test_the_plan_has_the_inputs_of_each_vertex() -> None:
    """An edge that the client reads is no input of any vertex."""
    job = msgspec.structs.replace(JOB, edges=[*JOB.edges, edge("9" * 32, SOURCE_ID, SINK_ID)])
    master = shown(job, waiting().graph)

    nodes = part(job_document(master, 0), "plan", "nodes")

    assert part(nodes, 0, "inputs") == []
    assert part(nodes, 1, "inputs") == [
        {"num": number, "id": SOURCE_ID, "ship_strategy": "HASH", "exchange": "pipelined_bounded"} for number in (0, 1)
    ]
    assert COLLECT_ID in {each.id for each in job.edges}


S = ExecutionState


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([S.RUNNING, S.FAILED, S.CANCELING], S.FAILED),
        ([S.RUNNING, S.CANCELING, S.CANCELED], S.CANCELING),
        ([S.RUNNING, S.CANCELED], S.CANCELED),
        ([S.RUNNING, S.INITIALIZING], S.INITIALIZING),
        ([S.RUNNING, S.FINISHED, S.DEPLOYING], S.RUNNING),
        ([S.FINISHED, S.DEPLOYING], S.RUNNING),
        ([S.FINISHED, S.FINISHED], S.FINISHED),
        ([S.DEPLOYING, S.SCHEDULED], S.DEPLOYING),
        ([S.SCHEDULED, S.CREATED], S.SCHEDULED),
        ([S.CREATED], S.CREATED),
    ],
)
def test_the_status_of_a_vertex(states: list[ExecutionState], expected: ExecutionState) -> None:
    assert vertex_status(states) is expected


@pytest.mark.parametrize("states", list(itertools.combinations_with_replacement(ExecutionState, 3)))
def test_every_mix_of_states_has_a_status(states: tuple[ExecutionState, ...]) -> None:
    """The order of the subtasks does not matter."""
    assert len({vertex_status(list(order)) for order in itertools.permutations(states)}) == 1


def test_event_time_lags_behind_the_clock_from_the_first_watermark_to_the_last() -> None:
    def lag(*watermarks: int) -> object:
        operators = [OperatorMetrics("", "", 0, 0, 0, 0, [], watermark) for watermark in watermarks]
        document = job_document(running(source=TaskMetrics(operators=operators)), 2_500)
        return part(document, "vertices", 0, "subtasks", 0, "watermark-lag")

    assert lag(2_000, 1_900) == 600
    assert lag() is None
    assert lag(-(2**63), 1_900) is None
    assert lag(2**63 - 1) is None


def test_metrics_of_users_have_flinks_names() -> None:
    """The name is subtask, operator, groups and name; the parts of a meter or a distribution stand behind it."""
    shown = [
        UserMetric("g.hits", "counter", 3),
        UserMetric("rate", "meter", 4, rate=2.5),
        UserMetric("size", "distribution", 1, sum=7, min=7, max=7),
    ]
    sinks = TaskMetrics(operators=[OperatorMetrics("Sink", "0" * 32, 5, 0, 0, 0, [], 0, user_metrics=shown)])
    document = job_document(running(sink_1=sinks), 2_500)

    found = vertex_metrics_document(document, SINK_ID, [])
    chosen = vertex_metrics_document(document, SINK_ID, ["1.Sink.g.hits", "no such metric"])

    assert found == [
        {"id": f"1.Sink.{name}", "value": value}
        for name, value in {
            "numRecordsIn": 5,
            "numRecordsOut": 0,
            "numLateRecordsDropped": 0,
            "numUnassignedRecordsDropped": 0,
            "numNullRecordsDropped": 0,
            "numUnparsableRecordsDropped": 0,
            "numSchemaRecordsDropped": 0,
            "numUnparsableFieldsNulled": 0,
            "numLostCommittables": 0,
            "g.hits": 3,
            "rate": 4,
            "rate.rate": 2.5,
            "size": 1,
            "size.sum": 7,
            "size.min": 7,
            "size.max": 7,
        }.items()
    ]
    assert chosen == [{"id": "1.Sink.g.hits", "value": 3}]


def test_operators_of_one_name_in_a_chain_are_numbered() -> None:
    """The last operator would otherwise hide the others."""
    operators = [OperatorMetrics("Map", str(number) * 32, number, 0, 0, 0, [], 0) for number in range(3)]
    document = job_document(running(sink_1=TaskMetrics(operators=operators)), 2_500)

    found = vertex_metrics_document(document, SINK_ID, [])

    assert found is not None
    assert [each for each in found if str(each["id"]).endswith("numRecordsIn")] == [
        {"id": "1.Map.numRecordsIn", "value": 0},
        {"id": "1.Map#2.numRecordsIn", "value": 1},
        {"id": "1.Map#3.numRecordsIn", "value": 2},
    ]


def test_what_an_operator_drops_is_shown_by_reason() -> None:
    """The names are in Flink's style, and the first one is Flink's own."""
    operator = OperatorMetrics(
        "Join", "0" * 32, 9, 0, 0, 0, [], 0, num_late_records_dropped=3, num_unparsable_records_dropped=2
    )
    document = job_document(running(sink_1=TaskMetrics(operators=[operator])), 2_500)

    found = vertex_metrics_document(
        document, SINK_ID, ["1.Join.numLateRecordsDropped", "1.Join.numUnparsableRecordsDropped"]
    )

    assert found == [
        {"id": "1.Join.numLateRecordsDropped", "value": 3},
        {"id": "1.Join.numUnparsableRecordsDropped", "value": 2},
    ]


def test_there_are_no_metrics_of_an_unknown_vertex() -> None:
    document = job_document(running(), 2_500)

    assert vertex_metrics_document(document, "f" * 32, []) is None
