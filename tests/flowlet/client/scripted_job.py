"""A job whose runs a test scripts: real partitions over TCP, and a JobManager that says what the test wants."""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from flowlet.client.remote import (
    ClusterClient,
    JobEndedError,
    JobManagerApi,
    JobProgress,
    RunChannels,
    create_rpc_client,
)
from flowlet.client.result_buffer import Guarantee
from flowlet.common.job_status import JobStatus
from flowlet.errors import JobExecutionError
from flowlet.messages.job_messages import InputChannelDescriptor
from flowlet.records import Chunk
from flowlet.serde.element_serializer import StreamElementSerializer
from netstack.config import NetstackConfig, SecurityConfig
from netstack.environment import NetworkEnvironment
from netstack.ids import ExecutionAttemptID, IntermediateResultPartitionID, ResultPartitionID
from netstack.loop.eventloop import EventLoopThread
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import CheckpointBarrier, StopMode
from tests.waiting import PATIENCE_S

T = TypeVar("T")
EDGE = "e" * 32
_SECRET = bytes(range(32))
_serializer = StreamElementSerializer()


class ScriptedApi(JobManagerApi):
    """Answers with what the test said last.  On the loop; the test changes it through ``ScriptedJob``."""

    def __init__(self) -> None:
        self.run = RunChannels(0, -1, [])
        self.state = JobStatus.RUNNING
        self.completed = -1
        self.reports: list[tuple[bytes, int]] = []
        self.broken: list[tuple[int, str]] = []  # runs that the reader cannot read any further, and why
        self.changed = asyncio.Event()

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await self.changed.wait()

    def change(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def wait_terminal(self, job_id: str, timeout_s: float | None) -> dict[str, Any] | None:
        await self.until(lambda: self.state.is_globally_terminal_state())
        return {"state": self.state.name}

    async def wait_channels(self, job_id: str, edge_id: str, after_attempt: int | None = None) -> RunChannels:
        after = -1 if after_attempt is None else after_attempt
        await self.until(lambda: self.state is not JobStatus.RUNNING or self.run.attempt > after)
        await self.until(lambda: self.state is not JobStatus.RESTARTING)
        if self.state.is_globally_terminal_state():
            raise JobEndedError(self.state.name)
        return self.run

    async def wait_progress(self, job_id: str, edge_id: str, attempt: int, after_checkpoint: int) -> JobProgress:
        await self.until(
            lambda: (
                self.completed > after_checkpoint or self.run.attempt != attempt or self.state is not JobStatus.RUNNING
            )
        )
        return JobProgress(self.run.attempt, self.state.name, self.completed)

    async def report_barrier(self, job_id: str, edge_id: str, attempt: bytes, checkpoint_id: int) -> None:
        self.reports.append((attempt, checkpoint_id))
        self.change()

    async def report_broken_results(self, job_id: str, edge_id: str, attempt: int, reason: str) -> None:
        self.broken.append((attempt, reason))
        self.change()


class ScriptedClient(ClusterClient):
    def __init__(self, loop: EventLoopThread, rpc: Any, api: ScriptedApi) -> None:
        super().__init__(loop, rpc, _SECRET)
        self.api = api

    def call(self, request: Callable[[JobManagerApi], Coroutine[Any, Any, T]]) -> T:
        return self.run(lambda: request(self.api))

    def begin(self, request: Callable[[JobManagerApi], Coroutine[Any, Any, T]]) -> "concurrent.futures.Future[T]":
        return self.loop.submit(request(self.api))


class ScriptedRun:
    """The tasks of one run: a partition each, on a TaskManager that can die."""

    def __init__(self, loop: EventLoopThread, attempt: int, num_producers: int) -> None:
        self._loop = loop
        self._network = NetworkEnvironment(NetstackConfig(security=SecurityConfig.hmac(_SECRET)), loop)
        address = loop.submit(self._network.start("127.0.0.1", 0)).result(PATIENCE_S)
        self.channels, self.partitions = list[InputChannelDescriptor](), list[ResultPartition]()
        for producer in range(num_producers):
            partition, execution = bytes([attempt, producer]) * 10, bytes([attempt, producer]) * 20
            identity = ResultPartitionID(IntermediateResultPartitionID(partition), ExecutionAttemptID(execution))
            self.partitions.append(self._network.create_result_partition("producer", identity, 1))
            self.channels.append(InputChannelDescriptor(partition, execution, 0, "tm", address.host, address.port))

    def send(self, producer: int, *values: Any) -> None:
        self.partitions[producer].emit_record(_serializer.serialize(Chunk(list(values))), 0)
        self.partitions[producer].flush_all()

    def barrier(self, checkpoint_id: int, *producers: int) -> None:
        for producer in producers or range(len(self.partitions)):
            self.partitions[producer].broadcast_event(CheckpointBarrier(checkpoint_id, 0))

    def end_data(self) -> None:
        for partition in self.partitions:
            partition.notify_end_of_data(StopMode.DRAIN)

    def kill(self) -> None:
        """Close the connections, as a TaskManager that is killed does."""
        for partition in self.partitions:
            partition.release()
            partition.close()
        self._loop.submit(self._network.close()).result(PATIENCE_S)


class ScriptedJob:
    """A job that runs from the beginning.  Life cycle: ``close`` it."""

    def __init__(self, num_producers: int = 1) -> None:
        self._num_producers = num_producers
        self._loop = EventLoopThread.start("scripted-job")
        self._api = self._on_loop(_make_api)
        rpc = self._loop.submit(create_rpc_client("127.0.0.1", 1, _SECRET)).result(PATIENCE_S)
        self.client = ScriptedClient(self._loop, rpc, self._api)
        self.runs: list[ScriptedRun] = []
        self.was_cancelled = False
        self.guarantee: Guarantee | None = None
        self.start_run(-1)

    # ---------------------------------------------------------------- what CollectedValues calls

    @property
    def job_id(self) -> str:
        return "0" * 32

    @property
    def name(self) -> str:
        return "scripted"

    def check_output(self) -> None:
        """Print nothing: the job's tasks have no output."""

    def explain(self, error: Exception) -> JobExecutionError:
        return JobExecutionError(f"explained: {error}")

    def cancel_quietly(self) -> None:
        self.was_cancelled = True

    # ---------------------------------------------------------------- what the test says

    @property
    def run(self) -> ScriptedRun:
        return self.runs[-1]

    @property
    def channels(self) -> RunChannels:
        return self._api.run

    def start_run(self, restored: int) -> ScriptedRun:
        """Deploy the tasks of the next run."""
        number = len(self.runs)
        self.runs.append(ScriptedRun(self._loop, number, self._num_producers))
        self._change(run=RunChannels(number, restored, self.run.channels), state=JobStatus.RUNNING)
        return self.run

    def fail_run(self) -> None:
        """A TaskManager dies, and the job is about to start again."""
        self._change(state=JobStatus.RESTARTING)
        self.run.kill()

    def pass_barrier(self, checkpoint_id: int, *producers: int) -> None:
        """Send a barrier, of all producers unless some are named, and wait until the reader has reported it."""
        self.run.barrier(checkpoint_id, *producers)
        sent = producers or range(self._num_producers)
        expected = {(self.run.channels[producer].producer, checkpoint_id) for producer in sent}
        self._loop.submit(self._api.until(lambda: expected <= set(self._api.reports))).result(PATIENCE_S)

    def complete(self, checkpoint_id: int) -> None:
        self._change(completed=checkpoint_id)

    def end(self, state: JobStatus) -> None:
        self._change(state=state)

    def finish(self) -> None:
        self.run.end_data()
        self.end(JobStatus.FINISHED)

    def wait_until_told_broken(self, attempt: int) -> str:
        """Wait until the reader has said that it cannot read this run any further; return its reason."""

        def reasons() -> list[str]:
            return [reason for run, reason in self._api.broken if run == attempt]

        self._loop.submit(self._api.until(lambda: bool(reasons()))).result(PATIENCE_S)
        return reasons()[0]

    def close(self) -> None:
        self.run.kill()
        self.client.close()

    def _change(self, **fields: Any) -> None:
        async def change() -> None:
            for name, value in fields.items():
                setattr(self._api, name, value)
            self._api.change()

        self._loop.submit(change()).result(PATIENCE_S)

    def _on_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._loop.submit(make()).result(PATIENCE_S)


async def _make_api() -> ScriptedApi:
    return ScriptedApi()
