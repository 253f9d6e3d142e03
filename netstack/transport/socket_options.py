"""The socket options of connections: ``watch_host`` for those of all ports, ``set_options`` for data connections.

Side:   loop.
Why:    who waits on a connection must learn of a host that is gone, which sends neither FIN nor RST.  Kernels answer
        keepalive probes for a process that stands still, such as one whose interpreter a function holds; heartbeats of
        ours would not be answered.
Source: Flink ``NettyClient.init``, ``NettyServer.init``; ``tcp(7)``.
"""

import functools
import os
import socket
import struct
from pathlib import Path
from typing import Final

from netstack.config import DEAD_HOST_TIMEOUT_S, KERNEL_CONGESTION_CONTROL, NetstackConfig, SecurityMode, is_loopback
from netstack.errors import ConfigError
from netstack.log_lines import LogLines

_log = LogLines(__name__)

_KEEPALIVE_PROBES: Final = 4
_TCP_INFO_BYTES: Final = 104  # ``struct tcp_info`` as far as every kernel has it
_LAST_ACK_RECEIVED: Final = struct.Struct("=56xI")  # its ``tcpi_last_ack_recv``, in milliseconds
_MS_PER_S: Final = 1000
# Linux's maximum (MAX_TCP_KEEPIDLE, MAX_TCP_KEEPINTVL in net/tcp.h): beyond it, setsockopt fails.
_MAX_KEEPALIVE_S: Final = 32_767
_MAX_USER_TIMEOUT_MS: Final = 2**31 - 1
_LOCAL_CONGESTION_CONTROL: Final = "reno"  # every Linux kernel has it, and every user may choose it
_PROC: Final = Path("/proc/sys/net/ipv4")


def watch_host(
    sock: socket.socket, timeout_s: float = DEAD_HOST_TIMEOUT_S, full_buffer_timeout_s: float | None = None
) -> None:
    """Let the kernel end the connection once the peer's host has acknowledged nothing for ``timeout_s``.

    TCP_USER_TIMEOUT does that while sent data is unacknowledged, and keepalive does it otherwise.  But Linux (5.11 and
    later) also ends a connection whose peer acknowledges every probe if its receive buffer is full for so long, because
    its process reads nothing.  Where the process may only stand still, ``full_buffer_timeout_s`` is the timeout, and
    the caller asks ``host_silent_s``.

    Raises:
        OSError: the connection ended.
    """
    # 30 s: idle for 10, then four probes, 5 s apart.
    idle_s, interval_s = (min(max(1, round(timeout_s / part)), _MAX_KEEPALIVE_S) for part in (3, 6))
    user_timeout_s = timeout_s if full_buffer_timeout_s is None else max(timeout_s, full_buffer_timeout_s)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", idle_s),
        ("TCP_KEEPINTVL", interval_s),
        ("TCP_KEEPCNT", _KEEPALIVE_PROBES),
        ("TCP_USER_TIMEOUT", round(min(user_timeout_s * _MS_PER_S, _MAX_USER_TIMEOUT_MS))),
    ):
        option = getattr(socket, name, None)  # not every platform has all of them
        if option is not None:
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def host_silent_s(sock: socket.socket) -> float:
    """Return how long the peer's kernel has acknowledged nothing; 0 where the kernel does not tell."""
    option = getattr(socket, "TCP_INFO", None)
    if option is None:
        return 0.0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, option, _TCP_INFO_BYTES)
    except OSError:  # the connection ended; the next read finds out
        return 0.0
    if len(info) < _LAST_ACK_RECEIVED.size:
        return 0.0
    silent_ms: int = _LAST_ACK_RECEIVED.unpack_from(info)[0]
    return silent_ms / _MS_PER_S


def set_options(sock: socket.socket, config: NetstackConfig) -> None:
    """Set the options of Flink's bootstraps, and those that find a dead host within ``dead_peer_timeout_s``.

    Raises:
        ConfigError: the kernel does not offer ``congestion_control``.
        OSError: the connection ended.
    """
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    has_heartbeats = config.security is not None and config.security.mode in (SecurityMode.HMAC, SecurityMode.TLS)
    watch_host(sock, config.dead_peer_timeout_s, config.heartbeat_timeout_s if has_heartbeats else None)
    if config.send_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
    if config.receive_buffer_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)
    _set_congestion_control(sock, config.congestion_control)


def check_congestion_control(name: str | None) -> None:
    """Check that the kernel offers the user's choice of ``congestion_control``, before the first connection.

    Raises:
        ConfigError: the kernel does not offer it to this user; names those that it offers.
    """
    if name is None or name == KERNEL_CONGESTION_CONTROL:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        _choose(sock, name)


def _set_congestion_control(sock: socket.socket, name: str | None) -> None:
    if name == KERNEL_CONGESTION_CONTROL:
        return
    if name is not None:
        _choose(sock, name)
    elif _is_on_this_machine(sock):
        try:
            _set(sock, _LOCAL_CONGESTION_CONTROL)
        except OSError as error:  # connections work with the kernel's own choice, too
            _tell_once(str(error))


def _choose(sock: socket.socket, name: str) -> None:
    try:
        _set(sock, name)
    except OSError as error:
        raise ConfigError(
            f"congestion_control is {name!r}, which this kernel does not offer to this user ({error}); {_offered()}; "
            f"{KERNEL_CONGESTION_CONTROL!r} leaves the choice to the kernel"
        ) from error


def _set(sock: socket.socket, name: str) -> None:
    """Set TCP_CONGESTION.

    Raises:
        OSError: the kernel refuses, or the platform has no such option (Linux and FreeBSD have it).
    """
    option = getattr(socket, "TCP_CONGESTION", None)
    if option is None:
        raise OSError("this platform has no TCP_CONGESTION option")
    sock.setsockopt(socket.IPPROTO_TCP, option, name.encode("ascii"))


@functools.cache
def _tell_once(error: str) -> None:
    """Log a reason once per process; every connection has the one reason."""
    _log.debug(
        "connections on this machine keep the congestion control of the kernel",
        wanted=_LOCAL_CONGESTION_CONTROL,
        error=error,
    )


def _offered() -> str:
    """Return the choices that the kernel offers, for an error text."""
    known, allowed = (_names(f"tcp_{which}_congestion_control") for which in ("available", "allowed"))
    if not known:
        return f"its choices cannot be read from {_PROC}"
    return f"it knows {known} and offers every user {allowed or 'none of them'}"


def _names(file_name: str) -> str:
    try:
        return ", ".join((_PROC / file_name).read_text(encoding="ascii").split())
    except OSError:  # no Linux, or no /proc
        return ""


def _is_on_this_machine(sock: socket.socket) -> bool:
    try:
        peer, own = sock.getpeername()[0], sock.getsockname()[0]
    except OSError:  # the peer is gone; the next read finds out
        return False
    return bool(peer == own) or is_loopback(peer)


def within_descriptors(max_strangers: int) -> int:
    """Return how many connections that have proved nothing a server may keep: ``max_strangers``, or a quarter of the
    descriptors if that is less.

    A process may have two servers, whose strangers must leave half of its descriptors to the work.
    """
    # RLIMIT_NOFILE; -1: there is no limit.  A module called ``resource`` may be the program's.
    soft = os.sysconf("SC_OPEN_MAX")
    return max_strangers if soft < 0 else max(1, min(max_strangers, soft // 4))
