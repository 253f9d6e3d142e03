"""The yardstick: a pair of blocking sockets, framed buffers, 8 per ``sendmsg``, parsed in place from 1 MiB reads.

Side:  any; one thread on each side.
Frame: a header as long as the network stack's own, with the length of the payload and its channel in it.  No flow
       control but TCP's.
"""

import socket
import struct
from collections.abc import Callable

from bench.transports.common import BUFFER_BYTES, PayloadSource, Setting, Stop, Verifier, WrongDataError
from netstack.config import KERNEL_CONGESTION_CONTROL
from netstack.wire.message_bytes import BUFFER_RESPONSE_HEADER_BYTES

FRAMES_PER_CALL = 8
READ_BYTES = 1024 * 1024
HEADER = struct.Struct(f">II{BUFFER_RESPONSE_HEADER_BYTES - 8}x")  # length, channel


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Accept one connection and fill it."""
    headers = [bytearray(HEADER.size) for _ in range(FRAMES_PER_CALL)]
    buffers = [source.new_buffer() for _ in range(FRAMES_PER_CALL)]
    frames = [memoryview(part) for pair in zip(headers, buffers, strict=True) for part in pair]
    with socket.create_server(("127.0.0.1", 0)) as server:
        listening(server.getsockname()[1])
        connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if setting.congestion_control not in (None, KERNEL_CONGESTION_CONTROL):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, setting.congestion_control.encode())
        while not stop.is_set:
            for header, buffer in zip(headers, buffers, strict=True):
                HEADER.pack_into(header, 0, BUFFER_BYTES, source.label_next(buffer))
            send_all(connection, frames)
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)  # until the consumer has read everything and closed


def send_all(connection: socket.socket, frames: list[memoryview]) -> None:
    """Call ``sendmsg`` until nothing is left; on a blocking socket nearly always once."""
    sent = connection.sendmsg(frames)
    while frames:
        while frames and sent >= len(frames[0]):
            sent -= len(frames[0])
            frames = frames[1:]
        if frames:
            frames = [frames[0][sent:], *frames[1:]]
            sent = connection.sendmsg(frames)


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Parse frames in place; an incomplete last one moves to the front."""
    staging = memoryview(bytearray(READ_BYTES))
    unpack, header_bytes, check = HEADER.unpack_from, HEADER.size, verifier.check
    filled = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while num_read := connection.recv_into(staging[filled:]):
            filled += num_read
            at = 0
            while at + header_bytes <= filled:
                length, _ = unpack(staging, at)
                end = at + header_bytes + length
                if end > filled:
                    break
                check(staging[at + header_bytes : end])
                at = end
            if at < filled:
                staging[: filled - at] = staging[at:filled]
            filled -= at
    if filled:
        raise WrongDataError(f"the stream ends with {filled} bytes of a broken frame")
