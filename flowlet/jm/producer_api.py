"""The part of the REST interface for producers outside the cluster, which sign with their gate's token.

Side:       loop.
Invariants: a token serves only for its own gate, and not after its expiry.  Its holder learns the job's status, the
            cause of its failure, which partitions are counted and where the gate's tasks run, asks for checkpoints, and
            commits and aborts writes; nothing else.
Source:     ours.
"""

import re
from functools import partial
from urllib.parse import unquote

from flowlet.common.job_status import JobStatus
from flowlet.jm.dispatcher import Dispatcher
from flowlet.jm.failures import cause_in_one_line
from flowlet.jm.gates import JobGate
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.job_master import JobMaster
from flowlet.messages.control_messages import CountedPartition, GateOutcome
from flowlet.rpc.requests import Request, Response, Route, WallClock, error_response, json_response, number_in, refuse
from netstack.errors import LocalProtocolError
from netstack.late import dataclass
from netstack.wire.offer_messages import MAX_JOB_NAME_BYTES, GateIdentity, gate_token

_BASE = "/producers/{job_id}/{gate}/{expires_ms}"
_TARGET = re.compile(
    r"/producers/([0-9a-f]{32})/([^/?]+)/([0-9]{1,18})/(?:checkpoint|partition|place|write)(?:\?|$)", re.ASCII
)
_LOST = (JobStatus.FAILING, JobStatus.FAILED, JobStatus.CANCELLING, JobStatus.CANCELED)
_number = partial(number_in, default=0, max_digits=18)
# A producer may hear of a failure before the JobManager does, and of a symptom before its cause.
_TROUBLE_TIMEOUT_S = 0.5
_PLACE_TIMEOUT_S = _KEPT_TIMEOUT_S = 2.0  # producers wait longer for an answer


@dataclass(slots=True, eq=False, repr=False)
class ProducerApi:
    """The handlers of requests of producers.  Threading: the JobManager's loop."""

    dispatcher: Dispatcher
    config: JobManagerConfig
    clock: WallClock

    def routes(self) -> list[Route]:
        """List the routes, for the application of ``RestApi``."""
        return [
            Route("GET", f"{_BASE}/partition", self.partition),
            Route("GET", f"{_BASE}/place", self.place),
            Route("PATCH", f"{_BASE}/checkpoint", self.checkpoint),
            Route("PATCH", f"{_BASE}/write", self.write),
        ]

    def key_of(self, target: str) -> bytes | None:
        """Return the token that must have signed a request with this target; None for other routes, and for an expired
        token.
        """
        gate = _gate_in(target)
        return None if gate is None or gate.expires_ms < self.clock() else gate_token(self.config.secret, gate)

    async def partition(self, request: Request) -> Response:
        """Answer a ``GateOutcome``; 404 the job is forgotten.

        With ``has_failed=1`` the producer's attempt has failed: wait for a moment for the job to fail, too.
        """
        master, gate = self._find_gate(request)
        if request.query.get("has_failed") == "1":
            await master.wait_for_trouble(_TROUBLE_TIMEOUT_S, self.config.failure_grace_s)
        partition = CountedPartition(_write_job(request), _number(request, "epoch"), _number(request, "partition"))
        status, failure = master.graph.status, master.graph.failure
        may_count = status not in _LOST and (
            status is not JobStatus.RESTARTING or master.job.settings.acknowledges_checkpointed
        )
        is_counted = may_count and gate.is_counted(partition)
        cause = None if failure is None else cause_in_one_line(failure)
        return json_response(GateOutcome(status.name, is_counted, cause, gate.is_finishing))

    async def place(self, request: Request) -> Response:
        """Answer where the gate's tasks run: 204 they do not now, 410 the job has ended, 404 it is forgotten."""
        master, gate = self._find_gate(request)
        if not await master.wait_until_running(_PLACE_TIMEOUT_S):
            return Response(status=204)
        if master.is_ended:
            return error_response(410, f"gate {gate.gate.name!r} has ended: {_why_ended(master)}")
        return json_response(master.gate_places(gate))

    async def checkpoint(self, request: Request) -> Response:
        """Note that a producer waits for a checkpoint: 202, 404 the job is forgotten."""
        self._find_gate(request)[0].checkpoints.request()
        return Response(status=202)

    async def write(self, request: Request) -> Response:
        """Commit or abort a write.

        202; 204 no checkpoint holds it yet: ask again; 409 it cannot be committed, 410 the job has failed or was
        cancelled, 404 the job is forgotten.
        """
        master, gate = self._find_gate(request)
        job, epoch = _write_job(request), _number(request, "epoch")
        mode = request.query.get("mode")
        if mode == "abort":
            gate.abort(job, epoch)
            return await _kept(master, job)
        if mode != "commit":
            return error_response(400, "to end the write, call this path with ?mode=commit or ?mode=abort")
        if master.graph.status in _LOST:
            return _lost(master, job)
        master.gates.commit(gate, job, epoch, _number(request, "partitions"))
        return await _kept(master, job)

    def _find_gate(self, request: Request) -> tuple[JobMaster, JobGate]:
        job_id = request.match_info["job_id"]
        name = request.match_info["gate"]
        identity = _gate_in(request.raw_path)
        master = self.dispatcher.jobs.get(job_id)
        gate = None if master is None else master.gates.find(name)
        # The name in the token's path must be this one: else the token may be another gate's.
        if master is None or gate is None or identity is None or identity.name != name:
            refuse(404, f"no job {job_id} with a gate {name!r} is known (any more)")
        return master, gate


def _gate_in(target: str) -> GateIdentity | None:
    """Parse the gate in the target of a request to these routes."""
    match = _TARGET.match(target)
    try:
        return None if match is None else GateIdentity(bytes.fromhex(match[1]), unquote(match[2]), int(match[3]))
    except (ValueError, LocalProtocolError):
        return None


async def _kept(master: JobMaster, job: str) -> Response:
    """Answer once a checkpoint holds the reports about a write, if writes wait for checkpoints."""
    if not await master.wait_until_kept(_KEPT_TIMEOUT_S):
        return Response(status=204)
    return _lost(master, job) if master.graph.status in _LOST else Response(status=202)


def _lost(master: JobMaster, job: str) -> Response:
    return error_response(410, f"the results of write {job!r} are lost: {_why_ended(master)}")


def _why_ended(master: JobMaster) -> str:
    failure = master.graph.failure
    cause = "" if failure is None else f": {cause_in_one_line(failure)}"
    return f"job {master.job.name!r} is {master.graph.status.name}{cause}"


def _write_job(request: Request) -> str:
    job = request.query.get("job", "")
    if not 1 <= len(job.encode("utf-8", "replace")) <= MAX_JOB_NAME_BYTES:
        refuse(400, f"job must be a name of 1 to {MAX_JOB_NAME_BYTES} bytes")
    return job
