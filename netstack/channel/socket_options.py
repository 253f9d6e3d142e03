"""What is set on the socket of every data connection.

Side:   loop.
Source: Flink ``NettyClient.init``, ``NettyServer.init``.
"""

import socket
from contextlib import suppress
from typing import Final

from netstack.config import NetstackConfig
from netstack.errors import ConfigError

_KEEPALIVE_PROBES: Final = 4
# What Linux takes (MAX_TCP_KEEPIDLE and MAX_TCP_KEEPINTVL in net/tcp.h; an int of milliseconds): beyond it, setsockopt fails.
_MAX_KEEPALIVE_S: Final = 32_767
_MAX_USER_TIMEOUT_MS: Final = 2**31 - 1
_LOCAL_CONGESTION_CONTROL: Final = b"reno"  # the one that every kernel has, and every user may choose


def set_options(sock: socket.socket, config: NetstackConfig) -> None:
    """What Flink's bootstraps set, and what finds a peer whose machine is gone within ``dead_peer_timeout_s``.

    Raises:
        ConfigError: the kernel does not offer ``congestion_control``.
        OSError: the connection is gone.
    """
    timeout_s = config.dead_peer_timeout_s
    # 30 s: idle for 10, then four probes, 5 s apart.  TCP_USER_TIMEOUT is the same for data that is not acknowledged.
    idle_s, interval_s = (min(max(1, round(timeout_s / part)), _MAX_KEEPALIVE_S) for part in (3, 6))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", round(min(timeout_s * 1000, _MAX_USER_TIMEOUT_MS))),
    ):
        option = getattr(socket, name, None)  # not every platform has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)
    if config.send_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
    if config.receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
    _set_congestion_control(sock, config.congestion_control)


def _set_congestion_control(sock: socket.socket, name: str | None) -> None:
    option = getattr(socket, "TCP_CONGESTION", None)  # Linux and FreeBSD have it
    if name is not None:
        if option is None:
            raise ConfigError(f"congestion_control is {name!r}, but this platform has no choice of it: leave it None")
        try:
            sock.setsockopt(socket.IPPROTO_TCP, option, name.encode())
        except OSError as error:
            raise ConfigError(f"congestion_control is {name!r}, which this kernel does not offer to this user: {error}") from error
    elif option is not None and _is_on_this_machine(sock):
        with suppress(OSError):  # a kernel that refuses keeps its own, and everything works
            sock.setsockopt(socket.IPPROTO_TCP, option, _LOCAL_CONGESTION_CONTROL)


def _is_on_this_machine(sock: socket.socket) -> bool:
    try:
        return bool(sock.getpeername()[0] == sock.getsockname()[0])
    except OSError:  # the peer is gone: whoever reads finds out
        return False
