"""A TaskManager with all that belongs to it, and a JobManager that is the test: checkpoint, loss of all tasks, restart,
end.

Two sources emit ``(key, number)``; two keyed tasks sum per key, and a sink behind each keeps the last sum of each key
and how many records it had.  The sink's state is too big to travel in its handle.
"""

import asyncio
import operator
import secrets
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from aiohttp import web

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.job_settings import CheckpointSettings, JobSettings
from flowlet.graph.partitioner import KeyGroups
from flowlet.messages.control_messages import (
    CancelTask,
    CheckpointAcknowledged,
    CheckpointCompleted,
    CheckpointDeclined,
    InputChannelDescriptor,
    InputGateDescriptor,
    Registered,
    RegisterTaskManager,
    RestoredState,
    RestoredVertex,
    ResultPartitionDescriptor,
    TaskDeploymentDescriptor,
    TaskStateChanged,
    ToJobManager,
    ToTaskManager,
    TriggerCheckpoint,
    union_of,
)
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.keyed_aggregation_operator import KeyedSumOperator
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import Chunk
from flowlet.rpc.authenticating_server import AuthenticatingServer
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import SessionTransport
from flowlet.serde.deploy_blobs import dump_chain, dump_partitioner
from flowlet.tm.task_executor import TaskExecutor, TaskExecutorConfig
from netstack.config import NetstackConfig, SecurityConfig
from netstack.ids import execution_attempt_id
from netstack.loop.eventloop import EventLoopThread
from tests.waiting import PATIENCE_S

SECRET = secrets.token_bytes(32)
JOB_ID, EDGE_ID = "ab" * 16, "ef" * 16
SOURCE, SUM = "01" * 16, "02" * 16
PARALLELISM, NUM_KEYS, CHUNK_RECORDS = 2, 7, 20
HELD_AT, END = 1_000, 3_000
FINISHED = ExecutionState.FINISHED
first = operator.itemgetter(0)
Name = tuple[str, int]  # vertex and subtask
NAMES: list[Name] = [(vertex, subtask) for vertex in (SOURCE, SUM) for subtask in range(PARALLELISM)]

released, reached = threading.Event(), threading.Event()  # the sources go on behind HELD_AT; a sink has seen records
results: dict[int, tuple[dict[str, int], Counter[str]]] = {}  # by subtask of the sink


class Numbers(Source):
    """Counts up to END; stays at HELD_AT until it is released."""

    def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
        return _Reader()


class _Reader:
    def __init__(self) -> None:
        self._next = 0

    def poll_chunk(self) -> Chunk | None:
        if self._next >= END:
            return None
        if self._next >= HELD_AT and not released.is_set():
            return Chunk([])
        numbers = range(self._next, self._next + CHUNK_RECORDS)
        self._next += CHUNK_RECORDS
        return Chunk([(f"key {number % NUM_KEYS}", number) for number in numbers])

    def snapshot_position(self) -> int:
        return self._next

    def restore_position(self, position: int) -> None:
        self._next = position

    def close(self) -> None:
        pass


class Totals(StreamOperator):
    """The sink; tells its results when it finishes."""

    name = "totals"

    def __init__(self) -> None:
        self._sums: dict[str, int] = {}
        self._counts: Counter[str] = Counter()

    def process_chunk(self, chunk: Chunk) -> None:
        for key, total in chunk.values:
            self._sums[key] = total
            self._counts[key] += 1
        reached.set()

    def snapshot_state(self, checkpoint_id: int) -> object:
        return dict(self._sums), Counter(self._counts), bytes(30_000)

    def initialize_state(self, state: object | None) -> None:
        if isinstance(state, tuple):
            self._sums, self._counts, _ = state

    def finish(self) -> None:
        results[self.ctx.subtask] = self._sums, self._counts


