"""The blocking reads that every ``InputGate`` has."""

import threading

import pytest

from netstack.errors import ResourceClosedError
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.testing.embedded_event_loop import ManualClock
from netstack.wire.events import EndOfPartition
from tests.netstack.gate.remote_gate import RemoteGate
from tests.waiting import PATIENCE_S


def test_a_blocking_read_waits_for_data(it: RemoteGate) -> None:
    """SingleInputGateTest: testBasicGetNextLogic: it sleeps until something comes, and ends with the gate."""
    found: list[BufferOrEvent | None] = []

    def read() -> None:
        while (one := it.gate.get_next(PATIENCE_S)) is not None:
            if one.buffer is not None:
                one.buffer.recycle()
            found.append(one)

    thread = threading.Thread(target=read)
    thread.start()
    it.receive(0)
    for index in range(2):
        it.receive_event(index, EndOfPartition())
    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert sorted((one.channel_index, one.event is not None) for one in found if one is not None) == [
        (0, False),
        (0, True),
        (1, True),
    ]


def test_a_blocking_read_gives_up_after_its_time() -> None:
    """A timeout counts on the gate's clock, however often the gate is woken; 0 s is a poll."""
    clock = ManualClock()

    def now_ns() -> int:
        clock.advance(400_000_000)
        return clock.now_ns()

    it = RemoteGate(gate=SingleInputGate("reduce", clock_ns=now_ns))
    it.gate.request_partitions()
    it.gate.notify_channel_non_empty(it.gate.channels[0])

    for timeout_s in (0, 0.3):
        with pytest.raises(TimeoutError, match=f"nothing came within {timeout_s:g} s"):
            it.gate.get_next(timeout_s)
    it.end()


def test_closing_ends_a_blocking_read(it: RemoteGate) -> None:
    """SingleInputGateTest: testReleaseWhilePollingChannel's cousin: the reader wakes up with the error."""
    errors: list[str] = []
    is_waiting = threading.Event()
    original = it.gate.available_future

    def note() -> object:
        is_waiting.set()
        return original()

    it.gate.available_future = note  # type: ignore[method-assign,assignment]  # to know that the reader waits

    def read() -> None:
        try:
            it.gate.get_next()
        except ResourceClosedError as error:
            errors.append(str(error))

    thread = threading.Thread(target=read)
    thread.start()
    assert is_waiting.wait(PATIENCE_S)
    it.gate.close()
    thread.join(PATIENCE_S)

    assert (thread.is_alive(), errors) == (False, ["the input gate of reduce (1/2) was closed"])
