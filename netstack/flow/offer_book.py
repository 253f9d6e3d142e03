"""Decides which offers one subtask of a gate takes, and counts them.

Side:       pure.
Invariants: an attempt of a partition is admitted once (the last ``MAX_REMEMBERED`` attempts are remembered), unless it
            was aborted or taken back; at most ``max_open`` offers are open, and ``MAX_WAITING`` wait in the order of
            their arrival; every admitted offer ends once, complete or aborted.
"""

from collections import OrderedDict
from enum import IntEnum
from typing import Final, TypeAlias

from netstack.late import dataclass
from netstack.wire.offer_messages import RefusalCode, SubpartitionOffer


class Stage(IntEnum):
    """How far one subtask has come with the subpartition that was offered to it."""

    OFFERED = 0
    QUEUED = 1
    """The subtask has no room yet: the offer waits."""
    REQUESTED = 2
    """The subtask accepted the offer and requested the subpartition."""
    PROCESSED = 3
    """The subtask's task has processed every record."""
    ENDED = 4
    """The subtask received the end of the partition."""


# Bounded, because a gate may live for ever.  About 10 MB when full; not measured.
MAX_REMEMBERED: Final = 65_536
MAX_WAITING: Final = 1_024
_Attempt: TypeAlias = tuple[str, int, int, int]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an offer is refused."""

    code: RefusalCode
    reason: str


@dataclass(frozen=True, slots=True)
class GateShape:
    """The properties of a gate that every offer must match.

    ``num_producers``: how many partitions of one write the gate waits for; None: any number.
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
    """Attempts whose partition was read to its end."""
    num_aborted: int = 0
    """Attempts that failed."""
    num_refused: int = 0
    """Refusals; an offer that is refused twice counts twice."""


class OfferBook:
    """The offers of one subtask; ``max_open``: how many may be open at once, None: any number.

    Threading: none; its owner locks.
    """

    def __init__(self, shape: GateShape, max_open: int | None = None) -> None:
        self._shape = shape
        self._max_open = max_open
        self._open: dict[bytes, SubpartitionOffer] = {}
        self._waiting: OrderedDict[bytes, SubpartitionOffer] = OrderedDict()  # the oldest first
        self._attempts: OrderedDict[_Attempt, None] = OrderedDict()  # the oldest first
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
        """Return the counters now."""
        return OfferCounts(len(self._open), self._num_completed, self._num_aborted, self._num_refused)

    def admit(self, offer: SubpartitionOffer) -> Refusal | None:
        """Take ``offer`` and open or queue it; returns None if it is open, else the reason: it is queued, or it is
        refused, which changes nothing but a counter.
        """
        refusal = self._judge(offer)
        if refusal is not None:
            self._num_refused += 1
            return refusal
        # Also of an offer that only waits: its producer may offer it again meanwhile.
        self._attempts[_attempt_of(offer)] = None
        if len(self._attempts) > MAX_REMEMBERED:
            self._attempts.popitem(last=False)
        # Not past offers that wait, even if there is room: they are opened in the order of their arrival.
        if not self._waiting and self._has_room:
            self._open[offer.offer_id] = offer
            return None
        self._waiting[offer.offer_id] = offer
        text = (
            f"gate {self._shape.name!r} has {self._max_open} producers at once in this subtask already, as many as "
            "it may"
        )
        return Refusal(RefusalCode.QUEUED, f"{text}: {offer} waits, {len(self._waiting) - 1} are before it")

    def next_waiting(self) -> SubpartitionOffer | None:
        """Open the offer that has waited longest, if there is room for it; None: there is none."""
        if not self._waiting or not self._has_room:
            return None
        offer_id, offer = self._waiting.popitem(last=False)
        self._open[offer_id] = offer
        return offer

    def end(self, offer: SubpartitionOffer, *, is_complete: bool) -> None:
        """End an offer: its partition is complete, or it was aborted; a second call does nothing."""
        # Its end and an error of its channel may both be told; the first one counts.
        if self._open.pop(offer.offer_id, None) is None:
            return
        # A complete attempt stays remembered: a repeated offer would bring its rows twice.  An aborted one may come
        # again.
        if is_complete:
            self._num_completed += 1
        else:
            self._num_aborted += 1
            self._attempts.pop(_attempt_of(offer), None)

    def take_back(self, offer: SubpartitionOffer) -> None:
        """Undo ``admit`` of an offer that cannot be served now; it counts as refused, and its attempt may be offered
        again.
        """
        del self._open[offer.offer_id]
        self._attempts.pop(_attempt_of(offer), None)
        self._num_refused += 1

    def seal(self) -> tuple[list[SubpartitionOffer], Refusal]:
        """Admit nothing more; returns the offers that waited, which end here, and why they are refused."""
        self.is_sealed = True
        waiting = list(self._waiting.values())
        # An offer that is open now ends later, and would open one of these in a gate that has ended.
        self._waiting.clear()
        self._num_refused += len(waiting)
        return waiting, self._sealed()

    @property
    def _has_room(self) -> bool:
        return self._max_open is None or len(self._open) < self._max_open

    def _sealed(self) -> Refusal:
        text = f"gate {self._shape.name!r} takes no more partitions: it was told to finish, or has all its partitions"
        return Refusal(RefusalCode.GATE_ENDED, text)

    def _judge(self, offer: SubpartitionOffer) -> Refusal | None:
        shape = self._shape
        if self.is_sealed:
            return self._sealed()
        if offer.fingerprint != shape.fingerprint:
            return Refusal(
                RefusalCode.WRONG_TYPE,
                f"gate {shape.name!r} takes {shape.type_name}, which is not what the producer sends",
            )
        if offer.num_subtasks != shape.num_subtasks:
            text = f"gate {shape.name!r} has {shape.num_subtasks} subtasks, the producer believes {offer.num_subtasks}"
            return Refusal(RefusalCode.WRONG_SHAPE, f"{text}: it looked for the gate of an earlier job")
        # The gate ends after that many partitions: it would refuse the last ones of this write after it took the first.
        if shape.num_producers is not None and offer.num_producers > shape.num_producers:
            text = (
                f"gate {shape.name!r} waits for {shape.num_producers} partitions in all, the producer has "
                f"{offer.num_producers}"
            )
            return Refusal(RefusalCode.WRONG_SHAPE, f"{text}: change producers= of the gate, or repartition")
        # Also complete attempts: a producer that lost the answer offers again what the job has.
        if offer.offer_id in self._open or offer.offer_id in self._waiting or _attempt_of(offer) in self._attempts:
            return Refusal(
                RefusalCode.REPEATED_ATTEMPT,
                f"gate {shape.name!r} was offered {offer} before; a retry has another attempt number",
            )
        if len(self._waiting) >= MAX_WAITING:
            return Refusal(
                RefusalCode.BUSY, f"gate {shape.name!r} has {MAX_WAITING} producers waiting for this subtask already"
            )
        return None


def _attempt_of(offer: SubpartitionOffer) -> _Attempt:
    return offer.job, offer.epoch, offer.partition, offer.attempt
