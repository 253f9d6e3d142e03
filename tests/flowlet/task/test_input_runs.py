"""``InputProcessor``: several buffers that are polled at once, over remote channels, which alone have such runs."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from flowlet.chain.stream_operator import InputStatus
from flowlet.io import input_processor
from flowlet.io.input_processor import InputProcessor
from flowlet.records import Chunk, ControlElement
from flowlet.serde.element_serializer import ElementDeserializer, StreamElementSerializer
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import CheckpointBarrier, EndOfData, Event, StopMode
from tests.netstack.gate.channels.run_channel import num_own_and_floating
from tests.netstack.gate.doubles import RecordingClient, event, remote_channel

SEGMENT_BYTES = 2048
NUM_SEGMENTS = 8  # of each channel
BARRIER = CheckpointBarrier(1, 0)


def serialized(*values: object) -> bytes:
    return bytes(StreamElementSerializer().serialize(Chunk(list(values))))


def never() -> bool:
    return False


class ObservedGate(SingleInputGate):
    """Notes how many items each poll found, or the event."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.polls: list[int | Event] = []
        self.num_polls_for_many = 0

    def poll_many(self, max_items: int) -> list[BufferOrEvent]:
        self.num_polls_for_many += 1
        return super().poll_many(max_items)

    def poll_next(self) -> BufferOrEvent | None:
        found = super().poll_next()
        if found is not None:
            self.polls.append(1 if found.event is None else found.event)
        return found

    def poll_data(self, max_buffers: int) -> list[BufferOrEvent]:
        found = super().poll_data(max_buffers)
        if found:
            self.polls.append(len(found))
        return found


class Rig:
    """An input processor over gates of remote channels, without a network."""

    def __init__(self, *gate_sizes: int) -> None:
        self.pool = NetworkBufferPool(64, SEGMENT_BYTES)
        self.client = RecordingClient()
        self.gates = [ObservedGate(f"reduce ({index}/2)") for index in range(len(gate_sizes))]
        self.channels: list[RemoteInputChannel] = []
        for gate, size in zip(self.gates, gate_sizes, strict=True):
            for index in range(size):
                channel = remote_channel(
                    gate, self.client, self.pool, index=index, num_segments=NUM_SEGMENTS, is_requested=False
                )
                gate.add_channel(channel)
                self.channels.append(channel)
            gate.request_partitions()
        self.values: list[object] = []
        self.on_value: Callable[[object], None] = lambda _value: None
        self.processor = InputProcessor(self.gates, self, "reduce (1/2)", are_checkpointed=True)
        self._numbers: Counter[int] = Counter()

    # ---------------------------------------------------------------- the head

    def process_chunk(self, chunk: Chunk) -> None:
        for value in chunk.values:
            self.on_value(value)
            self.values.append(value)

    def process_some(self, chunk: Chunk) -> int:
        self.process_chunk(chunk)
        return len(chunk)

    def process_control(self, element: ControlElement) -> None:
        pass

    # ---------------------------------------------------------------- the sender

    def receive(self, channel: int, *payloads: bytes) -> None:
        """One buffer for each payload, together."""
        it, size = self.channels[channel], max(map(len, payloads))
        it.buffer_manager.take_unannounced()
        for payload in payloads:
            assert len(payload) <= size
        if len({len(payload) for payload in payloads}) == 1:
            buffers = it.allocate_run(size, len(payloads))
            assert len(buffers) == len(payloads), "no credit"
            for buffer, payload in zip(buffers, payloads, strict=True):
                buffer.view[:] = payload
            it.on_run(buffers, self._numbers[channel], 0)
            self._numbers[channel] += len(payloads)
            return
        for payload in payloads:
            self.receive(channel, payload)

    def receive_event(self, channel: int, what: Event) -> None:
        self.channels[channel].on_response(event(self.channels[channel], self._numbers[channel], what))
        self._numbers[channel] += 1

    # ---------------------------------------------------------------- what is looked at

    def process(self, max_buffers: int = 100, should_stop: Callable[[], bool] = never) -> InputStatus:
        return self.processor.process_input(max_buffers, should_stop)

    def process_until(self, num_values: int) -> None:
        """Process as if a mail came after so many values: the rest of the polled data has to stay."""
        assert self.process(should_stop=lambda: len(self.values) >= num_values) is InputStatus.MORE_AVAILABLE

    def make_runs(self) -> None:
        """Poll once and find that there is more, so that runs are asked for from then on."""
        self.receive(0, serialized("a"), serialized("b"))
        self.process(max_buffers=1)
        self.process(max_buffers=1)
        self.forget()

    def stop_in_a_run(self) -> None:
        """Receive the numbers from 0 to 5 together, and process two of them."""
        self.make_runs()
        self.receive(0, *map(serialized, range(6)))
        self.process_until(2)

    def forget(self) -> None:
        self.values.clear()
        for gate in self.gates:
            gate.polls.clear()

    def num_free(self, channel: int) -> int:
        """How many of a channel's own buffers have come back."""
        return num_own_and_floating(self.channels[channel].buffer_manager)[0]


