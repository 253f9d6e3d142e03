"""NettyClientServerSslTest: mutual TLS 1.3 on real sockets and both loops, with certificates of a
CA made for the test.
"""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netstack.config import SecurityConfig, TlsConfig
from netstack.errors import AuthenticationError, ConfigError, ConnectError
from netstack.ids import ConnectionID
from netstack.transport.handler import ChannelHandlerContext
from netstack.transport.message_codec import OutboundBuffer
from netstack.transport.server import NetworkServer, connect
from netstack.wire.message_bytes import encode
from netstack.wire.messages import AddCredit, BufferResponse, Hello
from tests.netstack.transport.authority import (
    Authority,
    client_context,
    is_cut,
    security,
    server_context,
    silent_connections,
)
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers, on_loops
from tests.netstack.wire.samples import RECEIVER, HeapBuffer
from tests.waiting import PATIENCE_S

PAGE = bytes(range(256)) * 128


# Asyncio's loop, in debug mode only, also tells its exception handler of every TLS handshake that failed.
on_tls_loops = on_loops(expected_error="Error on transport creation for incoming connection")


def fingerprint(tls: TlsConfig) -> str:
    der = ssl.PEM_cert_to_DER_cert(
        tls.certificate_file.read_text().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    )
    return hashlib.sha256(der).hexdigest()


class Producer(Inbox):
    """Answers a message with 200 pages."""

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        super().channel_read(ctx, message)
        for number in range(200):
            ctx.write([OutboundBuffer(RECEIVER, 0, number, 0, HeapBuffer(PAGE))])
        ctx.flush()


@asynccontextmanager
async def serving(tls: TlsConfig, inbox: Inbox) -> AsyncIterator[tuple[NetworkServer, ConnectionID]]:
    server = NetworkServer(replace(CONFIG, security=security(tls)), handlers(inbox))
    try:
        yield server, ConnectionID(*await server.start("127.0.0.1", 0))
    finally:
        await server.close()


@on_tls_loops
async def test_certificates_alone_are_enough_for_peers_without_our_handshake(authority: Authority) -> None:
    """The first bytes inside TLS are a message, as with Flink's own classes.  A pinned fingerprint is still checked."""
    server_tls, client_tls = authority.issue("server"), authority.issue("client")
    inbox = Inbox()
    server = NetworkServer(replace(CONFIG, security=SecurityConfig.certificates(server_tls)), handlers(inbox))
    try:
        address = ConnectionID(*await server.start("127.0.0.1", 0))
        _, writer = await asyncio.open_connection(
            "127.0.0.1", address.port, ssl=client_context(client_tls), server_hostname="127.0.0.1"
        )
        writer.write(encode(AddCredit(RECEIVER, 3)))
        assert await inbox.messages.get() == AddCredit(RECEIVER, 3)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

        ours = replace(CONFIG, security=SecurityConfig.certificates(client_tls))
        channel = await connect(ours, address, handlers(Inbox()), timeout_s=PATIENCE_S)
        channel.write_and_flush(AddCredit(RECEIVER, 4))
        assert await inbox.messages.get() == AddCredit(RECEIVER, 4)
        channel.close()
        await channel.wait_closed()

        pinned = replace(client_tls, peer_fingerprints=frozenset({fingerprint(client_tls)}))
        choosy = replace(CONFIG, security=SecurityConfig.certificates(pinned))
        with pytest.raises(AuthenticationError, match="none of the expected certificates"):
            await connect(choosy, address, handlers(Inbox()), timeout_s=PATIENCE_S)
    finally:
        await server.close()


