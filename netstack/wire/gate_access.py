"""What lets a producer outside the cluster into one gate, and into nothing else.

Side:       pure.
Invariants: a token follows from the cluster's secret, the job, the gate's name and the time until when it is good; whoever has it learns
            neither the secret nor another token, and can prove nothing but that it may offer partitions to that very gate.
Units:      milliseconds since the epoch.
            After that time no connection is made with it and no offer is taken over one that was; offers that were taken go on.
Source:     Hadoop's delegation tokens, which Flink hands to its jobs: what was opened with one stays open.
Absent:     calling a token back before its time (the end of the job does that: its gate is not found any more).
"""

import hmac
from dataclasses import dataclass
from typing import Final

from netstack.errors import LocalProtocolError

JOB_ID_BYTES: Final = 16
MAX_GATE_NAME_BYTES: Final = 255
_TOKEN_LABEL: Final = b"netstack gate token v1"


@dataclass(frozen=True, slots=True)
class GateIdentity:
    """One gate of one job, and until when the token for it is good."""

    job_id: bytes
    name: str
    expires_ms: int

    def __post_init__(self) -> None:
        if len(self.job_id) != JOB_ID_BYTES:
            raise LocalProtocolError(f"a job id has {JOB_ID_BYTES} bytes, got {len(self.job_id)}")
        if not 1 <= len(self.name.encode()) <= MAX_GATE_NAME_BYTES:
            raise LocalProtocolError(f"a gate's name has 1 to {MAX_GATE_NAME_BYTES} bytes, got {len(self.name.encode())}")
        if not 0 <= self.expires_ms < 2**63:
            raise LocalProtocolError(f"a token is good until {self.expires_ms} ms, which is no time")

    def __str__(self) -> str:
        return f"gate {self.name!r} of job {self.job_id.hex()}"

    def is_expired(self, now_ms: int) -> bool:
        """Whether the token is good for nothing any more."""
        return now_ms > self.expires_ms


def gate_token(secret: bytes, gate: GateIdentity) -> bytes:
    """The 32 bytes that a producer has to know instead of the secret."""
    # The name is last and the rest has a fixed length, so no two gates are covered by the same bytes.
    covered = b"".join((_TOKEN_LABEL, gate.job_id, gate.expires_ms.to_bytes(8, "big"), gate.name.encode()))
    return hmac.digest(secret, covered, "sha256")