@pytest.fixture
def rigs() -> Iterator[Callable[..., Rig]]:
    """Makes rigs; at the end every buffer must have come back."""
    made: list[Rig] = []

    def make(*gate_sizes: int) -> Rig:
        made.append(Rig(*gate_sizes))
        return made[-1]

    yield make
    for rig in made:
        rig.processor.close()
        for gate in rig.gates:
            gate.close()
        assert rig.pool.num_available == rig.pool.num_total, f"buffers left behind: {rig.pool!r}"
        rig.pool.destroy()


def test_several_buffers_are_polled_at_once_once_a_poll_has_said_that_there_is_more(rigs: Callable[..., Rig]) -> None:
    """The buffers keep their order; the first poll for one buffer says that there is more."""
    rig = rigs(1)
    rig.receive(0, *map(serialized, range(8)))

    assert rig.process(max_buffers=8) is InputStatus.MORE_AVAILABLE

    assert rig.values == list(range(8))
    assert rig.gates[0].polls == [1, 7]


def test_a_call_polls_no_more_than_it_may_process(rigs: Callable[..., Rig]) -> None:
    """A caller that processes one buffer at a time leaves none polled behind, because light tasks run on several
    threads in turn.
    """
    rig = rigs(1)
    rig.make_runs()
    rig.receive(0, *map(serialized, range(8)))

    for num_processed in (1, 2, 3):
        rig.process(max_buffers=1)
        assert len(rig.values) == num_processed
        assert not rig.processor.has_polled(0, 0)
    rig.process(max_buffers=4)

    assert rig.gates[0].polls == [1, 1, 1, 4]
    assert not rig.processor.has_polled(0, 0)


def test_records_that_come_alone_are_polled_alone(rigs: Callable[..., Rig]) -> None:
    """A poll for several is slower than a poll for one, so it ends with the first record that comes alone."""
    rig = rigs(1)
    rig.make_runs()
    before = rig.gates[0].num_polls_for_many

    for number in range(50):
        rig.receive(0, serialized(number))
        rig.process(max_buffers=8)

    assert rig.values == list(range(50))
    assert rig.gates[0].num_polls_for_many == before + 1


