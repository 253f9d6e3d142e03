"""A peer: grpc.aio, one server stream of bytes messages, no protobuf.

Side:  any; gRPC has threads of its own.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from bench.transports.common import PayloadSource, Setting, Stop, Verifier


def produce(setting: Setting, source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    """Serve one stream."""
    asyncio.run(_serve(source, stop, listening))


async def _serve(source: PayloadSource, stop: Stop, listening: Callable[[int], None]) -> None:
    buffer, is_done = source.new_buffer(), asyncio.Event()

    async def read(_request: bytes, _context: Any) -> AsyncIterator[bytes]:
        while not stop.is_set:
            source.label_next(buffer)
            yield bytes(buffer)
        is_done.set()

    server = grpc.aio.server()
    handlers = {"Read": grpc.unary_stream_rpc_method_handler(read)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listening(port)
    await is_done.wait()
    await server.stop(grace=10.0)


def consume(setting: Setting, port: int, verifier: Verifier) -> None:
    """Read the stream."""
    asyncio.run(_read(port, verifier))


async def _read(port: int, verifier: Verifier) -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        async for message in channel.unary_stream("/bench/Read")(b""):
            verifier.check(memoryview(message))
