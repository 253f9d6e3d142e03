"""The sender's half of credit-based flow control.

Side:       pure.
Invariants: ``available == granted - spent >= 0``; one credit is one data buffer at the receiver, events cost nothing.
Units:      buffers.
Source:     Flink ``CreditBasedSequenceNumberingViewReader``; the checks on range and overflow are stricter than Flink's.
Absent:     backlog announcements and ``ResumeConsumption`` (receivers without exclusive buffers).
"""

from netstack.errors import LocalProtocolError, RemoteProtocolError

MAX_CREDIT = 2**31 - 1


class SenderCredit:
    """What one receiver still allows us to send."""

    __slots__ = ("granted", "spent")

    def __init__(self, initial: int) -> None:
        self.granted = 0
        self.spent = 0
        self.grant(initial)

    def __repr__(self) -> str:
        return f"<SenderCredit {self.available} of {self.granted}>"

    @property
    def available(self) -> int:
        """How many data buffers may be sent now."""
        return self.granted - self.spent

    def grant(self, credit: int) -> None:
        """Add what the receiver granted.

        Raises:
            RemoteProtocolError: it granted less than one, or more than an i32 can hold in total.
        """
        if credit < 1:
            raise RemoteProtocolError(f"the receiver granted {credit} credits; at least 1 is needed")
        if self.available + credit > MAX_CREDIT:
            raise RemoteProtocolError(f"the receiver granted {credit} credits on top of {self.available}: more than {MAX_CREDIT}")
        self.granted += credit

    def spend(self) -> None:
        """Pay for one data buffer.

        Raises:
            LocalProtocolError: there is no credit; a bug of ours.
        """
        if self.spent >= self.granted:
            raise LocalProtocolError(f"no credit available: {self.spent} buffers sent, {self.granted} credits granted")
        self.spent += 1

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert 0 <= self.spent <= self.granted, f"{self.spent} buffers sent, {self.granted} credits granted"
