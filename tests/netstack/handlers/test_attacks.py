"""Attacks of strangers on the data port, with real sockets; all friends are unharmed."""

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs

from netstack.config import SecurityConfig
from netstack.errors import AuthenticationError, ConfigError, ConnectError, NetstackError, RemoteProtocolError
from netstack.flow.handshake import NONCE_BYTES, PROTOCOL_VERSION_MAX, Handshake, Role, derive_key
from netstack.ids import ConnectionID
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.transport import server
from netstack.transport.authentication_handler import AuthenticationHandler
from netstack.transport.message_codec import MessageDecoder
from netstack.transport.server import NetworkServer, connect
from netstack.wire.frame_decoder import SEAL_BYTES
from netstack.wire.message_bytes import FRAME_HEADER, MAGIC, encode
from netstack.wire.messages import AddCredit, Hello, Message, Proof, Ready
from tests.netstack.handlers.attackers import HMAC_CONFIG, SECRET, SECURITY, Stranger, impostor, stranger, victim
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers, on_loops
from tests.netstack.wire.samples import CONTROL_MESSAGES, RECEIVER
from tests.waiting import PATIENCE_S

V = PROTOCOL_VERSION_MAX
HELLO = Hello(V, V, Role.CONSUMER, b"s" * NONCE_BYTES)
GARBAGE: dict[str, bytes] = {
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "length of 2^31-1": FRAME_HEADER.pack(0x7FFFFFFF, MAGIC, 64),
    "data frame of 2^31-1": FRAME_HEADER.pack(0x7FFFFFFF, MAGIC, 0),
    "bad magic": FRAME_HEADER.pack(46, 0xDEADBEEF, 64) + bytes(37),
    "unknown id": FRAME_HEADER.pack(46, MAGIC, 99) + bytes(37),
    "proof first": encode(Proof(bytes(32))),
    "ready first": encode(Ready(1)),
    "two hellos": encode(HELLO) * 2,
    "another authority": encode(replace(HELLO, authority="127.0.0.1:1")),
    "wrong role": encode(replace(HELLO, role=Role.PRODUCER)),
    "unknown role": encode(replace(HELLO, role=77)),
    "future version": encode(replace(HELLO, version_min=V + 1, version_max=9)),
    "zeros": bytes(600),
}


@pytest.mark.parametrize("name", GARBAGE)
@on_loops()
async def test_garbage_before_authentication_is_cut(name: str) -> None:
    """The stranger learns nothing but our hello, if it said hello; no handler ever hears of it."""
    async with victim() as it:
        async with stranger(it.address) as enemy:
            enemy.send(GARBAGE[name])
            assert len(await enemy.rest()) in (0, 46)
        await it.check_unharmed()
        assert it.server.num_failed_authentications == 1


@on_loops()
async def test_every_message_before_authentication_is_refused() -> None:
    """Spark CVE-2020-9480: no message is acted on before authentication, neither at once nor after a hello."""
    async with victim(replace(SECURITY, failure_delay_s=0)) as it:
        for message in CONTROL_MESSAGES:
            for before in ((), (replace(HELLO, authority=str(it.address)),)):
                async with stranger(it.address) as enemy:
                    enemy.send(*before, message)
                    await enemy.rest()
        await it.check_unharmed()


@on_loops()
async def test_strangers_cannot_fill_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first ones are reported, all of them are counted."""
    # The clock of the limit stands: on a busy machine they take half a minute, in which 30 more lines are allowed.
    monkeypatch.setattr(server, "time", SimpleNamespace(monotonic=lambda: 0.0))
    async with victim(replace(SECURITY, failure_delay_s=0, max_unauthenticated=1)) as it:
        with capture_logs() as logs:
            for _ in range(60):
                async with stranger(it.address) as enemy:
                    enemy.send(GARBAGE["http"])
                    await enemy.rest()
        await it.check_unharmed()
        assert it.server.num_failed_authentications == 60
        assert len(logs) == 10


@on_loops()
async def test_the_reason_of_a_failure_is_cut() -> None:
    """A stranger's bytes that the reason quotes do not make it longer than its bound."""
    errors: list[NetstackError] = []
    authentication = AuthenticationHandler(
        Handshake(Role.PRODUCER, derive_key(SECRET), b"p" * NONCE_BYTES),
        asyncio.get_running_loop(),
        timeout_s=5,
        failure_delay_s=0,
        on_ready=lambda _channel: None,
        on_failed=errors.append,
    )
    channel = EmbeddedChannel(MessageDecoder(CONFIG), authentication)

    channel.pipeline.head.fire_exception_caught(RemoteProtocolError("x" * 10_000))

    assert [len(str(error)) < 330 for error in errors] == [True]
    assert channel.was_aborted


