"""The gate's answers, as a producer's connection reports them to its partitions."""

from typing import cast

from netstack.errors import NetstackError
from netstack.flow.offer_book import Stage
from netstack.offering_network import OfferedPartition, OfferingHandler
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.wire.messages import ErrorCode, ErrorResponse, PartitionRequest, TaskEventRequest
from netstack.wire.offer_messages import OfferRefused, RefusalCode, SubpartitionOffer, decode_held, encode_held
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
