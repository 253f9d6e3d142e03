"""``python -m tests.attack.routed ...``: ``python -m flowlet.tm ...`` whose outgoing connections take the ways that a
file names.

The program still believes that it dials the address it was given, as if a router in between were the attacker's.  The
file has a line ``PORT OTHER`` per way, and is read whenever a connection is made.
"""

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop

from netstack.transport import network_channel

ROUTES: Final = "FLOWLET_ATTACK_ROUTES"


def way_to(port: int) -> int:
    """The port to connect to in place of ``port``."""
    return dict(_routes()).get(port, port)


def way_back(port: int) -> int:
    """The port that was dialled by who is connected to ``port``."""
    return {other: one for one, other in _routes()}.get(port, port)


def _routes() -> list[tuple[int, int]]:
    name = os.environ.get(ROUTES)
    if name is None:
        return []
    try:
        lines = Path(name).read_text(encoding="ascii").splitlines()
    except FileNotFoundError:
        return []
    return [(int(one), int(other)) for one, other in map(str.split, lines)]


@contextmanager
def routed_loops() -> Iterator[None]:
    """Route the connections that this process's loops make meanwhile."""
    loop: Any = uvloop.Loop
    describe = network_channel.describe_address
    create_connection, sock_connect = loop.create_connection, loop.sock_connect

    async def routed_connection(self: Any, factory: Any, host: Any = None, port: Any = None, **options: Any) -> Any:
        return await create_connection(self, factory, host, port if port is None else way_to(port), **options)

    async def routed_connect(self: Any, sock: Any, address: Any) -> Any:
        return await sock_connect(self, sock, (address[0], way_to(address[1]), *address[2:]))

    def believed(name: Any) -> str:
        return describe((name[0], way_back(name[1]), *name[2:]) if isinstance(name, tuple) else name)

    loop.create_connection, loop.sock_connect = routed_connection, routed_connect
    network_channel.describe_address = believed  # the data port's proof covers the address that was dialled
    try:
        yield
    finally:
        loop.create_connection, loop.sock_connect = create_connection, sock_connect
        network_channel.describe_address = describe


if __name__ == "__main__":
    sys.argv[0] = "flowlet.tm"
    with routed_loops():
        runpy.run_module("flowlet.tm", run_name="__main__", alter_sys=True)
