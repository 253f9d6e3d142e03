"""A JobManager for the processes of one program: by a pair of sockets, whose one end a child inherits, or this process
keeps.

Side:       loop.
Invariants: at most ``MAX_WAITING`` messages of a session wait to be received; then its sender waits.
Rules:      only two sides have the ends of a pair: it has no name, and all other processes close it.  So no message is
            signed, and neither side imports what speaks HTTP: 0.36 s of CPU in each process that does
            (``bench/startup.py``).
Wire form:  of a pair: frames of 4 bytes (length) and a MessagePack array: kind, number, and what belongs to the kind:
            of a request method, target and body; of its answer status and body; of a session's message the content, of
            its end the reason.  A request that nobody waits for any more is abandoned: its handler is cancelled.
"""

import asyncio
import itertools
import socket
import struct
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import closing
from typing import Any, Final

import msgspec

from flowlet.rpc import requests
from netstack.log_lines import LogLines
from netstack.loop.eventloop import running_timeout
from netstack.loop.forks import ClosedInChildren

MAX_WAITING: Final = 1000
_MAX_FRAME_BYTES: Final = requests.MAX_MESSAGE_BYTES + 64 * 1024  # target and reason are short
_LENGTH: Final = struct.Struct(">I")
_REQUEST, _ANSWER, _OPEN, _MESSAGE, _END, _ABANDON = range(6)
_CLOSE_TIMEOUT_S: Final = 0.3
_CLOSED: Final = "its connection was closed"
_STOPPING: Final = "the JobManager is stopping"
_GONE: Final = "the connection broke: the other process has closed it, or is gone"
_log = LogLines(__name__)


class LocalServer:
    """Serves requests and sessions of this program's processes.

    Threading: the loop.
    Life cycle: ``close`` it; what is under way ends then.

    Args:
        routes: of requests.
        serve_session: serves the session of one TaskManager until it ends.
    """

    def __init__(self, routes: Iterable[requests.Route], serve_session: requests.ServeSession) -> None:
        self._router = requests.Router(routes)
        self._serve_session = serve_session
        self._tasks: set[asyncio.Task[None]] = set()  # of requests and sessions
        self._pipes: set[asyncio.Task[None]] = set()
        self._refuses_sessions = False

    def __repr__(self) -> str:
        return f"<LocalServer {len(self._pipes)} pipes, {len(self._tasks)} under way>"

    def begin_pipe(self, end: socket.socket, name: str) -> None:
        """Serve the peer at the other end of a pair, until this server or that end is closed; closes ``end``."""
        _ = _begin(self._serve_pipe(end, name), name, self._pipes)

    def refuse_sessions(self) -> None:
        """Open no more sessions: those that end are not to be replaced."""
        self._refuses_sessions = True

    async def close(self, grace_s: float) -> None:
        """End all requests and sessions; they have ``grace_s`` seconds to end by themselves.  Idempotent."""
        self._refuses_sessions = True
        if self._tasks:  # The pipes stay open meanwhile: the last answers go through them.
            await asyncio.wait(self._tasks, timeout=grace_s)
        # The pipes last: the answers above have gone through them.
        late = self._tasks | self._pipes
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)  # waits for cancelled tasks; ended by their next steps

    async def _serve(self, transport: requests.SessionTransport, peer: str) -> None:
        try:
            await self._serve_session(transport, peer)
        finally:
            await transport.close("the session is over")

    async def _serve_pipe(self, end: socket.socket, name: str) -> None:
        with closing(await _Pipe.open(end)) as pipe:
            async for kind, number, *content in pipe:  # waits for the peer; ended by its end, or close()
                if kind == _REQUEST:
                    answering = self._answer_to(pipe, number, *content)
                    pipe.under_way[number] = _begin(answering, f"request of {name}", self._tasks)
                elif kind == _ABANDON:
                    if (task := pipe.under_way.pop(number, None)) is not None:
                        task.cancel()
                elif self._refuses_sessions:
                    await pipe.send(_END, number, _STOPPING)
                else:
                    _ = _begin(self._serve(pipe.open_session(number), name), f"session of {name}", self._tasks)

    async def _answer_to(self, pipe: "_Pipe", number: int, method: str, target: str, body: bytes) -> None:
        try:
            response = await self._router.answer(method, target, body)
            if len(response.body or b"") > requests.MAX_MESSAGE_BYTES:
                response = requests.error_response(500, f"the answer has more than {requests.MAX_MESSAGE_BYTES} bytes")
            await pipe.send(_ANSWER, number, response.status, response.body or b"")
        except ConnectionError:
            _log.debug("an answer came too late", path=target.partition("?")[0])
        finally:
            pipe.under_way.pop(number, None)


