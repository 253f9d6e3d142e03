"""uvloop's event loop, mended in three ways.

Its ``close`` ends whatever ``warnings`` are set to.  uvloop warns of each handle that is still open when its loop is
closed, from within a callback of libuv.  Where warnings are errors (a program under test, a user's function that called
``warnings.simplefilter("error")``), the callback ends before it has closed the handle.  Then ``close`` waits for an
active handle for ever, or fails with EBUSY because of an inactive one.

It starts no threads of libuv.  At the exit of a process libuv joins its threads; a forked child does not have them, and
dies of SIGSEGV there.  So addresses are looked up by Python: libuv starts its threads to look up the address of a
server, be it a number.

uvloop also ends the process (``uv__close: Assertion `fd > STDERR_FILENO'``) if one of its descriptors is 0, 1 or 2,
which happens where the process was started without standard input, output or error (``>&-``).

Side: loop.  Imports uvloop, so it is imported late.
"""

import asyncio
import os
import re
import socket
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self

import uvloop

from netstack.loop.background_call import run_in_background

_LAST_STANDARD: Final = 2
_WARNING: Final = "unclosed resource"  # how uvloop's text begins


class UvLoop(uvloop.Loop):
    """A loop of uvloop."""

    def __new__(cls) -> Self:
        """Make a loop; uvloop opens its first descriptors here, before ``__init__``."""
        open_standard_descriptors()
        loop: Self = super().__new__(cls)
        return loop

    async def create_server(  # type: ignore[override]  # the base class lists all options
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> asyncio.AbstractServer:
        """Make a server; at a numeric address without a look-up.

        Raises OSError: the address cannot be bound; names it.
        """
        family = _family_of(host)
        if host is None or family is None:
            return await super().create_server(protocol_factory, host, port or 0, **options)
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                listener.bind((host, port or 0))
            except OSError as error:  # it says "Address already in use", and no address
                raise OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror}") from None
            return await super().create_server(protocol_factory, sock=listener, **options)
        except BaseException:
            listener.close()
            raise

    async def getaddrinfo(self, host: Any, port: Any, *, flags: int = 0, **options: int) -> Any:
        """Look an address up with ``socket.getaddrinfo``, on a thread of Python's unless it is numeric."""
        if _family_of(host) is not None:
            return socket.getaddrinfo(host, port, flags=flags | socket.AI_NUMERICHOST, **options)
        look_up = partial(socket.getaddrinfo, host, port, flags=flags, **options)
        return await run_in_background(look_up, f"address of {host}")

    def close(self) -> None:
        """Close the loop and all that is open on it."""
        # A warning from C belongs to the innermost Python frame, which is this one: the filter concerns no other.
        # It is set each time, because filters set later come first; ``catch_warnings`` would change the filters of
        # other threads.
        warnings.filterwarnings("ignore", _WARNING, ResourceWarning, re.escape(__name__))
        super().close()


def open_standard_descriptors() -> None:
    """Occupy 0, 1 and 2: a closed one leads to ``/dev/null`` from now on, so that no socket gets its number."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:  # the lowest one that is free
        os.set_inheritable(descriptor, True)  # noqa: FBT003 - for children, too
    os.close(descriptor)


def _family_of(host: object) -> socket.AddressFamily | None:
    """Return the family of a numeric address; None: it is a name, or something else."""
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, host)  # type: ignore[arg-type]  # which is one of the errors
        except (OSError, TypeError, ValueError):
            continue
        return family
    return None
