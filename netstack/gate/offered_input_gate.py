"""A gate whose channels come and go: each reads one partition that a producer outside the cluster offered.

Side:       shared.  The loop thread takes offers; the task thread polls; anybody seals and closes.
Invariants: as ``SingleInputGate``, but channels are added after the request, and the place of one that ended is given
            to the next; the error of a channel ends that channel alone: an aborted attempt.  The gate is finished once
            it is sealed and no channel is open.
Lock order: ``GateChannels._channels_lock``, then ``_book_lock``, which is a leaf.
Source:     ours; Flink's gates know their channels when they are made.
Absent:     data in flight of checkpoints: what a producer sent and nobody acknowledged is the producer's to send again.
"""

import threading
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import NamedTuple

from netstack.errors import InsufficientNetworkBuffersError, NetstackError
from netstack.flow.offer_book import GateShape, OfferBook, OfferCounts, Refusal
from netstack.gate.buffer_transformer import Decompressor
from netstack.gate.channels.input_channel import InputChannel
from netstack.gate.channels.partition_request_client import OfferedPartitionClient
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.input_gate import BufferOrEvent, GateStatistics, gate_statistics
from netstack.gate.producer_quota import ProducerQuota, QuotaShare
from netstack.gate.single_input_gate import SingleInputGate
from netstack.loop.wakeups import run_all
from netstack.wire.messages import TaskEventRequest
from netstack.wire.offer_messages import PartitionOffer, RefusalCode, encode_held

ChannelFactory = Callable[[SingleInputGate, int, PartitionOffer, OfferedPartitionClient], RemoteInputChannel]
# What a channel that left has moved stays in the gate's numbers.
_SUMMED = ("num_bytes_in_remote", "num_buffers_in", "num_credits_granted")


class AbortedAttempt(NamedTuple):
    """A channel that ended before its partition did; what it brought until then was handed over."""

    channel_index: int
    offer: PartitionOffer
    error: NetstackError


