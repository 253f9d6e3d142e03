"""Messages of producers that dial: the producer offers a partition, and the gate requests it.

A producer outside the cluster may do so with a token for one gate.

Side:       pure.
Invariants: a token is derived from the cluster's secret, the job, the gate's name and its expiry time.  Its holder
            learns neither the secret nor another token, and may do nothing but offer partitions to that gate (and what
            its job's master lets it do with it: in flowlet, ask about them, commit and abort them).  After its expiry
            it opens no connection, and a connection made with it carries no new offer; accepted offers continue.
Units:      milliseconds since the epoch.
Source:     ours, ids 67 to 69; Flink's producers never dial.  Hadoop's delegation tokens, which Flink hands to its
            jobs.
Flow:       ``GateHello`` in place of the client's ``Hello``.  Once both sides are ready: ``SubpartitionOffer`` ->
            ``PartitionRequest`` (or ``OfferRefused``) -> Flink's protocol with unchanged roles ->
            ``AckAllUserRecordsProcessed`` of every subtask -> end of partition -> ``CancelPartitionRequest``, which
            confirms the end.  On the way ``TaskEventRequest`` may bring an event of ``encode_held``.
Absent:     revoking a token: at the end of the job its gate is gone.
"""

import hmac
from enum import IntEnum, unique
from struct import Struct
from typing import Final

from netstack.errors import LocalProtocolError
from netstack.ids import ResultPartitionID
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
    """Derive the gate's token, 32 bytes; the producer uses it in place of the secret."""
    # The name is last and all else has a fixed length: otherwise two gates could have equal bytes, and one token.
    covered = b"".join((_TOKEN_LABEL, gate.job_id, gate.expires_ms.to_bytes(8, "big"), gate.name.encode()))
    return hmac.digest(secret, covered, "sha256")


FINGERPRINT_BYTES: Final = 16
MAX_JOB_NAME_BYTES: Final = 255
# The body of a ``TaskEventRequest`` of a gate; Flink's events have small numbers.
_HELD: Final = Struct(">iq")
_HELD_TYPE: Final = 0x464C4F57


@unique
class RefusalCode(IntEnum):
    """Why a gate takes nothing, or nothing more, from an offer; the values are those on the wire."""

    UNKNOWN = 0
    """A code of a later version."""
    GATE_ENDED = 1
    """The gate or its job ended, or the gate was told to finish."""
    REPEATED_ATTEMPT = 2
    """This attempt of the partition was offered before."""
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

    @classmethod
    def _missing_(cls, _value: object) -> "RefusalCode":
        return cls.UNKNOWN


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
class SubpartitionOffer:
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


def encode_held(num_records: int) -> bytes:
    """Encode the event by which a subtask of a gate tells its producer that it will never need the first
    ``num_records`` again.
    """
    assert num_records >= 0, "a count"
    return _HELD.pack(_HELD_TYPE, num_records)


def decode_held(event: bytes) -> int | None:
    """Decode the number in an event of ``encode_held``; None: it is another event."""
    if len(event) != _HELD.size:
        return None
    kind, num_records = _HELD.unpack(event)
    return num_records if kind == _HELD_TYPE and num_records >= 0 else None
