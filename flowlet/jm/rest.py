"""The REST interface, and the WebSocket of the TaskManagers.

Side:   loop.
Source: the parts of Flink's REST API that ``routes`` lists; every error is ``{"errors": [text, ...]}``.
Invariants: a gate's token serves only for its own gate, and not after its expiry.  Its holder, a producer outside the
        cluster, learns the job's status, the cause of its failure, which partitions are counted and where the gate's
        tasks run, asks for checkpoints, and commits and aborts writes; nothing else.
Units:  ``timeout_ms`` of long polls in milliseconds, cut to ``max_long_poll_ms``.
Absent: the web page.
"""

import asyncio
import re
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import unquote

import msgspec

from flowlet.checkpoint.jobmanager.savepoints import SavepointApi, check_checkpoint_directory
from flowlet.common.job_status import JobStatus
from flowlet.graph.execution_graph import MAX_FAILED_RUNS
from flowlet.jm.dispatcher import Dispatcher
from flowlet.jm.failures import cause_in_one_line
from flowlet.jm.gates import JobGate, gate_document, gate_names, gate_places
from flowlet.jm.job_document import channel_document, exceptions_document, job_document, vertex_metrics_document
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.job_master import JobMaster
from flowlet.jm.taskmanager_session import TaskManagerSession
from flowlet.messages.control_messages import CountedPartition, GateOutcome
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage
from flowlet.rpc.authenticating_server import AuthenticatingServer
from flowlet.rpc.requests import (
    Request,
    Response,
    Route,
    SessionTransport,
    WallClock,
    decoded,
    error_response,
    json_response,
    number_in,
    refuse,
)
from flowlet.shipping.bundle_store import FileApi, FileKeeper
from netstack.errors import LocalProtocolError
from netstack.late import dataclass
from netstack.wire.offer_messages import MAX_JOB_NAME_BYTES, GateIdentity, gate_token

if TYPE_CHECKING:
    from aiohttp import web

_DEFAULT_LONG_POLL_MS = 10_000
_MAX_REASON_CHARS = 1000
_PRODUCER = re.compile(r"(?:[0-9a-f]{2}){1,64}")
_CHECKPOINT = re.compile(r"[0-9]{1,18}")
_PRODUCERS = "/producers/{job_id}/{gate}/{expires_ms}"
_PRODUCERS_TARGET = re.compile(
    r"/producers/([0-9a-f]{32})/([^/?]+)/([0-9]{1,18})/(?:checkpoint|partition|place|write)(?:\?|$)", re.ASCII
)
_LOST = (JobStatus.FAILING, JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.CANCELED)
_number = partial(number_in, default=0, max_digits=18)
# A producer may hear of a failure before the JobManager does, and of a symptom before its cause.
_TROUBLE_TIMEOUT_S = 0.5
_PLACE_TIMEOUT_S = _KEPT_TIMEOUT_S = 2.0  # producers wait longer for an answer
_job_graph_decoder = msgspec.msgpack.Decoder(JobGraphMessage)


