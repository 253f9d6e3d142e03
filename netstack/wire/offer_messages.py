"""Messages of producers that dial: the producer offers a partition, and the gate requests it.

A producer outside the cluster may do so with a token for one gate.

Side:       pure.
Invariants: the decoder refuses every value that the encoder refuses.  A token is derived from the cluster's secret, the
            job, the gate's name and its expiry time.  Its holder learns neither the secret nor another token, and may
            do nothing but offer partitions to that gate (and what its job's master lets it do with it: in flowlet, ask
            about them, commit and abort them).  After its expiry it opens no connection, and a connection made with it
            carries no new offer; accepted offers continue.
Units:      all integers big endian; ids in bytes; milliseconds since the epoch.
Source:     ours, ids 67 to 69; Flink's producers never dial.  Hadoop's delegation tokens, which Flink hands to its
            jobs.
Flow:       ``GateHello`` in place of the client's ``Hello``.  Once both sides are ready: ``PartitionOffer`` ->
            ``PartitionRequest`` (or ``OfferRefused``) -> Flink's protocol with unchanged roles ->
            ``AckAllUserRecordsProcessed`` of every subtask -> end of partition -> ``CancelPartitionRequest``, which
            confirms the end.  On the way ``TaskEventRequest`` may bring an event of ``encode_held``.
Absent:     revoking a token: at the end of the job its gate is gone.
"""

import hmac
from collections.abc import Callable
from enum import IntEnum, unique
from struct import Struct
from typing import Final

from netstack.errors import LocalProtocolError, RemoteProtocolError
from netstack.ids import (
    ATTEMPT_ID_BYTES,
    PARTITION_ID_BYTES,
    ExecutionAttemptID,
    IntermediateResultPartitionID,
    ResultPartitionID,
)
from netstack.late import dataclass

JOB_ID_BYTES: Final = 16
MAX_GATE_NAME_BYTES: Final = 255
_TOKEN_LABEL: Final = b"netstack gate token v1"


@dataclass(frozen=True, slots=True)
class GateIdentity:
    """One gate of one job, and the expiry time of its token."""

    job_id: bytes
    name: str
    expires_ms: int

    def __post_init__(self) -> None:
        if len(self.job_id) != JOB_ID_BYTES:
            raise LocalProtocolError(f"a job id has {JOB_ID_BYTES} bytes, got {len(self.job_id)}")
        if not 1 <= len(self.name.encode()) <= MAX_GATE_NAME_BYTES:
            raise LocalProtocolError(
                f"a gate's name has 1 to {MAX_GATE_NAME_BYTES} bytes, got {len(self.name.encode())}"
            )
        if not 0 <= self.expires_ms < 2**63:
            raise LocalProtocolError(f"a token expires at {self.expires_ms} ms, which is not a time")

    def __str__(self) -> str:
        return f"gate {self.name!r} of job {self.job_id.hex()}"

    def is_expired(self, now_ms: int) -> bool:
        """Whether the token has expired."""
        return now_ms > self.expires_ms


def gate_token(secret: bytes, gate: GateIdentity) -> bytes:
    """The token, 32 bytes; the producer uses it in place of the secret."""
    # The name is last and all else has a fixed length: otherwise two gates could have the same bytes, and one token.
    covered = b"".join((_TOKEN_LABEL, gate.job_id, gate.expires_ms.to_bytes(8, "big"), gate.name.encode()))
    return hmac.digest(secret, covered, "sha256")


OFFER_ID_BYTES: Final = 16
FINGERPRINT_BYTES: Final = 16
MAX_JOB_NAME_BYTES: Final = 255
MAX_REASON_BYTES: Final = 4096
MAX_AUTHORITY_BYTES: Final = 96  # a literal IPv6 address with scope and port has fewer
GATE_HELLO_ID: Final = 67
PARTITION_OFFER_ID: Final = 68
OFFER_REFUSED_ID: Final = 69
FRAME_HEADER_BYTES: Final = 9
_NONCE_BYTES: Final = 32
_BEFORE_AUTHORITY: Final = b"\x00"  # an authority has no such byte
_HELLO: Final = Struct(">HH32s16sq")
# Offer, partition, producing attempt, subtask, subtasks, producers, epoch, partition's number, attempt's number, type,
# first record.
_OFFER: Final = Struct(">16s20s40siiiqii16sq")
# The body of a ``TaskEventRequest`` of a gate; Flink's events have small numbers.
_HELD: Final = Struct(">iq")
_HELD_TYPE: Final = 0x464C4F57
_REFUSED: Final = Struct(">16siB")


@unique
class RefusalCode(IntEnum):
    """Why a gate takes nothing, or nothing more, from an offer; the values are those on the wire."""

    UNKNOWN = 0
    """A code of a later version."""
    GATE_ENDED = 1
    """The gate or its job ended, or the gate was told to finish."""
    REPEATED_ATTEMPT = 2
    """The same attempt of the same partition was offered before."""
    WRONG_TYPE = 3
    """The producer sends another type than the gate's."""
    WRONG_SHAPE = 4
    """The producer expects another number of subtasks or of producers."""
    BUSY = 5
    """The gate has no memory for another producer, or too many wait already."""
    TOKEN_EXPIRED = 6
    """The token of the connection has expired."""
    QUEUED = 7
    """No refusal: the offer waits until the gate has room, and is then requested or refused."""
    UNFIT_ATTEMPT = 8
    """The gate cannot tell which of the attempt's records it holds already."""


