"""A gate whose channels come and go: each reads one partition that a producer outside the cluster offered.

``OfferedGates`` finds the gate of an offer; ``ProducerQuota`` bounds how many producers hold network buffers of this
process at once, in all gates together.

Side:       shared.  The loop thread takes offers; the task thread polls; any thread adds, seals and closes gates.
Invariants: as ``SingleInputGate``, but channels are added after the request, and the place of one that ended is given
            to the next; the error of a channel ends that channel alone: an aborted attempt.  The gate is finished once
            it is sealed and no channel is open, and is found from ``add`` to its close.  A share of the quota is given
            back once, by the thread that finds it at its place.
Units:      the quota counts channels; all have equally many exclusive buffers.
Lock order: ``GateChannels._channels_lock``, then ``_book_lock``, which is a leaf; so are the locks of the quota and of
            ``OfferedGates``: gates are called outside it.
Source:     ours; Flink's gates know their channels when they are made, and count them when a job is deployed.
Absent:     data in flight of checkpoints: what a producer sent and nobody acknowledged is the producer's to send again.
"""

import threading
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Final, NamedTuple

from netstack.availability import run_all
from netstack.buffer.network_buffer import BufferDecompressor
from netstack.errors import InsufficientNetworkBuffersError, LocalProtocolError, NetstackError
from netstack.flow.offer_book import GateShape, OfferBook, OfferCounts
from netstack.gate.channels.input_channel import InputChannel, OfferedPartitionClient
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent, GateStatistics, gate_statistics
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.messages import TaskEventRequest
from netstack.wire.offer_messages import GateIdentity, RefusalCode, SubpartitionOffer, encode_held

_PERCENT: Final = 100


