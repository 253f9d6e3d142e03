"""Keeps all jobs, TaskManagers and slots of one JobManager, and routes messages between them.

Side:       loop.
Invariants: a job waits, runs or has ended, and holds slots exactly while tasks of it are left; the slot pool has a
            TaskManager's slots exactly while its session is registered.  With a job store a run asks for its slots when
            the store has its number, and an end is told when the store has it.
Source:     Flink ``Dispatcher``, ``ResourceManager``.
Rules:      a message about an attempt that is unknown, or runs on another TaskManager, is counted and ignored.  When
            slots come free, waiting jobs are tried in the order of their requests; a job that does not fit does not
            hold up those behind it.  A job waits at most ``slot_request_timeout_s``, before each of its runs.
"""

import asyncio
from collections import Counter, OrderedDict
from typing import Final

import msgspec

from flowlet.checkpoint.jobmanager.job_store import JobEnd, JobKeeper, RecoveredJob, Recovery
from flowlet.common.job_status import JobStatus
from flowlet.jm.gates import gate_names
from flowlet.jm.job_document import Document, describe_stuck, job_document, job_overview_item
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.job_master import JobMaster
from flowlet.jm.scheduler import SlotPool, needed_slots
from flowlet.jm.submission import check_job_graph
from flowlet.jm.taskmanager_session import TaskManagerSession
from flowlet.messages.control_messages import FromTask, TaskManagerHeartbeat, ToTaskManager
from flowlet.messages.job_messages import JobGraphMessage
from flowlet.rpc.requests import WallClock, refuse
from netstack.log_lines import LogLines

_JOB_ID_BYTES: Final = 16  # an attempt's id begins with the id of its job
_RUNNING_STATES: Final = (
    JobStatus.CREATED,
    JobStatus.RUNNING,
    JobStatus.RESTARTING,
    JobStatus.FAILING,
    JobStatus.CANCELLING,
)
log = LogLines(__name__)


