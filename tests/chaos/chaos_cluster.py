"""A JobManager that keeps its jobs and three TaskManagers, all of whose connections to each other go through the fault
proxy.

Invariants: every TaskManager has a place: its ports and its two entrances stay when its process is replaced.
"""

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.cluster import Process
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import RpcConnectError
from flowlet.rpc.secret import load_secret
from tests.chaos.chaos_plan import NUM_TASK_MANAGERS, SLOTS, ClusterPlan
from tests.chaos.fault_proxy import Entrance, FaultProxy
from tests.chaos.frame_finder import DataFrames, WebSocketFrames

DISK_BYTES: Final = 48 * 1024 * 1024
READY_S: Final = 60.0
_PORTS: Final = 20_000, 32_000
_POLL_S: Final = 0.02
_OK: Final = 200
_ROOT: Final = Path(__file__).resolve().parent.parent.parent
_ENVIRONMENT: Final = {"NETSTACK_DEBUG": "0", "PYTHONPATH": str(_ROOT)}  # as users run it, but for where the tests lie
# Keeps a core busy; ends with its parent, however that ends.
_HOG: Final = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@dataclass
class Place:
    """A TaskManager and its entrances.  ``may_end``: its process was attacked, or may fall into a trap."""

    number: int
    data: Entrance
    control: Entrance
    process: Process
    may_end: bool = False