class ProducerQuota:
    """The network memory that producers may hold in this process; one per process.

    Args:
        num_segments: of the whole network memory.
        buffers_per_channel: exclusive ones; 0: channels hold none of their own, and the quota never ends.
        max_percent: of the network memory, for producers; there is always room for one.
    """

    def __init__(self, num_segments: int, buffers_per_channel: int, max_percent: int) -> None:
        self._max_channels = (
            max(1, num_segments * max_percent // _PERCENT // buffers_per_channel) if buffers_per_channel else None
        )
        self.reason = (
            f"producers hold {(self._max_channels or 0) * buffers_per_channel} network buffers of its "
            f"TaskManager, and have {max_percent} % of the network memory at most: push fewer partitions at a "
            "time, or start the TaskManager with more (--network-memory, or --producer-memory-percent: "
            "NetstackConfig.max_producer_memory_percent)"
        )
        """Why there is no more."""
        self._lock = threading.Lock()
        self.num_taken = 0  # Channels now.  Guarded by _lock for writes.

    def __repr__(self) -> str:
        return (
            f"<ProducerQuota {self.num_taken} of {'any number' if self._max_channels is None else self._max_channels}>"
        )

    def try_take(self) -> bool:
        """Take room for one more channel, until it is given back; False if there is none."""
        with self._lock:
            if self._max_channels is not None and self.num_taken >= self._max_channels:
                return False
            self.num_taken += 1
            return True

    def give_back(self, num_channels: int) -> None:
        """Make room for other channels; each channel gives its share back once."""
        with self._lock:
            self.num_taken -= num_channels


ChannelFactory = Callable[[SingleInputGate, int, SubpartitionOffer, OfferedPartitionClient], RemoteInputChannel]
# Numbers of a channel that left which stay in the gate's.
_SUMMED = ("num_bytes_in_remote", "num_buffers_in", "num_credits_granted")


class AbortedAttempt(NamedTuple):
    """A channel that ended before its partition did; the data that it brought until then was handed over."""

    channel_index: int
    offer: SubpartitionOffer
    error: NetstackError


class _Place(NamedTuple):
    offer: SubpartitionOffer
    client: OfferedPartitionClient
    has_share: bool = False  # of the quota: as soon as there is a channel


class OfferedInputGate(SingleInputGate):
    """One subtask's gate.

    Life cycle: ``request_partitions`` -> offers come, are read and end -> ``seal`` -> ``is_finished`` -> ``close``.

    Args:
        owner: who reads; named in errors.
        shape: what offers have to agree with.
        make_channel: a channel for an offer, with its buffers.
        quota: of all gates of the process.
        max_producers: how many offers this gate takes at once; None: any number.
        decompressor: see ``SingleInputGate``.
    """

    def __init__(
        self,
        owner: str,
        shape: GateShape,
        make_channel: ChannelFactory,
        quota: ProducerQuota,
        *,
        max_producers: int | None = None,
        decompressor: BufferDecompressor | None = None,
    ) -> None:
        super().__init__(owner, decompressor=decompressor)
        self.shape = shape
        self._quota = quota
        self.on_closed: Callable[[], None] | None = None  # Set once, before the first offer.
        self._make_channel = make_channel
        self._aborted: list[AbortedAttempt] = []  # Task thread only.
        self._completed: list[SubpartitionOffer] = []  # Task thread only.
        self._book_lock = threading.Lock()
        # Guarded by _book_lock.
        self._book = OfferBook(shape, max_producers)
        self._places: dict[int, _Place] = {}
        self._waiting: dict[bytes, OfferedPartitionClient] = {}  # by offer
        self._free: list[int] = []
        self._gone = dict.fromkeys(_SUMMED, 0)

    def __repr__(self) -> str:
        return f"<OfferedInputGate of {self.owner}, {self._book!r}>"

    @property
    def is_finished(self) -> bool:
        """Whether it was sealed and every channel has ended."""
        # Without the lock: the thread that ends the last offer, or seals, wakes the task afterwards.
        return self._book.is_finished

    def counts(self) -> OfferCounts:
        """Return the numbers of offers that came and went so far; any thread."""
        with self._book_lock:
            return self._book.counts()

    def request_partitions(self) -> None:
        """Begin to request: there is no channel yet, and each that an accepted offer adds is requested then.

        Raises:
            ResourceClosedError: the gate was closed.
        """
        self._begin_requests()

    # ---------------------------------------------------------------- loop thread

    def take_offer(self, offer: SubpartitionOffer, client: OfferedPartitionClient) -> None:
        """Request the offered partition, queue the offer or refuse it; loop thread."""
        with self._book_lock:
            refusal = self._book.admit(offer)
            index = -1
            if refusal is None:
                index = self._find_place_locked(offer, client)
            elif refusal.code is RefusalCode.QUEUED:
                # In the lock round that queued the offer: ``_seal``, on any thread, takes a client for each offer that
                # waits.
                self._waiting[offer.offer_id] = client
        if refusal is None:
            self._open_channel(index, offer, client)
        else:
            client.refuse(offer, refusal.code, refusal.reason)

    def _open_waiting(self) -> None:
        """Request the offers that have waited longest, as far as there is room; loop thread."""
        while True:
            with self._book_lock:
                offer = self._book.next_waiting()
                if offer is None:
                    return
                client = self._waiting.pop(offer.offer_id)
                index = self._find_place_locked(offer, client)
            self._open_channel(index, offer, client)

    def _find_place_locked(self, offer: SubpartitionOffer, client: OfferedPartitionClient) -> int:
        index = self._free.pop() if self._free else len(self._by_index)
        self._places[index] = _Place(offer, client)
        return index

    def _open_channel(self, index: int, offer: SubpartitionOffer, client: OfferedPartitionClient) -> None:
        """Request the offered subpartition, or refuse the offer, which the book has admitted."""
        if not self._quota.try_take():
            self._take_back(index, offer, client, self._quota.reason)
            return
        try:
            channel = self._make_channel(self, index, offer, client)
        except InsufficientNetworkBuffersError as error:
            self._quota.give_back(1)
            self._take_back(index, offer, client, str(error))
            return
        with self._book_lock:
            # Before the gate is asked whether it was closed: a close from here on gives the share back, or ``_leave``
            # below does.
            self._places[index] = _Place(offer, client, has_share=True)
        with self._channels_lock:
            # Under the lock that a close takes: either the close finds the channel in the list, or this thread releases
            # it.
            is_closed = self.is_closed
            if not is_closed:
                self._keep_numbers_locked(index)
                self._starting[channel] = []
                self._put_locked(channel)
        if is_closed:
            self._leave(index, partial(self._book.end, is_complete=False))
            channel.release()
            client.refuse(offer, RefusalCode.GATE_ENDED, f"gate {self.shape.name!r} was closed")
            return
        self._start(channel)

    def _take_back(self, index: int, offer: SubpartitionOffer, client: OfferedPartitionClient, reason: str) -> None:
        self._leave(index, self._book.take_back)
        text = f"gate {self.shape.name!r} has no network memory for another producer: {reason}"
        client.refuse(offer, RefusalCode.BUSY, text)

    def _keep_numbers_locked(self, index: int) -> None:
        """Add the numbers of the channel that leaves a place, if there is one, to the gate's: another channel gets the
        place.
        """
        before = gate_statistics(self._by_index[index : index + 1], 0)
        with self._book_lock:
            for name in _SUMMED:
                self._gone[name] += getattr(before, name)

    # ---------------------------------------------------------------- task thread

    def offer_of(self, channel_index: int) -> SubpartitionOffer:
        """Return the offer that an open channel reads."""
        with self._book_lock:
            return self._places[channel_index].offer

    def tell_held(self, channel_index: int, num_records: int) -> None:
        """Tell the producer of an open channel that the first ``num_records`` of the channel will never be needed
        again.

        Task thread.
        """
        with self._book_lock:
            place = self._places.get(channel_index)
        channel = self._by_index[channel_index]
        if place is not None and isinstance(channel, RemoteInputChannel):
            held = TaskEventRequest(encode_held(num_records), channel.partition_id, channel.channel_id)
            place.client.order(channel, held)

    def take_completed(self) -> list[SubpartitionOffer]:
        """Take the offers whose partitions were completed since the last call.  Task thread."""
        completed = self._completed
        self._completed = []
        return completed

    def take_aborted(self) -> list[AbortedAttempt]:
        """Take the attempts that were aborted since the last call; call it before looking at items that were polled
        with it.

        Task thread.
        """
        aborted = self._aborted
        self._aborted = []
        return aborted

    def _poll_channel(self, channel: InputChannel, *, was_prioritized: bool) -> BufferOrEvent | None:
        try:
            return super()._poll_channel(channel, was_prioritized=was_prioritized)
        except NetstackError as error:
            self._abort(channel, error)
            return None

    def abort_channel(
        self, channel_index: int, error: NetstackError, code: RefusalCode = RefusalCode.WRONG_TYPE
    ) -> None:
        """End a channel whose data is wrong, and tell its producer.  Task thread."""
        with self._book_lock:
            place = self._places[channel_index]
        place.client.refuse(place.offer, code, str(error))
        self._abort(self._by_index[channel_index], error)

    def _abort(self, channel: InputChannel, error: NetstackError) -> None:
        offer = self._leave(channel.index, partial(self._book.end, is_complete=False))
        if offer is not None:
            self._aborted.append(AbortedAttempt(channel.index, offer, error))
        super()._end_channel(channel)

    def _end_channel(self, channel: InputChannel) -> bool:
        offer = self._leave(channel.index, partial(self._book.end, is_complete=True))
        if offer is not None:
            self._completed.append(offer)
        return super()._end_channel(channel)

    def _leave(self, index: int, end: Callable[[SubpartitionOffer], None]) -> SubpartitionOffer | None:
        """Free a place and let ``end`` tell the book how its offer ended; None if that was done before."""
        with self._book_lock:
            place = self._places.pop(index, None)
            if place is None:
                return None
            end(place.offer)
            self._free.append(index)
            is_finished = self._book.is_finished
            is_awaited = bool(self._waiting)
        if place.has_share:
            self._quota.give_back(1)
        if is_awaited:
            # Only the loop makes channels.
            place.client.run_later(self._open_waiting)
        if is_finished:
            self._make_available()  # the loop thread ends offers, too: nobody else wakes the task then
        return place.offer

    # ---------------------------------------------------------------- end and numbers

    def seal(self) -> None:
        """Take no more offers; open ones go on to their end.  Any thread, any number of times."""
        self._seal()
        with self._book_lock:
            is_finished = self._book.is_finished
        if is_finished:
            self._make_available()

    def _seal(self, reason: str | None = None) -> None:
        """Seal the book, and refuse the waiting offers for ``reason``; None: for the reason of the book."""
        with self._book_lock:
            offers, refusal = self._book.seal()
            waiting = [(offer, self._waiting.pop(offer.offer_id)) for offer in offers]
        run_all([partial(client.refuse, offer, refusal.code, reason or refusal.reason) for offer, client in waiting])

    def close(self) -> None:
        """Release every channel, and leave the registry of gates; see ``SingleInputGate``."""
        if self.on_closed is not None:
            # First: no offer finds the gate from now on.  ``_open_channel`` refuses one that found it before.
            self.on_closed()
        self._seal()
        super().close()
        with self._book_lock:
            # Counted and taken away in one lock round: a thread that leaves its place later finds no share to give
            # back.
            num_held = sum(place.has_share for place in self._places.values())
            self._places = {index: place._replace(has_share=False) for index, place in self._places.items()}
        self._quota.give_back(num_held)

    def close_with(self, reason: str) -> None:
        """Close the gate, and tell the producers of open offers why.  Any thread, any number of times."""
        self.refuse_open(reason)
        self.close()

    def refuse_open(self, reason: str) -> None:
        """Take no more offers, and no more data from open ones: their producers hear why.  Any thread."""
        text = f"gate {self.shape.name!r}: {reason}"
        self._seal(text)
        with self._book_lock:
            places = list(self._places.values())
        run_all([partial(place.client.refuse, place.offer, RefusalCode.GATE_ENDED, text) for place in places])

    def statistics(self) -> GateStatistics:
        """Return the numbers so far, those of channels that left included; any thread."""
        now = super().statistics()
        with self._book_lock:
            gone = dict(self._gone)
        values = {each.name: getattr(now, each.name) + gone.get(each.name, 0) for each in fields(GateStatistics)}
        return GateStatistics(**values)


class OfferedGates:
    """The gates that take offers, by job, name and subtask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[tuple[bytes, str, int], OfferedInputGate] = {}  # Guarded by _lock.

    def __repr__(self) -> str:
        return f"<OfferedGates {len(self._gates)}>"

    def add(self, job_id: bytes, subtask: int, gate: OfferedInputGate) -> None:
        """Let producers find ``gate``.

        Raises:
            LocalProtocolError: that subtask of the gate is here already.
        """
        key = (job_id, gate.shape.name, subtask)
        with self._lock:
            is_new = key not in self._gates
            if is_new:
                self._gates[key] = gate
        if not is_new:
            raise LocalProtocolError(
                f"subtask {subtask} of gate {gate.shape.name!r} of job {job_id.hex()} is here already"
            )
        gate.on_closed = lambda: self._forget(key)

    def take_offer(self, identity: GateIdentity, offer: SubpartitionOffer, client: OfferedPartitionClient) -> None:
        """Hand an offer to its gate; loop thread."""
        with self._lock:
            gate = self._gates.get((identity.job_id, identity.name, offer.subtask))
        if gate is None:
            # The token is good, so there was such a gate.
            text = f"{identity} is not here (any more): its job has ended, or that subtask of it"
            client.refuse(offer, RefusalCode.GATE_ENDED, text)
            return
        gate.take_offer(offer, client)

    def _forget(self, key: tuple[bytes, str, int]) -> None:
        with self._lock:
            self._gates.pop(key, None)