class Dispatcher:
    """Accepts jobs, registers TaskManagers, and hands their messages to the jobs.  Threading: the JobManager's loop."""

    def __init__(self, config: JobManagerConfig, clock: WallClock, keeper: JobKeeper) -> None:
        self._config = config
        self._clock = clock
        self.keeper = keeper  # of what happens to jobs
        self.ends: OrderedDict[str, JobEnd] = OrderedDict()  # of jobs that have ended at an earlier JobManager
        self.problems: dict[str, str] = {}  # by id of a job of an earlier JobManager: why it does not go on
        self._slots = SlotPool()
        self.sessions: dict[str, TaskManagerSession] = {}  # by TaskManager id, in the order of registration
        self.jobs: OrderedDict[str, JobMaster] = OrderedDict()  # in the order of submission, until they are forgotten
        self._ended: list[str] = []  # oldest first
        # By id of a job that waits for slots, in the order of the requests.
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._is_closing = False
        self._last_loss: str | None = None  # the TaskManager that was lost last, and why; until another one registers
        self.num_ignored_messages = 0

    def __repr__(self) -> str:
        return (
            f"<Dispatcher {len(self.jobs)} jobs, {len(self.sessions)} TaskManagers, {self._slots.num_free} free slots>"
        )

    def submit(self, job: JobGraphMessage) -> JobMaster:
        """Accept a job; it starts as soon as its slots are free.

        Raises:
            JobGraphError: the graph is not valid.
            RequestError: the job's id, or the name of one of its gates, is taken (409); too many jobs are active, or
                the JobManager is stopping (503).
        """
        # First: a graph that is not valid may have any id and any names.
        check_job_graph(job, self._config.max_tasks_per_job)
        if job.job_id in self.jobs or job.job_id in self.ends or job.job_id in self.problems:
            refuse(409, f"a job with the id {job.job_id} was submitted before; submit it with a new id")
        for name in gate_names(job):
            other = self.job_with_gate(name)
            if other is not None and not other.is_ended:
                running = f"the running job {other.job.name!r} ({other.job_id})"
                refuse(409, f"{running} has a gate {name!r} already; choose another name")
        # Waiting and restarting jobs count, too: each keeps its code in memory.
        num_active = len(self.jobs) - len(self._ended)
        if self._is_closing or num_active >= self._config.max_active_jobs:
            limit = f"{num_active} jobs have not ended yet, which is the limit; wait for one to end, or cancel one"
            refuse(503, "the JobManager is stopping" if self._is_closing else limit)
        master = JobMaster(job, self, self._clock, checkpoint_key=self._config.checkpoint_key)
        # Before the job store has it: a second submission with this id must find it.
        self.jobs[job.job_id] = master
        log.info("job submitted", job=job.job_id, name=job.name, slots=needed_slots(job))
        self.keeper.submitted(job, master.submission_kept)
        return master

    def recover(self, recovery: Recovery) -> None:
        """Go on with the jobs of an earlier JobManager; once, before any other call."""
        self.ends, self.problems = OrderedDict(recovery.ends), dict(recovery.problems)
        # Behind the ends and problems: a recovered job may end at once, and makes room among them.
        for recovered in recovery.jobs:
            self._recover(recovered)

    def _recover(self, recovered: RecoveredJob) -> None:
        job = recovered.job
        master = JobMaster(job, self, self._clock, checkpoint_key=self._config.checkpoint_key, recovered=recovered)
        self.jobs[job.job_id] = master
        self.keeper.recovered(recovered)
        # Its first run was at the former JobManager: a second one would do its work twice.
        if not master.graph.strategy.can_restart:
            master.fail_recovery()
            return
        checkpoint = master.checkpoints.last_completed_id
        log.info("job recovered", job=job.job_id, name=job.name, run=recovered.attempt, checkpoint=checkpoint)
        master.begin()

    def job_with_gate(self, gate: str) -> JobMaster | None:
        """Find the job that has this remote gate: the running one, else the one that was submitted last."""
        found = [master for master in self.jobs.values() if gate in gate_names(master.job)]
        return next((master for master in found if not master.is_ended), found[-1] if found else None)

    def gate_names(self) -> list[str]:
        """List the remote gates of all jobs that have not ended."""
        return sorted(name for master in self.jobs.values() if not master.is_ended for name in gate_names(master.job))

    def send(self, tm_id: str, message: ToTaskManager) -> None:
        """Send a message; a message for a TaskManager that was just lost is dropped: its tasks are about to be failed,
        or the JobManager is ending.
        """
        session = self.sessions.get(tm_id)
        if session is not None:
            session.send(message)

    def task_manager_registered(self, session: TaskManagerSession) -> str | None:
        """Add the TaskManager and its slots, and end its former session if it has one; return the reason if it is
        refused.
        """
        if self._is_closing:
            return "the JobManager is shutting down"
        former = self.sessions.get(session.tm_id)
        # A new session says that the former one is lost, though nobody has noticed: its tasks must fail before its
        # slots count again.
        if former is not None:
            former.close("it registered again")
            self.task_manager_lost(former, "it registered again")
        if len(self.sessions) >= self._config.max_task_managers:
            return f"{len(self.sessions)} TaskManagers are registered already, which is the limit"
        self.sessions[session.tm_id] = session
        self._slots.add(session.tm_id, session.registration.num_slots)
        self._last_loss = None
        log.info(
            "TaskManager registered",
            tm_id=session.tm_id,
            location=str(session.registration),
            slots=session.registration.num_slots,
        )
        # In the next iteration of the loop: the session must send Registered before the first deployment.
        asyncio.get_running_loop().call_soon(self._schedule_waiting)
        return None

    def task_manager_lost(self, session: TaskManagerSession, reason: str) -> None:
        """Remove the slots of a lost TaskManager and fail its tasks; ignored if it has a newer session."""
        if self.sessions.get(session.tm_id) is not session:
            return
        # First: what jobs send to it from now on is dropped.
        del self.sessions[session.tm_id]
        self._slots.remove(session.tm_id)
        tell = log.info if self._is_closing else log.warning
        tell("TaskManager lost", tm_id=session.tm_id, location=str(session.registration), reason=reason)
        self._last_loss = f"{session.registration} was lost: {reason}"
        if self._is_closing and self.keeper.keeps_jobs:
            return  # the jobs go on at another JobManager
        # A copy: a job that ends with this may be forgotten.
        for master in list(self.jobs.values()):
            master.task_manager_lost(session.registration, reason)

    def heartbeat(self, session: TaskManagerSession, message: TaskManagerHeartbeat) -> None:
        """Hand the tasks' metrics to their jobs."""
        for attempt, metrics in message.tasks.items():
            master = self._job_of(session, attempt)
            # A heartbeat may be older than the end of an attempt.
            if master is None or not master.task_metrics(session.tm_id, attempt, metrics):
                self.num_ignored_messages += 1

    def handle(self, session: TaskManagerSession, message: FromTask) -> None:
        """Hand the message to its job."""
        master = self._job_of(session, message.attempt)
        if master is None or not master.handle(session.tm_id, message):
            self.num_ignored_messages += 1

    def _job_of(self, session: TaskManagerSession, attempt: bytes) -> JobMaster | None:
        # A session that was replaced may still deliver: its tasks have been failed.
        if self.sessions.get(session.tm_id) is not session:
            return None
        return self.jobs.get(attempt[:_JOB_ID_BYTES].hex())

    def overview(self) -> Document:
        """Make the document of ``GET /overview``."""
        counts = Counter(master.graph.status for master in self.jobs.values())
        return {
            "taskmanagers": len(self.sessions),
            "slots-total": self._slots.num_slots,
            "slots-available": self._slots.num_free,
            "jobs-running": sum(counts[status] for status in _RUNNING_STATES),
            "jobs-finished": counts[JobStatus.FINISHED],
            "jobs-cancelled": counts[JobStatus.CANCELED],
            "jobs-failed": counts[JobStatus.FAILED],
            "ignored-messages": self.num_ignored_messages,
            "keeps-jobs": self.keeper.keeps_jobs,
        }

    def jobs_overview(self) -> Document:
        """Make the document of ``GET /jobs/overview``: one item per job."""
        return {"jobs": [job_overview_item(master, self._clock()) for master in self.jobs.values()]}

    def task_managers(self) -> Document:
        """Make the document of ``GET /taskmanagers``: one item per TaskManager."""
        free = self._slots.free_by_task_manager()
        documents = [
            {
                "id": session.tm_id,
                "path": f"{session.registration.data_host}:{session.registration.data_port}",
                "dataPort": session.registration.data_port,
                "pid": session.registration.pid,
                "timeSinceLastHeartbeat": round(session.silence_s * 1000),
                "slotsNumber": session.registration.num_slots,
                "freeSlots": free[session.tm_id],
            }
            for session in self.sessions.values()
        ]
        return {"taskmanagers": documents}

    async def close(self) -> None:
        """Cancel all jobs, wait ``shutdown_timeout_s`` for them to end, then close all sessions; idempotent.

        With a job store no job is cancelled: another JobManager goes on with them.
        """
        self._is_closing = True
        if self.keeper.keeps_jobs:
            self.keeper.close()
            for master in self.jobs.values():
                # Before the sessions close: the loss of their TaskManagers must not fail jobs that the next JobManager
                # goes on with.
                master.suspend()
                self._stop_waiting(master)
        else:
            await self._cancel_jobs()
        # A copy: each leaves the table when it ends.
        for session in list(self.sessions.values()):
            session.close("the JobManager is shutting down")

    async def _cancel_jobs(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + self._config.shutdown_timeout_s
        active = [master for master in self.jobs.values() if not master.is_ended]
        for master in active:
            master.cancel()
        for master in active:
            await master.wait_until_ended(max(0.0, deadline_s - asyncio.get_running_loop().time()))

    def request_slots(self, master: JobMaster) -> None:
        """Start the job as soon as its slots are free; fail it if that takes too long."""

        def kept(problem: str | None) -> None:
            # The write took its time; a cancel or another failure may have come before its end.
            if not master.graph.is_waiting_for_slots:  # it was cancelled meanwhile
                return
            if problem is not None:
                master.fail_scheduling(problem)
                return
            self._stop_waiting(master)  # for what was lost before it had slots
            self._timers[master.job_id] = asyncio.get_running_loop().call_later(
                self._config.slot_request_timeout_s, self._slots_timed_out, master
            )
            self._schedule_waiting()

        self.keeper.run_begins(master.job_id, master.graph.attempt_number, kept)

    def _stop_waiting(self, master: JobMaster) -> None:
        timer = self._timers.pop(master.job_id, None)
        if timer is not None:
            timer.cancel()

    def release_slots(self, master: JobMaster) -> None:
        """Free the slots of a job of which no task is left; others may have them until the job starts again."""
        self._slots.release(master.job_id)
        # Behind the release: this job may have held up the one that waits longest.
        self._schedule_waiting()

    def _schedule_waiting(self) -> None:
        # A copy: a job that starts leaves it.
        for job_id in list(self._timers):
            self._try_start(self.jobs[job_id])

    def _try_start(self, master: JobMaster) -> None:
        # Results that its tasks read were lost meanwhile; it asks again when they are there.
        if not master.graph.is_waiting_for_slots:
            self._stop_waiting(master)
            return
        wanted = master.wanted_slots().values() if self._slots.holds_any(master.job_id) else ()
        slots = self._slots.allocate(master.job_id, needed_slots(master.job), wanted)
        if slots is None:
            return
        self._stop_waiting(master)
        tm_ids = {attempt: slots[number] for attempt, number in master.wanted_slots().items()}
        found = {attempt: self.sessions[tm_id].registration for attempt, tm_id in tm_ids.items() if tm_id is not None}
        master.start(found)

    def _slots_timed_out(self, master: JobMaster) -> None:
        # First: a job whose timer is here would be tried again when slots come.
        del self._timers[master.job_id]
        if not master.graph.is_waiting_for_slots:
            return
        waited_s = self._config.slot_request_timeout_s
        num_missing = self._slots.num_missing(master.job_id, needed_slots(master.job), master.wanted_slots().values())
        shortage = [self._slots.describe_shortage(num_missing, waited_s)]
        if self._last_loss is not None:
            shortage.append(f"{self._last_loss}, and no TaskManager came in its place: start one")
        shortage += [describe_stuck(holder) for holder in self.jobs.values() if holder.stuck]
        master.fail_scheduling("\n".join(shortage))

    def job_ended(self, master: JobMaster) -> None:
        """Keep the end of a job, and forget the oldest job that has ended, if there are too many."""

        def kept(problem: str | None) -> None:
            if problem is not None:
                log.warning("the job store has no room for the end of a job", job=master.job_id, problem=problem)
            master.end_kept()

        def end() -> JobEnd:
            return JobEnd(master.graph.status.name, msgspec.json.encode(job_document(master, self._clock())))

        self.keeper.ended(master.job_id, end, kept)
        self._stop_waiting(master)
        # Before another job is tried: these slots may be what it waits for.
        self._slots.release(master.job_id)
        self._ended.append(master.job_id)
        if len(self._ended) + len(self.ends) > self._config.max_finished_jobs:
            # Ends of an earlier JobManager are older than all of this one.
            if self.ends:
                oldest, _ = self.ends.popitem(last=False)
            else:
                oldest = self._ended.pop(0)
                del self.jobs[oldest]
            self.keeper.forget(oldest)
        self._schedule_waiting()
