"""The handshake machine: every (phase, message) pair, and every way to lie."""

import random
import re
from dataclasses import replace
from itertools import product
from typing import assert_never

import pytest

from netstack.errors import LocalProtocolError
from netstack.flow.handshake import FailureReason, Handshake, HandshakeFailedError, HandshakePhase, Role, derive_key
from netstack.wire.message_bytes import GATE_MESSAGE_IDS, HEARTBEAT_ID, OFFERING_MESSAGE_IDS, SERVER_MESSAGE_IDS
from netstack.wire.messages import AddCredit, HandshakeMessage, Hello, Message, Proof, Ready
from netstack.wire.offer_messages import GateHello, GateIdentity, gate_token
from tests.netstack.wire.samples import RECEIVER

SECRET = bytes(range(32))
KEY = derive_key(SECRET)
ENDS = (Role.CONSUMER, Role.PRODUCER)  # of an ordinary connection
GATE = GateIdentity(b"J" * 16, "clicks", 9)
NONCES = {Role.CONSUMER: b"c" * 32, Role.PRODUCER: b"p" * 32}


ONE = (1, 1)


def make(
    role: Role, key: bytes = KEY, nonce: bytes | None = None, versions: tuple[int, int] = ONE, *, tls: bool = False
) -> Handshake:
    return Handshake(role, key, NONCES[role] if nonce is None else nonce, is_tls_required=tls, versions=versions)


def talk(client: Handshake, server: Handshake) -> list[HandshakeMessage]:
    """Let both talk until neither has anything to say; return all messages."""
    said: list[HandshakeMessage] = []
    to_server, to_client = client.connected(tls_binding=None), server.connected(tls_binding=None)
    while to_server or to_client:
        said += to_server + to_client
        answers = [answer for message in to_server for answer in server.receive(message)]
        to_server = [answer for message in to_client for answer in client.receive(message)]
        to_client = answers
    return said


def at(phase: HandshakePhase, role: Role) -> Handshake:
    """Return a machine of ``role`` that has come to ``phase`` in the ordinary way."""
    machine, peer = make(role), make(Role.PRODUCER if role is Role.CONSUMER else Role.CONSUMER)
    if phase is HandshakePhase.NEW:
        return machine
    if phase is HandshakePhase.FAILED:
        machine.connected(tls_binding=None)
        with pytest.raises(HandshakeFailedError):
            machine.receive(Ready(1))
        return machine
    said = machine.connected(tls_binding=None)
    heard = peer.connected(tls_binding=None)
    while machine.phase is not phase:
        if heard:
            said += machine.receive(heard.pop(0))
        else:
            heard += peer.receive(said.pop(0))
    return machine


def reason_of(machine: Handshake, message: Message) -> FailureReason:
    with pytest.raises(HandshakeFailedError) as raised:
        machine.receive(message)
    assert machine.phase is HandshakePhase.FAILED
    return raised.value.reason


def test_both_are_ready_after_five_messages() -> None:
    """The server says nothing that depends on the secret before the client has proven that it knows it."""
    client, server = make(Role.CONSUMER), make(Role.PRODUCER)

    said = talk(client, server)

    assert client.phase is server.phase is HandshakePhase.READY
    assert client.version == server.version == 1
    assert [type(message) for message in said] == [Hello, Hello, Proof, Proof, Ready]
    assert said[2] != said[3]


@pytest.mark.parametrize("role", ENDS)
@pytest.mark.parametrize(
    "phase",
    [
        HandshakePhase.TRANSPORT_READY,
        HandshakePhase.CHALLENGED,
        HandshakePhase.AUTHENTICATED,
        HandshakePhase.READY,
        HandshakePhase.FAILED,
    ],
)
@pytest.mark.parametrize(
    "message",
    [Hello(1, 1, 1, b"x" * 32), Hello(1, 1, 2, b"x" * 32), Proof(bytes(32)), Ready(1), AddCredit(RECEIVER, 1)],
)
def test_every_message_in_every_phase(role: Role, phase: HandshakePhase, message: Message) -> None:
    """A peer that does not know the secret is accepted only with a hello of the other role, as its first message."""
    if phase is HandshakePhase.AUTHENTICATED and role is Role.PRODUCER:
        phase = HandshakePhase.READY  # the server is ready as soon as the client is authenticated
    machine = at(phase, role)
    if phase is HandshakePhase.TRANSPORT_READY and isinstance(message, Hello) and message.role != role:
        machine.receive(message)
        assert machine.phase is HandshakePhase.CHALLENGED
    elif phase is HandshakePhase.AUTHENTICATED and message == Ready(1):
        machine.receive(message)
        assert machine.phase is HandshakePhase.READY
    else:
        assert reason_of(machine, message) in FailureReason