class _Place(NamedTuple):
    offer: PartitionOffer
    client: OfferedPartitionClient
    share: QuotaShare | None = None  # as soon as there is a channel


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
        decompressor: Decompressor | None = None,
    ) -> None:
        super().__init__(owner, decompressor=decompressor)
        self.shape = shape
        self._quota = quota
        self.on_closed: Callable[[], None] | None = None  # Set once, before the first offer.
        self._make_channel = make_channel
        self._aborted: list[AbortedAttempt] = []  # Task thread only.
        self._completed: list[PartitionOffer] = []  # Task thread only.
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
        return self._book.is_finished

    def counts(self) -> OfferCounts:
        """What came and went so far; any thread."""
        with self._book_lock:
            return self._book.counts()

    def request_partitions(self) -> None:
        """Nothing to request yet; offers are taken from the gate's registration on.

        Raises:
            ResourceClosedError: the gate was closed.
        """
        self._begin_requests()

    # ---------------------------------------------------------------- loop thread

    def take_offer(self, offer: PartitionOffer, client: OfferedPartitionClient) -> None:
        """Request what is offered, queue it or refuse it; loop thread."""
        with self._book_lock:
            refusal = self._book.admit(offer)
            index = -1
            if refusal is None:
                index = self._find_place_locked(offer, client)
            elif refusal.code is RefusalCode.QUEUED:
                self._waiting[offer.offer_id] = client
        refusal = refusal or self._open_channel(index, offer, client)
        if refusal is not None:
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
            refusal = self._open_channel(index, offer, client)
            if refusal is not None:
                client.refuse(offer, refusal.code, refusal.reason)

    def _find_place_locked(self, offer: PartitionOffer, client: OfferedPartitionClient) -> int:
        index = self._free.pop() if self._free else len(self._by_index)
        self._places[index] = _Place(offer, client)
        return index

    def _open_channel(self, index: int, offer: PartitionOffer, client: OfferedPartitionClient) -> Refusal | None:
        share = self._quota.try_take()
        if share is None:
            return self._take_back(index, self._quota.reason)
        try:
            channel = self._make_channel(self, index, offer, client)
        except InsufficientNetworkBuffersError as error:
            share.release()
            return self._take_back(index, str(error))
        with self._book_lock:
            self._places[index] = _Place(offer, client, share)
        with self._channels_lock:
            is_closed = self.is_closed
            if not is_closed:
                self._keep_numbers_locked(index)
                self._put_locked(channel)
        if is_closed:
            self._leave(index, is_complete=False)
            channel.release()
            return Refusal(RefusalCode.GATE_ENDED, f"gate {self.shape.name!r} was closed")
        channel.request_subpartition()
        return None

    def _take_back(self, index: int, reason: str) -> Refusal:
        """There is no room for an offer that the book has admitted."""
        with self._book_lock:
            place = self._places.pop(index)
            self._book.take_back(place.offer)
            self._free.append(index)
            is_finished = self._book.is_finished
            is_awaited = bool(self._waiting)
        if is_finished:
            self._make_available()
        if is_awaited:
            place.client.run_later(self._open_waiting)
        return Refusal(
            RefusalCode.BUSY, f"gate {self.shape.name!r} has no network memory for another producer: {reason}"
        )

    def _keep_numbers_locked(self, index: int) -> None:
        """Add up the numbers of the channel, if there is one, whose place is given to another one."""
        before = gate_statistics(self._by_index[index : index + 1], None, 0)
        with self._book_lock:
            for name in _SUMMED:
                self._gone[name] += getattr(before, name)

    # ---------------------------------------------------------------- task thread

    def offer_of(self, channel_index: int) -> PartitionOffer:
        """What an open channel reads."""
        with self._book_lock:
            return self._places[channel_index].offer

    def tell_held(self, channel_index: int, num_records: int) -> None:
        """Tell the producer of an open channel that the first ``num_records`` of it will never be needed again.

        Task thread.
        """
        with self._book_lock:
            place = self._places.get(channel_index)
        channel = self._by_index[channel_index]
        if place is not None and isinstance(channel, RemoteInputChannel):
            held = TaskEventRequest(encode_held(num_records), channel.partition_id, channel.channel_id)
            place.client.order(channel, held)

    def take_completed(self) -> list[PartitionOffer]:
        """The offers whose partitions were completed since the last call.  Task thread."""
        completed, self._completed = self._completed, []
        return completed

    def take_aborted(self) -> list[AbortedAttempt]:
        """The attempts that were aborted since the last call; before what was polled with it is looked at.

        Task thread.
        """
        aborted, self._aborted = self._aborted, []
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
        """End a channel whose data is not what it should be; its producer is told.  Task thread."""
        with self._book_lock:
            place = self._places[channel_index]
        place.client.refuse(place.offer, code, str(error))
        self._abort(self._by_index[channel_index], error)

    def _abort(self, channel: InputChannel, error: NetstackError) -> None:
        offer = self._leave(channel.index, is_complete=False)
        if offer is not None:
            self._aborted.append(AbortedAttempt(channel.index, offer, error))
        super()._end_channel(channel)

    def _end_channel(self, channel: InputChannel) -> bool:
        offer = self._leave(channel.index, is_complete=True)
        if offer is not None:
            self._completed.append(offer)
        return super()._end_channel(channel)

    def _leave(self, index: int, *, is_complete: bool) -> PartitionOffer | None:
        with self._book_lock:
            place = self._places.pop(index, None)
            if place is None:
                return None
            self._book.end(place.offer, is_complete=is_complete)
            self._free.append(index)
            is_finished = self._book.is_finished
            is_awaited = bool(self._waiting)
        if place.share is not None:
            place.share.release()
        if is_awaited:
            place.client.run_later(self._open_waiting)
        if is_finished:
            self._make_available()  # the loop thread ends offers, too: nobody else wakes the task then
        return place.offer

    # ---------------------------------------------------------------- end and numbers

    def seal(self) -> None:
        """Take no more offers; those that are open go on to their end.  Any thread, any number of times."""
        self._seal()
        with self._book_lock:
            is_finished = self._book.is_finished
        if is_finished:
            self._make_available()

    def _seal(self, reason: str | None = None) -> None:
        """Seal the book, and refuse the offers that wait; ``reason``: if it is not the book's own."""
        with self._book_lock:
            offers, refusal = self._book.seal()
            waiting = [(offer, self._waiting.pop(offer.offer_id)) for offer in offers]
        run_all([partial(client.refuse, offer, refusal.code, reason or refusal.reason) for offer, client in waiting])

    def close(self) -> None:
        """Release every channel and be found no more; see ``SingleInputGate``."""
        if self.on_closed is not None:
            self.on_closed()
        self._seal()
        super().close()
        with self._book_lock:
            places = list(self._places.values())
        for place in places:
            if place.share is not None:
                place.share.release()

    def close_with(self, reason: str) -> None:
        """``close``, and tell the producers of open offers why.  Any thread, any number of times."""
        self.refuse_open(reason)
        self.close()

    def refuse_open(self, reason: str) -> None:
        """Take no more offers, and nothing more from those that are open: their producers hear why.  Any thread."""
        text = f"gate {self.shape.name!r}: {reason}"
        self._seal(text)
        with self._book_lock:
            places = list(self._places.values())
        run_all([partial(place.client.refuse, place.offer, RefusalCode.GATE_ENDED, text) for place in places])

    def statistics(self) -> GateStatistics:
        """The numbers so far, channels that left included; any thread."""
        now = gate_statistics(list(self._by_index), self._buffer_pool, self._num_finished)
        with self._book_lock:
            gone = dict(self._gone)
        values = {each.name: getattr(now, each.name) + gone.get(each.name, 0) for each in fields(GateStatistics)}
        return GateStatistics(**values)
