"""The cost of a connection before its peer has proven anything: real sockets at the server of a
``NetworkEnvironment``.
"""

import asyncio
import os
import resource
import socket
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from netstack.config import NetstackConfig, SecurityConfig
from netstack.environment import NetworkEnvironment
from netstack.flow.handshake import NONCE_BYTES, PROTOCOL_VERSION_MAX, Role
from netstack.ids import ConnectionID
from netstack.loop.eventloop import EventLoopThread
from netstack.wire.message_bytes import encode
from netstack.wire.messages import Hello
from tests.netstack.connections import until
from tests.netstack.transport.sockets import LOOPS, on_loops, run
from tests.waiting import LONG_S

MANY = 500
MAX_BYTES_AT_ONCE = 4096
SECURITY = replace(
    SecurityConfig.hmac(bytes(range(32))),
    max_unauthenticated=2 * MANY,
    failure_delay_s=0.0,
    handshake_timeout_s=LONG_S,  # on a busy machine the first ones were closed before the last ones had come
)
CONFIG = NetstackConfig(network_memory_bytes=1 << 20, security=SECURITY)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[NetworkEnvironment, ConnectionID]]:
    loop = EventLoopThread.adopt(asyncio.get_running_loop(), "test")
    environment = NetworkEnvironment(CONFIG, loop)
    try:
        yield environment, await environment.start("127.0.0.1", 0)
    finally:
        await environment.close()
        loop.close()


async def knock(
    stack: ExitStack, at: tuple[NetworkEnvironment, ConnectionID], num_more: int, said: bytes = b""
) -> None:
    """Connect ``num_more`` strangers; each sends ``said`` and nothing more."""
    environment, address = at
    num_wanted = environment.num_accepted_connections + num_more
    for number in range(num_more):
        sock = stack.enter_context(socket.create_connection((address.host, address.port)))
        sock.sendall(said)
        if number % 50 == 49:  # fewer than the backlog
            await until(lambda: environment.num_accepted_connections >= num_wanted - num_more + number + 1)  # noqa: B023 - awaited at once
    await until(lambda: environment.num_accepted_connections == num_wanted)


@pytest.mark.parametrize("num_said", [40, 200])
@on_loops()
async def test_a_stranger_costs_no_task_and_no_large_piece_of_memory(num_said: int) -> None:
    """A stranger costs no task and little memory, in the middle of a hello and after an answered one."""
    async with listening() as at:
        hello = Hello(PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MAX, Role.CONSUMER, bytes(NONCE_BYTES), str(at[1]))
        said = encode(hello)[:num_said]
        with ExitStack() as stack:
            num_tasks = len(asyncio.all_tasks())
            await knock(stack, at, 2, said)  # whatever is made once is made now
            tracemalloc.start()
            try:
                await knock(stack, at, 10, said)
                sizes = [trace.size for trace in tracemalloc.take_snapshot().traces]
            finally:
                tracemalloc.stop()
            # Asyncio's loop accepts in a task that ends at once.
            await until(lambda: len(asyncio.all_tasks()) == num_tasks)
        assert max(sizes) <= MAX_BYTES_AT_ONCE
        # Asyncio's debug mode keeps the calls that made each task and timer.
        assert sum(sizes) / 10 < 16 * MAX_BYTES_AT_ONCE
        await until(lambda: at[0].num_accepted_connections == 0)


@pytest.mark.parametrize("loop_name", LOOPS)
@pytest.mark.slow
def test_five_hundred_silent_strangers_grow_the_process_by_little(
    loop_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints the growth per connection; it was more than 1 MiB when each had its read buffer from the start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * MANY
    if soft != resource.RLIM_INFINITY and soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"needs {wanted} descriptors, the limit is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

    async def main() -> float:
        async with listening() as at:
            with ExitStack() as stack:
                await knock(stack, at, 10)
                before = resident_bytes()
                await knock(stack, at, MANY)
                growth = (resident_bytes() - before) / MANY
            await until(lambda: at[0].num_accepted_connections == 0)
            return growth

    try:
        growth = run(loop_name, main())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with capsys.disabled():
        print(f"\n{growth:,.0f} bytes of resident memory per silent connection")
    assert growth < 64 * 1024


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
