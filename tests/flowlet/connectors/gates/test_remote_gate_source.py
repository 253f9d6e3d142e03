"""The moments at which the reader of a gate acknowledges records of producers."""

from collections.abc import Sequence
from typing import Any, cast

from flowlet.connectors.gates.reader import RemoteGateReader
from flowlet.messages.control_messages import GateCounts
from netstack.errors import TransportError
from netstack.flow.offer_book import GateShape, OfferCounts
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.offered_input_gate import AbortedAttempt, OfferedInputGate
from netstack.wire.events import EndOfData, EndOfPartition, Event, StopMode


class ScriptedGate:
    """Gives out events; ``aborted`` are the channels that end with the next poll."""

    shape = GateShape("clicks", "Long", bytes(16), 1, None)
    is_finished = False

    def __init__(self) -> None:
        self.items: list[BufferOrEvent] = []
        self.aborted: list[int] = []
        self.acknowledged: list[int] = []

    def request_partitions(self) -> None:
        return

    def poll_next(self) -> BufferOrEvent | None:
        return self.items.pop(0) if self.items else None

    def take_aborted(self) -> Sequence[AbortedAttempt]:
        aborted, self.aborted = self.aborted, []
        return [AbortedAttempt(index, cast(Any, f"offer {index}"), TransportError("gone")) for index in aborted]

    def acknowledge_all_records_processed(self, index: int) -> None:
        self.acknowledged.append(index)

    def take_completed(self) -> Sequence[Any]:
        return ()

    def counts(self) -> OfferCounts:
        return OfferCounts(0, 0, 0, 0)


def event(channel: int, of_channel: Event) -> BufferOrEvent:
    return BufferOrEvent(channel, None, of_channel, more_available=False)


class Rig:
    def __init__(self) -> None:
        self.gate = ScriptedGate()
        self.requests: list[int] = []
        self.reports: list[GateCounts] = []
        self.reader = RemoteGateReader(
            cast(OfferedInputGate, self.gate),
            lambda counts, completed: self.reports.append(counts),
            self.requests.append,
            declared=None,
        )

    def end(self, *channels: int) -> None:
        self.gate.items += [event(channel, EndOfData(StopMode.DRAIN)) for channel in channels]
        self.reader.poll_chunk()


def test_a_partition_is_acknowledged_with_the_mark_that_follows_its_end() -> None:
    """One request for all that ended before a mark; the next one names that mark."""
    rig = Rig()
    rig.end(0, 1)
    rig.reader.mark_emitted(1)
    rig.end(2)
    assert rig.requests == [0, 1]
    assert "3 partitions wait for a mark" in repr(rig.reader)

    rig.reader.mark_completed(1)
    assert rig.gate.acknowledged == [0, 1]

    rig.reader.mark_emitted(2)
    rig.reader.mark_completed(2)
    rig.reader.mark_completed(3)
    assert rig.gate.acknowledged == [0, 1, 2]


def test_a_mark_that_was_emitted_before_the_end_acknowledges_nothing() -> None:
    """A mark that another gate of the job wanted acknowledges none of this gate's partitions."""
    rig = Rig()
    rig.reader.mark_emitted(1)
    rig.end(0)
    rig.reader.mark_completed(1)

    assert rig.requests == [1]
    assert rig.gate.acknowledged == []


def test_the_next_partition_in_the_place_of_an_aborted_attempt_is_not_acknowledged_for_it() -> None:
    """The producer went while its partition waited for the mark."""
    rig = Rig()
    rig.end(0)
    rig.reader.mark_emitted(1)
    rig.gate.aborted = [0]
    rig.reader.poll_chunk()

    rig.reader.mark_completed(1)
    assert rig.gate.acknowledged == []

    rig.end(0)
    rig.reader.mark_emitted(2)
    rig.reader.mark_completed(2)
    rig.gate.items.append(event(0, EndOfPartition()))
    rig.reader.poll_chunk()
    assert rig.gate.acknowledged == [0]
    assert len(rig.reports) == 2
