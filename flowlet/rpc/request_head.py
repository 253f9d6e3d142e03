"""The head of a request, as far as it decides whether the request is served.

Side:   pure.
Rules:  a request must name a loopback address in ``Host``, and in ``Origin`` if it has one; otherwise a web page could
        reach us by DNS rebinding.  A signed request must name the very server: a listener at another address cannot
        pass on a request that it was sent.
"""

import ipaddress
from collections.abc import Collection

import msgspec

from netstack.config import is_loopback

_LOCALHOST = "localhost"


class RequestHead(msgspec.Struct, frozen=True):
    """The head of a request, by which it is judged: as sent, but for ``local_host`` and ``local_port``, the address at
    which the connection was accepted.
    """

    method: str
    target: str  # path and query
    host: str  # the header
    origin: str | None
    signature: str | None  # X-Flowlet-Auth
    local_host: str
    local_port: int

    @property
    def is_from_loopback(self) -> bool:
        """Whether the request was sent to a loopback address, and by no web page from elsewhere."""
        # A browser names the page that asks; programs send no origin.
        origin = self.host if self.origin is None else self.origin.partition("://")[2]
        return is_loopback(_split(self.host)[0]) and is_loopback(_split(origin)[0])

    @property
    def for_log(self) -> dict[str, str]:
        """The parts of the head for a log, cut and quoted: a stranger has sent them."""
        method = repr(self.method[:20])[1:-1]
        return {"method": method, "path": repr(self.target[:200]), "host": repr(self.host[:200])}

    def is_for_server_at(self, advertised: Collection[str]) -> bool:
        """Whether ``Host`` is the address at which the connection was accepted (``localhost`` on loopback, too), or an
        advertised one.
        """
        if self.host in advertised:
            return True
        host, port = _split(self.host)
        if port != str(self.local_port):
            return False
        local = ipaddress.ip_address(self.local_host)
        # A name, which a resolver could lead elsewhere; on loopback it can only mean this machine.
        if host == _LOCALHOST:
            return local.is_loopback
        try:
            return ipaddress.ip_address(host) == local
        except ValueError:
            return False


def parse_head(data: bytes, signature_header: str, local_address: tuple[str, int]) -> RequestHead | None:
    """Parse the head in ``data``, which ends before the empty line; None: it is none of HTTP/1.1 or names no host."""
    lines = data.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1.") or not words[1].startswith("/"):
        return None
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        # Two hosts: this check could look at the one, and aiohttp serve the other.
        if not colon or (name.lower() in headers and name.lower() == "host"):
            return None
        headers.setdefault(name.lower(), value.strip(" \t"))
    host = headers.get("host")
    if host is None:
        return None
    return RequestHead(
        words[0], words[1], host, headers.get("origin"), headers.get(signature_header.lower()), *local_address
    )


def _split(authority: str) -> tuple[str, str]:
    """Split into host, without the brackets of IPv6, and port; empty if there is none."""
    host, colon, port = authority.rpartition(":")
    if not colon or not port.isdigit():
        host = authority
        port = ""
    return host.removeprefix("[").removesuffix("]"), port
