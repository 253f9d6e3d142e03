"""Tests of ``flowlet.rpc.requests``: the fields that are read from a head, and the server for which it is."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.rpc.request_head import RequestHead, parse_head

LOCAL = ("127.0.0.1", 8081)


def head(host: str, local: tuple[str, int] = LOCAL, origin: str | None = None) -> RequestHead:
    return RequestHead("GET", "/jobs", host, origin, None, *local)


def test_a_head_is_read() -> None:
    data = b"POST /jobs?a=b HTTP/1.1\r\nhost:\t127.0.0.1:8081 \r\nOrigin: null\r\nX-Sign: a b: c\r\nx-sign: second"

    assert parse_head(data, "X-Sign", LOCAL) == RequestHead(
        "POST", "/jobs?a=b", "127.0.0.1:8081", "null", "a b: c", *LOCAL
    )


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET /",
        b"GET / HTTP/2.0\r\nHost: a",
        b"GET http://a/ HTTP/1.1\r\nHost: a",
        b"GET  / HTTP/1.1\r\nHost: a",
        b"GET / HTTP/1.1",
        b"GET / HTTP/1.1\r\nHost",
        b"GET / HTTP/1.1\r\nHost: a\r\nhost: b",
        b"\x16\x03\x01\x02\x00",
    ],
)
def test_what_is_no_head_of_ours_is_none(data: bytes) -> None:
    assert parse_head(data, "X-Sign", LOCAL) is None


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_any_bytes_are_judged_without_an_error(data: bytes) -> None:
    parsed = parse_head(data, "X-Sign", LOCAL)

    assert parsed is None or not (parsed.is_from_loopback and parsed.is_for_server_at(()))


@settings(max_examples=30)
@given(st.text(max_size=30))
def test_any_host_is_judged_without_an_error(host: str) -> None:
    assert head(host).is_for_server_at(()) <= head(host).is_from_loopback


@pytest.mark.parametrize(
    ("host", "local", "is_own"),
    [
        ("127.0.0.1:8081", LOCAL, True),
        ("localhost:8081", LOCAL, True),
        ("127.0.0.1:8082", LOCAL, False),
        ("127.0.0.2:8081", LOCAL, False),
        ("[::1]:8081", LOCAL, False),
        ("127.0.0.1", LOCAL, False),
        ("127.0.0.1", ("127.0.0.1", 80), False),
        ("[::1]:8081", ("::1", 8081), True),
        ("[0:0::0:1]:8081", ("::1", 8081), True),
        ("localhost:8081", ("::1", 8081), True),
        ("127.0.0.1:8081", ("::1", 8081), False),
        ("192.0.2.1:8081", ("192.0.2.1", 8081), True),
        ("localhost:8081", ("192.0.2.1", 8081), False),
        ("flowlet.example:8081", ("192.0.2.1", 8081), False),
    ],
)
def test_the_server_is_where_the_connection_was_accepted(host: str, local: tuple[str, int], is_own: bool) -> None:
    assert head(host, local).is_for_server_at(()) is is_own


def test_an_advertised_address_is_its_own() -> None:
    assert head("127.0.0.1:9000").is_for_server_at({"127.0.0.1:9000"})
    assert not head("127.0.0.1:9001").is_for_server_at({"127.0.0.1:9000"})