def test_few_buffers_at_once_are_tried_again_later(rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two channels that both have data yield one buffer each."""
    monkeypatch.setattr(input_processor, "_POLLS_AFTER_NO_RUN", 3)
    rig = rigs(2)
    for channel in (0, 1):
        rig.receive(channel, *(serialized(channel) for _ in range(8)))

    rig.process(max_buffers=100)

    assert rig.values == [0, 1] * 8
    assert rig.gates[0].polls == [1, 2, 1, 1, 1, 2, 1, 1, 1, 2, 1, 1, 1]


class TestTheRestOfARun:
    """A mail waits: the call returns in the middle of a run."""

    def test_is_available_and_processed_next(self, rigs: Callable[..., Rig]) -> None:
        """The rest of a run comes before anything else of the gate, and without another poll."""
        rig = rigs(2)
        rig.stop_in_a_run()
        rig.receive(1, serialized("of another channel"))

        assert rig.processor.is_available
        assert rig.processor.has_polled(0, 0)
        assert not rig.processor.has_polled(0, 1)
        assert rig.gates[0].polls == [6]
        assert rig.process() is InputStatus.NOTHING_AVAILABLE
        assert rig.values == [*range(6), "of another channel"]
        assert not rig.processor.is_available

    def test_wakes_whoever_waits_for_input(self, rigs: Callable[..., Rig]) -> None:
        """The waiting task is woken although the gate itself has no data."""
        rig = rigs(1)
        rig.stop_in_a_run()
        woken: list[bool] = []

        rig.processor.watch(lambda: woken.append(True))

        assert not rig.gates[0].available_future().is_done
        assert woken == [True]

    def test_is_in_flight_behind_the_element_that_is_not_complete(self, rigs: Callable[..., Rig]) -> None:
        """Another deserializer yields from it the records that would have been processed; each channel has its own."""
        rig = rigs(1, 2)
        rig.receive(1, serialized("x"), serialized("y"))
        rig.process(max_buffers=1)
        rig.process(max_buffers=1)
        data = b"".join(serialized(str(number) * 20) for number in range(6))
        cut = len(data) // 5
        payloads = [data[start : start + cut] for start in range(0, 5 * cut, cut)]
        rig.receive(1, *payloads)
        rig.forget()
        rig.process_until(2)

        in_flight = b"".join(rig.processor.in_flight(1, 0)) + data[5 * cut :]

        elements = ElementDeserializer().feed(memoryview(in_flight))
        values = [value for element in elements if isinstance(element, Chunk) for value in element.values]
        assert [*rig.values, *values] == [str(number) * 20 for number in range(6)]
        assert len(rig.values) < 6
        assert list(rig.processor.in_flight(0, 0)) == []
        assert list(rig.processor.in_flight(1, 1)) == []

    def test_is_given_back_by_the_close(self, rigs: Callable[..., Rig]) -> None:
        """A task that is cancelled; a second close does nothing."""
        rig = rigs(1)
        rig.stop_in_a_run()
        assert rig.num_free(0) == NUM_SEGMENTS - 4

        rig.processor.close()
        rig.processor.close()

        assert rig.num_free(0) == NUM_SEGMENTS
        assert not rig.processor.has_polled(0, 0)

    def test_is_still_there_after_a_function_of_the_user_failed(self, rigs: Callable[..., Rig]) -> None:
        """The close gives the rest back; the failed buffer, and those before it, were given back already."""
        rig = rigs(1)
        rig.make_runs()
        rig.receive(0, *map(serialized, range(6)))

        def fail(value: object) -> None:
            if value == 2:
                raise ValueError("of the user")

        rig.on_value = fail
        with pytest.raises(ValueError, match="of the user"):
            rig.process()

        assert rig.values == [0, 1]
        assert rig.num_free(0) == NUM_SEGMENTS - 3
        rig.processor.close()
        assert rig.num_free(0) == NUM_SEGMENTS


@pytest.mark.parametrize("limit_bytes", [0, SEGMENT_BYTES])
def test_each_buffer_of_a_run_is_given_back_by_itself(
    rigs: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    """A large buffer is given back before its records, a little one after them: the sender waits for no other buffer's
    records.
    """
    monkeypatch.setattr(input_processor, "_LITTLE_BYTES", limit_bytes)
    rig = rigs(1)
    rig.make_runs()
    free: list[int] = []
    rig.on_value = lambda _value: free.append(rig.num_free(0))
    rig.receive(0, *map(serialized, range(6)))

    rig.process()

    assert rig.gates[0].polls == [6]
    is_little = limit_bytes > 0
    assert free == [NUM_SEGMENTS - 5 + number - is_little for number in range(6)]


def test_an_event_comes_alone_when_the_data_before_it_was_processed(rigs: Callable[..., Rig]) -> None:
    """A barrier stands for everything before it and for nothing behind it, so no later data comes with it."""
    rig = rigs(1)
    rig.make_runs()
    seen: list[object] = []
    rig.on_value = seen.append
    poll_next = rig.gates[0].poll_next

    def observed() -> BufferOrEvent | None:
        found = poll_next()
        if found is not None and found.event is not None:
            seen.append(found.event)
        return found

    rig.gates[0].poll_next = observed  # type: ignore[method-assign]  # notes it
    rig.receive(0, *map(serialized, range(3)))
    rig.receive_event(0, BARRIER)
    rig.receive(0, *map(serialized, range(3, 6)))
    end = EndOfData(StopMode.DRAIN)
    rig.receive_event(0, end)

    assert rig.process() is InputStatus.END_OF_DATA

    assert seen == [0, 1, 2, BARRIER, 3, 4, 5, end]
    assert rig.gates[0].polls == [3, BARRIER, 3, end]


def test_gates_that_all_have_data_take_turns_buffer_by_buffer(rigs: Callable[..., Rig]) -> None:
    """The one that is left alone yields runs."""
    rig = rigs(1, 1)
    rig.make_runs()
    rig.receive(0, *map(serialized, range(6)))
    rig.receive(1, serialized("x"), serialized("y"))

    rig.process()

    assert sorted(map(str, rig.values[:4])) == ["0", "1", "x", "y"]
    assert [value for value in rig.values if isinstance(value, int)] == list(range(6))
    assert max(poll for poll in rig.gates[0].polls if isinstance(poll, int)) >= 3
