"""Strangers and liars at both ports: garbage, frames out of turn, wrong secrets, tokens of others, old requests."""

import asyncio
import http.client
import random
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from flowlet.ingest import GateAccessError, GateClient, GateDescription, GateError, PartitionOffer, open_gate
from flowlet.rpc.auth import AUTH_HEADER, Nonce, RequestLine, sign_request
from flowlet.rpc.requests import wall_clock_ms
from netstack.config import NetstackConfig, SecurityConfig
from netstack.errors import NetstackError
from netstack.flow.handshake import NONCE_BYTES, Role
from netstack.ids import ConnectionID
from netstack.transport.handler import ChannelHandler, ChannelHandlerContext
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.network_channel import NetworkChannel
from netstack.transport.outbound_buffer import OutboundFrame
from netstack.transport.server import connect
from netstack.wire.message_bytes import ALL_MESSAGE_IDS, FRAME_HEADER, MAGIC, encode
from netstack.wire.messages import Hello, Message, Proof, Ready
from netstack.wire.offer_messages import GateHello, GateIdentity, gate_token
from tests.attack.arena import Arena
from tests.attack.test_hostile_producers import TYPES, victim
from tests.netstack.wire.samples import CONTROL_MESSAGES

_HELLO: Final = Hello(1, 1, Role.CONSUMER, bytes(range(NONCE_BYTES)))


# ---------------------------------------------------------------- garbage


