"""The sender's half of credit-based flow control.

Side:       pure.
Invariants: ``0 <= available == granted - spent <= MAX_CREDIT``; one credit pays for one data buffer, events are
            free.
Units:      buffers.
Source:     Flink ``CreditBasedSequenceNumberingViewReader``; range and overflow are checked more strictly than there.
"""

from netstack.errors import LocalProtocolError, RemoteProtocolError

# Flink counts credit in a Java int.
MAX_CREDIT = 2**31 - 1


class SenderCredit:
    """The credit that one receiver has granted to this sender.

    A receiver without exclusive buffers starts with 0; it grants credit when it hears of the backlog.

    Raises:
        RemoteProtocolError: ``initial`` is below zero or above ``MAX_CREDIT``.
    """

    __slots__ = ("granted", "spent")

    def __init__(self, initial: int) -> None:
        if not 0 <= initial <= MAX_CREDIT:
            raise RemoteProtocolError(f"the receiver starts with {initial} credits; 0 to {MAX_CREDIT} are possible")
        # Written by the loop thread alone.  A direct write may miss the newest grant: then the loop sends the buffer.
        self.granted = initial  # without credit that ``reset`` took back
        # Written with the turn of the connection held, by the loop or by a thread that sends directly.
        self.spent = 0

    def __repr__(self) -> str:
        return f"<SenderCredit {self.available} of {self.granted}>"

    @property
    def available(self) -> int:
        """How many data buffers may be sent now."""
        return self.granted - self.spent

    def grant(self, credit: int) -> None:
        """Add the credit that the receiver granted.

        Raises:
            RemoteProtocolError: ``credit`` is below 1, or more than ``MAX_CREDIT`` would be available.
        """
        if credit < 1:
            raise RemoteProtocolError(f"the receiver granted {credit} credits; at least 1 is needed")
        if self.available + credit > MAX_CREDIT:
            raise RemoteProtocolError(
                f"the receiver granted {credit} credits on top of {self.available}: more than {MAX_CREDIT}"
            )
        # Behind both checks: a grant that is refused changes nothing.
        self.granted += credit

    def spend(self) -> None:
        """Pay for one data buffer.

        Raises:
            LocalProtocolError: no credit is available; a bug of ours.
        """
        if self.spent >= self.granted:
            raise LocalProtocolError(f"no credit available: {self.spent} buffers sent, {self.granted} credits granted")
        self.spent += 1

    def reset(self) -> None:
        """Drop the unspent credit: the receiver released its floating buffers while the subpartition was blocked."""
        self.granted = self.spent

    def check_invariants(self) -> None:
        """Assert the invariants of this module."""
        assert 0 <= self.spent <= self.granted, f"{self.spent} buffers sent, {self.granted} credits granted"
        assert self.available <= MAX_CREDIT, f"{self.available} credits outstanding, {MAX_CREDIT} allowed"