class JobManager:
    """Deploys tasks, triggers checkpoints, and keeps what it hears; everything on the loop."""

    def __init__(self) -> None:
        self.protection = AuthenticatingServer(SECRET)
        self.states: dict[bytes, list[ExecutionState]] = {}
        self.reports: list[CheckpointAcknowledged | CheckpointDeclined] = []
        self.data_port = 0
        self.finished: set[Name] = set()  # of the present run
        self._run = -1
        self._socket: SessionTransport | None = None
        self._heard = asyncio.Event()

    async def play(self, socket: SessionTransport, peer: str | None) -> None:
        decoder = msgspec.msgpack.Decoder(union_of(ToJobManager))
        while True:
            message: ToJobManager = decoder.decode(await socket.receive())
            match message:
                case RegisterTaskManager(data_port=port):
                    self.data_port, self._socket = port, socket
                    await self.send(Registered("jm", 60_000))
                case TaskStateChanged():
                    assert message.failure is None or message.state is ExecutionState.CANCELED, message.failure
                    self.states.setdefault(message.attempt, []).append(message.state)
                case CheckpointAcknowledged() | CheckpointDeclined():
                    self.reports.append(message)
                case _:
                    pass
            self._heard.set()

    async def send(self, message: ToTaskManager) -> None:
        assert self._socket is not None
        await self._socket.send(msgspec.msgpack.encode(message))

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._heard.clear()
                await self._heard.wait()

    def attempt(self, name: Name) -> bytes:
        return execution_attempt_id(bytes.fromhex(JOB_ID), bytes.fromhex(name[0]), name[1], self._run)

    async def reach(self, state: ExecutionState, names: list[Name]) -> None:
        await self.until(lambda: all(state in self.states.get(self.attempt(name), ()) for name in names))

    async def deploy(self, settings: JobSettings, restored: dict[Name, RestoredState]) -> None:
        """Start a run."""
        self._run += 1
        self.finished = set()
        for name in NAMES:
            vertex, subtask = name
            is_source = vertex == SOURCE
            operators: list[StreamOperator] = (
                [SourceOperator(Numbers())] if is_source else [KeyedSumOperator(first, 1), Totals()]
            )
            chain = [ChainedOperator(each, index - 1) for index, each in enumerate(operators)]
            task = TaskDeploymentDescriptor(
                JOB_ID,
                "job",
                vertex,
                "source" if is_source else "sum",
                subtask,
                PARALLELISM,
                128,
                self.attempt(name),
                dump_chain(chain, "v"),
                []
                if is_source
                else [InputGateDescriptor(EDGE_ID, [self._channel(number, subtask) for number in range(PARALLELISM)])],
                [self._partition(subtask)] if is_source else [],
                settings=settings,
                restored=restored.get(name),
            )
            await self.send(task)
        await self.reach(ExecutionState.RUNNING, NAMES)

    def _partition(self, subtask: int) -> ResultPartitionDescriptor:
        partitioner = dump_partitioner(KeyGroups(first), "e")
        return ResultPartitionDescriptor(EDGE_ID, _partition_id(subtask), PARALLELISM, 0, partitioner, 100)

    def _channel(self, producer: int, subpartition: int) -> InputChannelDescriptor:
        attempt = self.attempt((SOURCE, producer))
        return InputChannelDescriptor(
            _partition_id(producer), attempt, subpartition, "tm-1", "127.0.0.1", self.data_port
        )

    async def checkpoint(self, number: int) -> dict[Name, RestoredState]:
        """Take one and complete it; what a next run begins with.  Tasks that have come to their end end."""
        running = [name for name in NAMES if name not in self.finished]
        by_attempt = {self.attempt(name): name for name in NAMES}
        for name in running:
            if name[0] == SOURCE or all((SOURCE, producer) in self.finished for producer in range(PARALLELISM)):
                await self.send(TriggerCheckpoint(self.attempt(name), number, 0))
        await self.until(lambda: sum(report.checkpoint_id == number for report in self.reports) == len(running))
        parts = {name: RestoredState(number, is_finished=True) for name in self.finished}
        for report in self.reports:
            if report.checkpoint_id == number:
                assert isinstance(report, CheckpointAcknowledged), report
                parts[by_attempt[report.attempt]] = RestoredState(
                    number,
                    [RestoredVertex(PARALLELISM, [], [report.part])],
                    report.part.is_finished,
                )
        for name in running:
            await self.send(CheckpointCompleted(self.attempt(name), number))
        self.finished |= {name for name, part in parts.items() if part.is_finished}
        await self.reach(FINISHED, sorted(self.finished))
        return parts

    async def end(self, number: int) -> dict[Name, RestoredState]:
        """Take checkpoints from ``number`` on until all tasks have ended; the last one."""
        while True:
            parts = await self.checkpoint(number)
            if len(self.finished) == len(NAMES):
                return parts
            number += 1

    async def lose_all_tasks(self) -> None:
        for name in NAMES:
            await self.send(CancelTask(self.attempt(name)))
        await self.reach(ExecutionState.CANCELED, NAMES)


def _partition_id(subtask: int) -> bytes:
    return bytes(19) + bytes([subtask])