_CODES: Final = {int(code): code for code in RefusalCode}


@dataclass(frozen=True, slots=True)
class GateHello:
    """The first message of a producer that dials: its protocol versions, the gate of its token, and 32 random bytes
    used once.

    ``authority``: as in ``Hello``.
    """

    version_min: int
    version_max: int
    nonce: bytes
    gate: GateIdentity
    authority: str = ""


@dataclass(frozen=True, slots=True)
class PartitionOffer:
    """The producer has a partition for this gate; the gate's subtask requests subpartition ``subtask``.

    ``offer_id`` is random and new for each try; ``job``, ``epoch``, ``partition`` and ``attempt`` are the producer's
    own names.
    """

    offer_id: bytes
    result_partition: ResultPartitionID
    subtask: int
    num_subtasks: int
    """How many subtasks the producer expects; each of them gets this offer."""
    num_producers: int
    """How many partitions the producer has in all; 0: unknown."""
    job: str
    epoch: int
    partition: int
    attempt: int
    fingerprint: bytes
    """Identifies the type of the records that the producer sends."""
    first_record: int = 0
    """How many records of this subtask the producer leaves out, because the gate has said that it holds them
    (``encode_held``).
    """

    def __str__(self) -> str:
        return f"partition {self.partition} (attempt {self.attempt}, epoch {self.epoch}) of {self.job!r}"


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """The gate takes nothing (more) from an offer, or nothing yet (``QUEUED``); sent at any time before the end of its
    partition.
    """

    offer_id: bytes
    subtask: int
    code: RefusalCode
    message: str


OfferMessage = GateHello | PartitionOffer | OfferRefused


def encode_offer_message(message: OfferMessage) -> tuple[int, bytes]:
    """Its id and body.

    Raises:
        LocalProtocolError: a field is out of range.
        struct.error: a number does not fit.
    """
    match message:
        case GateHello(version_min, version_max, nonce, gate, authority):
            if version_min > version_max:
                raise LocalProtocolError(f"versions {version_min} to {version_max} are not a range")
            _check_length("nonce", nonce, _NONCE_BYTES)
            fields = _HELLO.pack(version_min, version_max, nonce, gate.job_id, gate.expires_ms)
            return GATE_HELLO_ID, fields + gate.name.encode() + _BEFORE_AUTHORITY + encode_authority(authority)
        case PartitionOffer():
            return PARTITION_OFFER_ID, _encode_offer(message)
        case OfferRefused(offer_id, subtask, code, text):
            _check_length("offer id", offer_id, OFFER_ID_BYTES)
            # The cut may split a character, which would not decode.
            reason = text.encode("utf-8", "replace")[:MAX_REASON_BYTES].decode("utf-8", "ignore").encode()
            return OFFER_REFUSED_ID, _REFUSED.pack(offer_id, _counted("subtask", subtask), code) + reason


def encode_authority(authority: str) -> bytes:
    """The bytes of the authority in a hello.

    Raises:
        LocalProtocolError: it has too many characters, or one that no address has.
    """
    if len(authority) > MAX_AUTHORITY_BYTES or not authority.isascii() or not authority.isprintable():
        raise LocalProtocolError(
            f"an authority has at most {MAX_AUTHORITY_BYTES} printable ASCII characters, got {authority[:200]!r}"
        )
    return authority.encode()


def decode_authority(data: bytes) -> str:
    """The authority in a hello.

    Raises:
        RemoteProtocolError: ``encode_authority`` would refuse it.
    """
    authority = data.decode("latin-1")
    if len(data) > MAX_AUTHORITY_BYTES or not authority.isascii() or not authority.isprintable():
        raise RemoteProtocolError(
            f"the authority in a hello has {len(data)} bytes, expected at most {MAX_AUTHORITY_BYTES} of printable ASCII"
        )
    return authority


def _encode_offer(offer: PartitionOffer) -> bytes:
    _check_length("offer id", offer.offer_id, OFFER_ID_BYTES)
    _check_length("fingerprint", offer.fingerprint, FINGERPRINT_BYTES)
    produced = offer.result_partition
    _check_length("partition id", produced.partition, PARTITION_ID_BYTES)
    _check_length("producer id", produced.producer, ATTEMPT_ID_BYTES)
    if not 0 <= offer.subtask < offer.num_subtasks:
        raise LocalProtocolError(f"subtask {offer.subtask} is none of {offer.num_subtasks}")
    job = offer.job.encode()
    if not 1 <= len(job) <= MAX_JOB_NAME_BYTES:
        raise LocalProtocolError(f"the name of a producer's job has 1 to {MAX_JOB_NAME_BYTES} bytes, got {len(job)}")
    return (
        _OFFER.pack(
            offer.offer_id,
            produced.partition,
            produced.producer,
            offer.subtask,
            offer.num_subtasks,
            _counted("number of producers", offer.num_producers),
            _counted("epoch", offer.epoch),
            _counted("partition", offer.partition),
            _counted("attempt", offer.attempt),
            offer.fingerprint,
            _counted("first record", offer.first_record),
        )
        + job
    )