@dataclass(eq=False, repr=False)
class RestApi:
    """The handlers of all routes.  Threading: the JobManager's loop."""

    dispatcher: Dispatcher
    config: JobManagerConfig
    jm_id: str
    clock: WallClock
    files: FileKeeper

    def __post_init__(self) -> None:
        self._savepoints = SavepointApi(self._find_job, self._long_poll_s)
        self.protection = AuthenticatingServer(
            self.config.secret, advertised=self.config.advertised_addresses, key_of=self.key_of
        )

    def create_application(self) -> "web.Application":
        """Make the aiohttp application with all routes, behind the check of signatures."""
        return self.protection.create_application(self.routes(), self.serve_session)

    def routes(self) -> list[Route]:
        """List all routes but that of the TaskManagers' sessions, which each carrier opens in its own way."""
        return [
            Route("GET", f"{_PRODUCERS}/partition", self.producers_partition),
            Route("GET", f"{_PRODUCERS}/place", self.producers_place),
            Route("PATCH", f"{_PRODUCERS}/checkpoint", self.producers_checkpoint),
            Route("PATCH", f"{_PRODUCERS}/write", self.producers_write),
            *self._savepoints.routes(),
            *FileApi(self.files).routes(),
            Route("GET", "/overview", self.overview),
            Route("GET", "/taskmanagers", self.task_managers),
            Route("POST", "/jobs", self.submit),
            Route("GET", "/jobs/overview", self.jobs_overview),
            Route("GET", "/jobs/{job_id}", self.job),
            Route("PATCH", "/jobs/{job_id}", self.cancel),
            Route("PATCH", "/jobs/{job_id}/clientHeartbeat", self.client_heartbeat),
            Route("GET", "/jobs/{job_id}/checkpoints", self.checkpoints),
            Route("GET", "/jobs/{job_id}/vertices/{vertex_id}/metrics", self.vertex_metrics),
            Route("GET", "/jobs/{job_id}/execution-result", self.execution_result),
            Route("GET", "/jobs/{job_id}/exceptions", self.exceptions),
            Route("GET", "/jobs/{job_id}/collect/{edge_id}", self.collect),
            Route("GET", "/jobs/{job_id}/collect/{edge_id}/progress", self.collect_progress),
            Route("PATCH", "/jobs/{job_id}/collect/{edge_id}", self.barrier_read),
            Route("PATCH", "/jobs/{job_id}/collect/{edge_id}/broken", self.results_broken),
            Route("GET", "/gates/{gate}", self.gate),
            Route("PATCH", "/gates/{gate}", self.finish_gate),
            Route("PATCH", "/jobs/{job_id}/gates/{gate}", self.finish_gate),
        ]

    async def overview(self, request: Request) -> Response:
        """Answer the cluster in numbers: TaskManagers, slots, jobs."""
        return json_response(self.dispatcher.overview())

    async def task_managers(self, request: Request) -> Response:
        """Answer all TaskManagers."""
        return json_response(self.dispatcher.task_managers())

    async def jobs_overview(self, request: Request) -> Response:
        """Answer all jobs."""
        return json_response(self.dispatcher.jobs_overview())

    async def submit(self, request: Request) -> Response:
        """Submit a job: 202 with its id; 400 not valid; 409 id or gate name taken; 503 too many jobs."""
        job = decoded(request, _job_graph_decoder, "not a job graph")
        await check_checkpoint_directory(job)
        # Last, with no wait before ``submit``, from which on the job's parts are kept.
        await self.files.check(job.code.files)
        problem = await self.dispatcher.submit(job).wait_until_submitted()
        if problem is not None:
            return error_response(503, problem)
        return json_response({"jobid": job.job_id}, status=202)

    async def job(self, request: Request) -> Response:
        """Answer everything about one job; 503 if the job store does not take its end."""
        # First: a job that ended at an earlier JobManager has no master here.
        if (ended := self._ended_document(request)) is not None:
            return ended
        master = self._find_job(request)
        # An end is told when the job store has it: otherwise the next JobManager could run the job again.
        if master.is_ended and not await master.wait_until_settled(_DEFAULT_LONG_POLL_MS / 1000):
            return error_response(503, "the job has ended, and the job store has not taken its end yet")
        return self._document_of(master)

    async def cancel(self, request: Request) -> Response:
        """Cancel a job: 202 in every state."""
        master = self._find_job(request)
        if request.query.get("mode") != "cancel":
            return error_response(400, "to cancel the job, call this path with ?mode=cancel")
        master.cancel()
        return json_response({}, status=202)

    async def checkpoints(self, request: Request) -> Response:
        """Answer the last checkpoints of one job, and how many there were."""
        return json_response(self._find_job(request).checkpoints.documents())

    async def client_heartbeat(self, request: Request) -> Response:
        """Note that the client of an attached job is there: 202 after ``timeout_ms`` (default: at once), or 409 if the
        job has ended.

        If the connection ends before the answer, the client has ended.
        """
        master = self._find_job(request)
        held_s = self._long_poll_s(request, default_ms=0)
        # Before the wait: the lease runs on while this request is held.
        if not master.is_ended:
            sign = master.lease.renew()
            if held_s:
                try:
                    await master.wait_until_ended(held_s)
                except asyncio.CancelledError:  # by aiohttp, because the connection has ended
                    master.lease.client_left(sign)
                    raise
                master.lease.renew()
        if master.is_ended:
            return error_response(409, f"the job is {master.graph.status.name}")
        return json_response({}, status=202)

    async def execution_result(self, request: Request) -> Response:
        """Answer the job's document once its result is known; 204 if that takes longer than ``timeout_ms``."""
        if (ended := self._ended_document(request)) is not None:
            return ended
        master, timeout_s = self._find_job(request), self._long_poll_s(request)
        # A failing job's result is known before its tasks have ended.
        if not await master.wait_for_result(timeout_s, self.config.failure_grace_s):
            return Response(status=204)
        # As in ``job``: an end that the job store lacks is not told.
        if master.is_ended and not await master.wait_until_settled(timeout_s):
            return Response(status=204)
        return self._document_of(master)

    async def vertex_metrics(self, request: Request) -> Response:
        """Answer the metrics of a vertex's operators by subtask; ``get`` names some of them
        (``0.Map.hits,1.Map.hits``); 404: no such vertex.
        """
        end = self.dispatcher.ends.get(request.match_info["job_id"])
        document = (
            job_document(self._find_job(request), self.clock()) if end is None else msgspec.json.decode(end.document)
        )
        wanted = [name for name in request.query.get("get", "").split(",") if name]
        found = vertex_metrics_document(document, request.match_info["vertex_id"], wanted)
        return error_response(404, "the job has no vertex with this id") if found is None else json_response(found)

    def _ended_document(self, request: Request) -> Response | None:
        """Answer for a job that ended at an earlier JobManager; None: the job is no such one."""
        end = self.dispatcher.ends.get(request.match_info["job_id"])
        return None if end is None else Response(body=end.document)

    async def exceptions(self, request: Request) -> Response:
        """Answer why the last runs of a job failed; at most ``maxExceptions``."""
        master = self._find_job(request)
        return json_response(exceptions_document(master, number_in(request, "maxExceptions", MAX_FAILED_RUNS)))

    async def collect(self, request: Request) -> Response:
        """Answer the channels of an external edge in the newest run, once it is deployed; 409 if the job has ended.

        ``after_attempt``: of a run with a higher number; 204 if there is none within ``timeout_ms``.
        """
        master = self._find_job(request)
        edge = self._find_external_edge(request, master)
        after_attempt = number_in(request, "after_attempt", -1)
        if not await master.wait_until_deployed(self._long_poll_s(request), after_attempt, edge):
            return Response(status=204)
        # Looked at after the wait, which ends with the job, too.
        if master.is_ended:
            return error_response(409, f"the job is {master.graph.status.name}")
        return json_response(
            {
                "attempt": master.graph.attempt_number,
                "restored-checkpoint-id": master.restored_checkpoint_id,
                "channels": [channel_document(channel) for channel in master.plan.external_channels(edge)],
            }
        )

    async def collect_progress(self, request: Request) -> Response:
        """Answer how far the run ``attempt`` is, once a checkpoint after ``after_checkpoint`` is complete or the run is
        over; 204 if not in time.
        """
        master = self._find_job(request)
        self._find_external_edge(request, master)
        attempt, after_checkpoint = number_in(request, "attempt", 0), number_in(request, "after_checkpoint", -1)
        if not await master.wait_for_checkpoint(self._long_poll_s(request), attempt, after_checkpoint):
            return Response(status=204)
        return json_response(
            {
                "attempt": master.graph.attempt_number,
                "state": master.graph.status.name,
                "last-completed-checkpoint-id": master.checkpoints.last_completed_id,
            }
        )

    async def barrier_read(self, request: Request) -> Response:
        """Note that the client has read an external edge up to the barrier of ``checkpoint`` from ``producer``: 202,
        also if that run is over.
        """
        master = self._find_job(request)
        producer, checkpoint = request.query.get("producer", ""), request.query.get("checkpoint", "")
        # Their sizes are bounded here: they become a key, and a number of any length.
        if not (_PRODUCER.fullmatch(producer) and _CHECKPOINT.fullmatch(checkpoint)):
            return error_response(
                400, "say which producer (hex) and which checkpoint (a number): ?producer=...&checkpoint=..."
            )
        master.barrier_read(request.match_info["edge_id"], bytes.fromhex(producer), int(checkpoint))
        return json_response({}, status=202)

    async def results_broken(self, request: Request) -> Response:
        """Fail run ``attempt``, because the client cannot read an external edge of it any further; 202,
        also if that run is over.
        """
        master = self._find_job(request)
        # For its check alone: a request about no such edge must not fail a run.
        self._find_external_edge(request, master)
        master.results_broken(number_in(request, "attempt", 0), request.query.get("reason", "")[:_MAX_REASON_CHARS])
        return json_response({}, status=202)

    async def gate(self, request: Request) -> Response:
        """Answer the addresses of a remote gate and a token: 404 no job has it, 410 its job has ended, 204 not running
        within ``timeout_ms``.

        ``committed_job`` announces a producer's job whose writes count only once they are committed.
        """
        master, gate = self._find_gate(request)
        if not await master.wait_until_running(self._long_poll_s(request)):
            return Response(status=204)
        # The job may have ended while this request waited.
        _check_not_ended(master, gate)
        committed_job = request.query.get("committed_job")
        if committed_job is not None:
            # With the address, before the producer connects: its first records must find it announced.
            gate.announce(committed_job[:MAX_JOB_NAME_BYTES])
        places = gate_places(master, gate)
        return json_response(gate_document(master.job, gate.gate, places, self.config.secret, self.clock()))

    async def finish_gate(self, request: Request) -> Response:
        """Accept no further producers at a gate: 202, also if repeated; 404, 410 and 204 as in ``gate``."""
        master, gate = self._find_gate(request)
        if request.query.get("mode") != "finish":
            return error_response(400, "to finish the gate, call this path with ?mode=finish")
        # A gate that is not deployed has no task that could be told.
        if not await master.wait_until_deployed(self._long_poll_s(request)):
            return Response(status=204)
        _check_not_ended(master, gate)
        master.gates.finish(gate)
        return json_response({}, status=202)

    # ---------------------------------------------------------------- for producers, who sign with their gate's token

    def key_of(self, target: str) -> bytes | None:
        """Return the token that must have signed a request with this target; None for other routes, and for an expired
        token.
        """
        gate = _gate_in(target)
        # An expired token opens nothing, though its signature is right.
        return None if gate is None or gate.expires_ms < self.clock() else gate_token(self.config.secret, gate)

    async def producers_partition(self, request: Request) -> Response:
        """Answer a ``GateOutcome``; 404 the job is forgotten.

        With ``has_failed=1`` the producer's attempt has failed: wait for a moment for the job to fail, too.
        """
        master, gate = self._find_producers_gate(request)
        if request.query.get("has_failed") == "1":
            await master.wait_for_trouble(_TROUBLE_TIMEOUT_S, self.config.failure_grace_s)
        partition = CountedPartition(_write_job(request), _number(request, "epoch"), _number(request, "partition"))
        status = master.graph.status
        failure = master.graph.failure
        # While a job restarts, counts without checkpoints are those of a run whose data is lost.
        may_count = status not in _LOST and (
            status is not JobStatus.RESTARTING or master.job.settings.acknowledges_checkpointed
        )
        is_counted = may_count and gate.is_counted(partition)
        cause = None if failure is None else cause_in_one_line(failure)
        return json_response(GateOutcome(status.name, is_counted, cause, gate.is_finishing))

    async def producers_place(self, request: Request) -> Response:
        """Answer where the gate's tasks run: 204 they do not now, 410 the job has ended, 404 it is forgotten."""
        master, gate = self._find_producers_gate(request)
        if not await master.wait_until_running(_PLACE_TIMEOUT_S):
            return Response(status=204)
        if master.is_ended:
            return error_response(410, f"gate {gate.gate.name!r} has ended: {_why_ended(master)}")
        return json_response(gate_places(master, gate))

    async def producers_checkpoint(self, request: Request) -> Response:
        """Note that a producer waits for a checkpoint: 202, 404 the job is forgotten."""
        self._find_producers_gate(request)[0].checkpoints.request()
        return Response(status=202)

    async def producers_write(self, request: Request) -> Response:
        """Commit or abort a write.

        202; 204 no checkpoint holds it yet: ask again; 409 it cannot be committed, 410 the job has failed or was
        cancelled, 404 the job is forgotten.
        """
        master, gate = self._find_producers_gate(request)
        job = _write_job(request)
        epoch = _number(request, "epoch")
        mode = request.query.get("mode")
        if mode == "abort":
            # Whatever the job's state: an aborted write counts nowhere.
            gate.abort(job, epoch)
            return await _kept(master, job)
        if mode != "commit":
            return error_response(400, "to end the write, call this path with ?mode=commit or ?mode=abort")
        # Before the commit, which would be noted for a gate whose data is gone.
        if master.graph.status in _LOST:
            return _lost(master, job)
        master.gates.commit(gate, job, epoch, _number(request, "partitions"))
        return await _kept(master, job)

    def _find_producers_gate(self, request: Request) -> tuple[JobMaster, JobGate]:
        job_id = request.match_info["job_id"]
        name = request.match_info["gate"]
        # From the target as it was signed: a decoded path could name another gate.
        identity = _gate_in(request.raw_path)
        master = self.dispatcher.jobs.get(job_id)
        gate = None if master is None else master.gates.find(name)
        # The name in the token's path must be this one: else the token may be another gate's.
        if master is None or gate is None or identity is None or identity.name != name:
            refuse(404, f"no job {job_id} with a gate {name!r} is known (any more)")
        return master, gate

    # ---------------------------------------------------------------- what the handlers share

    async def serve_session(self, transport: SessionTransport, peer: str | None) -> None:
        """Serve the session of one TaskManager until it ends; ``peer`` names it in logs until it has sent its name."""
        await TaskManagerSession(transport, self.dispatcher, self.config, self.jm_id, peer=peer).run()

    def _find_job(self, request: Request) -> JobMaster:
        job_id = request.match_info["job_id"]
        master = self.dispatcher.jobs.get(job_id)
        if master is None:
            end, problem = self.dispatcher.ends.get(job_id), self.dispatcher.problems.get(job_id)
            if end is not None:
                # Not 404: it is known, and only can no longer be asked for this.
                refuse(409, f"the job is {end.status}")
            refuse(404, "no job with this id" if problem is None else " ".join(problem.split()))
        return master

    def _find_gate(self, request: Request) -> tuple[JobMaster, JobGate]:
        """Find the gate that the path names, alone or with its job."""
        name = request.match_info["gate"]
        master = self._find_job(request) if "job_id" in request.match_info else self.dispatcher.job_with_gate(name)
        gate = None if master is None else master.gates.find(name)
        if master is not None and gate is None:
            refuse(404, f"the job has no gate {name!r}; its gates are {gate_names(master.job)}")
        if master is None or gate is None:
            refuse(404, f"no job has a gate {name!r}; the gates of running jobs are {self.dispatcher.gate_names()}")
        return master, gate

    def _find_external_edge(self, request: Request, master: JobMaster) -> EdgeMessage:
        edge_id = request.match_info["edge_id"]
        edge = next((each for each in master.job.edges if each.id == edge_id and each.target is None), None)
        if edge is None:
            refuse(404, "the job has no external edge with this id")
        return edge

    def _document_of(self, master: JobMaster) -> Response:
        return json_response(job_document(master, self.clock()))

    def _long_poll_s(self, request: Request, default_ms: int = _DEFAULT_LONG_POLL_MS) -> float:
        wanted_ms = number_in(request, "timeout_ms", default_ms, what="a number of milliseconds")
        return min(wanted_ms, self.config.max_long_poll_ms) / 1000


