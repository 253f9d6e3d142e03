"""``NetstackConfig`` is checked when it is made; nothing is unprotected by accident, and no secret is shown."""

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netstack.config import (
    NetstackConfig,
    SecurityConfig,
    SecurityMode,
    TlsConfig,
    check_loopback,
    is_debug,
    is_loopback,
    normalized_authority,
    required_security,
)
from netstack.errors import ConfigError


def test_the_watermarks_follow_the_segment_size() -> None:
    """Flink 1.10: high = 2 segments, low = 1 segment."""
    config = NetstackConfig(segment_size_bytes=1024, network_memory_bytes=10 * 1024)

    assert (config.low_watermark_bytes, config.high_watermark_bytes, config.num_segments) == (1024, 2048, 10)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"segment_size_bytes": 255}, "segment_size_bytes is 255, the least is 256"),
        ({"network_memory_bytes": 32767}, "less than one segment"),
        ({"exclusive_buffers_per_channel": -1}, "exclusive_buffers_per_channel is -1"),
        ({"max_connections": 0}, "max_connections is 0"),
        ({"max_producers_per_gate": 0}, "max_producers_per_gate is 0"),
        ({"max_producer_memory_percent": 101}, "max_producer_memory_percent is 101, the most is 100"),
        ({"dead_peer_timeout_s": 0}, "dead_peer_timeout_s is 0"),
        ({"dead_peer_timeout_s": math.nan}, "dead_peer_timeout_s is nan"),
        ({"dead_peer_timeout_s": math.inf}, "dead_peer_timeout_s is inf"),
        ({"heartbeat_interval_s": 0.05}, "heartbeat_interval_s is 0.05, expected 0.1 to 86400"),
        ({"heartbeat_interval_s": 86401.0, "heartbeat_timeout_s": 1e6}, "heartbeat_interval_s is 86401.0"),
        (
            {"heartbeat_timeout_s": 19.9},
            "heartbeat_timeout_s is 19.9, it must be finite and at least twice the heartbeat_interval_s of 10",
        ),
        ({"heartbeat_timeout_s": math.nan}, "heartbeat_timeout_s is nan"),
        ({"max_gather_bytes": 0}, "max_gather_bytes is 0"),
        ({"max_write_batch_bytes": 0}, "max_write_batch_bytes is 0"),
        ({"read_buffer_bytes": 8}, "read_buffer_bytes is 8, the least is 9"),
        ({"backlog": -1}, "backlog is -1"),
        ({"compression": "zip"}, "compression is 'zip', known are None and 'lz4'"),
        ({"close_timeout_s": -1.0}, "close_timeout_s is -1.0"),
        ({"connect_timeout_s": math.nan}, "connect_timeout_s is nan"),
        ({"partition_request_timeout_s": -1}, "partition_request_timeout_s is -1"),
        ({"partition_request_timeout_s": 0}, "partition_request_timeout_s is 0, the least is 0.001"),
        (
            {"congestion_control": ""},
            "congestion_control is '', expected the kernel's name of one, such as 'cubic' (1 to 15 ASCII",
        ),
        ({"congestion_control": "r\u00e9no"}, "congestion_control is 'r\u00e9no'"),
        ({"congestion_control": "cubic\0"}, r"congestion_control is 'cubic\x00'"),
        ({"congestion_control": "sixteen-letters-"}, "congestion_control is 'sixteen-letters-'"),
        ({"request_buffers_timeout_s": math.inf}, "request_buffers_timeout_s is inf"),
    ],
)
def test_impossible_values_are_refused_by_name(options: dict[str, Any], text: str) -> None:
    """The message names the option and the bound."""
    with pytest.raises(ConfigError, match=re.escape(text)):
        NetstackConfig(**options)


