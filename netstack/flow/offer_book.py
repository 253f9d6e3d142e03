"""Decides which offers one subtask of a gate takes, and counts them.

Side:       pure.
Invariants: an attempt of a partition is admitted once (the last ``MAX_REMEMBERED`` attempts are remembered), unless it was taken back; at
            most ``max_open`` offers are open; every admitted offer ends once, complete or aborted.
            A gate that waits for ``num_producers`` partitions counts each of them once, however many of its attempts complete.  Any other
            gate counts every complete attempt.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, TypeAlias

from netstack.wire.offer_messages import PartitionOffer, RefusalCode

# Bounded, because a gate may live for ever.  About 10 MB when full; not measured.
MAX_REMEMBERED: Final = 65_536
_Attempt: TypeAlias = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an offer is refused."""

    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True)
class GateShape:
    """The properties of a gate that every offer must match.

    ``num_producers``: how many partitions the gate waits for; None: any number.
    """

    name: str
    type_name: str
    fingerprint: bytes
    num_subtasks: int = 1
    num_producers: int | None = None


@dataclass(frozen=True, slots=True)
class OfferCounts:
    """The counters of one subtask since its start."""

    num_open: int = 0
    num_completed: int = 0
    """Distinct partitions if the gate waits for a number of them, else attempts."""
    num_aborted: int = 0
    """Attempts."""
    num_refused: int = 0
    """Offers."""


class OfferBook:
    """The offers of one subtask; ``max_open``: how many may be open at once, None: any number.

    Threading: none; its owner locks.
    """

    __slots__ = ("_attempts", "_completed", "_max_open", "_num_aborted", "_num_completed", "_num_refused", "_open", "_shape", "is_sealed")

    def __init__(self, shape: GateShape, max_open: int | None = None) -> None:
        self._shape = shape
        self._max_open = max_open
        self._open: dict[bytes, PartitionOffer] = {}
        self._attempts: OrderedDict[_Attempt, None] = OrderedDict()  # the oldest first
        self._completed: dict[tuple[str, int], set[int]] = {}  # partitions by job and epoch; at most num_producers in all
        self._num_completed = self._num_aborted = self._num_refused = 0
        self.is_sealed = False

    def __repr__(self) -> str:
        state = "sealed" if self.is_sealed else "open"
        return f"<OfferBook of {self._shape.name!r} {state}, {self.counts()}>"

    @property
    def is_finished(self) -> bool:
        """Whether no offer is open and none will be admitted."""
        return self.is_sealed and not self._open

    def counts(self) -> OfferCounts:
        """The counters now."""
        return OfferCounts(len(self._open), self._num_completed, self._num_aborted, self._num_refused)

    def admit(self, offer: PartitionOffer) -> Refusal | None:
        """Take ``offer``; returns None, or the reason of a refusal, which changes nothing but its counter."""
        refusal = self._judge(offer)
        if refusal is not None:
            self._num_refused += 1
            return refusal
        self._attempts[_attempt_of(offer)] = None
        if len(self._attempts) > MAX_REMEMBERED:
            self._attempts.popitem(last=False)
        self._open[offer.offer_id] = offer
        return None

    def end(self, offer: PartitionOffer, *, is_complete: bool) -> None:
        """End an offer: its partition is complete, or it was aborted; a second call does nothing."""
        if self._open.pop(offer.offer_id, None) is None:
            return
        if not is_complete:
            self._num_aborted += 1
        elif self._counts(offer):
            self._num_completed += 1

    def take_back(self, offer: PartitionOffer) -> None:
        """Undo ``admit`` of an offer that cannot be served now; it counts as refused, and the same attempt may be offered again."""
        del self._open[offer.offer_id]
        del self._attempts[_attempt_of(offer)]
        self._num_refused += 1

    def seal(self) -> None:
        """Admit nothing more."""
        self.is_sealed = True

    def _counts(self, offer: PartitionOffer) -> bool:
        """Whether a complete partition raises ``num_completed``."""
        wanted = self._shape.num_producers
        if wanted is None:
            return True
        if self._num_completed >= wanted:
            return False
        of_epoch = self._completed.setdefault((offer.job, offer.epoch), set())
        is_new = offer.partition not in of_epoch
        of_epoch.add(offer.partition)
        return is_new

    def _judge(self, offer: PartitionOffer) -> Refusal | None:
        shape = self._shape
        if self.is_sealed:
            return Refusal(
                RefusalCode.GATE_ENDED, f"gate {shape.name!r} takes no more partitions: it was told to finish, or has all its partitions"
            )
        if offer.fingerprint != shape.fingerprint:
            return Refusal(RefusalCode.WRONG_TYPE, f"gate {shape.name!r} takes {shape.type_name}, which is not what the producer sends")
        if offer.num_subtasks != shape.num_subtasks:
            text = f"gate {shape.name!r} has {shape.num_subtasks} subtasks, the producer believes {offer.num_subtasks}"
            return Refusal(RefusalCode.WRONG_SHAPE, f"{text}: it looked for the gate of an earlier job")
        if shape.num_producers is not None and offer.num_producers > shape.num_producers:
            text = f"gate {shape.name!r} waits for {shape.num_producers} partitions in all, the producer has {offer.num_producers}"
            return Refusal(RefusalCode.WRONG_SHAPE, f"{text}: change producers= of the gate, or repartition")
        if offer.offer_id in self._open or _attempt_of(offer) in self._attempts:
            return Refusal(
                RefusalCode.REPEATED_ATTEMPT, f"gate {shape.name!r} was offered {offer} before; a retry has another attempt number"
            )
        if self._max_open is not None and len(self._open) >= self._max_open:
            text = f"gate {shape.name!r} has {self._max_open} producers at once in this subtask already, as many as it may"
            option = "--max-producers-per-gate: NetstackConfig.max_producers_per_gate"
            return Refusal(
                RefusalCode.BUSY, f"{text}: push fewer partitions at a time, or start its TaskManager with a larger limit ({option})"
            )
        return None


def _attempt_of(offer: PartitionOffer) -> _Attempt:
    return offer.job, offer.epoch, offer.partition, offer.attempt
