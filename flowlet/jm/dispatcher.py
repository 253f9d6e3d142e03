"""All jobs and all TaskManagers of one JobManager, and the slots between them.

Side:       loop.
Invariants: a job waits, runs or has ended; it holds slots exactly while it runs; a TaskManager's slots are known exactly while its session
            is registered.
Source:     Flink ``Dispatcher``, ``ResourceManager``.
Rules:      a message about an attempt that is unknown, or lives elsewhere, is counted and ignored.  Waiting jobs are tried in the order of
            submission whenever slots come free; one that does not fit does not hold up those behind it, and its wait is limited.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

import structlog

from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError
from flowlet.jm.gates import gate_names
from flowlet.jm.job_document import Document, job_overview_item
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.job_master import JobMaster
from flowlet.jm.scheduler import SlotPool, assign_tasks, needed_slots
from flowlet.jm.submission import check_job_graph
from flowlet.jm.taskmanager_session import TaskManagerSession
from flowlet.rpc.control_messages import (
    AddSplits,
    AllowSourceWatermark,
    CancelTask,
    DeployTask,
    FinishGate,
    GateReported,
    Heartbeat,
    JobGraphMessage,
    NoMoreSplits,
    SourceWatermarkReported,
    SplitsRequested,
    TaskDeploymentDescriptor,
    TaskStateChanged,
)
from flowlet.rpc.http import WallClock
from flowlet.splits.file_split import FileSplit

_JOB_ID_BYTES: Final = 16  # the front of an attempt's id
_RUNNING_STATES: Final = (JobStatus.CREATED, JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING)
log = structlog.get_logger(__name__)


class DuplicateJobError(FlowletError):
    """A job with the same id was submitted before."""


class BusyError(FlowletError):
    """The JobManager cannot take another job now."""


class Dispatcher:
    """Takes jobs, TaskManagers and their messages.

    Threading: the JobManager's loop.
    """

    def __init__(self, config: JobManagerConfig, clock: WallClock) -> None:
        self._config = config
        self._clock = clock
        self._slots = SlotPool()
        self._sessions: dict[str, TaskManagerSession] = {}  # by TaskManager, in the order of registration
        self._jobs: OrderedDict[str, JobMaster] = OrderedDict()
        self._ended: list[str] = []  # oldest first
        self._timers: dict[str, asyncio.TimerHandle] = {}  # of the jobs that wait for slots, in the order of submission
        self._is_closing = False
        self.num_ignored_messages = 0

    def __repr__(self) -> str:
        return f"<Dispatcher {len(self._jobs)} jobs, {len(self._sessions)} TaskManagers, {self._slots.num_free} free slots>"

    def submit(self, job: JobGraphMessage) -> JobMaster:
        """Take a job; it runs as soon as it has its slots.

        Raises:
            JobGraphError: the job cannot be run.
            DuplicateJobError: its id is taken.
            BusyError: too many jobs have not ended yet, or the JobManager is stopping.
        """
        check_job_graph(job, self._config.max_tasks_per_job)
        if job.job_id in self._jobs:
            raise DuplicateJobError(f"a job with the id {job.job_id} was submitted before")
        for name in gate_names(job):
            other = self.job_with_gate(name)
            if other is not None and not other.is_ended:
                raise DuplicateJobError(
                    f"the running job {other.job.name!r} ({other.job_id}) has a gate {name!r} already; choose another name"
                )
        num_active = len(self._jobs) - len(self._ended)
        if self._is_closing or num_active >= self._config.max_active_jobs:
            raise BusyError(
                "the JobManager is stopping" if self._is_closing else f"{num_active} jobs have not ended yet, that is the limit"
            )
        master = JobMaster(job, self, self._job_ended, self._clock)
        self._jobs[job.job_id] = master
        log.info("job submitted", job=job.job_id, name=job.name, slots=needed_slots(job))
        loop = asyncio.get_running_loop()
        self._timers[job.job_id] = loop.call_later(self._config.slot_request_timeout_s, self._slots_timed_out, master)
        self._schedule_waiting()
        return master

    def job(self, job_id: str) -> JobMaster | None:
        """The job with this id, unless it is unknown or forgotten."""
        return self._jobs.get(job_id)

    def job_with_gate(self, gate: str) -> JobMaster | None:
        """The job that has this remote gate: the one that runs, else the last one that did."""
        found = [master for master in self._jobs.values() if gate in gate_names(master.job)]
        return next((master for master in found if not master.is_ended), found[-1] if found else None)

    def gate_names(self) -> list[str]:
        """The remote gates of all jobs that have not ended."""
        return sorted(name for master in self._jobs.values() if not master.is_ended for name in gate_names(master.job))

    def jobs(self) -> Iterator[JobMaster]:
        """All known jobs, in the order of submission."""
        return iter(self._jobs.values())

    def sessions(self) -> Iterator[TaskManagerSession]:
        """All registered TaskManagers, in the order of registration."""
        return iter(self._sessions.values())

    def deploy(self, tm_id: str, task: TaskDeploymentDescriptor) -> None:
        """Send a task to its TaskManager."""
        self._sessions[tm_id].send(DeployTask(task))

    def cancel(self, tm_id: str, attempt: bytes) -> None:
        """Ask a TaskManager to end a task."""
        self._sessions[tm_id].send(CancelTask(attempt))

    def allow_watermark(self, tm_id: str, attempt: bytes, max_allowed: int) -> None:
        """Tell a source how far it may be."""
        self._sessions[tm_id].send(AllowSourceWatermark(attempt, max_allowed))

    def add_splits(self, tm_id: str, attempt: bytes, splits: Sequence[FileSplit], waiting_bytes: int) -> None:
        """Hand a source what it asked for."""
        self._sessions[tm_id].send(AddSplits(attempt, list(splits), waiting_bytes))

    def no_more_splits(self, tm_id: str, attempt: bytes) -> None:
        """Tell a source that there is nothing left."""
        self._sessions[tm_id].send(NoMoreSplits(attempt))

    def finish_gate(self, tm_id: str, attempt: bytes) -> None:
        """Let the gate of a task end."""
        self._sessions[tm_id].send(FinishGate(attempt))

    def task_manager_registered(self, session: TaskManagerSession) -> str | None:
        """Take its slots in; a session that it had before is over.  The reason if it cannot be taken."""
        if self._is_closing:
            return "the JobManager is shutting down"
        former = self._sessions.get(session.tm_id)
        if former is not None:
            former.close("it registered again")
            self.task_manager_lost(former, "it registered again")
        if len(self._sessions) >= self._config.max_task_managers:
            return f"there are {len(self._sessions)} TaskManagers already, that is the limit"
        self._sessions[session.tm_id] = session
        self._slots.add(session.tm_id, session.num_slots)
        log.info("TaskManager registered", tm_id=session.tm_id, location=str(session.location), slots=session.num_slots)
        # Not now: the session says "registered" first, and what is deployed follows.
        asyncio.get_running_loop().call_soon(self._schedule_waiting)
        return None

    def task_manager_lost(self, session: TaskManagerSession, reason: str) -> None:
        """Forget its slots and fail its tasks; a session that was replaced changes nothing."""
        if self._sessions.get(session.tm_id) is not session:
            return
        del self._sessions[session.tm_id]
        self._slots.remove(session.tm_id)
        tell = log.info if self._is_closing else log.warning
        tell("TaskManager lost", tm_id=session.tm_id, location=str(session.location), reason=reason)
        for master in list(self._jobs.values()):
            master.task_manager_lost(session.location, reason)

    def heartbeat(self, session: TaskManagerSession, message: Heartbeat) -> None:
        """Keep the counters of its tasks."""
        for report in message.tasks:
            master = self._job_of(session, report.attempt)
            if master is None or not master.task_metrics(session.tm_id, report.attempt, report.metrics):
                self.num_ignored_messages += 1

    def task_state_changed(self, session: TaskManagerSession, message: TaskStateChanged) -> None:
        """Hand it to the job."""
        master = self._job_of(session, message.attempt)
        if master is None:
            self.num_ignored_messages += 1
            return
        before = master.graph.num_ignored_events
        master.task_state_changed(session.tm_id, message)
        self.num_ignored_messages += master.graph.num_ignored_events - before

    def source_watermark_reported(self, session: TaskManagerSession, message: SourceWatermarkReported) -> None:
        """Hand it to the job."""
        master = self._job_of(session, message.attempt)
        if master is None or not master.source_watermark_reported(session.tm_id, message):
            self.num_ignored_messages += 1

    def gate_reported(self, session: TaskManagerSession, message: GateReported) -> None:
        """Hand it to the job."""
        master = self._job_of(session, message.attempt)
        if master is None or not master.gate_reported(session.tm_id, message):
            self.num_ignored_messages += 1

    def splits_requested(self, session: TaskManagerSession, message: SplitsRequested) -> None:
        """Hand it to the job."""
        master = self._job_of(session, message.attempt)
        if master is None or not master.splits_requested(session.tm_id, message):
            self.num_ignored_messages += 1

    def _job_of(self, session: TaskManagerSession, attempt: bytes) -> JobMaster | None:
        if self._sessions.get(session.tm_id) is not session:
            return None
        return self._jobs.get(attempt[:_JOB_ID_BYTES].hex())

    def overview(self) -> Document:
        """The cluster in numbers (``GET /overview``)."""
        counts = Counter(master.graph.status for master in self._jobs.values())
        return {
            "taskmanagers": len(self._sessions),
            "slots-total": self._slots.num_slots,
            "slots-available": self._slots.num_free,
            "jobs-running": sum(counts[status] for status in _RUNNING_STATES),
            "jobs-finished": counts[JobStatus.FINISHED],
            "jobs-cancelled": counts[JobStatus.CANCELED],
            "jobs-failed": counts[JobStatus.FAILED],
            "ignored-messages": self.num_ignored_messages,
        }

    def jobs_overview(self) -> Document:
        """One line per job (``GET /jobs/overview``)."""
        return {"jobs": [job_overview_item(master.view, self._clock()) for master in self._jobs.values()]}

    def task_managers(self) -> Document:
        """One line per TaskManager (``GET /taskmanagers``)."""
        return {"taskmanagers": [self._task_manager_document(session) for session in self._sessions.values()]}

    def _task_manager_document(self, session: TaskManagerSession) -> Document:
        return {
            "id": session.tm_id,
            "path": f"{session.location.host}:{session.location.data_port}",
            "dataPort": session.location.data_port,
            "pid": session.location.pid,
            "timeSinceLastHeartbeat": round(session.silence_s * 1000),
            "slotsNumber": session.num_slots,
            "freeSlots": self._slots.num_free_on(session.tm_id),
        }

    async def close(self) -> None:
        """Cancel every job, give the TaskManagers a moment to do so, and tell them to go; idempotent."""
        self._is_closing = True
        deadline_s = asyncio.get_running_loop().time() + self._config.shutdown_timeout_s
        active = [master for master in self._jobs.values() if not master.is_ended]
        for master in active:
            master.cancel()
        for master in active:
            await master.wait_until_ended(max(0.0, deadline_s - asyncio.get_running_loop().time()))
        for session in list(self._sessions.values()):
            session.close("the JobManager is shutting down")

    def _schedule_waiting(self) -> None:
        for job_id in list(self._timers):
            self._try_start(self._jobs[job_id])

    def _try_start(self, master: JobMaster) -> None:
        slots = self._slots.allocate(master.job_id, needed_slots(master.job))
        if slots is None:
            return
        self._timers.pop(master.job_id).cancel()
        assigned = assign_tasks(master.job, slots)
        master.start({attempt: self._sessions[tm_id].location for attempt, tm_id in assigned.items()})

    def _slots_timed_out(self, master: JobMaster) -> None:
        del self._timers[master.job_id]
        waited_s = self._config.slot_request_timeout_s
        master.fail_scheduling(self._slots.describe_shortage(needed_slots(master.job), waited_s))

    def _job_ended(self, master: JobMaster) -> None:
        timer = self._timers.pop(master.job_id, None)
        if timer is not None:
            timer.cancel()
        self._slots.release(master.job_id)
        self._ended.append(master.job_id)
        if len(self._ended) > self._config.max_finished_jobs:
            del self._jobs[self._ended.pop(0)]
        self._schedule_waiting()
