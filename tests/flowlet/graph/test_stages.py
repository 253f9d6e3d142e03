"""Stages of an ``ExecutionGraph``: one after the other, results kept until all readers end, lost ones made again."""

import random

import msgspec
import pytest

from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_events import Effect, RequestSlots, RestartAfter, SendMessage
from flowlet.graph.execution_graph import Execution, ExecutionGraph
from flowlet.graph.restart_backoff_strategy import RegionOrder
from flowlet.messages.control_messages import FailureInfo, ReleaseResults
from flowlet.messages.execution_state import ExecutionState
from tests.flowlet.graph.events import (
    CancelRequested,
    Event,
    ExecutionReported,
    RestartDue,
    SlotsAllocated,
    TaskManagerLost,
    failure,
    fixed_delay,
    handle,
)

WIDTH = 2
VERTICES = ("source", "middle", "sink")


def attempt_of(vertex: str, subtask: int, number: int = 0) -> bytes:
    return f"{vertex} {subtask} {number}".encode().ljust(40)


class Cluster:
    """A job of three stages, two subtasks each, on two TaskManagers; every subtask reads all of the stage before."""

    def __init__(self, *, attempts: int = 9, fails_as_one: bool = False) -> None:
        vertices = [
            Execution(attempt_of(name, subtask), name, subtask) for name in VERTICES for subtask in range(WIDTH)
        ]
        regions = [[each.key] for each in vertices]
        order = RegionOrder.of([(), (), (0, 1), (0, 1), (2, 3), (2, 3)])
        strategy = fixed_delay(attempts, 0)
        self.graph = ExecutionGraph(vertices, 0, strategy, regions, order, fails_as_one=fails_as_one)
        self.now_ms = 1
        self.lost: list[str] = []
        self.kept: set[bytes] = set()  # of attempts that have finished and were not released
        self.due: list[tuple[int, ...]] = []  # restarts to come
        self.requested = 1

    def handle(self, event: Event) -> list[Effect]:
        effects = handle(self.graph, event, self.now_ms)
        self.graph.check_invariants()
        for effect in effects:
            match effect:
                case SendMessage(message=ReleaseResults(attempt=attempt)):
                    self.kept.discard(attempt)
                case RestartAfter(regions=regions):
                    self.due.append(regions)
                case RequestSlots():
                    self.requested += 1
                case _:
                    pass
        return effects

    def deploy(self) -> list[str]:
        """Give slots to the tasks that wait; return their names."""
        self.requested = 0
        waiting = self.graph.waiting
        self.handle(SlotsAllocated({each.attempt: f"tm-{each.subtask}-{len(self.lost)}" for each in waiting}))
        return [f"{each.vertex_id} {each.subtask}" for each in waiting]

    def begin_middle(self) -> None:
        """Let the first stage run to its end, and deploy the second."""
        self.deploy()
        self.finish("source 0", "source 1")
        self.deploy()

    def report(self, name: str, state: ExecutionState, cause: FailureInfo | None = None) -> list[Effect]:
        execution = self.find(name)
        assert execution.tm_id is not None
        if state is ExecutionState.FINISHED and not name.startswith("sink"):
            self.kept.add(execution.attempt)
        return self.handle(ExecutionReported(execution.attempt, execution.tm_id, state, cause))

    def find(self, name: str) -> Execution:
        vertex, subtask = name.split()
        return self.graph.executions_of(vertex)[int(subtask)]

    def finish(self, *names: str) -> list[Effect]:
        states = ExecutionState.RUNNING, ExecutionState.FINISHED
        return [effect for name in names for state in states for effect in self.report(name, state)]

    def lose(self, tm_id: str) -> None:
        self.lost.append(tm_id)
        self.kept -= {each.attempt for each in self.graph.executions.values() if each.tm_id == tm_id}
        self.handle(TaskManagerLost(tm_id, failure("TaskManagerLost")))

    def restart(self) -> None:
        """The delays of all restarts are over."""
        due, self.due = self.due, []
        for regions in due:
            ended = self.graph.executions_in(frozenset(regions))
            counted = [(each.key, each.attempt_number + 1) for each in ended]
            self.handle(RestartDue([Execution(attempt_of(*key, count), *key, count) for key, count in counted]))


def released(effects: list[Effect]) -> list[str]:
    sent = [effect.message for effect in effects if isinstance(effect, SendMessage)]
    return [message.attempt.decode().strip() for message in sent if isinstance(message, ReleaseResults)]