@pytest_asyncio.fixture
async def jm() -> AsyncIterator[JobManager]:
    """Provide a JobManager with a TaskManager that is registered."""
    released.clear()
    reached.clear()
    results.clear()
    jm = JobManager()
    application = jm.protection.create_application([], jm.play)
    runner = web.AppRunner(application, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    network = NetstackConfig(network_memory_bytes=8 * 1024 * 1024, security=SecurityConfig.hmac(SECRET))
    executor = TaskExecutor("tm-1", TaskExecutorConfig(num_slots=4, network=network), loop)
    async with RpcClient("127.0.0.1", runner.addresses[0][1], SECRET) as rpc:
        await executor.start(rpc)
        async with asyncio.timeout(PATIENCE_S):
            await executor.is_registered.wait()
        yield jm
        assert await executor.stop(PATIENCE_S) == []
    await runner.cleanup()
    loop.close()


async def test_a_job_goes_on_from_its_checkpoint_and_every_sum_is_exact(jm: JobManager, tmp_path: Path) -> None:
    """All tasks are lost behind the checkpoint, and once more behind the last one, which the end is a part of."""
    settings = JobSettings(checkpoints=CheckpointSettings(interval_ms=1000, directory=str(tmp_path)))
    await jm.deploy(settings, {})
    assert await asyncio.to_thread(reached.wait, PATIENCE_S)

    parts = await jm.checkpoint(1)
    await jm.lose_all_tasks()
    released.set()
    await jm.deploy(settings, parts)
    last = await jm.end(2)

    assert [parts[name].is_finished for name in NAMES] == [False] * 4
    assert all(part.vertices[0].parts[0].state for part in parts.values())
    files = [
        each.state.path
        for name, part in parts.items()
        if name[0] == SUM
        for each in part.vertices[0].parts
        if each.state is not None
    ]
    assert all(files), "too big for a message"
    found_sums: dict[str, int] = {}
    found_counts: Counter[str] = Counter()
    for sums, counts in results.values():
        found_sums |= sums
        found_counts += counts
    keys = Counter(f"key {number % NUM_KEYS}" for number in range(END))
    assert found_counts == Counter({key: PARALLELISM * count for key, count in keys.items()})
    assert found_sums == {f"key {key}": PARALLELISM * sum(range(key, END, NUM_KEYS)) for key in range(NUM_KEYS)}

    results.clear()
    assert all(part.is_finished for part in last.values())
    await jm.deploy(settings, last)
    await jm.end(100)
    assert results == {}, "operators that had finished do not run again"


async def test_at_least_once_nothing_is_lost(jm: JobManager, tmp_path: Path) -> None:
    """No channel waits for another one, so records behind a barrier may count twice."""
    settings = JobSettings(
        checkpoints=CheckpointSettings(interval_ms=1000, directory=str(tmp_path), is_exactly_once=False)
    )
    await jm.deploy(settings, {})
    assert await asyncio.to_thread(reached.wait, PATIENCE_S)

    parts = await jm.checkpoint(1)
    await jm.lose_all_tasks()
    released.set()
    await jm.deploy(settings, parts)
    await jm.end(2)

    counts = sum((counts for _, counts in results.values()), Counter[str]())
    expected = Counter(f"key {number % NUM_KEYS}" for number in range(END))
    assert sorted(counts) == sorted(expected)
    assert all(counts[key] >= PARALLELISM * count for key, count in expected.items())


async def test_a_directory_that_cannot_be_written_declines_checkpoints_and_the_job_goes_on(
    jm: JobManager, tmp_path: Path
) -> None:
    """The reason tells the file; later ones succeed."""
    (tmp_path / JOB_ID).write_text("in the way")
    settings = JobSettings(checkpoints=CheckpointSettings(interval_ms=1000, directory=str(tmp_path)))
    await jm.deploy(settings, {})
    assert await asyncio.to_thread(reached.wait, PATIENCE_S)

    with pytest.raises(AssertionError, match="CheckpointDeclined"):
        await jm.checkpoint(1)
    declined = [report for report in jm.reports if isinstance(report, CheckpointDeclined)]
    (tmp_path / JOB_ID).unlink()
    parts = await jm.checkpoint(2)

    assert len(declined) == PARALLELISM, "the sources' positions need no file"
    assert {report.reason for report in declined} == {"ASYNCHRONOUS_PART_FAILED"}
    assert all(str(tmp_path) in report.message for report in declined)
    assert len(parts) == len(NAMES)
    await jm.lose_all_tasks()