class ChaosCluster:
    """Life cycle: a context manager; inside, all processes run and know each other.  Threading: one thread."""

    job_manager: Process

    def __init__(self, folder: Path, plan: ClusterPlan) -> None:
        self.folder = folder
        self._plan = plan
        self._stack = ExitStack()
        self._runner: asyncio.Runner | None = None
        self._client: RpcClient | None = None
        self._num_started = 0
        self.secret_file = folder / "secret"
        self.port = _free_port()
        self.places: list[Place] = []
        self.has_small_disk = False

    @property
    def address(self) -> str:
        """The address at which clients reach the JobManager, past the proxy."""
        return f"127.0.0.1:{self.port}"

    @property
    def local_disk(self) -> Path:
        """The folder in which RocksDB works: in memory, if this user may mount that.

        The binding of RocksDB keeps the interpreter's lock while it opens a database and takes a checkpoint; a disk
        that needs seconds for an fsync would stop all of a TaskManager for as long, and that is no fault of the plan.
        """
        return self.folder / "local"

    @property
    def disk(self) -> Path:
        """The folder of checkpoints: a small file system of its own, if this user may mount one."""
        return self.folder / "disk"

    def __enter__(self) -> Self:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._mount()
            self._runner = self._stack.enter_context(asyncio.Runner())
            proxy = self._stack.enter_context(FaultProxy())
            numbers = range(NUM_TASK_MANAGERS)
            ways = [
                (
                    proxy.open_entrance(f"data {number}", DataFrames),
                    proxy.open_entrance(f"control {number}", WebSocketFrames),
                )
                for number in numbers
            ]
            for data, control in ways:
                data.target_port, control.target_port = _free_port(), self.port
            self._advertised = [f"127.0.0.1:{control.port}" for _, control in ways]
            self.start_job_manager()
            self._runner.run(self._connect())
            self._stack.callback(lambda: self._call(self._disconnect()))
            for number, way in zip(numbers, ways, strict=True):
                self.places.append(Place(number, *way, self._start_task_manager(number, *way)))
            self.wait_until_free()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for place in self.places:
            place.process.send(signal.SIGCONT)  # one that is stopped does not hear SIGTERM
        self._stack.close()

    # ---------------------------------------------------------------- processes

    def start_job_manager(self) -> None:
        """Start a JobManager, at the port of its predecessor, which has ended; return when it listens."""
        if self._num_started:
            self.job_manager.close()
        options = ["--port", str(self.port), "--job-store", str(self.folder / "jobs")]
        options += ["--heartbeat-interval-s", "1", "--heartbeat-timeout-s", "8"]  # processes are stopped for longer
        options += [part for address in self._advertised for part in ("--advertise", address)]
        self.job_manager = self._start("-m", "flowlet.jm", *options, name="jm")
        self.job_manager.wait_for_line(r"^JobManager listening on", READY_S)

    def replace_task_manager(self, place: Place) -> None:
        """Start a fresh process in the place of one that has ended; return at once."""
        place.process.close()
        place.process = self._start_task_manager(place.number, place.data, place.control)
        place.may_end = False

    def _start_task_manager(self, number: int, data: Entrance, control: Entrance) -> Process:
        options = ["--jobmanager", f"127.0.0.1:{control.port}", "--data-port", str(data.target_port)]
        options += ["--advertise", f"127.0.0.1:{data.port}", "--parent-pid", str(os.getpid())]
        return self._start("-m", "flowlet.tm", *options, *self._plan.task_manager_options, name=f"tm{number}")

    def _start(self, *args: str, name: str) -> Process:
        self._num_started += 1
        log = self.folder / f"{self._num_started:03} {name}.log"
        environment = {**_ENVIRONMENT, "FLOWLET_SECRET_FILE": str(self.secret_file)}
        return self._stack.enter_context(Process([sys.executable, *args], log=log, environment=environment, cwd=_ROOT))

    @contextmanager
    def hogs(self, count: int) -> Iterator[None]:
        """Run processes that take all the time that they get."""
        with ExitStack() as stack:
            for _ in range(count):
                hog = stack.enter_context(subprocess.Popen([sys.executable, "-c", _HOG]))
                stack.callback(hog.kill)
            yield

    def place_of(self, pid: int) -> Place:
        return next(place for place in self.places if place.process.pid == pid)

    def job_manager_lines(self) -> list[dict[str, Any]]:
        """The log of the present JobManager."""
        lines = []
        for line in self.job_manager.stderr.splitlines():
            with suppress(ValueError):
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict)]

    # ---------------------------------------------------------------- questions

    def get(self, path: str) -> Any:
        """The JobManager's document; None: it does not answer, or has none."""
        return self._call(self._get(path))

    def task_managers(self) -> list[dict[str, Any]]:
        found = self.get("/taskmanagers")
        return [] if found is None else list(found["taskmanagers"])

    def busy_places(self) -> list[Place]:
        """Return the places in which tasks run, in their order."""
        pids = {each["pid"] for each in self.task_managers() if each["freeSlots"] < SLOTS}
        return [place for place in self.places if place.process.pid in pids and place.process.is_running]

    def wait_until_free(self) -> None:
        """Wait until every TaskManager is registered and has no tasks."""
        deadline = time.monotonic() + READY_S
        while True:
            found = {each["pid"]: each["freeSlots"] for each in self.task_managers()}
            if all(found.get(place.process.pid) == SLOTS for place in self.places):
                return
            assert time.monotonic() < deadline, f"the TaskManagers {self.places} are not free: {found}"
            time.sleep(_POLL_S)  # asks again; ended by the deadline

    def _call(self, question: Any) -> Any:
        assert self._runner is not None, "used inside the with block"
        return self._runner.run(question)

    async def _connect(self) -> None:
        self._client = RpcClient("127.0.0.1", self.port, load_secret(self.secret_file))

    async def _disconnect(self) -> None:
        assert self._client is not None, "connected before"
        await self._client.close()

    async def _get(self, path: str) -> Any:
        assert self._client is not None, "connected before"
        try:
            answer = await self._client.request("GET", path, timeout_s=5.0)
        except RpcConnectError:
            return None
        return json.loads(answer.body) if answer.status == _OK else None

    def _mount(self) -> None:
        self.has_small_disk = all([self._mount_at(self.disk), self._mount_at(self.local_disk)])

    def _mount_at(self, place: Path) -> bool:
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(place)]
        is_mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        if is_mounted:
            self._stack.callback(lambda: subprocess.run(["umount", "--lazy", str(place)], check=True))
        return is_mounted


def _free_port() -> int:
    """A port below those that the kernel gives to connections: nothing else takes it before the process listens."""
    while True:
        port = random.randrange(*_PORTS)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
