"""Tokens with which a producer outside the cluster may offer partitions to one gate.

Side:       pure.
Invariants: a token is derived from the cluster's secret, the job, the gate's name and its expiry time.  Its holder
            learns neither the secret nor another token, and may do nothing but offer partitions to that gate (and what
            its job's master lets it do with it: in flowlet, ask about them, commit and abort them).  After its expiry
            it opens no connection, and a connection made with it carries no new offer; accepted offers continue.
Units:      milliseconds since the epoch.
Source:     Hadoop's delegation tokens, which Flink hands to its jobs.
Absent:     revoking a token: at the end of the job its gate is gone.
"""

import hmac
from typing import Final

from netstack.errors import LocalProtocolError
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
