"""A TaskManager for tests: speaks the real protocol over a real WebSocket, but runs nothing and decides nothing."""

import asyncio
from typing import Self, TypeVar

import aiohttp
import msgspec
import pytest

from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import EdgeMessage, JobGraphMessage, VertexMessage
from flowlet.rpc.http import RpcClient
from flowlet.rpc.requests import SessionEndedError
from flowlet.rpc.signed_websocket import SignedWebSocket
from tests.flowlet.rpc.frames import frames_of
from tests.waiting import PATIENCE_S

SECRET = b"s" * 32
JOB_ID, SOURCE_ID, SINK_ID, EDGE_ID, COLLECT_ID = (f"{number:032x}" for number in range(1, 6))
_Message = TypeVar("_Message", bound=messages.ToTaskManager)
_decoder: "msgspec.msgpack.Decoder[messages.ToTaskManager]" = msgspec.msgpack.Decoder(
    messages.union_of(messages.ToTaskManager)
)


def vertex(vertex_id: str, name: str, parallelism: int = 1, group: str = "default") -> VertexMessage:
    return VertexMessage(vertex_id, name, parallelism, 128, group, [name], f"chain of {name}".encode())


def edge(edge_id: str, source: str, target: str | None, *, is_pointwise: bool = False) -> EdgeMessage:
    return EdgeMessage(
        edge_id, source, 0, target, is_pointwise, "FORWARD" if is_pointwise else "HASH", b"partitioner", 100
    )


def word_count(job_id: str = JOB_ID, *, sources: int = 1, sinks: int = 1) -> JobGraphMessage:
    """Return a job with a source, a keyed sink, and an edge that the client reads."""
    vertices = [vertex(SOURCE_ID, "source", sources), vertex(SINK_ID, "sink", sinks)]
    return JobGraphMessage(
        job_id, "word count", vertices, [edge(EDGE_ID, SOURCE_ID, SINK_ID), edge(COLLECT_ID, SINK_ID, None)]
    )


def registration(tm_id: str = "tm-1", slots: int = 1, port: int = 6000) -> messages.RegisterTaskManager:
    return messages.RegisterTaskManager(tm_id, slots, "127.0.0.1", port, pid=42)


def user_failure(message: str = "boom", exception_type: str = "builtins.ValueError") -> messages.FailureInfo:
    return messages.FailureInfo(exception_type, message, "Traceback ...", "map", "source", 0, "'the'", "tm-1", 1)


class ScriptedTaskManager:
    """Every wait ends with an error after ten seconds."""

    def __init__(self, client: RpcClient, websocket: SignedWebSocket, tm_id: str) -> None:
        self._client = client
        self.websocket = websocket
        self.tm_id = tm_id

    @classmethod
    async def open(cls, address: tuple[str, int], tm_id: str = "tm-1") -> Self:
        """Connected, not registered."""
        client = RpcClient(*address, SECRET)
        return cls(client, await client.open_session(), tm_id)

    async def register(self, slots: int = 1, port: int = 6000) -> None:
        await self.send(registration(self.tm_id, slots, port))
        await self.expect(messages.Registered)

    @property
    def frames(self) -> aiohttp.ClientWebSocketResponse:
        """The WebSocket below the signatures, for rough handling."""
        websocket = frames_of(self.websocket)
        assert isinstance(websocket, aiohttp.ClientWebSocketResponse)
        return websocket

    @property
    def transport(self) -> asyncio.Transport:
        """Return the transport, for rough handling."""
        connection = self.frames._response.connection
        assert connection is not None
        assert connection.transport is not None
        return connection.transport

    async def send(self, message: messages.ToJobManager) -> None:
        await self.websocket.send(msgspec.msgpack.encode(message))

    async def expect(self, kind: type[_Message]) -> _Message:
        """Wait for the next message, which must be of this kind; return it."""
        message = _decoder.decode(await self.websocket.receive(PATIENCE_S))
        assert isinstance(message, kind), message
        return message

    async def expect_deployment(self) -> messages.TaskDeploymentDescriptor:
        return await self.expect(messages.TaskDeploymentDescriptor)

    async def expect_cancel(self) -> bytes:
        return (await self.expect(messages.CancelTask)).attempt

    async def expect_close(self) -> str:
        """Wait for the end; return the reason with which the JobManager closes the connection."""
        with pytest.raises(SessionEndedError, match="it closed the connection: ") as caught:
            await self.websocket.receive(PATIENCE_S)
        return str(caught.value).partition(": ")[2]

    async def report(
        self,
        attempt: bytes,
        state: ExecutionState,
        failure: messages.FailureInfo | None = None,
        metrics: messages.TaskMetrics | None = None,
    ) -> None:
        await self.send(messages.TaskStateChanged(attempt, state, failure, metrics))

    async def heartbeat(self, **metrics_of: messages.TaskMetrics) -> None:
        """``a00ff=...``: the letter a and then an attempt in hex, because names cannot begin with a digit."""
        tasks = {bytes.fromhex(name[1:]): metrics for name, metrics in metrics_of.items()}
        await self.send(messages.TaskManagerHeartbeat(self.tm_id, tasks))

    async def close(self) -> None:
        await self.websocket.close("the test is over")
        await self._client.close()
