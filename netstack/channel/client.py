"""Dials another TaskManager.

Side:   loop.
Source: Flink ``NettyClient``.
Absent: TLS; retries (the connection manager's business).
"""

import asyncio

from netstack.channel.protocol import HandlersFactory, NetworkChannel
from netstack.config import NetstackConfig
from netstack.errors import ConnectError
from netstack.ids import ConnectionID


async def connect(
    config: NetstackConfig, connection_id: ConnectionID, handlers_factory: HandlersFactory, timeout_s: float
) -> NetworkChannel:
    """A connected channel; its handlers have seen ``channel_active``.

    Raises:
        ConnectError: nobody listens there, or the connection took longer than ``timeout_s`` seconds.
    """
    loop = asyncio.get_running_loop()
    channel = NetworkChannel(config, handlers_factory)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.create_connection(lambda: channel, connection_id.host, connection_id.port)
    except TimeoutError as error:
        raise ConnectError(f"cannot connect to {connection_id} within {timeout_s:g} s") from error
    except (OSError, OverflowError, UnicodeError) as error:
        # OverflowError: a port beyond 65535.  UnicodeError: a host that no name service can look up.
        raise ConnectError(f"cannot connect to {connection_id}: {type(error).__name__}: {error}") from error
    return channel