def _check_not_ended(master: JobMaster, gate: JobGate) -> None:
    if master.is_ended:
        refuse(410, f"gate {gate.gate.name!r} has ended: its job {master.job.name!r} is {master.graph.status.name}")


def _gate_in(target: str) -> GateIdentity | None:
    """Parse the gate in the target of a request to these routes."""
    match = _PRODUCERS_TARGET.match(target)
    try:
        return None if match is None else GateIdentity(bytes.fromhex(match[1]), unquote(match[2]), int(match[3]))
    # Anybody can send such a target: it has no token, and is refused like any wrong one.
    except (ValueError, LocalProtocolError):
        return None


async def _kept(master: JobMaster, job: str) -> Response:
    """Answer once a checkpoint holds the reports about a write, if writes wait for checkpoints."""
    if not await master.wait_until_kept(_KEPT_TIMEOUT_S):
        return Response(status=204)
    # Looked at after the wait: a job that failed meanwhile has lost the write.
    return _lost(master, job) if master.graph.status in _LOST else Response(status=202)


def _lost(master: JobMaster, job: str) -> Response:
    return error_response(410, f"the results of write {job!r} are lost: {_why_ended(master)}")


def _why_ended(master: JobMaster) -> str:
    failure = master.graph.failure
    cause = "" if failure is None else f": {cause_in_one_line(failure)}"
    return f"job {master.job.name!r} is {master.graph.status.name}{cause}"


def _write_job(request: Request) -> str:
    job = request.query.get("job", "")
    # Bytes, not characters: the wire counts them so.
    if not 1 <= len(job.encode("utf-8", "replace")) <= MAX_JOB_NAME_BYTES:
        refuse(400, f"job must be a name of 1 to {MAX_JOB_NAME_BYTES} bytes")
    return job
