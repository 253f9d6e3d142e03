"""Channels that come and go, without a socket."""

from collections.abc import Callable

import pytest

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.errors import ConnectionLostError, InsufficientNetworkBuffersError
from netstack.flow.offer_book import GateShape, OfferCounts
from netstack.gate.channels.input_channel import OfferedPartitionClient
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.offered_input_gate import OfferedInputGate, ProducerQuota
from netstack.gate.single_input_gate import SingleInputGate
from netstack.ids import InputChannelID
from netstack.wire.events import EndOfPartition, OtherEvent, serialize_event
from netstack.wire.messages import BufferResponse, ChannelOrder, DataType, TaskEventRequest
from netstack.wire.offer_messages import RefusalCode, SubpartitionOffer
from tests.netstack.present import present
from tests.netstack.rigs import Ending
from tests.netstack.wire.samples import PARTITION

TYPE = b"T" * 16
END = serialize_event(EndOfPartition())


class Client:
    """Notes what a channel, or the gate, wants of its connection."""

    def __init__(self) -> None:
        self.requested: list[RemoteInputChannel] = []
        self.orders: list[ChannelOrder | None] = []
        self.refused: list[tuple[int, RefusalCode]] = []
        self.later: list[Callable[[], None]] = []

    def request_subpartition(self, channel: RemoteInputChannel) -> None:
        self.requested.append(channel)

    def order(self, channel: RemoteInputChannel, message: ChannelOrder | None) -> None:
        self.orders.append(message)

    def cancel(self, channel: RemoteInputChannel) -> None:
        return

    def refuse(self, offer: SubpartitionOffer, code: RefusalCode, reason: str) -> None:
        assert "'clicks'" in reason
        self.refused.append((offer.partition, code))

    def run_later(self, function: Callable[[], None]) -> None:
        self.later.append(function)


def offer_of(partition: int, attempt: int = 0) -> SubpartitionOffer:
    return SubpartitionOffer(bytes((partition, attempt)) * 8, PARTITION, 0, 1, 0, "job", 0, partition, attempt, TYPE)


class Rig(Ending):
    """A gate on a pool of so many segments, two per channel."""

    def __init__(
        self, num_segments: int = 16, *, quota: ProducerQuota | None = None, max_producers: int | None = None
    ) -> None:
        super().__init__()
        self.pool = NetworkBufferPool(num_segments, 1024)
        self.client = Client()
        self.before_channel: Callable[[], None] = lambda: None
        quota = ProducerQuota(num_segments, 2, 100) if quota is None else quota
        self.gate = OfferedInputGate(
            "task", GateShape("clicks", "Long", TYPE), self._channel, quota, max_producers=max_producers
        )
        self.gate.request_partitions()

    def _channel(
        self, gate: SingleInputGate, index: int, offer: SubpartitionOffer, client: OfferedPartitionClient
    ) -> RemoteInputChannel:
        self.before_channel()
        channel = RemoteInputChannel(gate, index, offer.result_partition, 0, InputChannelID(offer.offer_id), client)
        channel.assign_exclusive_segments(self.pool, 2, 0.0)
        return channel

    def offer(self, partition: int, attempt: int = 0) -> None:
        self.gate.take_offer(offer_of(partition, attempt), self.client)

    def end(self, channel: RemoteInputChannel) -> None:
        buffer = present(channel.allocate(len(END), DataType.END_OF_PARTITION, is_compressed=False))
        buffer.view[:] = END
        channel.on_response(BufferResponse(channel.channel_id, 0, 0, 0, DataType.END_OF_PARTITION, False, (), buffer))

    def run_later(self) -> None:
        """Run the postponed calls as the loop does."""
        while self.client.later:
            self.client.later.pop(0)()

    def give_back(self) -> None:
        self.gate.close()
        self.pool.destroy()


def test_an_event_while_an_offer_is_taken_reaches_its_producer_after_the_request() -> None:
    rig = Rig()

    class Slow(Client):
        def request_subpartition(self, channel: RemoteInputChannel) -> None:
            rig.gate.send_task_event(OtherEvent("x", b""))
            assert not self.orders
            super().request_subpartition(channel)

    client = Slow()
    rig.gate.take_offer(offer_of(0), client)

    assert [type(each) for each in client.orders] == [TaskEventRequest]


