"""The REST interface and the TaskManagers' WebSocket.

Side:   loop.
Source: Flink's REST API, as far as listed here; every error is ``{"errors": [text, ...]}``.
Units:  ``timeout_ms`` of the long polls in milliseconds; a longer one than the limit is cut to it.
Absent: metrics, checkpoints, savepoints, the web page.
"""

from typing import NoReturn

import msgspec
from aiohttp import web

from flowlet.errors import JobGraphError
from flowlet.jm.dispatcher import BusyError, Dispatcher, DuplicateJobError
from flowlet.jm.gates import gate_names
from flowlet.jm.job_document import channel_document, job_document
from flowlet.jm.job_manager_config import JobManagerConfig
from flowlet.jm.job_master import JobMaster
from flowlet.jm.taskmanager_session import TaskManagerSession, new_websocket
from flowlet.rpc.control_messages import JobGraphMessage
from flowlet.rpc.http import HEALTH_PATH, AuthenticatingServer, WallClock, error_response

_DEFAULT_LONG_POLL_MS = 10_000
_job_graph_decoder = msgspec.msgpack.Decoder(JobGraphMessage)


class RestApi:
    """The handlers of all routes.

    Threading: the JobManager's loop.
    """

    def __init__(self, dispatcher: Dispatcher, config: JobManagerConfig, jm_id: str, clock: WallClock) -> None:
        self._dispatcher = dispatcher
        self._config = config
        self._jm_id = jm_id
        self._clock = clock

    def __repr__(self) -> str:
        return f"<RestApi of {self._dispatcher!r}>"

    def create_application(self) -> web.Application:
        """The application to serve."""
        application = AuthenticatingServer(self._config.secret, clock=self._clock).create_application()
        application.add_routes(
            [
                web.get(HEALTH_PATH, self.health),
                web.get("/overview", self.overview),
                web.get("/taskmanagers", self.task_managers),
                web.post("/jobs", self.submit),
                web.get("/jobs/overview", self.jobs_overview),
                web.get("/jobs/{job_id}", self.job),
                web.patch("/jobs/{job_id}", self.cancel),
                web.get("/jobs/{job_id}/execution-result", self.execution_result),
                web.get("/jobs/{job_id}/collect/{edge_id}", self.collect),
                web.get("/gates/{gate}", self.gate),
                web.patch("/gates/{gate}", self.finish_gate),
                web.patch("/jobs/{job_id}/gates/{gate}", self.finish_gate_of_job),
                web.get("/rpc/taskmanager", self.task_manager),
            ]
        )
        return application

    async def health(self, request: web.Request) -> web.Response:
        """That the process serves."""
        return _json({"status": "ok"})

    async def overview(self, request: web.Request) -> web.Response:
        """The cluster in numbers."""
        return _json(self._dispatcher.overview())

    async def task_managers(self, request: web.Request) -> web.Response:
        """All TaskManagers."""
        return _json(self._dispatcher.task_managers())

    async def jobs_overview(self, request: web.Request) -> web.Response:
        """All jobs."""
        return _json(self._dispatcher.jobs_overview())

    async def submit(self, request: web.Request) -> web.Response:
        """Take a job: 202 with its id, 400 if it is not valid, 409 if its id is taken, 503 if there are too many."""
        try:
            job = _job_graph_decoder.decode(await request.read())
            self._dispatcher.submit(job)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return error_response(400, f"the body is not a job graph: {error}")
        except JobGraphError as error:
            return error_response(400, str(error))
        except DuplicateJobError as error:
            return error_response(409, str(error))
        except BusyError as error:
            return error_response(503, str(error))
        return _json({"jobid": job.job_id}, status=202)

    async def job(self, request: web.Request) -> web.Response:
        """All about one job."""
        return self._document_of(self._find_job(request))

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a job; 202 in every state."""
        master = self._find_job(request)
        if request.query.get("mode") != "cancel":
            return error_response(400, "the mode must be given as ?mode=cancel")
        master.cancel()
        return _json({}, status=202)

    async def execution_result(self, request: web.Request) -> web.Response:
        """The job's document once it has ended, or has failed and its tasks do not end; 204 if that is not so within the time."""
        master = self._find_job(request)
        if await master.wait_for_result(self._long_poll_s(request), self._config.failure_grace_s):
            return self._document_of(master)
        return web.Response(status=204)

    async def collect(self, request: web.Request) -> web.Response:
        """Where to read an external edge, once its producers are deployed; 204 if not within the time, 409 if the job has ended."""
        master = self._find_job(request)
        edge = master.edge(request.match_info["edge_id"])
        if edge is None or edge.target is not None:
            return error_response(404, "the job has no external edge with this id")
        if not await master.wait_until_deployed(self._long_poll_s(request)):
            return web.Response(status=204)
        if master.is_ended:
            return error_response(409, f"the job is {master.graph.status.name}")
        return _json([channel_document(channel) for channel in master.external_channels(edge)])

    async def gate(self, request: web.Request) -> web.Response:
        """Where a remote gate is, and a token for it: 404 if no job has it, 410 if its job has ended, 204 if it is not ready in time."""
        name = request.match_info["gate"]
        master = self._dispatcher.job_with_gate(name)
        if master is None:
            return error_response(404, f"no job has a gate {name!r}; the gates of running jobs are {self._dispatcher.gate_names()}")
        if not await master.wait_until_running(self._long_poll_s(request)):
            return web.Response(status=204)
        if master.is_ended:
            return error_response(410, f"gate {name!r} has ended: its job {master.job.name!r} is {master.graph.status.name}")
        return _json(master.gate_document(name, self._config.secret))

    async def finish_gate(self, request: web.Request) -> web.Response:
        """Let a gate end with the partitions that are open; 202, also if it does so already, else as ``gate``."""
        name = request.match_info["gate"]
        master = self._dispatcher.job_with_gate(name)
        if master is None:
            return error_response(404, f"no job has a gate {name!r}; the gates of running jobs are {self._dispatcher.gate_names()}")
        return await self._finish_gate(request, master, name)

    async def finish_gate_of_job(self, request: web.Request) -> web.Response:
        """The same for a gate of one job."""
        master, name = self._find_job(request), request.match_info["gate"]
        if name not in gate_names(master.job):
            return error_response(404, f"the job has no gate {name!r}; its gates are {gate_names(master.job)}")
        return await self._finish_gate(request, master, name)

    async def _finish_gate(self, request: web.Request, master: JobMaster, name: str) -> web.Response:
        if request.query.get("mode") != "finish":
            return error_response(400, "the mode must be given as ?mode=finish")
        if not await master.wait_until_deployed(self._long_poll_s(request)):
            return web.Response(status=204)
        if master.is_ended:
            return error_response(410, f"gate {name!r} has ended: its job {master.job.name!r} is {master.graph.status.name}")
        master.finish_gate(name)
        return _json({}, status=202)

    async def task_manager(self, request: web.Request) -> web.StreamResponse:
        """The WebSocket of one TaskManager, until it ends."""
        websocket = new_websocket()
        await websocket.prepare(request)
        await TaskManagerSession(websocket, self._dispatcher, self._config, self._jm_id).run()
        return websocket

    def _find_job(self, request: web.Request) -> JobMaster:
        master = self._dispatcher.job(request.match_info["job_id"])
        if master is None:
            _fail(web.HTTPNotFound, "no job with this id")
        return master

    def _document_of(self, master: JobMaster) -> web.Response:
        return _json(job_document(master.view, self._clock()))

    def _long_poll_s(self, request: web.Request) -> float:
        text = request.query.get("timeout_ms", str(_DEFAULT_LONG_POLL_MS))
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            _fail(web.HTTPBadRequest, "timeout_ms must be a number of milliseconds")
        return min(int(text), self._config.max_long_poll_ms) / 1000


def _fail(error: type[web.HTTPError], reason: str) -> NoReturn:
    raise error(reason=reason)


def _json(document: object, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(document), content_type="application/json")