@pytest.mark.parametrize("message", [Hello(1, 1, 1, b"x" * 32), Proof(bytes(32)), Ready(1)])
def test_nothing_is_taken_before_the_connection_is_there(message: Message) -> None:
    assert reason_of(make(Role.PRODUCER, tls=True), message) is FailureReason.NOT_ENCRYPTED


@pytest.mark.parametrize("role", ENDS)
def test_without_the_tls_that_was_asked_for_it_does_not_begin(role: Role) -> None:
    machine = make(role, tls=True)
    with pytest.raises(HandshakeFailedError, match="before the connection was encrypted"):
        machine.connected(tls_binding=None)
    assert machine.phase is HandshakePhase.FAILED

    assert len(make(role, tls=True).connected(tls_binding=bytes(48))) == (role is Role.CONSUMER)


def test_connecting_twice_and_a_short_nonce_are_bugs_of_ours() -> None:
    machine = make(Role.CONSUMER)
    machine.connected(tls_binding=None)
    with pytest.raises(LocalProtocolError, match="connected twice"):
        machine.connected(tls_binding=None)
    with pytest.raises(LocalProtocolError, match="a nonce has 32 bytes, not 31"):
        make(Role.CONSUMER, nonce=bytes(31))


@pytest.mark.parametrize("stranger", ENDS)
def test_another_secret_is_a_wrong_proof(stranger: Role) -> None:
    """The server notices first, and has said nothing that depends on its secret."""
    keys = {role: derive_key(bytes(32)) if role is stranger else KEY for role in ENDS}
    client, server = make(Role.CONSUMER, keys[Role.CONSUMER]), make(Role.PRODUCER, keys[Role.PRODUCER])

    with pytest.raises(HandshakeFailedError) as raised:
        talk(client, server)

    assert raised.value.reason is FailureReason.PROOF
    assert server.phase is HandshakePhase.FAILED
    assert client.phase is HandshakePhase.CHALLENGED


def test_what_the_client_itself_said_is_refused() -> None:
    """A reflected hello is refused by its role, or by its nonce if the role was changed; a proof by its label."""
    first, second = make(Role.CONSUMER), make(Role.CONSUMER)
    (hello,) = first.connected(tls_binding=None)
    second.connected(tls_binding=None)
    third = make(Role.CONSUMER)
    third.connected(tls_binding=None)
    (proof,) = third.receive(Hello(1, 1, Role.PRODUCER, b"s" * 32))
    assert isinstance(hello, Hello)

    assert reason_of(first, hello) is FailureReason.ROLE
    assert reason_of(second, replace(hello, role=Role.PRODUCER)) is FailureReason.REFLECTED
    assert reason_of(third, proof) is FailureReason.PROOF


def test_a_replayed_conversation_is_refused() -> None:
    """The server's nonce is another one."""
    said = talk(make(Role.CONSUMER), make(Role.PRODUCER))
    server = make(Role.PRODUCER, nonce=b"n" * 32)
    server.connected(tls_binding=None)
    server.receive(said[0])

    assert reason_of(server, said[2]) is FailureReason.PROOF


@pytest.mark.parametrize("bindings", [(b"c" * 48, b"s" * 48), (b"c" * 48, None), (None, b"s" * 48)])
def test_a_conversation_that_is_passed_on_between_two_tls_connections_is_refused(
    bindings: tuple[bytes | None, bytes | None],
) -> None:
    """Each proof belongs to the relay's other connection."""
    client, server = make(Role.CONSUMER), make(Role.PRODUCER)
    (hello,) = client.connected(tls_binding=bindings[0])
    server.connected(tls_binding=bindings[1])
    (proof,) = client.receive(server.receive(hello)[0])

    assert reason_of(server, proof) is FailureReason.PROOF


