"""Addresses of JobManagers and TaskManagers as people write them: ``host:port``.

Side:   pure.
Rules:  ``http://`` in front and ``/`` at the end are allowed, because a browser shows them so.  A JobManager speaks
        HTTP whose requests are signed: an address with ``https://`` is a mistake, or that of a proxy that would break
        the signatures.
"""

from collections.abc import Mapping
from ipaddress import IPv6Address
from typing import Final

from flowlet.errors import ConfigError

JOB_MANAGER_VARIABLE: Final = "FLOWLET_JOBMANAGER"  # host:port
_REFUSED_IN_HOSTS: Final = frozenset("/\\@?#[]\"'<>,;")


def parse_address(text: str, where: str, default_port: int = 8081) -> tuple[str, int]:
    """Host, without the brackets of IPv6, and port of ``host:port``; ``default_port`` is for the example in the error.

    Raises:
        ConfigError: it is something else; names ``where`` it was found.
    """
    address = text.strip()
    scheme, has_scheme, _ = address.partition("://")
    if has_scheme and scheme.lower() != "http":
        raise ConfigError(
            f"{where} is {text!r}: a JobManager speaks no {scheme}; give host:port, such as 127.0.0.1:{default_port}"
        )
    address = address[len("http://") :] if has_scheme else address
    host, colon, port = address.rstrip("/").rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or len(port) > len("65535"):
        raise ConfigError(f"{where} is {text!r}; it must be host:port, such as 127.0.0.1:{default_port}")
    return checked_address(host, int(port), f"{where} is {text!r}")


def parse_job_manager_option(text: str, variables: Mapping[str, str]) -> tuple[str, int]:
    """Host and port of the option ``--jobmanager``, which takes its default from an environment variable.

    Raises:
        ConfigError: it is something else; names the variable if the text is that of the variable.
    """
    is_of_variable = text == variables.get(JOB_MANAGER_VARIABLE)
    return parse_address(text, f"environment variable {JOB_MANAGER_VARIABLE}" if is_of_variable else "--jobmanager")


def checked_address(host: str, port: int, where: str) -> tuple[str, int]:
    """The host, without the brackets of IPv6, and the port.

    Raises ConfigError: they are no host and port; names ``where``.
    """
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    is_host = bool(bare) and not (_REFUSED_IN_HOSTS & set(bare)) and bare.isprintable() and " " not in bare
    if not is_host or (":" in bare and not _is_ipv6(bare)) or not 1 <= port <= 65535:
        raise ConfigError(f"{where}: {host!r} and {port} are no host and port from 1 to 65535")
    return bare, port


def _is_ipv6(host: str) -> bool:
    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True
