"""The gate's answers, as a producer's connection reports them to its partitions."""

from typing import cast

from netstack.config import NetstackConfig
from netstack.errors import NetstackError
from netstack.flow.offer_book import Stage
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.handlers.partition_request_client_handler import NetworkOfferedPartitionClient, OfferedPartitionsHandler
from netstack.ids import InputChannelID
from netstack.offering_network import OfferedPartition, OfferingHandler
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.testing.embedded_event_loop import EmbeddedEventLoop
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.wire.message_bytes import GATE_MESSAGE_IDS, encode
from netstack.wire.messages import ErrorCode, ErrorResponse, PartitionRequest, TaskEventRequest
from netstack.wire.offer_messages import (
    GateIdentity,
    OfferRefused,
    RefusalCode,
    SubpartitionOffer,
    decode_held,
    encode_held,
)
from tests.netstack.wire.samples import PARTITION, RECEIVER

OFFER = SubpartitionOffer(b"O" * 16, PARTITION, 0, 1, 0, "job", 0, 0, 0, b"T" * 16)
REQUEST = PartitionRequest(PARTITION, 0, 0, RECEIVER, 2)


class Partition:
    """A partition that notes the calls of its handler."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.failures: list[str] = []
        self.num_held: list[int] = []

    def advanced(self, subtask: int, stage: Stage) -> None:
        self.stages.append(stage)

    def held(self, subtask: int, num_records: int) -> None:
        self.num_held.append(num_records)

    def left(self, subtask: int, error: NetstackError) -> None:
        self.failures.append(str(error))

    def lost(self, subtask: int, error: NetstackError) -> None:
        self.failures.append(str(error))

    def abort(self, error: NetstackError) -> None:
        self.failures.append(str(error))


def offered() -> tuple[EmbeddedChannel, OfferingHandler, Partition]:
    handler, partition = OfferingHandler(), Partition()
    channel = EmbeddedChannel(handler)
    handler.offer(OFFER, cast("OfferedPartition", partition))
    assert channel.read_outbound() == OFFER
    return channel, handler, partition


def test_an_offer_that_waits_has_not_failed() -> None:
    """A queued offer is requested, or refused, later."""
    channel, _, partition = offered()

    channel.write_inbound(OfferRefused(OFFER.offer_id, 0, RefusalCode.QUEUED, "3 are before it"))
    channel.write_inbound(REQUEST)

    assert channel.read_inbound() == REQUEST
    assert (partition.stages, partition.failures) == ([Stage.QUEUED, Stage.REQUESTED], [])
    channel.write_inbound(OfferRefused(OFFER.offer_id, 0, RefusalCode.GATE_ENDED, "it has ended"))
    assert partition.failures == ["it has ended"]


def test_what_a_gate_holds_for_good_is_told_and_other_events_go_on() -> None:
    channel, handler, partition = offered()
    channel.write_inbound(REQUEST)
    channel.read_inbound()
    other = TaskEventRequest(b"another", PARTITION, RECEIVER)

    channel.write_inbound(TaskEventRequest(encode_held(7), PARTITION, RECEIVER))
    channel.write_inbound(other)
    handler.forget(OFFER)
    channel.write_inbound(TaskEventRequest(encode_held(8), PARTITION, RECEIVER))

    assert partition.num_held == [7]
    assert channel.read_inbound() == other
    assert channel.read_inbound() is None
    assert decode_held(b"another") is None
    assert decode_held(bytes(12)) is None


def test_a_request_for_an_offer_that_was_withdrawn_is_answered_at_once() -> None:
    """The place in the gate is another producer's then; the handlers behind would wait for the partition to come."""
    channel, handler, partition = offered()
    handler.forget(OFFER)

    channel.write_inbound(REQUEST)

    assert channel.read_inbound() is None
    assert channel.read_outbound() == ErrorResponse(ErrorCode.PRODUCER_FAILED, "the offer was withdrawn", RECEIVER)
    assert partition.stages == []


# ---------------------------------------------------------------- a consumer's end, after its token has expired


CONFIG = NetstackConfig(network_memory_bytes=1 << 20)
DAY_MS = 24 * 3600 * 1000
GATE = GateIdentity(b"J" * 16, "clicks", 1_000 + DAY_MS)
OF_GATE = SubpartitionOffer(bytes(16), PARTITION, 0, 1, 0, "job", 0, 0, 0, b"T" * 16)


class Rig:
    """A connection with a token for ``GATE``, one second after the epoch."""

    def __init__(self) -> None:
        self.loop = EmbeddedEventLoop()
        self.taken: list[SubpartitionOffer] = []
        self.handler = OfferedPartitionsHandler(
            self.loop, self.take_offer, lambda: 1_000 + self.loop.clock.now_ns() // 1_000_000
        )
        self.handler.identity = GATE
        decoder = MessageDecoder(CONFIG, self.handler, accepted_ids=GATE_MESSAGE_IDS)
        self.channel = EmbeddedChannel(MessageEncoder(), decoder, self.handler, config=CONFIG)

    def take_offer(self, gate: GateIdentity, offer: SubpartitionOffer, client: NetworkOfferedPartitionClient) -> None:
        self.taken.append(offer)

    def offer(self) -> None:
        self.handler.channel_read(self.handler._ctx, OF_GATE)  # type: ignore[arg-type]  # it is active
        self.loop.run_pending()

    def advance_ms(self, duration_ms: int) -> None:
        self.loop.advance(duration_ms / 1000)

    def reading(self) -> RemoteInputChannel:
        """Return a channel over this connection."""
        client = NetworkOfferedPartitionClient(self.handler, self.loop)
        channel = RemoteInputChannel(SingleInputGate("task"), 0, PARTITION, 0, InputChannelID(bytes(16)), client)
        self.handler.request_subpartition(channel)
        return channel


def test_a_token_is_good_to_its_last_millisecond() -> None:
    assert not GATE.is_expired(GATE.expires_ms)
    assert GATE.is_expired(GATE.expires_ms + 1)


def test_nothing_is_taken_over_a_connection_whose_token_has_expired() -> None:
    """An expired producer is refused with a reason, and its earlier offers are not touched."""
    rig = Rig()
    rig.advance_ms(DAY_MS)
    rig.offer()
    assert rig.taken == [OF_GATE]
    channel = rig.reading()
    rig.channel.read_all_outbound()

    rig.advance_ms(1)
    rig.offer()

    refusal = OfferRefused(
        OF_GATE.offer_id, 0, RefusalCode.TOKEN_EXPIRED, f"the token for {GATE} was good until 1970-01-02T00:00:01+00:00"
    )
    assert rig.channel.read_all_outbound() == encode(refusal)
    assert rig.taken == [OF_GATE]
    assert rig.handler.num_channels == 1
    assert not channel.is_released


def test_a_connection_whose_token_has_expired_ends_with_its_last_offer() -> None:
    """An expired connection does not take a place from others for ever."""
    rig = Rig()
    channel = rig.reading()
    rig.advance_ms(DAY_MS + 60_000)
    assert rig.channel.is_active

    rig.handler.cancel(channel)
    rig.advance_ms(10_000)

    assert not rig.channel.is_active


def test_an_unused_connection_ends_when_its_token_expires_and_not_before() -> None:
    rig = Rig()
    rig.advance_ms(DAY_MS - 1)
    assert rig.channel.is_active
    rig.advance_ms(20_000)
    assert not rig.channel.is_active


def test_a_connection_that_has_ended_leaves_no_timer() -> None:
    rig = Rig()
    assert rig.loop.num_timers == 1
    rig.channel.lose_connection()
    assert rig.loop.num_timers == 0