def test_the_place_of_a_channel_that_ended_is_used_again() -> None:
    """A gate that lives long does not grow with the partitions that it has seen, and its buffers come back."""
    rig = Rig()
    for partition in range(100):
        rig.offer(partition)
        rig.end(rig.client.requested[-1])
        item = present(rig.gate.poll_next())
        assert isinstance(item.event, EndOfPartition)
    assert rig.gate.num_channels == 1
    assert rig.gate.counts() == OfferCounts(num_completed=100)
    assert rig.gate.statistics().num_buffers_in == 100
    rig.gate.check_invariants()


def test_the_error_of_a_channel_ends_that_channel_alone() -> None:
    rig = Rig()
    rig.offer(0)
    rig.offer(1)
    lost, other = rig.client.requested
    lost.on_error(ConnectionLostError("gone"))
    rig.end(other)

    item = present(rig.gate.poll_next())

    assert item.channel_index == other.index
    [(index, offer, error)] = rig.gate.take_aborted()
    assert (index, offer.partition, str(error)) == (lost.index, 0, "gone")
    assert rig.gate.take_aborted() == []
    assert rig.gate.poll_next() is None
    assert rig.gate.counts() == OfferCounts(num_completed=1, num_aborted=1)
    rig.gate.check_invariants()


def test_without_memory_a_producer_is_told_to_come_again_and_the_others_go_on() -> None:
    """The refused producer keeps its place."""
    rig = Rig(num_segments=2)
    rig.offer(0)
    rig.offer(1)
    assert rig.client.refused == [(1, RefusalCode.BUSY)]
    rig.end(rig.client.requested[0])
    assert rig.gate.poll_next() is not None

    rig.offer(1, 1)

    assert len(rig.client.requested) == 2
    assert rig.gate.num_channels <= 2


def test_a_sealed_gate_is_available_and_finished_once_its_last_channel_has_ended() -> None:
    rig = Rig()
    rig.offer(0)
    assert not rig.gate.available_future().is_done
    rig.gate.seal()
    assert not rig.gate.is_finished
    rig.offer(1)
    assert rig.client.refused == [(1, RefusalCode.GATE_ENDED)]
    rig.end(rig.client.requested[0])
    assert rig.gate.poll_next() is not None
    assert rig.gate.is_finished
    assert rig.gate.available_future().is_done
    rig.gate.check_invariants()


def test_an_empty_gate_is_finished_as_soon_as_it_is_sealed() -> None:
    rig = Rig()
    future = rig.gate.available_future()
    rig.gate.seal()
    assert rig.gate.is_finished
    assert future.is_done


def test_a_gate_that_closes_tells_every_open_offer_why() -> None:
    rig = Rig()
    rig.offer(0)
    rig.offer(1)
    rig.gate.close_with("it goes")
    assert rig.client.refused == [(0, RefusalCode.GATE_ENDED), (1, RefusalCode.GATE_ENDED)]
    rig.offer(2)
    assert rig.client.refused[-1] == (2, RefusalCode.GATE_ENDED)


def test_a_task_that_waits_hears_that_the_last_offer_of_a_sealed_gate_found_no_memory() -> None:
    """Told to finish while an offer is being opened: the offer is the last thing that the gate waits for."""
    rig = Rig(num_segments=1)
    waits = rig.gate.available_future()
    assert rig.gate.poll_next() is None

    def seal_meanwhile() -> None:
        rig.gate.seal()
        assert not rig.gate.is_finished

    rig.before_channel = seal_meanwhile
    rig.offer(0)

    assert rig.client.refused == [(0, RefusalCode.BUSY)]
    assert rig.gate.is_finished
    assert waits.is_done