def test_a_stage_waits_for_the_end_of_the_stage_before() -> None:
    """A stage asks for slots when the last task of the stage before has finished."""
    cluster = Cluster()

    assert cluster.deploy() == ["source 0", "source 1"]
    assert not any(isinstance(effect, RequestSlots) for effect in cluster.finish("source 0"))
    assert isinstance(cluster.finish("source 1")[-1], RequestSlots)
    assert cluster.deploy() == ["middle 0", "middle 1"]
    assert cluster.graph.status is JobStatus.RUNNING


def test_results_are_released_when_all_who_read_them_have_finished() -> None:
    """Results are not released before, and the job ends."""
    cluster = Cluster()
    cluster.begin_middle()

    assert released(cluster.finish("middle 0")) == []
    assert released(cluster.finish("middle 1")) == ["source 0 0", "source 1 0"]
    cluster.deploy()
    assert released(cluster.finish("sink 0", "sink 1")) == ["middle 0 0", "middle 1 0"]
    assert cluster.graph.status is JobStatus.FINISHED


def test_a_failed_consumer_starts_again_alone() -> None:
    """The results that the failed consumer reads are still there."""
    cluster = Cluster()
    cluster.begin_middle()
    cluster.report("middle 0", ExecutionState.RUNNING)

    effects = cluster.report("middle 1", ExecutionState.FAILED, failure())

    assert not any(isinstance(effect, SendMessage) for effect in effects)
    cluster.restart()
    assert cluster.deploy() == ["middle 1"]
    assert cluster.graph.status is JobStatus.RUNNING


def test_a_lost_task_manager_takes_results_with_it() -> None:
    """The producers of lost results run again, and all that had begun to read them; the other producers do not."""
    cluster = Cluster()
    cluster.begin_middle()

    cluster.lose("tm-1-0")
    cluster.report("middle 0", ExecutionState.CANCELED)
    cluster.restart()

    assert cluster.deploy() == ["source 1"]
    cluster.finish("source 1")
    assert cluster.deploy() == ["middle 0", "middle 1"]
    assert len(cluster.graph.failed_runs) == 1


def test_results_that_are_lost_while_nobody_reads_them_are_made_again() -> None:
    """The TaskManager goes while the next stage waits for its slots."""
    cluster = Cluster()
    cluster.deploy()
    cluster.finish("source 0", "source 1")

    cluster.lose("tm-0-0")

    assert cluster.graph.waiting == []
    cluster.restart()
    assert cluster.deploy() == ["source 0"]
    cluster.finish("source 0")
    assert cluster.deploy() == ["middle 0", "middle 1"]


def test_released_results_are_made_again_if_a_later_stage_needs_them() -> None:
    """Producers run again as many stages back as the missing results need."""
    cluster = Cluster()
    cluster.begin_middle()
    cluster.finish("middle 0", "middle 1")
    cluster.deploy()

    cluster.lose("tm-1-0")
    cluster.report("sink 0", ExecutionState.CANCELED)
    cluster.restart()

    assert cluster.deploy() == ["source 0", "source 1"]


def test_a_consumer_that_notices_first_does_not_cost_a_second_restart() -> None:
    """The consumer's broken connection is a symptom of the loss, which becomes the cause."""
    cluster = Cluster(attempts=1)
    cluster.begin_middle()

    cluster.report("middle 0", ExecutionState.FAILED, failure("netstack.errors.ConnectionLostError"))
    cluster.lose("tm-1-0")

    assert cluster.graph.status is JobStatus.RESTARTING
    assert [run.root.exception_type for run in cluster.graph.failed_runs] == ["TaskManagerLost"]
    cluster.restart()
    assert cluster.deploy() == ["source 1"]


def test_consumers_that_start_again_before_a_loss_is_known_cost_no_further_restart() -> None:
    """A TaskManager that stands still answers nothing for seconds, and all consumers fail, some of
    them several times.
    """
    cluster = Cluster(attempts=1)
    cluster.begin_middle()

    for broken in ("middle 0", "middle 1", "middle 0"):
        cluster.report(broken, ExecutionState.FAILED, failure("netstack.errors.ConnectError"))
        cluster.restart()
        assert cluster.deploy() == [broken]
    cluster.lose("tm-1-0")

    assert cluster.graph.status is JobStatus.RESTARTING
    assert [run.root.exception_type for run in cluster.graph.failed_runs] == ["TaskManagerLost"]
    cluster.report("middle 0", ExecutionState.CANCELED)
    cluster.report("middle 1", ExecutionState.CANCELED)
    cluster.restart()
    assert cluster.deploy() == ["source 1"]


