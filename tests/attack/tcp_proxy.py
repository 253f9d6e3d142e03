"""A way between two ends of TCP connections that treats the bytes as the test says.

Side:   any.  One thread per direction of a connection.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, Self

Direction = Literal["to server", "to client"]
Change = Callable[[Direction, bytes], bytes]
_CHECK_S: Final = 0.05


class TcpProxy:
    """Listens, and passes bytes on in both directions.

    ``change`` may be set at any time: it gets each piece of bytes and returns what is sent on.  ``hold`` and
    ``swallow`` have the directions in which nothing is read, or everything is dropped.

    Threading: ``hold``, ``swallow`` and ``change`` from any thread.
    """

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.hold: set[Direction] = set()
        self.swallow: set[Direction] = set()
        self.change: Change | None = None
        self.delay_s = 0.0
        self.num_connections = 0
        self.num_bytes: dict[Direction, int] = {"to server": 0, "to client": 0}
        self._is_closed = False
        self._doomed: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []  # Guarded by _lock.
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def cut(self, *, is_reset: bool = False) -> None:
        """End every connection that there is; new ones are passed on."""
        with self._lock:
            ended, self._sockets = self._sockets, []
        for each in ended:
            with suppress(OSError):
                if is_reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                else:
                    each.shutdown(socket.SHUT_RDWR)
        # Their threads let go of them, so that no thread uses a number that belongs to another descriptor by then.
        self._doomed.update(ended)
        time.sleep(4 * _CHECK_S)
        for each in ended:
            each.close()

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join()

    def inject(self, direction: Direction, data: bytes) -> None:
        """Send bytes of our own on the last connection."""
        with self._lock:
            near, far = self._sockets[-2:]
        (far if direction == "to server" else near).sendall(data)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._target_port), timeout=10)
                except OSError:
                    near.close()
                    continue
                self.num_connections += 1
                with self._lock:
                    self._sockets += [near, far]
                ways: list[tuple[Direction, socket.socket, socket.socket]] = [
                    ("to server", near, far),
                    ("to client", far, near),
                ]
                for way in ways:
                    thread = threading.Thread(target=self._pass_on, args=way, name=f"proxy {way[0]}", daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _send(self, data: bytes, source: socket.socket, target: socket.socket) -> None:
        view = memoryview(data)
        while view and not self._is_over(source):
            with suppress(TimeoutError):
                view = view[target.send(view) :]

    def _wait_released(self, direction: Direction, source: socket.socket) -> None:
        while direction in self.hold and not self._is_over(source):
            time.sleep(_CHECK_S)

    def _is_over(self, source: socket.socket) -> bool:
        return self._is_closed or source in self._doomed

    def _pass_on(self, direction: Direction, source: socket.socket, target: socket.socket) -> None:
        source.settimeout(_CHECK_S)
        target.settimeout(_CHECK_S)
        with suppress(OSError, ValueError):
            while not self._is_over(source):
                if direction in self.hold:
                    time.sleep(_CHECK_S)
                    continue
                try:
                    data = source.recv(65536)
                except TimeoutError:
                    continue
                if not data:
                    break
                if source in self._doomed:
                    return
                self._wait_released(direction, source)  # it came while we waited
                if self.delay_s:
                    time.sleep(self.delay_s)
                if direction in self.swallow:
                    continue
                self.num_bytes[direction] += len(data)
                if (change := self.change) is not None:
                    data = change(direction, data)
                self._send(data, source, target)
            if source not in self._doomed:
                target.shutdown(socket.SHUT_WR)


class OnceAfter:
    """A change of one piece of at least ``least`` bytes, in one direction, after so many bytes."""

    def __init__(self, direction: Direction, skip: int, change: Callable[[bytes], bytes], least: int = 64) -> None:
        self._direction, self._left, self._change, self._least = direction, skip, change, least
        self.has_happened = False
        self._lock = threading.Lock()

    def __call__(self, direction: Direction, data: bytes) -> bytes:
        if direction != self._direction:
            return data
        with self._lock:
            self._left -= len(data)
            if self.has_happened or self._left > 0 or len(data) < self._least:
                return data
            self.has_happened = True
        return self._change(data)