def test_debug_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the exact value 1 switches the checks on."""
    monkeypatch.setenv("NETSTACK_DEBUG", "1")
    assert is_debug()

    monkeypatch.setenv("NETSTACK_DEBUG", "0")
    assert not is_debug()


# ---------------------------------------------------------------- ``SecurityConfig``


SECRET = bytes(range(32))
TLS = TlsConfig(Path("cert.pem"), Path("key.pem"), Path("ca.pem"))


@pytest.mark.parametrize("security", [SecurityConfig.hmac(SECRET), SecurityConfig.mutual_tls(TLS, SECRET)])
def test_the_secret_is_never_shown(security: SecurityConfig) -> None:
    """The secret is shown neither by itself nor in the whole configuration."""
    for text in (repr(security), repr(NetstackConfig(security=security)), str(security)):
        assert "secret" not in text
        assert repr(SECRET) not in text
        assert SECRET.hex() not in text


def test_each_mode_has_its_constructor() -> None:
    assert SecurityConfig.hmac(SECRET).mode is SecurityMode.HMAC
    assert SecurityConfig.mutual_tls(TLS, SECRET).mode is SecurityMode.TLS
    assert SecurityConfig.none().mode is SecurityMode.NONE


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: SecurityConfig.hmac(b""), "secret of security mode hmac has 0 bytes, the least is 32"),
        (lambda: SecurityConfig.hmac(bytes(31)), "has 31 bytes"),
        (lambda: SecurityConfig.mutual_tls(TLS, b""), "secret of security mode tls has 0 bytes"),
        (
            lambda: replace(SecurityConfig.none(), authorities=frozenset({"127.0.0.1:1"})),
            "security mode none takes no authorities",
        ),
        (
            lambda: replace(SecurityConfig.hmac(SECRET), authorities=frozenset({"localhost:1"})),
            "has 'localhost:1', expected a literal",
        ),
        (
            lambda: replace(SecurityConfig.hmac(SECRET), authorities=frozenset({"127.0.0.1"})),
            "has '127.0.0.1', expected a literal",
        ),
        (
            lambda: replace(SecurityConfig.hmac(SECRET), authorities=frozenset({"10.0.0.1:1"})),
            "has '10.0.0.1:1', expected a literal",
        ),
        (lambda: SecurityConfig(SecurityMode.TLS, SECRET), "security mode tls needs a TlsConfig"),
        (lambda: SecurityConfig(SecurityMode.HMAC, SECRET, TLS), "security mode hmac takes no TlsConfig"),
        (lambda: SecurityConfig(SecurityMode.NONE, SECRET), "takes neither a secret nor certificates"),
        (lambda: SecurityConfig(SecurityMode.NONE, tls=TLS), "takes neither a secret nor certificates"),
        (lambda: SecurityConfig(SecurityMode.HMAC, SECRET, handshake_timeout_s=0), "handshake_timeout_s is 0"),
        (lambda: SecurityConfig(SecurityMode.HMAC, SECRET, failure_delay_s=-1), "failure_delay_s is -1"),
        (lambda: SecurityConfig(SecurityMode.HMAC, SECRET, failure_delay_s=math.inf), "failure_delay_s is inf"),
        (lambda: SecurityConfig(SecurityMode.HMAC, SECRET, handshake_timeout_s=math.nan), "handshake_timeout_s is nan"),
        (
            lambda: SecurityConfig(SecurityMode.HMAC, SECRET, tls_handshake_timeout_s=math.inf),
            "tls_handshake_timeout_s is inf",
        ),
        (lambda: SecurityConfig(SecurityMode.HMAC, SECRET, max_unauthenticated=0), "max_unauthenticated is 0"),
    ],
)
def test_what_contradicts_itself_is_refused(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


def test_an_unset_security_names_the_three_choices() -> None:
    """A bare ``NetstackConfig`` is fine until something shall listen or be dialled."""
    with pytest.raises(ConfigError, match=r"NetstackConfig.security is not set.*SecurityConfig.hmac.*mutual_tls.*none"):
        required_security(NetstackConfig().security)

    assert required_security(SecurityConfig.none()) == SecurityConfig.none()


@pytest.mark.parametrize("text", ["ab" * 32, ":".join(["AB"] * 32)])
def test_a_fingerprint_may_have_colons(text: str) -> None:
    assert TlsConfig(TLS.certificate_file, TLS.key_file, TLS.ca_file, frozenset({text})).pins == {b"\xab" * 32}


@pytest.mark.parametrize("text", ["", "ab" * 31, "zz" * 32])
def test_what_is_no_fingerprint_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not a SHA-256 fingerprint"):
        TlsConfig(TLS.certificate_file, TLS.key_file, TLS.ca_file, frozenset({text}))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1", "localhost"])
def test_loopback_is_allowed(host: str) -> None:
    """Every form of "this machine only"."""
    assert is_loopback(host)
    check_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org", "192.0.2.1", "::ffff:192.0.2.1", ""])
def test_public_addresses_are_refused(host: str) -> None:
    """Other names may be anything."""
    with pytest.raises(ConfigError, match=f"refusing to listen on {host}: only loopback"):
        check_loopback(host)


@pytest.mark.parametrize(
    ("text", "normalized"),
    [
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("[::ffff:127.0.0.1]:1", "127.0.0.1:1"),
        ("[0:0:0::1]:1", "[::1]:1"),
        ("::1:1", "[::1]:1"),
        ("localhost:1", "localhost:1"),
        ("", ""),
        ("nonsense", "nonsense"),
    ],
)
def test_an_authority_has_one_spelling(text: str, normalized: str) -> None:
    """Names stay as they are: only literal addresses are compared."""
    assert normalized_authority(text) == normalized
    assert normalized_authority(normalized) == normalized