def test_a_connection_that_stays_broken_costs_restarts() -> None:
    """The failure counts again after the time in which a loss would have become known."""
    cluster = Cluster(attempts=1)
    cluster.begin_middle()
    cluster.report("middle 0", ExecutionState.FAILED, failure("netstack.errors.ConnectError"))
    cluster.restart()
    cluster.deploy()

    cluster.now_ms += 60_000
    cluster.report("middle 0", ExecutionState.FAILED, failure("netstack.errors.ConnectError"))

    assert cluster.graph.status is JobStatus.FAILING


def test_a_failure_of_its_own_before_a_broken_connection_is_forgotten_costs_a_restart() -> None:
    """The task reads nothing that was lost, and those that read its results broke down earlier."""
    cluster = Cluster(attempts=1, fails_as_one=True)
    cluster.begin_middle()
    cluster.report("middle 0", ExecutionState.FAILED, failure("netstack.errors.ConnectError"))
    cluster.report("middle 1", ExecutionState.CANCELED)
    cluster.restart()
    assert cluster.deploy() == ["source 0", "source 1"]

    cluster.report("source 0", ExecutionState.FAILED, failure())

    assert cluster.graph.status is JobStatus.FAILING
    assert [run.root.exception_type for run in cluster.graph.failed_runs] == [
        "netstack.errors.ConnectError",
        "builtins.ValueError",
    ]


@pytest.mark.parametrize("has_begun_again", [False, True])
def test_a_failure_that_is_final_ends_the_job_behind_a_broken_connection(has_begun_again: bool) -> None:
    """A final failure ends the job, although it looks like one more loss of a connection."""
    cluster = Cluster()
    cluster.begin_middle()
    cluster.report("middle 0", ExecutionState.FAILED, failure("netstack.errors.ConnectError"))
    if has_begun_again:
        cluster.restart()
        cluster.deploy()

    final = msgspec.structs.replace(failure("netstack.errors.ConnectError"), suppresses_restarts=True)
    cluster.report("middle 1", ExecutionState.FAILED, final)

    assert cluster.graph.status in (JobStatus.FAILING, JobStatus.FAILED)
    assert cluster.graph.failure is final
    assert cluster.graph.why_no_restart == "it would fail in the same way"


def test_a_job_whose_results_the_client_reads_starts_again_as_a_whole() -> None:
    """All that has begun, and nothing that has not."""
    cluster = Cluster(fails_as_one=True)
    cluster.begin_middle()

    cluster.report("middle 0", ExecutionState.FAILED, failure())
    cluster.report("middle 1", ExecutionState.CANCELED)
    cluster.restart()

    assert cluster.kept == set()
    assert cluster.deploy() == ["source 0", "source 1"]


def test_a_cancelled_job_releases_its_results() -> None:
    """Results of a stage that no consumer reads yet are released, too."""
    cluster = Cluster()
    cluster.deploy()
    cluster.finish("source 0", "source 1")

    effects = cluster.handle(CancelRequested())

    assert released(effects) == ["source 0 0", "source 1 0"]
    assert cluster.graph.status is JobStatus.CANCELED


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(60))
def test_whatever_fails_the_job_ends_and_keeps_nothing(seed: int) -> None:
    """Failures and losses are random; a task never runs without all results that it reads."""
    rng = random.Random(seed)
    cluster = Cluster(attempts=10**6, fails_as_one=seed % 3 == 0)
    for step in range(400):
        if cluster.graph.status is JobStatus.FINISHED:
            break
        if cluster.requested and cluster.graph.is_waiting_for_slots:
            for name in cluster.deploy():
                vertex = name.split()[0]
                before = VERTICES[VERTICES.index(vertex) - 1] if vertex != "source" else None
                assert before is None or all(
                    each.attempt in cluster.kept for each in cluster.graph.executions_of(before)
                )
        cluster.restart()
        living = [
            each for each in cluster.graph.executions.values() if each.state.is_deployed and not each.state.is_terminal
        ]
        if not living:
            continue
        chosen = rng.choice(living)
        name = f"{chosen.vertex_id} {chosen.subtask}"
        calm = step > 200
        if chosen.state is ExecutionState.CANCELING:
            cluster.report(name, ExecutionState.CANCELED)
        elif not calm and rng.random() < 0.1:
            assert chosen.tm_id is not None
            cluster.lose(chosen.tm_id)
        elif not calm and rng.random() < 0.15:
            cause = rng.choice(["builtins.ValueError", "netstack.errors.ConnectionLostError"])
            cluster.report(name, ExecutionState.FAILED, failure(cause))
        elif chosen.state is ExecutionState.RUNNING:
            cluster.report(name, ExecutionState.FINISHED)
        else:
            cluster.report(name, ExecutionState.RUNNING)

    assert cluster.graph.status is JobStatus.FINISHED
    assert cluster.kept == set()