def _begin(coroutine: Coroutine[Any, Any, None], name: str, tasks: set["asyncio.Task[None]"]) -> "asyncio.Task[None]":
    task = asyncio.create_task(coroutine, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


class PipeRpc(requests.RpcGateway):
    """The way to the JobManager of this program, which runs in this process or its parent."""

    def __init__(self, pipe: "_Pipe", authority: str) -> None:
        self.authority = authority
        self._pipe = pipe
        self._numbers = itertools.count()
        self._answers: dict[int, asyncio.Future[requests.RpcResponse]] = {}
        self._reader = asyncio.create_task(self._read(), name="pipe to the JobManager")

    @classmethod
    async def open(cls, end: socket.socket, authority: str) -> "PipeRpc":
        """Speak over this end of a pair, which is closed with the result."""
        return cls(await _Pipe.open(end), authority)

    def __repr__(self) -> str:
        return f"<PipeRpc of {self.authority}{' closed' if self._reader.done() else ''}>"

    async def request(
        self, method: str, path: str, *, body: bytes = b"", timeout_s: float = requests.ANSWER_TIMEOUT_S
    ) -> requests.RpcResponse:
        """Implement ``RpcGateway.request``; a body that the pipe cannot carry is answered with 413 at once."""
        if len(body) > requests.MAX_MESSAGE_BYTES:  # the other end would close the pipe
            reason = f"the body has {len(body)} bytes, the limit is {requests.MAX_MESSAGE_BYTES}"
            refusal = requests.error_response(413, reason)
            return requests.RpcResponse(refusal.status, refusal.body or b"")
        number = next(self._numbers)
        answer: asyncio.Future[requests.RpcResponse] = asyncio.get_running_loop().create_future()
        # Before the request leaves: the answer may come while this call waits for room.
        self._answers[number] = answer
        try:
            async with running_timeout(timeout_s):
                await self._send(_REQUEST, number, method, path, body)
                return await answer
        except TimeoutError:
            raise requests.RpcConnectError(f"JobManager {self.authority}: no answer within {timeout_s:g} s") from None
        finally:
            del self._answers[number]
            if answer.cancelled() or not answer.done():
                # Nobody waits for the answer any more.  ``tell``: a caller that was cancelled must not wait for room.
                self._pipe.tell(_ABANDON, number)
            else:
                answer.exception()  # the connection's end was told by the sender already

    async def open_session(self) -> requests.SessionTransport:
        """Implement ``RpcGateway.open_session``; the session shares the pipe with the requests."""
        number = next(self._numbers)
        # Before the peer hears of it: its first message may come while this call waits for room.
        session = self._pipe.open_session(number)
        await self._send(_OPEN, number)
        return session

    async def close(self) -> None:
        """End the connection; idempotent."""
        # First: its end tells all waiting requests that no answer comes.
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)  # waits for a cancelled task; ended by its next step
        self._pipe.close()

    async def _send(self, *frame: object) -> None:
        try:
            await self._pipe.send(*frame)
        except ConnectionError:
            raise requests.RpcConnectError(f"JobManager {self.authority}: {_GONE}") from None

    async def _read(self) -> None:
        try:
            async for _, number, *content in self._pipe:  # waits for the JobManager; ended by its end, or close()
                if number in self._answers and not self._answers[number].done():  # else the answer came too late
                    self._answers[number].set_result(requests.RpcResponse(*content))
        finally:
            self._pipe.close()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(requests.RpcConnectError(f"JobManager {self.authority}: {_GONE}"))


# ---------------------------------------------------------------- sessions