_UPGRADE: Final = (
    b"GET /rpc/taskmanager HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"  # noqa: E501
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def broken_frame(numbers: random.Random) -> bytes:
    """Return a frame with an error in it, or a good one for which nobody asked."""
    known = sorted(ALL_MESSAGE_IDS)
    match numbers.randrange(7):
        case 0:
            return numbers.randbytes(numbers.randrange(1, 80))
        case 1:
            return FRAME_HEADER.pack(
                numbers.choice([0, 8, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 20]), MAGIC, numbers.choice(known)
            ) + numbers.randbytes(40)
        case 2:
            return FRAME_HEADER.pack(46, numbers.randrange(2**32), 64) + numbers.randbytes(37)
        case 3:
            return FRAME_HEADER.pack(46, MAGIC, numbers.randrange(256)) + numbers.randbytes(37)
        case 4:
            data = bytearray(encode(numbers.choice(CONTROL_MESSAGES)))
            data[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
            return bytes(data)
        case 5:
            data = bytearray(encode(numbers.choice(CONTROL_MESSAGES)))
            return bytes(data[: numbers.randrange(1, len(data))])
        case _:
            return encode(numbers.choice(CONTROL_MESSAGES))


def fuzz_before_handshake(arena: Arena, num: int) -> None:
    """Send frames of all kinds from peers that have proved nothing, some behind a good hello."""
    numbers = random.Random(arena.seed)
    ports = [each.data_port for each in arena.task_managers]
    with arena.attack(f"{num} frames before the handshake") as it:
        sent = answered = 0
        while sent < num:
            data = b"".join(broken_frame(numbers) for _ in range(8))
            sent += 8
            with suppress(OSError), socket.create_connection(("127.0.0.1", numbers.choice(ports)), timeout=10) as one:
                one.sendall(numbers.choice([b"", encode(_HELLO)]) + data)
                one.shutdown(socket.SHUT_WR)
                one.settimeout(0.002)
                with suppress(TimeoutError):
                    answered += len(one.recv(4096)) > 46  # more than a hello
        it.outcome(f"{sent} frames, {answered} answers beyond a hello")
        assert not answered


class Quiet(ChannelHandler):
    """The end of a pipeline that drops every message; ``ended`` is set when the connection ends."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.ctx: ChannelHandlerContext | None = None

    def handler_added(self, ctx: ChannelHandlerContext) -> None:
        self.ctx = ctx

    def channel_read(self, ctx: ChannelHandlerContext, message: object) -> None:
        return

    def channel_inactive(self, ctx: ChannelHandlerContext) -> None:
        self.ended.set()

    def exception_caught(self, ctx: ChannelHandlerContext, error: BaseException) -> None:
        return


async def insider(
    arena: Arena, port: int, secret: bytes | None = None, gate: GateIdentity | None = None
) -> tuple[NetworkChannel, Quiet]:
    """Open a connection of an attacker that knows the secret, or a gate's token."""
    quiet = Quiet()
    config = NetstackConfig(security=SecurityConfig.hmac(secret or arena.secret))
    decoder: Callable[[], Any] = lambda: MessageDecoder(config, accepted_ids=ALL_MESSAGE_IDS)  # noqa: E731
    channel = await connect(
        config, ConnectionID("127.0.0.1", port), lambda: (MessageEncoder(), decoder(), quiet), 10.0, gate
    )
    return channel, quiet


def test_frames_after_the_handshake(arena: Arena) -> None:
    """Send frames from an attacker that knows the secret: they are sealed well, and broken inside."""
    num = 20_000
    numbers = random.Random(arena.seed + 1)
    ports = [each.data_port for each in arena.task_managers]

    async def fuzz() -> tuple[int, int]:
        sent = connections = 0
        while sent < num:
            try:
                channel, quiet = await insider(arena, numbers.choice(ports))
            except NetstackError:
                continue
            connections += 1
            for _ in range(numbers.randrange(1, 60)):
                if quiet.ended.is_set() or quiet.ctx is None:
                    break
                with suppress(NetstackError):
                    if numbers.random() < 0.7:
                        message: Message = numbers.choice(CONTROL_MESSAGES)
                        quiet.ctx.write_and_flush(message)
                    else:
                        quiet.ctx.write(OutboundFrame((broken_frame(numbers),), None))
                        quiet.ctx.flush()
                sent += 1
            await asyncio.sleep(0.002)
            channel.close()
            await channel.wait_closed()
        return sent, connections

    with arena.attack(f"{num} frames after the handshake") as it:
        sent, connections = asyncio.run(asyncio.wait_for(fuzz(), 120))
        it.outcome(f"{sent} frames over {connections} connections")


def test_broken_requests(arena: Arena) -> None:
    num = 3_000
    numbers = random.Random(arena.seed + 2)
    heads: list[bytes] = [
        b"GET / HTTP/1.1\r\n",
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        b"GET /overview HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        _UPGRADE + b"\x82\xff" + b"\xff" * 8,
        b"GET /overview HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Flowlet-Auth: v1 "
        + b"9" * 15
        + b" "
        + b"a" * 32
        + b" "
        + b"b" * 64
        + b" "
        + b"c" * 64
        + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    ]
    with arena.attack(f"{num} broken requests") as it:
        accepted = 0
        for _ in range(num):
            data = bytearray(numbers.choice(heads))
            if numbers.random() < 0.5:
                for _ in range(numbers.randrange(1, 9)):
                    data[numbers.randrange(len(data))] = numbers.randrange(256)
            with suppress(OSError), socket.create_connection(("127.0.0.1", arena.control_port), timeout=10) as one:
                one.sendall(bytes(data))
                one.settimeout(0.01)
                with suppress(TimeoutError):
                    accepted += one.recv(4096).startswith((b"HTTP/1.1 2", b"HTTP/1.1 1"))
        it.outcome(f"{num} requests, {accepted} accepted")
        assert not accepted


def test_frames_before_the_handshake(arena: Arena) -> None:
    fuzz_before_handshake(arena, 30_000)


# ---------------------------------------------------------------- wrong secrets, tokens of others, replays


def ask(arena: Arena, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", arena.control_port, timeout=10)
    try:
        connection.request(method, path, body, {"Host": arena.address} | headers)
        return connection.getresponse().status
    finally:
        connection.close()


def signed(
    arena: Arena, secret: bytes, method: str, path: str, body: bytes = b"", *, age_ms: int = 0, nonce: str = ""
) -> dict[str, str]:
    line = RequestLine(method, arena.address, path)
    return {
        AUTH_HEADER: sign_request(secret, line, body, Nonce(nonce or secrets.token_hex(16)), wall_clock_ms() - age_ms)
    }


def forge_requests(arena: Arena) -> None:
    """Send requests that are signed wrongly, too old, seen before, or for another purpose."""
    with (
        arena.attack("requests with forged, old and repeated signatures") as it,
        victim(arena, *TYPES["pair"][:2]) as job,
    ):
        token, path = job.description.token, "/overview"

        def good(**how: Any) -> dict[str, str]:
            return signed(arena, arena.secret, "GET", path, **how)

        once = good()
        assert ask(arena, "GET", path, once) == 200
        finish = "/gates/victim?mode=finish"
        statuses = {
            "repeated": ask(arena, "GET", path, once),
            "no signature": ask(arena, "GET", path, {}),
            "another secret": ask(arena, "GET", path, signed(arena, bytes(32), "GET", path)),
            "a gate's token": ask(arena, "GET", path, signed(arena, token, "GET", path)),
            "too old": ask(arena, "GET", path, good(age_ms=120_000)),
            "of the future": ask(arena, "GET", path, good(age_ms=-120_000)),
            "another path": ask(arena, "GET", "/jobs/overview", good()),
            "another method": ask(arena, "PATCH", path, good()),
            "another query": ask(arena, "GET", f"{path}?x=1", good()),
            "another body": ask(arena, "POST", "/jobs", signed(arena, arena.secret, "POST", "/jobs", b"a"), b"b"),
            "another host": ask(arena, "GET", path, good() | {"Host": "evil.example:1"}),
            "a web page": ask(arena, "GET", path, good() | {"Origin": "http://evil.example"}),
            "token as secret for the gate": ask(arena, "PATCH", finish, signed(arena, token, "PATCH", finish)),
        }
        accepted = [name for name, status in statuses.items() if status < 400]
        it.outcome(f"{len(statuses)} requests, accepted: {accepted or 'none'}")
        assert not accepted


def try_open(description: GateDescription, **changes: Any) -> str:
    try:
        with GateClient(replace(description, **changes), timeout_s=8).open_partition(
            PartitionOffer("thief", secrets.randbelow(2**31))
        ) as writer:
            writer.finish(8)
    except GateError as error:
        return type(error).__name__
    return "accepted"


def test_tokens(arena: Arena) -> None:
    """Send tokens that are wrong, expired, of another gate or of another job."""
    with arena.attack("tokens that are forged, expired, or of others") as it, victim(arena, *TYPES["pair"][:2]) as job:
        gate = job.description
        other = (
            open_gate(it.bystander.name, jobmanager=arena.address, secret_file=arena.secret_file).description
            if it.bystander
            else gate
        )
        expired = GateIdentity(bytes.fromhex(gate.job_id), gate.name, wall_clock_ms() - 1000)
        answers = {
            "wrong": try_open(gate, token=bytes(32)),
            "one bit": try_open(gate, token=bytes([gate.token[0] ^ 1]) + gate.token[1:]),
            "of another gate": try_open(gate, token=other.token),
            "of another job": try_open(gate, token=other.token, job_id=other.job_id),
            "for longer": try_open(gate, expires_ms=gate.expires_ms + 86_400_000),
            "expired": try_open(gate, expires_ms=expired.expires_ms, token=gate_token(arena.secret, expired)),
            "the secret as token": try_open(gate, token=arena.secret),
            "of another secret": try_open(
                gate, token=gate_token(bytes(32), GateIdentity(bytes.fromhex(gate.job_id), gate.name, gate.expires_ms))
            ),
        }
        accepted = [name for name, answer in answers.items() if answer != GateAccessError.__name__]
        it.outcome(
            f"{len(answers)} tokens, not refused as such: {[(name, answers[name]) for name in accepted] or 'none'}"
        )
        assert job.check(10) is None
        assert not accepted


def test_token_holder(arena: Arena) -> None:
    """Ask for partitions over a connection with a gate's token, and send all messages that only insiders may send."""
    with arena.attack("a gate's token used for everything else") as it, victim(arena, *TYPES["pair"][:2]) as job:
        gate = job.description
        identity = GateIdentity(bytes.fromhex(gate.job_id), gate.name, gate.expires_ms)

        async def misuse() -> int:
            num_kept = 0
            for message in CONTROL_MESSAGES:
                channel, quiet = await insider(arena, gate.endpoints[0].port, gate.token, identity)
                assert quiet.ctx is not None
                quiet.ctx.write_and_flush(message)
                try:
                    await asyncio.wait_for(quiet.ended.wait(), 0.3)
                except TimeoutError:
                    num_kept += 1
                channel.close()
                await channel.wait_closed()
            return num_kept

        num_kept = asyncio.run(asyncio.wait_for(misuse(), 60))
        assert job.check(10) is None
        it.outcome(f"{len(CONTROL_MESSAGES) - num_kept} of {len(CONTROL_MESSAGES)} messages end the connection")


def test_handshakes(arena: Arena) -> None:
    """Send a producer's recorded words once more, byte by byte; and send our own hello back to us."""
    with arena.attack("a handshake that was seen before") as it, victim(arena, *TYPES["pair"][:2]) as job:
        gate = job.description
        identity = GateIdentity(bytes.fromhex(gate.job_id), gate.name, gate.expires_ms)
        num_ready = 0
        for first in (GateHello(1, 1, bytes(32), identity), _HELLO):
            for then in (Proof(bytes(32)), Ready(1), Proof(b"\xff" * 32)):
                with socket.create_connection(("127.0.0.1", gate.endpoints[0].port), timeout=10) as one:
                    one.sendall(encode(first))
                    hello = one.recv(4096)
                    for data in (encode(then), hello, encode(first) + encode(then)):
                        with suppress(OSError):
                            one.sendall(data)
                    one.settimeout(3)
                    rest = b""
                    with suppress(OSError):
                        while more := one.recv(4096):
                            rest += more
                    num_ready += bool(rest)
        it.outcome(f"6 handshakes, {num_ready} answered")
        assert not num_ready
        assert job.check(10) is None


def test_requests(arena: Arena) -> None:
    forge_requests(arena)


def test_reads_slowly(arena: Arena) -> None:
    """A peer that knows the secret, asks for everything a thousand times and reads nothing does no harm."""
    with arena.attack("an insider that reads no answer") as it:

        async def ask_all() -> str:
            channel, quiet = await insider(arena, arena.task_managers[0].data_port)
            assert quiet.ctx is not None
            began_s, num = time.monotonic(), 0
            sock = channel
            while not quiet.ended.is_set() and time.monotonic() < began_s + 5:
                for message in CONTROL_MESSAGES:
                    with suppress(NetstackError):
                        quiet.ctx.write_and_flush(message)
                        num += 1
                await asyncio.sleep(0)
            sock.close()
            await sock.wait_closed()
            return f"{num} messages in {time.monotonic() - began_s:.1f} s"

        it.outcome(asyncio.run(asyncio.wait_for(ask_all(), 60)))
