"""TLS contexts (1.3 only, certificates of one private CA on both ends), and the acceptor that runs TLS handshakes.

Side:       loop.  Reads the files for every server and every dialled connection, so that renewed certificates are used.
Invariants: at most ``max_handshakes`` connections are inside their TLS handshake; the oldest is cut for a new one.
            ``close`` leaves none.
Source:     Flink ``SSLUtils.createInternalServerSSLEngineFactory`` and its client twin: mutual, one CA, optional
            pinning.  Netty's ``SslHandler`` is part of the pipeline, so Netty's channel group contains connections
            inside their handshake.  asyncio makes the protocol only after the handshake; so connections are accepted
            here, and a task per connection starts TLS.
Absent:     revocation lists; session resumption (a ticket would outlive the check of its certificate).
"""

import asyncio
import hashlib
import os
import socket
import ssl
from collections.abc import Callable, Collection, Iterable
from dataclasses import InitVar
from typing import Any

from netstack.config import SecurityConfig, TlsConfig
from netstack.errors import ConfigError
from netstack.late import dataclass
from netstack.loop.forks import ClosedInChildren
from netstack.transport.network_channel import NetworkChannel


def tls_context(tls: TlsConfig, *, is_server: bool) -> ssl.SSLContext:
    """Make the TLS context of the side that listens, or of the one that dials.

    The dialling side wants a certificate that names the dialled host, unless ``verify_hostname`` is False.

    Raises:
        ConfigError: a file is missing, unreadable or not a PEM file of the right kind.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = not is_server and tls.verify_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    if is_server:
        # No resumption: a ticket would outlive the check of its certificate.
        context.num_tickets = 0
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file, password=_no_password)
        context.load_verify_locations(cafile=tls.ca_file)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        # Flink: "Failed to initialize SSL Context for the Netty Server/Client".
        raise ConfigError(
            f"failed to initialize the TLS context of the {'server' if is_server else 'client'} from "
            f"{tls.certificate_file}, {tls.key_file} and {tls.ca_file}: {error}"
        ) from error
    return context


def timeouts(security: SecurityConfig) -> dict[str, Any]:
    """Return the TLS timeouts as keyword arguments of asyncio's connection methods, whose defaults are 60 and 30 s."""
    return {
        "ssl_handshake_timeout": security.tls_handshake_timeout_s,
        "ssl_shutdown_timeout": security.tls_shutdown_timeout_s,
    }


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal and block the loop.
    raise ValueError("the key is encrypted; a key without a passphrase is needed")


def is_expected(certificate: bytes | None, pins: frozenset[bytes]) -> bool:
    """Whether a peer's certificate (DER) is one of the pinned ones; without pins every certificate that TLS accepted
    is.
    """
    return certificate is not None and (not pins or hashlib.sha256(certificate).digest() in pins)


_PAUSE_S = 1.0  # asyncio's, when it cannot accept: mostly for want of a descriptor


@dataclass(eq=False, repr=False)
class TlsAcceptor:
    """Listens in place of an asyncio server, and encrypts each connection.

    Life cycle: ``serve`` once, ``close`` once.

    Args:
        make_channel: makes the channel of an encrypted connection.
        on_failed: called with the error of each failed accept, and of each handshake that failed and was not cut here.

    Raises:
        ConfigError: the certificates cannot be read.
    """

    security: InitVar[SecurityConfig]
    _make_channel: Callable[[], NetworkChannel]
    _on_failed: Callable[[Exception], None]

    def __post_init__(self, security: SecurityConfig) -> None:
        assert security.tls is not None, "a server without TLS needs none of this"
        self._context: ssl.SSLContext = tls_context(security.tls, is_server=True)
        self._timeouts = timeouts(security)
        self._max_handshakes = security.max_unauthenticated
        self.num_failed = 0
        """How many handshakes failed; handshakes that this object cut do not count."""
        self._handshakes: dict[asyncio.Task[None], None] = {}  # an ordered set, the oldest first
        self._listening: list[socket.socket] = []
        self._guards: list[ClosedInChildren] = []
        self._acceptors: list[asyncio.Task[None]] = []

    def __repr__(self) -> str:
        return f"<TlsAcceptor at {len(self._listening)} sockets, {len(self._handshakes)} handshakes>"

    @property
    def num_handshakes(self) -> int:
        """Connections inside their TLS handshake."""
        return len(self._handshakes)

    def serve(self, bound: Iterable[socket.socket], backlog: int) -> None:
        """Listen on bound sockets, which the caller keeps."""
        for each in bound:
            listening = socket.socket(fileno=os.dup(each.fileno()))  # the loop's own socket objects have no ``accept``
            listening.setblocking(False)  # noqa: FBT003 - the standard library's own
            listening.listen(backlog)
            self._listening.append(listening)
            self._guards.append(ClosedInChildren(listening.fileno(), listening))
            self._acceptors.append(asyncio.create_task(self._accept(listening)))

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, _ = await loop.sock_accept(listening)
            except Exception as error:  # noqa: BLE001 - as below; without this task no connection would come any more
                self._on_failed(error)
                await asyncio.sleep(_PAUSE_S)
            else:
                self.encrypt(sock)
                # The task starts and owns its socket; other work has its turn before the next accept.
                await asyncio.sleep(0)

    def encrypt(self, sock: socket.socket) -> None:
        """Start TLS on an accepted connection; takes ownership of ``sock``."""
        if len(self._handshakes) >= self._max_handshakes:
            oldest = next(iter(self._handshakes))
            # At once: a cancelled task ends in a later pass, and would count until then.
            del self._handshakes[oldest]
            oldest.cancel()
        task = asyncio.create_task(self._handshake(sock))
        # The set keeps the task alive: the loop itself has only a weak reference.
        self._handshakes[task] = None
        task.add_done_callback(lambda done: self._handshakes.pop(done, None))

    async def _handshake(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            channel = self._new_channel(sock)
            await loop.connect_accepted_socket(lambda: channel, sock, ssl=self._context, **self._timeouts)
        except Exception as error:  # noqa: BLE001 - the top of an asyncio task, whose result nobody asks for: every error is told here
            self.num_failed += 1
            self._on_failed(error)

    def _new_channel(self, sock: socket.socket) -> NetworkChannel:
        """Make the channel; close the socket if that fails, because the loop owns it only later."""
        try:
            return self._make_channel()
        except BaseException:
            sock.close()
            raise

    async def close(self) -> None:
        """Stop accepting and cut every connection inside its handshake; returns when they are gone."""
        # First: an acceptor would start handshakes behind the last cut.
        await _cancelled(self._acceptors)
        for guard in self._guards:
            guard.release()
        for each in self._listening:
            each.close()
        self._listening.clear()
        # The channel of such a connection is in no group yet: the server cannot close it.
        await _cancelled(list(self._handshakes))


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)  # waits for cancelled TLS handshakes; ended by tls_handshake_timeout_s at the latest