@on_loops()
async def test_a_silent_stranger_is_cut_when_its_time_is_over() -> None:
    async with victim() as it:
        with it.impatient(0.05):
            async with stranger(it.address) as enemy:
                assert await enemy.is_cut()
        await it.check_unharmed()


@on_loops()
async def test_a_stranger_that_drips_is_cut_when_its_time_is_over() -> None:
    """A stranger that sends one byte at a time is cut when its time is over, although it never falls silent."""
    async with victim() as it:
        with it.impatient(0.1):
            async with stranger(it.address) as enemy:
                with suppress(ConnectionError):  # on a slow machine its time is over on the way
                    for byte in encode(HELLO)[:-1]:
                        enemy.send(bytes([byte]))
                        await enemy.writer.drain()
                        await asyncio.sleep(0)
                assert await enemy.is_cut()
        await it.check_unharmed()


async def handshake(enemy: Stranger, secret: bytes, nonce: bytes) -> Handshake:
    machine = Handshake(Role.CONSUMER, derive_key(secret), nonce)
    enemy.send(*machine.connected(tls_binding=None, authority=enemy.authority))
    return machine


@on_loops()
async def test_another_secret_gets_nothing_that_was_made_with_ours() -> None:
    async with victim() as it:
        async with stranger(it.address) as enemy:
            machine = await handshake(enemy, bytes(32), b"s" * 32)
            (hello,) = await enemy.receive()
            enemy.send(*machine.receive(hello))
            assert await enemy.is_cut()
        await it.check_unharmed()


@on_loops()
async def test_a_truncated_proof_waits_in_vain() -> None:
    async with victim() as it:
        with it.impatient(0.05):
            hellos: list[Message] = []
            while not hellos:  # on a slow machine the time may be over before the answer is here
                async with stranger(it.address) as enemy:
                    machine = await handshake(enemy, SECRET, b"s" * 32)
                    hellos = await enemy.receive()
                    if hellos:
                        enemy.send(encode(machine.receive(hellos[0])[0])[:-1])
                        assert await enemy.is_cut()
        await it.check_unharmed()


@on_loops()
async def test_a_replayed_conversation_is_cut() -> None:
    """A stranger that repeats the bytes of a friend's connection is cut."""
    async with victim() as it:
        async with stranger(it.address) as friend:
            machine = await handshake(friend, SECRET, b"s" * 32)
            said = encode(replace(HELLO, authority=friend.authority))
            (hello,) = await friend.receive()
            (proof,) = machine.receive(hello)
            friend.send(proof)
            assert [type(each) for each in await friend.receive()] == [Proof, Ready]
        async with stranger(it.address) as enemy:
            enemy.send(said)
            await enemy.receive()
            enemy.send(proof)
            assert await enemy.is_cut()


@on_loops()
async def test_reflection_is_cut_on_both_sides() -> None:
    """A stranger sends everything back to where it came from."""
    async with victim() as it:
        async with stranger(it.address) as enemy:
            enemy.send(replace(HELLO, authority=enemy.authority))
            enemy.send(*await enemy.receive())
            assert await enemy.is_cut()
        await it.check_unharmed()

    inbox = Inbox()
    async with impostor(None) as address:
        with pytest.raises(AuthenticationError, match="wrong role"):
            await connect(HMAC_CONFIG, address, handlers(inbox), timeout_s=PATIENCE_S)
    assert "active" not in inbox.log


@on_loops()
async def test_bytes_behind_the_proof_are_not_understood() -> None:
    """An honest client waits for READY, because only then it has the keys."""
    async with victim() as it:
        async with stranger(it.address) as enemy:
            machine = await handshake(enemy, SECRET, b"s" * 32)
            (hello,) = await enemy.receive()
            enemy.send(*machine.receive(hello), AddCredit(RECEIVER, 1), bytes(SEAL_BYTES))
            assert [type(each) for each in await enemy.receive()] == [Proof, Ready]
        assert it.inbox.messages.empty()
        (error,) = it.inbox.errors
        assert "frame 1 from 127.0.0.1:" in str(error)
        assert "does not bear the peer's seal" in str(error)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", encode(Ready(1)), encode(Proof(bytes(32)))])
@on_loops()
async def test_a_server_that_cannot_prove_itself_gets_nothing(answer: bytes) -> None:
    """The client's handlers never hear of it, and the error says what to look at."""
    inbox = Inbox()
    async with impostor(answer) as address:
        with pytest.raises(AuthenticationError, match="same secret file"):
            await connect(HMAC_CONFIG, address, handlers(inbox), timeout_s=PATIENCE_S)
    assert "active" not in inbox.log