def encode_held(num_records: int) -> bytes:
    """The event by which a subtask of a gate tells its producer that it will never need the first ``num_records``
    again.
    """
    return _HELD.pack(_HELD_TYPE, _counted("number of records", num_records))


def decode_held(event: bytes) -> int | None:
    """The number in an event of ``encode_held``; None: it is another event."""
    if len(event) != _HELD.size:
        return None
    kind, num_records = _HELD.unpack(event)
    return num_records if kind == _HELD_TYPE and num_records >= 0 else None


def _check_length(name: str, value: bytes, expected: int) -> None:
    if len(value) != expected:
        raise LocalProtocolError(f"a {name} has {expected} bytes, got {len(value)}")


def _counted(name: str, number: int) -> int:
    if number < 0:
        raise LocalProtocolError(f"a {name} of {number} cannot be sent, the least is 0")
    return number


# ---------------------------------------------------------------- decoding


def _decode_gate_hello(body: memoryview) -> GateHello:
    version_min, version_max, nonce, job_id, expires_ms = _HELLO.unpack_from(body)
    if version_min > version_max:
        raise RemoteProtocolError(f"a GateHello with the versions {version_min} to {version_max}")
    name_bytes, separator, authority = bytes(body[_HELLO.size :]).rpartition(_BEFORE_AUTHORITY)
    if not separator:
        raise RemoteProtocolError(f"a GateHello of the versions {version_min} to {version_max} has no authority")
    name = _text("the gate's name in a GateHello", name_bytes)
    try:
        return GateHello(
            version_min, version_max, nonce, GateIdentity(job_id, name, expires_ms), decode_authority(authority)
        )
    except LocalProtocolError as error:
        raise RemoteProtocolError(f"a GateHello is broken: {error}") from error


def _decode_offer(body: memoryview) -> PartitionOffer:
    (
        offer_id,
        partition_id,
        producer,
        subtask,
        num_subtasks,
        num_producers,
        epoch,
        partition,
        attempt,
        fingerprint,
        first,
    ) = _OFFER.unpack_from(body)
    if not 0 <= subtask < num_subtasks:
        raise RemoteProtocolError(f"a PartitionOffer for subtask {subtask} of {num_subtasks}")
    if min(num_producers, epoch, partition, attempt, first) < 0:
        raise RemoteProtocolError(
            f"a PartitionOffer of {num_producers} producers, epoch {epoch}, partition {partition}, attempt {attempt}, "
            f"record {first}"
        )
    produced = ResultPartitionID(IntermediateResultPartitionID(partition_id), ExecutionAttemptID(producer))
    job = _text("the job in a PartitionOffer", body[_OFFER.size :])
    return PartitionOffer(
        offer_id, produced, subtask, num_subtasks, num_producers, job, epoch, partition, attempt, fingerprint, first
    )


def _decode_refused(body: memoryview) -> OfferRefused:
    offer_id, subtask, code = _REFUSED.unpack_from(body)
    if subtask < 0:
        raise RemoteProtocolError(f"an OfferRefused of subtask {subtask}")
    known = _CODES.get(code, RefusalCode.UNKNOWN)
    return OfferRefused(offer_id, subtask, known, _text("the reason in an OfferRefused", body[_REFUSED.size :]))


def _text(what: str, data: memoryview | bytes) -> str:
    try:
        return bytes(data).decode()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"{what} is not UTF-8 text") from error


# Message id -> least and greatest number of bytes of the whole frame; as in ``codec.FRAME_BYTES``.
OFFER_FRAME_BYTES: Final[dict[int, tuple[int, int | None]]] = {
    GATE_HELLO_ID: (
        FRAME_HEADER_BYTES + _HELLO.size + 2,
        FRAME_HEADER_BYTES + _HELLO.size + MAX_GATE_NAME_BYTES + 1 + MAX_AUTHORITY_BYTES,
    ),
    PARTITION_OFFER_ID: (FRAME_HEADER_BYTES + _OFFER.size + 1, FRAME_HEADER_BYTES + _OFFER.size + MAX_JOB_NAME_BYTES),
    OFFER_REFUSED_ID: (FRAME_HEADER_BYTES + _REFUSED.size, FRAME_HEADER_BYTES + _REFUSED.size + MAX_REASON_BYTES),
}
OFFER_DECODERS: Final[dict[int, Callable[[memoryview], OfferMessage]]] = {
    GATE_HELLO_ID: _decode_gate_hello,
    PARTITION_OFFER_ID: _decode_offer,
    OFFER_REFUSED_ID: _decode_refused,
}