@on_tls_loops
async def test_valid_ssl_connection(authority: Authority) -> None:
    """testValidSslConnection: both ends have certificates of the CA.  Messages and a payload go both ways."""
    server_inbox, client_inbox = Producer(), Inbox()
    async with serving(authority.issue("server"), server_inbox) as (server, address):
        config = replace(CONFIG, security=security(authority.issue("client")))
        channel = await connect(config, address, handlers(client_inbox), timeout_s=PATIENCE_S)

        assert channel.peer_certificate is not None
        channel.write_and_flush(AddCredit(RECEIVER, 3))
        assert await server_inbox.messages.get() == AddCredit(RECEIVER, 3)
        for number in range(200):
            response = await client_inbox.messages.get()
            assert isinstance(response, BufferResponse)
            assert response.sequence_number == number
            assert response.buffer is not None
            assert bytes(response.buffer.view) == PAGE
        assert channel.pending_bytes == 0
        assert server.admission_statistics().num_unauthenticated == 0
        channel.close()
        await channel.wait_closed()
        assert client_inbox.errors == []


@pytest.mark.parametrize("broken", ["certificate_file", "key_file", "ca_file"])
@on_tls_loops
async def test_invalid_ssl_configuration(authority: Authority, broken: str, tmp_path: Path) -> None:
    """A file that is missing or nonsense fails at the start, with the side and the files."""
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for path in (tmp_path / "missing.pem", nonsense):
        tls = replace(authority.issue("server"), **{broken: path})  # type: ignore[arg-type]  # all three are paths
        config = replace(CONFIG, security=security(tls))
        with pytest.raises(ConfigError, match="failed to initialize the TLS context of the server"):
            await NetworkServer(config, handlers(Inbox())).start("127.0.0.1", 0)
        with pytest.raises(ConfigError, match="failed to initialize the TLS context of the client"):
            await connect(config, ConnectionID("127.0.0.1", 1), handlers(Inbox()), timeout_s=PATIENCE_S)


Identities = Callable[[Authority, Authority], tuple[TlsConfig, TlsConfig]]
ANOTHER = frozenset({"ab" * 32})  # the fingerprint of no certificate


@pytest.mark.parametrize(
    ("identities", "error", "told"),
    [
        pytest.param(
            lambda ours, other: (other.issue("server"), ours.issue("client")),
            AuthenticationError,
            "TLS failed",
            id="testSslHandshakeError: a server of another CA",
        ),
        pytest.param(
            lambda ours, other: (
                ours.issue("server"),
                replace(other.issue("client"), ca_file=ours.issue("server").ca_file),
            ),
            ConnectError,
            None,
            id="testClientUntrustedCertificate",
        ),
        pytest.param(
            lambda ours, _: (replace(ours.issue("server"), peer_fingerprints=ANOTHER), ours.issue("client")),
            AuthenticationError,
            None,
            id="testSslPinningForInvalidFingerprint: of the client",
        ),
        pytest.param(
            lambda ours, _: (ours.issue("server"), replace(ours.issue("client"), peer_fingerprints=ANOTHER)),
            AuthenticationError,
            None,
            id="testSslPinningForInvalidFingerprint: of the server",
        ),
        pytest.param(
            lambda ours, _: (ours.issue("elsewhere", "elsewhere.example"), ours.issue("client")),
            AuthenticationError,
            "TLS failed",
            id="a certificate that does not name the dialled host",
        ),
    ],
)
@on_tls_loops
async def test_ends_that_do_not_trust_each_other_are_never_connected(
    authority: Authority, stranger: Authority, identities: Identities, error: type[Exception], told: str | None
) -> None:
    """Although TLS 1.3 lets a client write before it is refused."""
    inbox, client_inbox = Inbox(), Inbox()
    server_tls, client_tls = identities(authority, stranger)
    config = replace(CONFIG, security=security(client_tls))

    async with serving(server_tls, inbox) as (server, address):
        with pytest.raises(error, match=told):
            await connect(config, address, handlers(client_inbox), timeout_s=PATIENCE_S)

    assert "active" not in inbox.log + client_inbox.log
    assert server.admission_statistics().num_connections == 0


