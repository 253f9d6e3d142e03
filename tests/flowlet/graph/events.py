"""The events of a job as data: schedules of tests are lists of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from flowlet.common.job_settings import RestartKind, RestartSettings
from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_events import (
    Deploy,
    Effect,
    JobStatusChanged,
    ReleaseSlots,
    RequestSlots,
    RestartAfter,
    SendMessage,
)
from flowlet.graph.execution_graph import Execution, ExecutionGraph
from flowlet.graph.restart_backoff_strategy import RestartStrategy
from flowlet.messages.control_messages import FailureInfo
from flowlet.messages.execution_state import ExecutionState


class SlotsAllocated(msgspec.Struct, frozen=True):
    """Every attempt that waits for one has a slot; ``locations`` has the TaskManager id of each."""

    locations: Mapping[bytes, str]

    def tell(self, graph: ExecutionGraph) -> None:
        graph.slots_allocated(self.locations)


class SchedulingFailed(msgspec.Struct, frozen=True):
    """The job did not get its slots in time."""

    failure: FailureInfo

    def tell(self, graph: ExecutionGraph) -> None:
        graph.scheduling_failed(self.failure)


class CancelRequested(msgspec.Struct, frozen=True):
    """The user asks to cancel the job, or the JobManager stops or has another ``reason``, which people then see."""

    reason: str | None = None

    def tell(self, graph: ExecutionGraph) -> None:
        graph.cancel(self.reason)


class ExecutionReported(msgspec.Struct, frozen=True):
    """A TaskManager reports the state of an attempt.

    ``failure``: with FAILED, the cause; with CANCELED, the cause to record if the JobManager did not ask for it.
    """

    attempt: bytes
    tm_id: str
    state: ExecutionState
    failure: FailureInfo | None = None

    def tell(self, graph: ExecutionGraph) -> None:
        graph.execution_reported(self.attempt, self.tm_id, self.state, self.failure)


class TaskManagerLost(msgspec.Struct, frozen=True):
    """A TaskManager is lost, and all attempts there with it."""

    tm_id: str
    failure: FailureInfo

    def tell(self, graph: ExecutionGraph) -> None:
        graph.task_manager_lost(self.tm_id, self.failure)


class GlobalFailure(msgspec.Struct, frozen=True):
    """A failure outside of tasks: the splits of a source cannot be found, too many checkpoints failed, no state can be
    restored.
    """

    failure: FailureInfo

    def tell(self, graph: ExecutionGraph) -> None:
        graph.fail(self.failure)


class RestartDue(msgspec.Struct, frozen=True):
    """The delay of a restart is over; ``new`` are the attempts of the next run of its regions, in the order of
    deployment.
    """

    new: Sequence[Execution]

    def tell(self, graph: ExecutionGraph) -> None:
        graph.begin_next_run([replace(each) for each in self.new])  # which the graph changes


Event = (
    SlotsAllocated
    | SchedulingFailed
    | CancelRequested
    | ExecutionReported
    | TaskManagerLost
    | GlobalFailure
    | RestartDue
)


def handle(graph: ExecutionGraph, event: Event, now_ms: int, elapsed_ms: int | None = None) -> list[Effect]:
    """Tell the graph of an event; returns the effects."""
    graph.set_time(now_ms, elapsed_ms)
    event.tell(graph)
    return graph.take_effects()


def failure(
    exception_type: str = "builtins.ValueError", message: str = "boom", *, suppresses_restarts: bool = False
) -> FailureInfo:
    return FailureInfo(exception_type, message, "", None, "task", 0, None, "tm-1", 0, suppresses_restarts)


def statuses(effects: Iterable[Effect]) -> list[JobStatus]:
    return [effect.status for effect in effects if isinstance(effect, JobStatusChanged)]


def orders(effects: Iterable[Effect]) -> list[Effect]:
    """Return the effects that other parts must carry out."""
    kinds = Deploy | SendMessage | ReleaseSlots | RestartAfter | RequestSlots
    return [effect for effect in effects if isinstance(effect, kinds)]


def fixed_delay(attempts: int, delay_ms: int) -> RestartStrategy:
    """Return a strategy that allows so many restarts, each after this delay."""
    return RestartStrategy(RestartSettings(RestartKind.FIXED_DELAY, attempts=attempts, delay_ms=delay_ms))