@pytest.mark.parametrize(
    ("client", "server", "version"),
    [
        ((1, 1), (1, 1), 1),
        ((1, 3), (2, 5), 3),
        ((2, 2), (1, 9), 2),
        ((1, 1), (2, 3), None),
        ((4, 4), (2, 3), None),
        ((3, 1), (1, 3), None),
    ],
)
def test_the_greatest_common_version_is_agreed(
    client: tuple[int, int], server: tuple[int, int], version: int | None
) -> None:
    """A range the wrong way round has no version in common with any other."""
    ends = make(Role.CONSUMER, versions=client), make(Role.PRODUCER, versions=server)
    if version is None:
        with pytest.raises(HandshakeFailedError, match="no common version"):
            talk(*ends)
    else:
        talk(*ends)
        assert [end.version for end in ends] == [version, version]


def test_a_downgrade_on_the_way_is_found_out() -> None:
    """The proofs cover both version ranges as they were heard and said."""
    client, server = make(Role.CONSUMER, versions=(1, 2)), make(Role.PRODUCER, versions=(1, 2))
    (hello,) = client.connected(tls_binding=None)
    server.connected(tls_binding=None)
    assert isinstance(hello, Hello)
    (answer,) = server.receive(replace(hello, version_max=1))
    assert isinstance(answer, Hello)
    (proof,) = client.receive(replace(answer, version_max=1))

    assert reason_of(server, proof) is FailureReason.PROOF


def test_another_version_than_the_agreed_one_is_refused() -> None:
    assert reason_of(at(HandshakePhase.AUTHENTICATED, Role.CONSUMER), Ready(2)) is FailureReason.DOWNGRADED


@pytest.mark.slow
def test_ten_thousand_changed_conversations_are_all_refused() -> None:
    """A changed bit, a truncated or a swapped message never makes a server or client ready."""
    rng = random.Random(6)
    accepted = 0
    for number in range(10_000):
        nonces = rng.randbytes(32), rng.randbytes(32)
        client, server = make(Role.CONSUMER, nonce=nonces[0]), make(Role.PRODUCER, nonce=nonces[1])
        try:
            said = client.connected(tls_binding=None)
            server.connected(tls_binding=None)
            for turn in range(4):
                target = server if turn % 2 == 0 else client
                if turn == number % 4:
                    said[0] = changed(said[0], rng)
                said = [answer for message in said for answer in target.receive(message)]
            accepted += client.phase is HandshakePhase.READY
        except HandshakeFailedError:
            pass
        accepted += number % 4 < 3 and server.phase is HandshakePhase.READY
    assert accepted == 0


def changed(message: HandshakeMessage, rng: random.Random) -> HandshakeMessage:
    match message:
        case Hello(least, greatest, role, nonce, authority):
            variants: tuple[HandshakeMessage, ...] = (
                Hello(least, greatest, role, flipped(nonce, rng)),
                Hello(least, greatest, 3 - role, nonce),
                Hello(least, greatest + 1, role, nonce),
                Hello(0, greatest, role, nonce),
                Hello(least, greatest, role, nonce[::-1]),
                Hello(least, greatest, role, nonce, f"{authority}1"),
            )
        case Proof(mac):
            variants = Proof(flipped(mac, rng)), Proof(mac[:31]), Proof(mac[::-1]), Proof(b""), Proof(rng.randbytes(32))
        case Ready(version):
            variants = (Ready(version + 1),)
        case GateHello(least, greatest, nonce, gate, authority):
            variants = (
                GateHello(least, greatest, flipped(nonce, rng), gate),
                GateHello(least, greatest + 1, nonce, gate),
                GateHello(least, greatest, nonce, gate, f"{authority}1"),
                GateHello(least, greatest, nonce, replace(gate, expires_ms=gate.expires_ms + 1)),
                GateHello(least, greatest, nonce, replace(gate, name="other")),
                GateHello(least, greatest, nonce, replace(gate, job_id=bytes(16))),
                Hello(least, greatest, Role.CONSUMER, nonce),
            )
        case _:
            assert_never(message)
    return rng.choice(variants)


def flipped(data: bytes, rng: random.Random) -> bytes:
    bit = rng.randrange(8 * len(data))
    return (int.from_bytes(data, "big") ^ 1 << bit).to_bytes(len(data), "big")


