"""Tests of ``flowlet.rpc.auth``: the requests that are accepted, and that all others are refused."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.rpc.auth import (
    AcceptedRequest,
    AuthenticationError,
    AuthRefusal,
    Nonce,
    RequestLine,
    RequestVerifier,
    body_digest,
    check_answer,
    message_keys,
    nonce_of,
    parse_nonce,
    sign_answer,
    sign_request,
)

SECRET = b"s" * 32
NONCE = Nonce("0" * 32)
LINE = RequestLine("POST", "127.0.0.1:8081", "/jobs?mode=x")
NOW = 1_700_000_000_000
START = NOW - 1_000_000


def nonce(number: int) -> Nonce:
    return Nonce(f"{number:032x}")


def signed(**changed: object) -> str:
    arguments: dict[str, object] = {"secret": SECRET, "line": LINE, "body": b"body", "nonce": NONCE, "now_ms": NOW}
    return sign_request(**(arguments | changed))  # type: ignore[arg-type]  # a test may change any of them


def test_a_fresh_request_is_accepted_with_its_nonce_and_digest() -> None:
    verdict = RequestVerifier(SECRET, START).verify(signed(), LINE, NOW)

    assert verdict == AcceptedRequest(NONCE, body_digest(b"body"))


@pytest.mark.parametrize(
    ("header", "refusal"),
    [
        (None, AuthRefusal.MISSING),
        ("", AuthRefusal.MALFORMED),
        ("v2" + signed()[2:], AuthRefusal.MALFORMED),
        (signed() + " ", AuthRefusal.MALFORMED),
        (signed() + "\n", AuthRefusal.MALFORMED),
        (signed().upper(), AuthRefusal.MALFORMED),
        (signed(secret=b"t" * 32), AuthRefusal.WRONG),
        (signed(line=dataclasses.replace(LINE, method="GET")), AuthRefusal.WRONG),
        (signed(line=dataclasses.replace(LINE, path="/jobs")), AuthRefusal.WRONG),
        (signed(line=dataclasses.replace(LINE, authority="127.0.0.1:8082")), AuthRefusal.WRONG),
    ],
)
def test_refusals(header: str | None, refusal: AuthRefusal) -> None:
    assert RequestVerifier(SECRET, START).verify(header, LINE, NOW) is refusal


@pytest.mark.parametrize("part", range(1, 5))
def test_no_signed_part_can_be_exchanged(part: int) -> None:
    """A time, nonce, digest or signature of another request with this secret is refused."""
    parts, others = signed().split(), signed(body=b"other", nonce=nonce(1), now_ms=NOW + 1).split()
    parts[part] = others[part]

    assert RequestVerifier(SECRET, START).verify(" ".join(parts), LINE, NOW) is AuthRefusal.WRONG


@given(st.data())
def test_no_changed_character_is_accepted(data: st.DataObject) -> None:
    header = signed()
    position = data.draw(st.integers(0, len(header) - 1))
    character = data.draw(st.characters(codec="latin-1").filter(lambda c: c != header[position]))
    changed = header[:position] + character + header[position + 1 :]

    assert isinstance(RequestVerifier(SECRET, START).verify(changed, LINE, NOW), AuthRefusal)


@given(st.text(max_size=200))
def test_any_text_is_judged_without_an_error(header: str) -> None:
    assert isinstance(RequestVerifier(SECRET, START).verify(header, LINE, NOW), AuthRefusal)


@pytest.mark.parametrize(("skew_ms", "accepted"), [(60_000, True), (-60_000, True), (60_001, False), (-60_001, False)])
def test_the_window_is_a_minute_both_ways(skew_ms: int, accepted: bool) -> None:
    verdict = RequestVerifier(SECRET, START).verify(signed(now_ms=NOW + skew_ms), LINE, NOW)

    assert isinstance(verdict, AcceptedRequest) if accepted else verdict is AuthRefusal.EXPIRED


@pytest.mark.parametrize("sent_ms", [NOW - 60_000, NOW, NOW + 60_000])
def test_a_replay_is_refused_at_every_later_time(sent_ms: int) -> None:
    """A replay is refused as such, and as expired from the moment that the nonce may be forgotten."""
    verifier = RequestVerifier(SECRET, START)
    header = signed(now_ms=sent_ms)
    verifier.verify(header, LINE, NOW)

    for later_ms in (0, 1, 59_999, 60_000, 60_001, 119_999, 120_000, 120_001, 10**6):
        # Makes it forget what it may.
        verifier.verify(signed(nonce=nonce(later_ms + 1), now_ms=NOW + later_ms), LINE, NOW + later_ms)
        assert verifier.verify(header, LINE, NOW + later_ms) in (AuthRefusal.REPLAYED, AuthRefusal.EXPIRED)


def test_what_was_signed_before_the_start_is_refused() -> None:
    """The server before this one may have accepted it."""
    verifier = RequestVerifier(SECRET, NOW)

    assert verifier.verify(signed(now_ms=NOW - 1), LINE, NOW) is AuthRefusal.EXPIRED
    assert isinstance(verifier.verify(signed(now_ms=NOW), LINE, NOW), AcceptedRequest)


def test_a_request_that_comes_again_is_accepted_when_it_does() -> None:
    """The front door looks at a head before the server does."""
    verifier = RequestVerifier(SECRET, START)

    for _ in range(2):
        assert isinstance(verifier.verify(signed(), LINE, NOW, remember=False), AcceptedRequest)
    assert isinstance(verifier.verify(signed(), LINE, NOW), AcceptedRequest)
    assert verifier.verify(signed(), LINE, NOW, remember=False) is AuthRefusal.REPLAYED


def test_a_refused_request_takes_no_room() -> None:
    """A peer that does not know the secret cannot fill the memory of nonces."""
    verifier = RequestVerifier(SECRET, START, max_nonces=1)
    verifier.verify(signed(secret=b"t" * 32), LINE, NOW)
    verifier.verify(signed(now_ms=0), LINE, NOW)

    assert isinstance(verifier.verify(signed(), LINE, NOW), AcceptedRequest)


def test_a_full_memory_refuses_until_nonces_expire() -> None:
    """Bounded, and never by forgetting a nonce that could still be replayed."""
    verifier = RequestVerifier(SECRET, START, max_nonces=2)
    for number in range(2):
        verifier.verify(signed(nonce=nonce(number)), LINE, NOW)

    assert verifier.verify(signed(nonce=nonce(2)), LINE, NOW) is AuthRefusal.OVERLOADED
    assert verifier.verify(signed(nonce=nonce(2), now_ms=NOW + 120_000), LINE, NOW + 120_000) is AuthRefusal.OVERLOADED
    assert isinstance(
        verifier.verify(signed(nonce=nonce(2), now_ms=NOW + 120_001), LINE, NOW + 120_001), AcceptedRequest
    )
    assert repr(verifier) == "<RequestVerifier 1 nonces>"


@pytest.mark.parametrize(
    "proof",
    [
        pytest.param(None, id="none"),
        pytest.param("", id="an empty one"),
        pytest.param("é", id="one that is no ASCII"),
        pytest.param(sign_answer(b"t" * 32, NONCE, 200, b"{}"), id="of another secret"),
        pytest.param(sign_answer(SECRET, nonce(1), 200, b"{}"), id="of another request"),
        pytest.param(sign_answer(SECRET, NONCE, 202, b"{}"), id="of another status"),
        pytest.param(sign_answer(SECRET, NONCE, 200, b"{ }"), id="of another body"),
        pytest.param(signed().split()[-1], id="what the client itself signed"),
    ],
)
def test_only_the_proof_of_the_same_answer_is_accepted(proof: str | None) -> None:
    check_answer(SECRET, NONCE, 200, b"{}", sign_answer(SECRET, NONCE, 200, b"{}"))
    with pytest.raises(AuthenticationError, match="same secret file"):
        check_answer(SECRET, NONCE, 200, b"{}", proof)


def test_the_keys_of_messages_depend_on_secret_nonces_and_direction() -> None:
    keys = message_keys(SECRET, nonce(1), nonce(2))
    others = [
        message_keys(b"t" * 32, nonce(1), nonce(2)),
        message_keys(SECRET, nonce(3), nonce(2)),
        message_keys(SECRET, nonce(1), nonce(3)),
    ]

    assert message_keys(SECRET, nonce(1), nonce(2)) == keys
    assert len({key for each in (keys, *others) for key in each}) == 8


def test_a_nonce_is_found_in_a_header_and_read() -> None:
    assert nonce_of(signed(nonce=nonce(7))) == nonce(7)
    assert parse_nonce(nonce(7)) == nonce(7)
    assert [parse_nonce(text) for text in (None, "", "0" * 31, "G" * 32, "0" * 33)] == [None] * 5


def test_fields_cannot_run_into_one_another() -> None:
    """The same characters cut differently give another signature."""
    one = signed(line=RequestLine("POST", "127.0.0.1:80", "81/jobs"))
    two = signed(line=RequestLine("POST", "127.0.0.1:8081", "/jobs"))

    assert one != two