class _PipeTransport:
    """One end of a session, and the messages that were not received yet."""

    def __init__(self, pipe: "_Pipe", number: int) -> None:
        self._pipe = pipe
        self._number = number
        self._is_closed = False
        self._messages: deque[bytes] = deque()
        self._reason: str | None = None  # why no more messages come
        self._has_news = asyncio.Event()
        self._has_room = asyncio.Event()

    async def send(self, content: bytes) -> None:
        """Implement ``SessionTransport.send``."""
        if self._is_closed:
            raise ConnectionResetError(_CLOSED)
        await self._pipe.send(_MESSAGE, self._number, content)

    async def receive(self, timeout_s: float | None = None) -> bytes:
        """Implement ``SessionTransport.receive``."""
        async with asyncio.timeout(timeout_s):
            while not self._messages:
                if self._reason is not None:
                    raise requests.SessionEndedError(self._reason)
                self._has_news.clear()
                await self._has_news.wait()  # ended by a message, the end of the session, or the timeout
        self._has_room.set()
        return self._messages.popleft()

    async def close(self, reason: str, *, code: int = requests.GOING_AWAY) -> None:
        """End the session and tell the peer why; the pipe stays open.  Idempotent."""
        self._messages.clear()  # nobody receives any more
        self.end(_CLOSED)
        if self._is_closed:
            return
        self._is_closed = True
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):  # a peer that does not read must not hold us up
                await self._pipe.send(_END, self._number, reason)
        except (ConnectionError, TimeoutError):
            return

    async def put(self, message: bytes) -> bool:
        """Add a message that came, once there is room; False: none is wanted any more."""
        while self._reason is None and len(self._messages) >= MAX_WAITING:
            self._has_room.clear()
            await self._has_room.wait()  # waits for the receiver; ended by it, or by the end of the session
        if self._reason is None:
            self._messages.append(message)
            self._has_news.set()
        return self._reason is None

    def end(self, reason: str) -> None:
        """End the session: no messages come after those that are here; a second call does nothing."""
        self._reason = self._reason or reason
        self._has_news.set()
        self._has_room.set()


class _Pipe:
    """One end of a pair of sockets, over which frames go in both directions.

    Frames of sessions go to the sessions; the others come by iteration, until the other end is closed.
    """

    def __init__(self, end: socket.socket, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._sessions: dict[int, _PipeTransport] = {}
        self.under_way: dict[int, asyncio.Task[None]] = {}  # by number of a request of the peer
        self._in_children = ClosedInChildren(end.fileno(), end)

    @classmethod
    async def open(cls, end: socket.socket) -> "_Pipe":
        end.setblocking(False)  # noqa: FBT003 - socket's own
        return cls(end, *await asyncio.open_unix_connection(sock=end))

    def open_session(self, number: int) -> _PipeTransport:
        """Make this end of a new session."""
        session = self._sessions[number] = _PipeTransport(self, number)
        return session

    async def send(self, *frame: object) -> None:
        """Send a frame.  Raises ConnectionError: the other end is closed."""
        if self._writer.is_closing():
            raise ConnectionResetError(_GONE)
        self.tell(*frame)
        await self._writer.drain()  # ended by the peer, who reads, or by the end of the pipe

    def tell(self, *frame: object) -> None:
        """Send a short frame without a wait for room; does nothing once the pipe is closed."""
        if not self._writer.is_closing():
            data = msgspec.msgpack.encode(frame)
            self._writer.write(_LENGTH.pack(len(data)) + data)

    def __aiter__(self) -> "_Pipe":
        return self

    async def __anext__(self) -> Any:
        try:
            while True:
                (size,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
                if size > _MAX_FRAME_BYTES:
                    raise ConnectionResetError(f"a frame of {size} bytes came, the limit is {_MAX_FRAME_BYTES}")
                frame = msgspec.msgpack.decode(await self._reader.readexactly(size))
                if frame[0] not in (_MESSAGE, _END):
                    return frame
                await self._deliver(*frame)
        except (asyncio.IncompleteReadError, OSError):
            raise StopAsyncIteration from None

    async def _deliver(self, kind: int, number: int, content: Any) -> None:
        session = self._sessions.get(number)
        if session is None:
            return  # it has ended
        if kind == _END:
            session.end(f"it closed the connection: {content}")
        # A full session holds up the whole pipe, requests, too: only so does its sender wait.
        if kind == _END or not await session.put(content):
            del self._sessions[number]

    def close(self) -> None:
        """Close this end, and with it its sessions; idempotent."""
        for session in self._sessions.values():
            session.end(_GONE)
        self._in_children.release()
        self._writer.close()