HERE = "127.0.0.1:6121"


def hello_to(authority: str) -> Message:
    (hello,) = make(Role.CONSUMER).connected(tls_binding=None, authority=authority)
    return hello


@pytest.mark.parametrize(
    ("dialled", "here", "others"),
    [
        (HERE, HERE, ()),
        ("[::ffff:127.0.0.1]:6121", HERE, ()),
        (HERE, "[::ffff:127.0.0.1]:6121", ()),
        ("[0:0::1]:6121", "[::1]:6121", ()),
        (HERE, "127.0.0.1:1", ("127.0.0.1:2", HERE)),
    ],
)
def test_a_server_takes_hellos_to_its_own_addresses(dialled: str, here: str, others: tuple[str, ...]) -> None:
    """To that of its socket, in any spelling, and to those of its configuration."""
    server = Handshake(Role.PRODUCER, KEY, NONCES[Role.PRODUCER], versions=ONE, authorities=others)
    server.connected(tls_binding=None, authority=here)

    (answer,) = server.receive(hello_to(dialled))

    assert isinstance(answer, Hello)
    assert answer.authority == ""


@pytest.mark.parametrize("dialled", ["127.0.0.1:6122", "127.0.0.2:6121", "[::1]:6121", "localhost:6121", ""])
def test_a_hello_to_another_address_is_refused(dialled: str) -> None:
    """A relay gets no message that was made with the secret; the reason names both addresses."""
    server = make(Role.PRODUCER)
    server.connected(tls_binding=None, authority=HERE)

    with pytest.raises(
        HandshakeFailedError, match=f"it dialled {re.escape(dialled)}, here is {re.escape(HERE)}"
    ) as raised:
        server.receive(hello_to(dialled))

    assert raised.value.reason is FailureReason.AUTHORITY
    assert server.phase is HandshakePhase.FAILED


def test_a_gate_is_dialled_at_its_own_address_too() -> None:
    gate = listen()
    gate.connected(tls_binding=None, authority=HERE)

    assert reason_of(gate, dial().connected(tls_binding=None, authority="127.0.0.1:1")[0]) is FailureReason.AUTHORITY


def test_a_relay_that_changes_the_address_in_the_hello_breaks_the_proof() -> None:
    client, server = make(Role.CONSUMER), make(Role.PRODUCER)
    (hello,) = client.connected(tls_binding=None, authority="127.0.0.1:1")
    server.connected(tls_binding=None, authority=HERE)
    assert isinstance(hello, Hello)

    (answer,) = server.receive(replace(hello, authority=HERE))
    (proof,) = client.receive(answer)

    assert reason_of(server, proof) is FailureReason.PROOF


def test_both_ends_have_the_same_two_seal_keys_and_no_other_connection_has_them() -> None:
    client, server = make(Role.CONSUMER), make(Role.PRODUCER)
    talk(client, server)
    again = make(Role.CONSUMER, nonce=b"d" * 32), make(Role.PRODUCER)
    talk(*again)
    other_secret = make(Role.CONSUMER, key=bytes(32)), make(Role.PRODUCER, key=bytes(32))
    talk(*other_secret)

    keys = client.seal_keys()

    assert keys is not None
    assert server.seal_keys() == (keys[1], keys[0])
    found = [key for each in (client, again[0], other_secret[0]) for key in each.seal_keys() or ()]
    assert len(set(found)) == 6
    assert KEY not in found


def test_tls_seals_the_frames_itself_and_needs_no_address() -> None:
    """Behind a forwarded port a server does not know its name; the binding covers the connection."""
    client, server = make(Role.CONSUMER, tls=True), make(Role.PRODUCER, tls=True)
    (hello,) = client.connected(tls_binding=b"b" * 48, authority="10.0.0.1:1")
    server.connected(tls_binding=b"b" * 48, authority=HERE)

    (answer,) = server.receive(hello)
    (proof,) = client.receive(answer)
    for message in server.receive(proof):
        client.receive(message)

    assert isinstance(hello, Hello)
    assert hello.authority == ""
    assert client.phase is server.phase is HandshakePhase.READY
    assert client.seal_keys() is server.seal_keys() is None