@on_tls_loops
async def test_ssl_pinning_for_valid_fingerprint(authority: Authority) -> None:
    """testSslPinningForValidFingerprint: each end expects exactly the other's certificate."""
    server_tls, client_tls = authority.issue("server"), authority.issue("client")
    pinned_server = replace(server_tls, peer_fingerprints=frozenset({fingerprint(client_tls)}))
    pinned_client = replace(client_tls, peer_fingerprints=frozenset({fingerprint(server_tls)}))
    async with serving(pinned_server, Inbox()) as (_, address):
        channel = await connect(
            replace(CONFIG, security=security(pinned_client)), address, handlers(Inbox()), timeout_s=PATIENCE_S
        )
        assert channel.is_active
        channel.close()
        await channel.wait_closed()


@on_tls_loops
async def test_one_certificate_may_serve_all_machines(authority: Authority) -> None:
    """If that is switched on, the name of the dialled host does not matter."""
    async with serving(authority.issue("elsewhere", "elsewhere.example"), Inbox()) as (_, address):
        lenient = replace(authority.issue("client"), verify_hostname=False)
        channel = await connect(
            replace(CONFIG, security=security(lenient)), address, handlers(Inbox()), timeout_s=PATIENCE_S
        )
        channel.close()
        await channel.wait_closed()


@on_tls_loops
async def test_a_right_certificate_with_another_secret_is_not_enough(authority: Authority) -> None:
    inbox = Inbox()
    async with serving(authority.issue("server"), inbox) as (_, address):
        config = replace(CONFIG, security=security(authority.issue("client"), bytes(32)))
        with pytest.raises(AuthenticationError, match="during the handshake"):
            await connect(config, address, handlers(Inbox()), timeout_s=PATIENCE_S)
    assert "active" not in inbox.log


class BindingInbox(Inbox):
    """Keeps what the proofs of its end cover of the TLS connection, and the seal of later frames."""

    def __init__(self) -> None:
        super().__init__()
        self.bindings: list[bytes | None] = []
        self.seals: list[object] = []

    def channel_active(self, ctx: ChannelHandlerContext) -> None:
        super().channel_active(ctx)
        self.bindings.append(ctx.channel.tls_binding)
        self.seals.append(ctx.channel.seal)


@on_tls_loops
async def test_both_ends_have_one_binding_per_connection(authority: Authority) -> None:
    """The client's Finished message, a MAC of 32 or 48 bytes that no other connection has."""
    inbox, client_inbox = BindingInbox(), BindingInbox()
    config = replace(CONFIG, security=security(authority.issue("client")))
    async with serving(authority.issue("server"), inbox) as (_, address):
        for _ in range(2):
            channel = await connect(config, address, handlers(client_inbox), timeout_s=PATIENCE_S)
            channel.close()
            await channel.wait_closed()

    assert inbox.bindings == client_inbox.bindings
    assert len(set(inbox.bindings)) == 2
    assert all(each is not None and len(each) >= 32 for each in inbox.bindings)
    assert inbox.seals == client_inbox.seals == [None, None]


@on_tls_loops
async def test_a_certificate_without_the_secret_cannot_pass_on_the_challenge(authority: Authority) -> None:
    """Mallory relays every byte: neither end takes it for the other."""
    mallory = replace(authority.issue("mallory"), verify_hostname=False)
    inbox, ended = Inbox(), asyncio.Event()
    async with serving(authority.issue("server"), inbox) as (server, address):

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while received := await reader.read(4096):
                    writer.write(received)
            writer.close()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            onward = await asyncio.open_connection(address.host, address.port, ssl=client_context(mallory))
            await asyncio.gather(pump(reader, onward[1]), pump(onward[0], writer))
            for each in (writer, onward[1]):
                with suppress(ConnectionError):
                    await each.wait_closed()
            ended.set()

        between = await asyncio.start_server(relay, "127.0.0.1", 0, ssl=server_context(mallory))
        config = replace(CONFIG, security=security(authority.issue("client")))
        with pytest.raises(AuthenticationError):
            await connect(
                config, ConnectionID(*between.sockets[0].getsockname()), handlers(Inbox()), timeout_s=PATIENCE_S
            )
        await ended.wait()

        assert server.num_failed_authentications == 1
        assert "active" not in inbox.log
        between.close()
        await between.wait_closed()


