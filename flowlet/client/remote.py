"""The client's side of the control plane: questions to a JobManager, asked from the user's thread.

Side:       shared.  ``ClusterClient`` on any thread; the coroutines run on its loop thread.
Invariants: a call that is under way when the client is closed ends with an error, it never hangs; Ctrl-C ends a call at
            once, and never between two steps that belong together (``interrupts``): neither a lock nor half a call
            stays.
Rules:      a request that got no answer may have been carried out.  Every request that waits for the next JobManager
            may be sent twice: a savepoint is asked for again with its id, so that no second one begins, and a job whose
            id is there already was taken at the first time.  The directory of a savepoint is relative to the working
            directory of the process that asks.
Units:      seconds; on the wire milliseconds.
"""

import asyncio
import atexit
import concurrent.futures
import os
import secrets
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar
from urllib.parse import quote

import msgspec

from flowlet.client.program.interrupts import DeferredSignals, Latch
from flowlet.client.program.user_frames import install_exception_hook
from flowlet.common.options.client_options import ClientRetry
from flowlet.common.paths import absolute_url
from flowlet.errors import FlowletError, JobExecutionError, JobSubmissionError, SavepointError, StorageError
from flowlet.messages.job_messages import InputChannelDescriptor, JobGraphMessage
from flowlet.rpc.converters import converter_to
from flowlet.rpc.requests import ANSWER_TIMEOUT_S, RpcConnectError, RpcGateway, RpcResponse, RpcStatusError
from flowlet.rpc.secret import secret_for
from flowlet.shipping.bundle_maker import NeededCode, PackedBundle
from netstack.flow.heartbeats import Backoff
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.background_call import run_in_background
from netstack.loop.eventloop import EventLoopThread, running_timeout

T = TypeVar("T")
JobDocument = dict[str, Any]
_log = LogLines(__name__)

# The JobManager answers a long poll after at most this; then it is asked again.
LONG_POLL_S: Final = 10.0
_SUBMIT_TIMEOUT_S: Final = 80.0  # it checks a directory of checkpoints for up to 20 s
_REPORT_TIMEOUT_S: Final = 10.0  # of a sign of life: the next one follows anyway
_START_TIMEOUT_S: Final = 30.0  # for a step of a millisecond, on a busy machine
_DISCONNECT_TIMEOUT_S: Final = 5.0  # it takes milliseconds
_SAVEPOINT_TIMEOUT_S: Final = 30.0
_FIRST_PAUSE_MS: Final = 100  # so that a JobManager that is back soon is found soon
_MAX_REASON_CHARS: Final = 500
_SAVEPOINT_REFUSALS: Final = (400, 404, 409)
_NO_CONTENT, _NOT_FOUND, _CONFLICT = 204, 404, 409


class JobEndedError(FlowletError):
    """A request needs a running job, and the job has ended."""


class JobProgress(msgspec.Struct, frozen=True, rename="kebab"):
    """The progress of a job: its newest run, and its newest complete checkpoint (-1: there is none)."""

    attempt: int
    state: str
    last_completed_checkpoint_id: int


_digests: Final = msgspec.msgpack.Decoder(list[bytes])
_to_channel: Final = converter_to(InputChannelDescriptor)
_to_progress: Final = converter_to(JobProgress)


@dataclass(frozen=True, slots=True)
class RunChannels:
    """The channels by which an external edge can be read in one run of its job.

    Args:
        attempt: the number of the run, from 0.
        restored_checkpoint_id: what it began with; -1: from nothing.
        channels: one per producer.
    """

    attempt: int
    restored_checkpoint_id: int
    channels: Sequence[InputChannelDescriptor]


def pauses_s(retry: ClientRetry) -> Iterator[float]:
    """Give the pause before each further try, in seconds."""
    pauses_ms = Backoff(_FIRST_PAUSE_MS, retry.delay_ms).delays()
    return (pause_ms / 1000 for pause_ms in islice(pauses_ms, retry.max_attempts))