def test_neither_key_nor_nonce_is_shown() -> None:
    for role, phase in product(ENDS, (HandshakePhase.NEW, HandshakePhase.CHALLENGED)):
        assert repr(at(phase, role)) == f"<Handshake of a {role.name.lower()}, {phase.name.lower()}>"


def test_the_key_is_not_the_secret() -> None:
    """The control port signs with the secret itself: nothing of one port fits the other."""
    assert bytes(range(32)) != KEY
    assert derive_key(bytes(32)) != KEY


# ---------------------------------------------------------------- producers that dial


def dial(gate: GateIdentity = GATE, token: bytes | None = None) -> Handshake:
    """Return a producer with the token for ``gate``, or with another one."""
    key = derive_key(gate_token(SECRET, gate) if token is None else token)
    return Handshake(Role.PRODUCER, key, b"d" * 32, gate=gate)


def listen() -> Handshake:
    """Return a server that knows the secret and has one gate."""
    keys = {GATE: derive_key(gate_token(SECRET, GATE))}
    return Handshake(Role.PRODUCER, KEY, b"p" * 32, gate_key=keys.get)


def test_a_token_makes_both_ready_for_offers_and_nothing_else() -> None:
    """The gate knows which gate it is about."""
    producer, gate = dial(), listen()

    said = talk(producer, gate)

    assert producer.phase is gate.phase is HandshakePhase.READY
    assert [type(message) for message in said] == [GateHello, Hello, Proof, Proof, Ready]
    assert (producer.welcome_ids, gate.welcome_ids) == (
        OFFERING_MESSAGE_IDS | {HEARTBEAT_ID},
        GATE_MESSAGE_IDS | {HEARTBEAT_ID},
    )
    assert not gate.welcome_ids & SERVER_MESSAGE_IDS
    assert (producer.peer_gate, gate.peer_gate) == (None, GATE)
    assert repr(producer) == "<Handshake of a producer that dials, ready>"
    assert repr(gate) == "<Handshake of a gate, ready>"


@pytest.mark.parametrize(
    "token",
    [gate_token(SECRET, replace(GATE, name="other")), gate_token(bytes(32), GATE), SECRET],
    ids=["another gate's", "old", "secret"],
)
def test_a_token_is_good_for_its_gate_alone(token: bytes) -> None:
    producer, gate = dial(token=token), listen()
    producer_said = producer.connected(tls_binding=None)
    gate.connected(tls_binding=None)

    [hello] = gate.receive(producer_said[0])
    [proof] = producer.receive(hello)

    assert reason_of(gate, proof) is FailureReason.PROOF


@pytest.mark.parametrize("change", [{"name": "other"}, {"expires_ms": 10}, {"job_id": bytes(16)}])
def test_a_gate_that_is_not_known_is_refused(change: dict[str, object]) -> None:
    """The server says nothing that a key was used for."""
    gate = listen()
    gate.connected(tls_binding=None)

    assert reason_of(gate, dial(replace(GATE, **change)).connected(tls_binding=None)[0]) is FailureReason.NO_GATE  # type: ignore[arg-type]  # one field each


def test_a_token_does_not_open_partitions() -> None:
    """A client that has only a gate's token cannot prove that it is a consumer: it does not know the consumers' key."""
    thief = Handshake(Role.CONSUMER, derive_key(gate_token(SECRET, GATE)), b"c" * 32)
    server = listen()
    server.connected(tls_binding=None)

    [hello] = server.receive(thief.connected(tls_binding=None)[0])
    [proof] = thief.receive(hello)

    assert reason_of(server, proof) is FailureReason.PROOF


def test_who_knows_no_gates_takes_no_gate_hello() -> None:
    hello = dial().connected(tls_binding=None)[0]
    for machine in (make(Role.PRODUCER), make(Role.CONSUMER)):
        machine.connected(tls_binding=None)
        assert reason_of(machine, hello) is FailureReason.UNEXPECTED


def test_a_server_of_partitions_is_no_gate() -> None:
    """A producer that dials a gate accepts no other server, whatever keys it knows."""
    producer = dial()
    producer.connected(tls_binding=None)

    assert reason_of(producer, Hello(1, 1, Role.PRODUCER, b"p" * 32)) is FailureReason.ROLE