def test_a_producer_waits_until_another_one_has_ended() -> None:
    """In the order of the offers; one that finds no memory then is refused as at any other time."""
    rig = Rig(num_segments=4, max_producers=1)
    for partition in range(4):
        rig.offer(partition)
    assert rig.client.refused == [(partition, RefusalCode.QUEUED) for partition in (1, 2, 3)]

    rig.end(rig.client.requested[0])
    while rig.gate.poll_next() is not None:
        pass
    assert len(rig.client.requested) == 1
    rig.run_later()

    assert [InputChannelID(offer_of(1).offer_id)] == [channel.channel_id for channel in rig.client.requested[1:]]
    rig.before_channel = raise_short_of_memory
    rig.client.requested[1].on_error(ConnectionLostError("gone"))
    assert rig.gate.poll_next() is None
    rig.run_later()
    assert rig.client.refused[3:] == [(2, RefusalCode.BUSY), (3, RefusalCode.BUSY)]
    rig.gate.check_invariants()


def raise_short_of_memory() -> None:
    raise InsufficientNetworkBuffersError("none left")


@pytest.mark.parametrize("end", ["seal", "close", "fail"])
def test_producers_that_wait_hear_of_the_end_of_the_gate(end: str) -> None:
    rig = Rig(max_producers=1)
    rig.offer(0)
    rig.offer(1)

    ends: dict[str, Callable[[], None]] = {
        "seal": rig.gate.seal,
        "close": rig.gate.close,
        "fail": lambda: rig.gate.close_with("its task has failed"),
    }
    ends[end]()

    assert rig.client.refused[:2] == [(1, RefusalCode.QUEUED), (1, RefusalCode.GATE_ENDED)]
    rig.run_later()
    assert len(rig.client.requested) == 1


def test_gates_share_what_producers_may_have() -> None:
    """The room of a channel is free for other gates, however the channel ends, and when its gate ends."""
    quota = ProducerQuota(40, 2, 10)
    one, other = Rig(quota=quota), Rig(quota=quota)
    one.offer(0)
    other.offer(0)
    one.offer(1)
    assert one.client.refused == [(1, RefusalCode.BUSY)]
    assert one.pool.num_total - one.pool.num_available == 2

    one.client.requested[0].on_error(ConnectionLostError("gone"))
    while one.gate.poll_next() is not None:
        pass
    assert quota.num_taken == 1
    one.offer(1)
    assert one.client.refused == [(1, RefusalCode.BUSY)]
    one.offer(2)
    assert one.client.refused[1:] == [(2, RefusalCode.BUSY)]
    one.close()
    other.offer(1)
    assert other.client.refused == []
    other.close()
    assert quota.num_taken == 0


def test_want_of_memory_takes_nothing_of_what_producers_may_have() -> None:
    quota = ProducerQuota(40, 2, 100)
    rig = Rig(num_segments=1, quota=quota)
    rig.offer(0)
    assert rig.client.refused == [(0, RefusalCode.BUSY)]
    assert quota.num_taken == 0


def test_an_offer_to_a_closed_gate_takes_nothing_of_what_producers_may_have() -> None:
    quota = ProducerQuota(40, 2, 100)
    rig = Rig(quota=quota)
    rig.gate.close()
    rig.offer(0)
    assert rig.client.refused == [(0, RefusalCode.GATE_ENDED)]
    assert quota.num_taken == 0


# ---------------------------------------------------------------- how many channels producers may have


@pytest.mark.parametrize(
    ("num_segments", "buffers", "percent", "expected"), [(2048, 8, 50, 128), (10, 8, 50, 1), (100, 3, 100, 33)]
)
def test_so_many_channels_have_their_share_of_the_memory(
    num_segments: int, buffers: int, percent: int, expected: int
) -> None:
    """The number of channels follows from the memory, but is at least one."""
    quota = ProducerQuota(num_segments, buffers, percent)
    assert all(quota.try_take() for _ in range(expected))
    assert not quota.try_take()
    assert f"{percent} % of the network memory" in quota.reason
    assert "--producer-memory-percent" in quota.reason

    quota.give_back(1)

    assert quota.num_taken == expected - 1


def test_channels_without_buffers_of_their_own_are_not_counted_out() -> None:
    quota = ProducerQuota(1, 0, 1)
    assert all(quota.try_take() for _ in range(1000))