@dataclass(slots=True, eq=False)
class JobManagerApi:
    """Typed requests.  Threading: the loop that ``rpc`` was made on.

    Every method raises RpcConnectError if there is no JobManager, AuthenticationError if it has another secret, and
    RpcStatusError with its words if it refuses.  If the JobManager keeps its jobs (``retry``), requests about a job
    wait for the next JobManager before they raise that there is none.
    """

    rpc: RpcGateway
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    # How a JobManager that keeps its jobs is asked again: it may be started again; None: each request is sent once.
    retry: ClientRetry | None = field(init=False, default=None)

    async def overview(self) -> JobDocument:
        """Return counts of TaskManagers, slots and jobs."""
        return await self._get("/overview")

    async def list_jobs(self) -> list[JobDocument]:
        """Return one short document per job."""
        jobs: list[JobDocument] = (await self._get("/jobs/overview"))["jobs"]
        return jobs

    async def list_task_managers(self) -> list[JobDocument]:
        """Return one document per TaskManager."""
        task_managers: list[JobDocument] = (await self._get("/taskmanagers"))["taskmanagers"]
        return task_managers

    async def job(self, job_id: str) -> JobDocument:
        """Return the whole document of a job."""
        document: JobDocument = msgspec.json.decode(
            (await self._request("GET", f"/jobs/{job_id}", ANSWER_TIMEOUT_S)).body
        )
        return document

    async def checkpoints(self, job_id: str) -> JobDocument:
        """Return the last checkpoints of a job, and how many there were."""
        return await self._get(f"/jobs/{job_id}/checkpoints")

    async def vertex_metrics(self, job_id: str, vertex_id: str, names: Sequence[str] = ()) -> Any:
        """Return the metrics of a vertex's subtasks and operators, ``{"id", "value"}`` each; ``names``: only these."""
        return await self._get(f"/jobs/{job_id}/vertices/{vertex_id}/metrics?get={quote(','.join(names))}")

    async def submit(self, job: JobGraphMessage) -> None:
        """Hand a job over.

        Raises:
            JobSubmissionError: the JobManager does not take it; says why.
        """
        answer, num_retries = await self._send("POST", "/jobs", _SUBMIT_TIMEOUT_S, msgspec.msgpack.encode(job))
        if num_retries and answer.status == _CONFLICT:
            return  # the id is new with this job: the JobManager took the job before it was lost
        try:
            answer.raise_for_status()
        except RpcStatusError as error:
            raise JobSubmissionError(f"job {job.name!r} was refused: {error}") from error

    async def ship(self, packed: PackedBundle) -> None:
        """Hand over the files of a job that the JobManager lacks.

        Raises:
            JobSubmissionError: it does not take them, or one has changed meanwhile.
        """
        digests = list(packed.bundle.files.parts())
        if not digests:
            return
        try:
            answer = await self._request("POST", "/files/missing", _SUBMIT_TIMEOUT_S, msgspec.msgpack.encode(digests))
            for digest in _digests.decode(answer.body):
                content = await run_in_background(partial(packed.part, digest), "files to ship")
                await self._request("PUT", f"/files/{digest.hex()}", _SUBMIT_TIMEOUT_S, content)
        except RpcStatusError as error:
            raise JobSubmissionError(f"the JobManager does not take the files of the job: {error}") from error

    async def cancel(self, job_id: str, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        """Ask for the end of a job; one that has ended already stays as it is."""
        try:
            async with running_timeout(timeout_s):
                await self._request("PATCH", f"/jobs/{job_id}?mode=cancel", timeout_s)
        except TimeoutError:
            raise RpcConnectError(
                f"the JobManager does not answer within {timeout_s:g} s: job {job_id} may go on"
            ) from None
        except RpcStatusError as error:
            if error.status != _CONFLICT:
                raise

    async def trigger_savepoint(self, job_id: str, directory: str | None) -> str:
        """Ask for a savepoint; returns the id of the request.  Raises SavepointError: the job cannot take one."""
        return await self._begin_savepoint(f"/jobs/{job_id}/savepoints", {"target-directory": _absolute(directory)})

    async def stop_with_savepoint(self, job_id: str, directory: str | None, *, drain: bool) -> str:
        """Ask for the end of a job with a savepoint; returns the id of the request.

        Raises SavepointError: the job cannot take one.
        """
        body = {"targetDirectory": _absolute(directory), "drain": drain}
        return await self._begin_savepoint(f"/jobs/{job_id}/stop", body)

    async def _begin_savepoint(self, path: str, body: Mapping[str, object]) -> str:
        content = msgspec.json.encode({**body, "triggerId": secrets.token_hex(16)})
        with _refusals_of_savepoints():
            answer = await self._request("POST", path, _SAVEPOINT_TIMEOUT_S, content)
        request_id: str = msgspec.json.decode(answer.body)["request-id"]
        return request_id

    async def wait_for_savepoint(self, job_id: str, request_id: str) -> str:
        """Return the directory of a savepoint, once it is complete, and the job has finished if it is to.

        Raises SavepointError: it has failed, or nobody knows of it any more.
        """
        while True:
            with _refusals_of_savepoints():
                operation = (await self._poll(f"/jobs/{job_id}/savepoints/{request_id}", None))["operation"]
            if operation is None:
                continue
            if "failure-cause" in operation:
                raise SavepointError(operation["failure-cause"]["message"])
            return str(operation["location"])

    async def report_client_heartbeat(self, job_id: str, held_s: float) -> None:
        """Tell that the client of an attached job is there, for ``held_s``; 404 or 409 if the job is over.

        Sent once: the next one follows anyway.  If the connection ends meanwhile, the JobManager knows that the client
        has ended, too.
        """
        path = f"/jobs/{job_id}/clientHeartbeat?timeout_ms={round(held_s * 1000)}"
        (await self.rpc.request("PATCH", path, timeout_s=held_s + _REPORT_TIMEOUT_S)).raise_for_status()

    async def finish_gate(self, job_id: str, gate: str) -> None:
        """Let a remote gate end with the partitions that are open; waits until its tasks are deployed."""
        path = f"/jobs/{job_id}/gates/{quote(gate, safe='')}?mode=finish&timeout_ms={round(LONG_POLL_S * 1000)}"
        while (await self._request("PATCH", path, LONG_POLL_S + ANSWER_TIMEOUT_S)).status == _NO_CONTENT:
            continue

    async def wait_terminal(self, job_id: str, timeout_s: float | None) -> JobDocument | None:
        """Return the document once the job has ended; None if it has not within ``timeout_s`` (None: for ever)."""
        document: JobDocument | None = await self._poll(f"/jobs/{job_id}/execution-result", timeout_s)
        return document

    async def wait_channels(self, job_id: str, edge_id: str, after_attempt: int | None = None) -> RunChannels:
        """Return the channels of an external edge, once its producers are deployed, in a run after ``after_attempt``
        (None: any).

        Raises:
            JobEndedError: the job ended before.
        """
        after = {} if after_attempt is None else {"after_attempt": after_attempt}
        try:
            run = await self._poll(f"/jobs/{job_id}/collect/{edge_id}", None, **after)
        except RpcStatusError as error:
            if error.status != _CONFLICT:
                raise
            raise JobEndedError(str(error)) from error
        hexadecimal = ("partition", "producer")
        channels = [
            _to_channel(each | {name: bytes.fromhex(each[name]) for name in hexadecimal}) for each in run["channels"]
        ]
        return RunChannels(run["attempt"], run["restored-checkpoint-id"], channels)

    async def wait_progress(self, job_id: str, edge_id: str, attempt: int, after_checkpoint: int) -> JobProgress:
        """Return the progress of a job, once a checkpoint after ``after_checkpoint`` is complete, or run ``attempt`` is
        over.
        """
        path = f"/jobs/{job_id}/collect/{edge_id}/progress"
        return _to_progress(await self._poll(path, None, attempt=attempt, after_checkpoint=after_checkpoint))

    async def report_barrier(self, job_id: str, edge_id: str, attempt: bytes, checkpoint_id: int) -> None:
        """Tell that the reader of an external edge has everything that a producer sent before the barrier of a
        checkpoint.
        """
        path = f"/jobs/{job_id}/collect/{edge_id}?producer={attempt.hex()}&checkpoint={checkpoint_id}"
        await self._request("PATCH", path, ANSWER_TIMEOUT_S)

    async def report_broken_results(self, job_id: str, edge_id: str, attempt: int, reason: str) -> None:
        """Tell that run ``attempt`` of an external edge cannot be read any further, so that the job
        must start again.
        """
        query = f"attempt={attempt}&reason={quote(reason[:_MAX_REASON_CHARS], safe='')}"
        path = f"/jobs/{job_id}/collect/{edge_id}/broken?{query}"
        await self._request("PATCH", path, ANSWER_TIMEOUT_S)

    async def _request(self, method: str, path: str, timeout_s: float, body: bytes = b"") -> RpcResponse:
        """Return an answer with a good status; waits for the next JobManager if this one keeps its jobs."""
        return (await self._send(method, path, timeout_s, body))[0].raise_for_status()

    async def _send(self, method: str, path: str, timeout_s: float, body: bytes) -> tuple[RpcResponse, int]:
        """Return an answer, and how often the request was sent again."""
        pauses = iter(()) if self.retry is None else pauses_s(self.retry)
        num_retries = 0
        while True:
            try:
                return await self.rpc.request(method, path, body=body, timeout_s=timeout_s), num_retries
            except RpcConnectError as error:
                pause_s = next(pauses, None)
                if pause_s is None:
                    raise
                if num_retries == 0:
                    _log.info("the JobManager does not answer, trying again", reason=str(error))
            await self.sleep(pause_s)
            num_retries += 1

    async def _get(self, path: str) -> JobDocument:
        answer = (await self.rpc.request("GET", path)).raise_for_status()
        document: JobDocument = msgspec.json.decode(answer.body)
        return document

    async def _poll(self, path: str, timeout_s: float | None, **query: int) -> Any:
        deadline_s = None if timeout_s is None else self.monotonic() + timeout_s
        left_s = timeout_s
        more = "".join(f"&{name}={value}" for name, value in query.items())
        while True:
            slice_s = LONG_POLL_S if left_s is None else min(left_s, LONG_POLL_S)
            url = f"{path}?timeout_ms={round(slice_s * 1000)}{more}"
            try:
                async with running_timeout(None if left_s is None else slice_s + ANSWER_TIMEOUT_S):
                    answer = await self._request("GET", url, slice_s + ANSWER_TIMEOUT_S)
            except TimeoutError:
                raise RpcConnectError(f"no JobManager answers within {slice_s + ANSWER_TIMEOUT_S:g} s") from None
            if answer.status != _NO_CONTENT:
                return msgspec.json.decode(answer.body)
            if deadline_s is not None:
                # By the clock, not by the time asked for: a JobManager may answer sooner, and one that is gone late.
                left_s = deadline_s - self.monotonic()
                if left_s <= 0:
                    return None


@contextmanager
def _refusals_of_savepoints() -> Iterator[None]:
    try:
        yield
    except RpcStatusError as error:
        if error.status not in _SAVEPOINT_REFUSALS:
            raise
        raise SavepointError(str(error)) from error


def _absolute(directory: str | None) -> str | None:
    try:
        return None if directory is None else absolute_url(directory)
    except StorageError as error:
        raise SavepointError(f"a savepoint cannot be written there: {error}") from error


async def create_rpc_client(host: str, port: int, secret: bytes) -> RpcGateway:
    """Make a client over HTTP, on the running loop."""
    from flowlet.rpc.http import RpcClient

    return RpcClient(host, port, secret)


def _result_on(loop: EventLoopThread, coroutine: Coroutine[Any, Any, T]) -> T:
    future = loop.submit(coroutine)
    try:
        return future.result(_START_TIMEOUT_S)
    except TimeoutError:
        future.cancel()  # or it would make a client that is never closed
        raise FlowletError(
            f"the client's event loop did not run within {_START_TIMEOUT_S:g} s: the machine is too busy"
        ) from None


class ClusterClient:
    """A connection to a JobManager for the user's thread.

    Threading: any thread but the loop's.
    Life cycle: ``close`` it; the loop thread ends with it.
    """

    outlives_program = True
    """Whether jobs could go on without this program."""

    def __init__(self, loop: EventLoopThread, rpc: RpcGateway, secret: bytes) -> None:
        self.loop = loop
        self.secret = secret
        """The secret that all processes of the cluster know."""
        self._rpc = rpc
        self._api = JobManagerApi(rpc)
        self._lock = threading.Lock()
        self._pending: set[concurrent.futures.Future[Any]] = set()  # Guarded by _lock.
        self.is_closed = False  # Written under _lock, read anywhere.
        self.patience_s = 0.0
        """How long a JobManager that is gone may take to come back."""
        self._pid = os.getpid()  # a forked child has neither the loop nor the cluster
        atexit.register(self.close)  # a program may end while a job of it runs, or an iterator of its results is open

    @classmethod
    def connect(cls, host: str, port: int, secret: bytes) -> "ClusterClient":
        """Make a client with a loop thread of its own; nothing is sent yet."""
        import flowlet.rpc.http  # noqa: F401 - on this thread, as it would hold up the loop; here, as local clusters do without it

        install_exception_hook()
        client = loop = None

        try:
            with DeferredSignals():
                loop = EventLoopThread.start("flowlet-client")
                client = cls(loop, _result_on(loop, create_rpc_client(host, port, secret)), secret)
        except BaseException:  # an interrupt at the end of the block: no caller has the client yet, to close it
            if client is not None:
                client.close()
            elif loop is not None:
                loop.close()
            raise
        return client

    def __repr__(self) -> str:
        return f"<ClusterClient of {self._rpc.authority}{' closed' if self.is_closed else ''}>"

    def where_to_look(self, job_id: str) -> str:
        """Tell people how to look at a job while it runs."""
        return f"flowlet job {job_id[:8]} -m {self._rpc.authority}"  # the first digits are enough

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that has made the client, and has nothing of it to give
        back.
        """
        return os.getpid() != self._pid

    def be_patient(self, retry: ClientRetry) -> None:
        """Let questions about jobs wait for the next JobManager if this one, which keeps its jobs, does not answer."""
        self._api.retry = retry
        self.patience_s = sum(pauses_s(retry))

    def call(self, request: Callable[[JobManagerApi], Coroutine[Any, Any, T]]) -> T:
        """Run a request on the loop and wait for its result.

        Raises:
            FlowletError: the client is closed, or was closed meanwhile; and whatever the request raises.
        """
        return self.run(lambda: request(self._api))

    def run(self, begin: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run any coroutine like ``call``: the one that ``begin`` returns."""
        future, latch = None, Latch()
        try:
            with DeferredSignals():
                future = self._submit(begin())
                future.add_done_callback(latch.open)
            latch.wait()  # waits for the JobManager; ended by the timeout of the request, close(), or Ctrl-C
            with DeferredSignals():
                return future.result(timeout=0)
        except concurrent.futures.CancelledError:
            raise FlowletError("the connection to the cluster was closed") from None
        except BaseException:  # an interrupted wait; after any other error there is nothing left to cancel
            if future is not None:
                with DeferredSignals():
                    future.cancel()
            raise

    def begin(self, request: Callable[[JobManagerApi], Coroutine[Any, Any, T]]) -> "concurrent.futures.Future[T]":
        """Begin a request like ``call``, without waiting; cancelled when the client closes.

        Raises:
            FlowletError: the client is closed.
        """
        with DeferredSignals():
            return self._submit(request(self._api))

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> "concurrent.futures.Future[T]":
        if os.getpid() != self._pid:
            coroutine.close()
            raise FlowletError(
                f"the client belongs to process {self._pid}, of which this is a forked child: connect anew here"
            )
        with self._lock:
            if self.is_closed:
                coroutine.close()
                raise FlowletError("the connection to the cluster was closed")
            future = self.loop.submit(coroutine)
            self._pending.add(future)
        future.add_done_callback(self._forget)  # outside the lock, which it takes: at once, if the future is done
        return future

    def _forget(self, future: "concurrent.futures.Future[Any]") -> None:
        with self._lock:
            self._pending.discard(future)

    def after_job(self) -> None:
        """Show everything that the cluster still has to show; called when a job has ended."""

    def output_failure(self) -> JobExecutionError | None:
        """Explain why something that TaskManagers of this program printed was not shown; None: all of it was."""
        return None

    def process_ends(self) -> list[str]:
        """Describe how TaskManagers of this program ended that should still run, one line each."""
        return []

    def close(self) -> None:
        """End calls under way, the connections and the loop thread; idempotent.

        Every step has a deadline, so that Ctrl-C can wait until it is over.  In a forked child it does nothing: all
        that is the parent's.
        """
        if self.is_inherited:
            return
        with DeferredSignals():
            with self._lock:
                if self.is_closed:
                    return
                self.is_closed = True
                pending = list(self._pending)  # cancelled outside the lock, which ``_forget`` takes
            atexit.unregister(self.close)
            for future in pending:
                future.cancel()
            try:
                self._shut_down()
            finally:
                self.loop.close()

    def _shut_down(self) -> None:
        """Close everything that lives on the loop, just before it ends."""
        self._finish("the connections to the JobManager", self._rpc.close(), _DISCONNECT_TIMEOUT_S)

    def _finish(self, name: str, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T | None:
        """Run one step of the end on the loop; None and a warning if it is not done in time, then the loop cancels it
        when it stops.
        """
        future = self.loop.submit(coroutine)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():
                raise  # the step's own
            _log.warning(
                "a step of closing the cluster is not done in time and is left behind", step=name, timeout_s=timeout_s
            )
            return None


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """A cluster that runs already.

    The secret is ``secret``, else what is in ``secret_file``, else in ``$FLOWLET_SECRET_FILE``, else in
    ``~/.flowlet/secret``.
    """

    host: str
    port: int
    secret_file: Path | None = None
    secret: bytes | None = field(default=None, repr=False)
    retry: ClientRetry = field(default_factory=ClientRetry)
    needed_code: ClassVar[NeededCode] = NeededCode.ALL

    def open(self, needed_slots: int) -> ClusterClient:
        """Make a client of the cluster, checked to be reachable.

        Raises:
            FlowletError: no JobManager answers there, or it has another secret.
        """
        secret = secret_for(self.host, self.port, self.secret_file) if self.secret is None else self.secret
        client = ClusterClient.connect(self.host, self.port, secret)
        try:
            if client.call(JobManagerApi.overview).get("keeps-jobs"):
                client.be_patient(self.retry)
        except BaseException:
            client.close()
            raise
        return client
