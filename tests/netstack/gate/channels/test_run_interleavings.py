"""Runs of a ``RemoteInputChannel`` that are partly polled or released at the worst moment, forced in its queue."""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import SupportsIndex

import pytest

from netstack.buffer.network_buffer import NetworkBuffer, recycle_all
from netstack.gate.channels.input_channel import Lifecycle, SequenceBuffer
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import EndOfData, StopMode
from tests.netstack.gate.channels.run_channel import Fixture


@pytest.fixture
def it() -> Iterator[Fixture]:
    fixture = Fixture()
    yield fixture
    fixture.end()


class InterruptedDeque(deque[SequenceBuffer]):
    """Something happens between a look at its first element and what follows."""

    def __init__(self, elements: Sequence[SequenceBuffer], channel: RemoteInputChannel) -> None:
        super().__init__(elements)
        self.channel = channel
        self.garbage: list[NetworkBuffer] = []
        self.num_looks = 0
        self.release_at = -1

    def __getitem__(self, index: SupportsIndex) -> SequenceBuffer:  # type: ignore[override]  # nobody slices a deque
        found = super().__getitem__(index)
        if self.num_looks == self.release_at:
            # A release has begun, and is as far as its first element.
            self.channel.lifecycle = Lifecycle.RELEASED
            self.garbage.append(self.popleft()[0])
        self.num_looks += 1
        return found


@pytest.mark.parametrize("release_at", range(6))
def test_a_release_that_takes_what_was_looked_at_makes_no_data_of_events(it: Fixture, release_at: int) -> None:
    """FLINK-17823: each buffer is found by one of the two; an event behind it that was popped in its place is not
    handed out.
    """
    it.receive(0, 2)
    it.receive_event(2, EndOfData(StopMode.DRAIN))
    it.receive(3, 1)
    it.receive_event(4, EndOfData(StopMode.DRAIN))
    it.receive(5, 1)
    rest = InterruptedDeque(it.channel.received.rest, it.channel)
    it.channel.received.rest = rest
    rest.release_at = release_at

    found, _ = it.channel.next_data(10)

    assert all(buffer.is_buffer for buffer in found)
    it.channel.lifecycle = Lifecycle.REQUESTED
    recycle_all([*found, *rest.garbage])


class LateDeque(deque[SequenceBuffer]):
    """A queue to which more is added right after one of the looks at its end."""

    def __init__(self, elements: Sequence[SequenceBuffer], it: Fixture, number: int) -> None:
        super().__init__(elements)
        self.it = it
        self.number = number
        self.is_armed = True

    def __getitem__(self, index: SupportsIndex) -> SequenceBuffer:  # type: ignore[override]  # as above
        try:
            return super().__getitem__(index)
        except IndexError:
            if self.is_armed:
                self.is_armed = False
                self.it.receive(self.number, 2)
            raise

    def extend(self, elements: object) -> None:
        super().extend(elements)  # type: ignore[arg-type]  # it is what the channel says


def test_a_run_that_arrives_while_the_last_buffer_is_polled_is_found() -> None:
    """A run that arrives after the task saw an empty queue is found: the gate is notified or the task sees it, and the
    queue holds the channel once.
    """
    it = Fixture(gate=SingleInputGate("reduce"))
    gate = it.gate
    assert isinstance(gate, SingleInputGate)
    it.receive(0, 2)
    it.channel.received.rest = LateDeque(it.channel.received.rest, it, 2)

    first = gate.poll_many(10)
    gate.check_invariants()
    assert gate.available_future().is_done
    second = gate.poll_many(10)

    assert (len(first), len(second), first[-1].more_available, second[-1].more_available) == (2, 2, True, False)
    recycle_all([each.buffer for each in first + second if each.buffer is not None])
    gate.check_invariants()
    gate.close()
    it.end()
