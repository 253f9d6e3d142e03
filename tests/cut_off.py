"""A host that vanishes: it sends neither FIN nor RST, and acknowledges nothing.

Source: ``SO_ATTACH_FILTER`` in ``socket(7)``: a filter that keeps 0 bytes of every packet drops it before TCP sees it,
        so the socket hears nothing and its kernel acknowledges nothing.  It needs no rights and no firewall.
"""

import ctypes
import socket
import struct
from typing import Final

_SO_ATTACH_FILTER: Final = 26
_DROP_ALL: Final = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)  # BPF_RET: keep 0 bytes


def cut_off(sock: socket.socket) -> None:
    """Let both ends of a connection take the other one's host for gone: this one hears nothing, the other one gets no
    answer.
    """
    sock.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HL", 1, ctypes.addressof(_DROP_ALL)))