@on_loops()
async def test_a_server_that_hangs_up_before_it_says_anything_was_not_shown_the_secret() -> None:
    """The error is no refused authentication, so that another attempt may help, and it names possible causes."""
    async with impostor(b"") as address:
        with pytest.raises(
            ConnectError, match=f"^{address} closed the connection before it said anything: .* see its log$"
        ) as raised:
            await connect(HMAC_CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S)
    assert not isinstance(raised.value, AuthenticationError)


@on_loops()
async def test_a_server_without_descriptors_is_a_connect_error() -> None:
    """It accepts and closes at once, so that the kernel resets the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = ConnectionID(*listener.getsockname())
        dialling = asyncio.create_task(connect(HMAC_CONFIG, address, handlers(Inbox()), timeout_s=PATIENCE_S))
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        with accepted:
            accepted.settimeout(PATIENCE_S)
            await asyncio.get_running_loop().run_in_executor(None, accepted.recv, 1, socket.MSG_PEEK)
        with pytest.raises(ConnectError, match="before it said anything: it has no file descriptors left") as raised:
            await dialling
    assert not isinstance(raised.value, AuthenticationError)


@on_loops()
async def test_a_client_with_another_secret_is_told_so() -> None:
    async with victim() as it:
        config = replace(CONFIG, security=SecurityConfig.hmac(bytes(32)))
        with pytest.raises(
            AuthenticationError,
            match="closed the connection during the handshake; do both processes use the same secret",
        ):
            await connect(config, it.address, handlers(Inbox()), timeout_s=PATIENCE_S)
        await it.check_unharmed()


@on_loops()
async def test_strangers_make_room_for_strangers_and_never_cost_a_friend() -> None:
    """The oldest of 65 silent strangers is cut at once; friends can still connect."""
    async with victim() as it, AsyncExitStack() as stack:
        enemies = [await stack.enter_async_context(stranger(it.address)) for _ in range(65)]
        assert await enemies[0].is_cut()
        await it.check_unharmed()
        statistics = it.server.admission_statistics()
        assert statistics.num_unauthenticated <= 64
        assert statistics.num_evicted >= 1


@on_loops()
async def test_a_connection_too_many_is_refused() -> None:
    """With all places taken by friends, the next connection is cut and the friends go on."""
    config = replace(HMAC_CONFIG, max_connections=1)
    server = NetworkServer(config, handlers(Inbox()))
    address = ConnectionID(*await server.start("127.0.0.1", 0))
    friend = await connect(config, address, handlers(Inbox()), timeout_s=PATIENCE_S)

    with pytest.raises(ConnectError):
        await connect(config, address, handlers(Inbox()), timeout_s=PATIENCE_S)

    assert friend.is_active
    assert server.admission_statistics().num_refused == 1
    await server.close()
    await friend.wait_closed()


@on_loops()
async def test_nothing_listens_and_nothing_is_dialled_by_accident() -> None:
    """Neither a server nor a client starts without a choice of security, or beyond loopback without TLS."""
    bare = replace(CONFIG, security=None)
    server = NetworkServer(bare, handlers(Inbox()))
    with pytest.raises(ConfigError, match=r"NetstackConfig\.security is not set"):
        await server.start("127.0.0.1", 0)
    with pytest.raises(ConfigError, match=r"NetstackConfig\.security is not set"):
        await connect(bare, ConnectionID("127.0.0.1", 1), handlers(Inbox()), timeout_s=PATIENCE_S)
    for security in (SecurityConfig.none(), SecurityConfig.hmac(SECRET)):
        config = replace(CONFIG, security=security)
        with pytest.raises(ConnectError, match=r"cannot connect to 192\.0\.2\.1:1: only loopback addresses"):
            await connect(config, ConnectionID("192.0.2.1", 1), handlers(Inbox()), timeout_s=PATIENCE_S)
        for host in ("0.0.0.0", "::", "192.0.2.1", socket.gethostname(), ""):
            with pytest.raises(ConfigError, match="refusing to listen"):
                await NetworkServer(config, handlers(Inbox())).start(host, 0)


@on_loops()
async def test_both_ends_have_the_same_mode_or_do_not_talk() -> None:
    """A plain client at a protected server and the other way round."""
    async with victim() as it:
        plain = await connect(CONFIG, it.address, handlers(Inbox()), timeout_s=PATIENCE_S)
        plain.write_and_flush(AddCredit(RECEIVER, 1))
        await plain.wait_closed()
        await it.check_unharmed()
