"""TLS contexts: 1.3 only, certificates of one private CA on both ends.

Side:   loop.  Reads the files for every server and every dialled connection, so that renewed certificates are used.
Source: Flink ``SSLUtils.createInternalServerSSLEngineFactory`` and its client twin: mutual, one CA, optional pinning.
Absent: revocation lists; session resumption (a ticket would outlive the check of its certificate).
"""

import hashlib
import ssl
from typing import Any

from netstack.errors import ConfigError
from netstack.security import SecurityConfig, TlsConfig


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """The context of the side that listens.

    Raises:
        ConfigError: a file is missing, unreadable or not a PEM file of the right kind.
    """
    return _context(tls, ssl.PROTOCOL_TLS_SERVER, "server")


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    """The context of the side that dials: the server's certificate must name the dialled host, unless
    ``verify_hostname`` is False.

    Raises:
        ConfigError: as ``server_context``.
    """
    return _context(tls, ssl.PROTOCOL_TLS_CLIENT, "client")


def timeouts(security: SecurityConfig) -> dict[str, Any]:
    """The TLS timeouts as keyword arguments of asyncio's connection methods, whose defaults are 60 and 30 s."""
    return {
        "ssl_handshake_timeout": security.tls_handshake_timeout_s,
        "ssl_shutdown_timeout": security.tls_shutdown_timeout_s,
    }


def _context(tls: TlsConfig, protocol: int, side: str) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = side == "client" and tls.verify_hostname
    context.verify_mode = ssl.CERT_REQUIRED
    if side == "server":
        context.num_tickets = 0
    try:
        context.load_cert_chain(tls.certificate_file, tls.key_file, password=_no_password)
        context.load_verify_locations(cafile=tls.ca_file)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        # Flink: "Failed to initialize SSL Context for the Netty Server/Client".
        raise ConfigError(
            f"failed to initialize the TLS context of the {side} from {tls.certificate_file}, {tls.key_file} and "
            f"{tls.ca_file}: {error}"
        ) from error
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal and block the loop.
    raise ValueError("the key is encrypted; a key without a passphrase is needed")


def is_expected(certificate: bytes | None, pins: frozenset[bytes]) -> bool:
    """Whether a peer's certificate (DER) is one of the pinned ones; without pins every certificate that TLS accepted
    is.
    """
    return certificate is not None and (not pins or hashlib.sha256(certificate).digest() in pins)
