"""Certificates of a CA made for the test, and connections that are inside their TLS handshake."""

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import trustme

from netstack.config import SecurityConfig, TlsConfig
from netstack.ids import ConnectionID
from netstack.transport.server import connect
from tests.netstack.transport.sockets import CONFIG, Inbox, handlers
from tests.waiting import PATIENCE_S

SECRET = bytes(range(32))


@dataclass
class Authority:
    """A CA whose certificates are in one folder."""

    folder: Path
    ca: trustme.CA

    def issue(self, name: str, *identities: str) -> TlsConfig:
        """Issue a new identity of this CA."""
        files = [self.folder / f"{name}-{part}.pem" for part in ("certificate", "key", "ca")]
        certificate = self.ca.issue_cert(*(identities or ("127.0.0.1", "localhost")))
        for index, blob in enumerate(certificate.cert_chain_pems):
            blob.write_to_path(str(files[0]), append=index > 0)
        certificate.private_key_pem.write_to_path(str(files[1]))
        self.ca.cert_pem.write_to_path(str(files[2]))
        return TlsConfig(files[0], files[1], files[2])


def client_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the TLS context of a client that is not ours."""
    context = ssl.create_default_context(cafile=str(tls.ca_file))
    context.check_hostname = tls.verify_hostname
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def server_context(tls: TlsConfig) -> ssl.SSLContext:
    """Return the TLS context of a server that is not ours; it asks for certificates."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls.ca_file))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def security(tls: TlsConfig, secret: bytes = SECRET) -> SecurityConfig:
    return replace(SecurityConfig.mutual_tls(tls, secret), failure_delay_s=0.02)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def silent_connections(number: int, address: ConnectionID, tls: TlsConfig) -> list[Streams]:
    """Open silent connections, which the server has accepted: it serves a later one already."""
    silent = [await asyncio.open_connection(address.host, address.port) for _ in range(number)]
    channel = await connect(replace(CONFIG, security=security(tls)), address, handlers(Inbox()), timeout_s=PATIENCE_S)
    channel.close()
    await channel.wait_closed()
    return silent


async def is_cut(streams: Streams) -> bool:
    reader, writer = streams
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await reader.read() == b""
    except ConnectionResetError:
        return True
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