@pytest.mark.parametrize(
    "first",
    [encode(Hello(1, 1, 1, b"x" * 32)), b"GET / HTTP/1.1\r\n\r\n", encode(AddCredit(RECEIVER, 1)), b""],
    ids=["hello", "http", "credit", "nothing"],
)
@on_tls_loops
async def test_plaintext_at_a_tls_port_is_cut(authority: Authority, first: bytes) -> None:
    """Bytes before the handshake never reach the decoder; silence is cut when its time is over."""
    inbox = Inbox()
    config = replace(CONFIG, security=replace(security(authority.issue("server")), tls_handshake_timeout_s=0.2))
    server = NetworkServer(config, handlers(inbox))
    host, port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(first)
    try:
        received = await reader.read()
    except ConnectionResetError:
        received = b""
    assert len(received) < 64, "at most an alert"
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()
    assert "active" not in inbox.log
    await server.close()


@on_tls_loops
async def test_close_cuts_connections_that_are_inside_their_handshake(authority: Authority) -> None:
    """No connection is left when the server is closed, although the handshakes have a long time limit here."""
    config = replace(CONFIG, security=replace(security(authority.issue("server")), tls_handshake_timeout_s=600))
    server = NetworkServer(config, handlers(Inbox()))
    address = ConnectionID(*await server.start("127.0.0.1", 0))
    silent = await silent_connections(2, address, authority.issue("client"))
    num_before = server.num_handshakes

    await server.close()

    assert (num_before, server.num_handshakes) == (2, 0)
    assert [await is_cut(each) for each in silent] == [True, True]
    assert asyncio.all_tasks() == {asyncio.current_task()}


@on_tls_loops
async def test_the_oldest_handshake_goes_when_there_are_too_many(authority: Authority) -> None:
    """Silent connections cannot fill the server, and a client that speaks is served."""
    limited = replace(security(authority.issue("server")), tls_handshake_timeout_s=600, max_unauthenticated=2)
    server = NetworkServer(replace(CONFIG, security=limited), handlers(Inbox()))
    address = ConnectionID(*await server.start("127.0.0.1", 0))

    silent = await silent_connections(3, address, authority.issue("client"))

    assert [await is_cut(each) for each in silent[:2]] == [True, True]
    assert (server.num_handshakes, silent[2][0].at_eof()) == (1, False)
    await server.close()
    assert await is_cut(silent[2])


@on_tls_loops
async def test_only_tls_1_3(authority: Authority) -> None:
    """Neither side accepts a peer of an older version."""
    tls = authority.issue("server")
    async with serving(tls, Inbox()) as (_, address):
        dialling = client_context(tls)
        dialling.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(address.host, address.port, ssl=dialling)

    listening = server_context(tls)
    listening.maximum_version = ssl.TLSVersion.TLSv1_2
    accepted: list[asyncio.StreamWriter] = []

    def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)
        writer.close()

    old = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=listening)
    config = replace(CONFIG, security=security(tls))
    with pytest.raises((AuthenticationError, ConnectError)):
        await connect(config, ConnectionID(*old.sockets[0].getsockname()), handlers(Inbox()), timeout_s=PATIENCE_S)
    assert accepted == [], "there was no handshake"
    old.close()
    await old.wait_closed()


class LoopbackOnly:
    """The running loop for a server under test: notes where it is asked to listen, and listens on loopback."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._loop = asyncio.get_running_loop()

    async def create_server(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, **options: Any
    ) -> asyncio.Server:
        self.asked.append(host)
        return await self._loop.create_server(factory, "127.0.0.1", port, **options)


@on_tls_loops
async def test_with_tls_any_address_may_be_listened_on(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address reaches the loop unrefused; the test itself listens on loopback."""
    server = NetworkServer(replace(CONFIG, security=security(authority.issue("server"))), handlers(Inbox()))
    loop = LoopbackOnly()
    with monkeypatch.context() as patch:
        patch.setattr("netstack.transport.server.asyncio.get_running_loop", lambda: loop)
        await server.start("0.0.0.0", 0)

    assert loop.asked == ["0.0.0.0"]
    await server.close()
