import os
from pathlib import Path

import pytest

from flowlet.chain.record_slices import RecordSlices
from flowlet.chain.stream_operator import InputStatus
from flowlet.errors import SerdeError
from flowlet.io import input_processor
from flowlet.io.input_processor import InputProcessor
from flowlet.records import (
    ACTIVE,
    IDLE,
    MAX_WATERMARK,
    MIN_TIMESTAMP,
    Chunk,
    CompletionMark,
    InternalWatermark,
    StreamElement,
    Watermark,
)
from flowlet.serde.element_limits import DEFAULT_ELEMENT_LIMITS, MIN_SPILL_BYTES, ElementLimits
from flowlet.serde.element_serializer import ElementDeserializer
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ProducerFailedError, RemoteProtocolError
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import StopMode
from tests.flowlet.io.head import Head
from tests.flowlet.task.local_network import SEGMENT_BYTES, LocalNetwork
from tests.flowlet.task.local_tasks import serialized


def send(partition: ResultPartition, *elements: StreamElement | list[str] | list[int], subpartition: int = 0) -> None:
    for element in elements:
        partition.emit_record(serialized(Chunk(element) if isinstance(element, list) else element), subpartition)
    partition.flush_all()


class Rig:
    """An input processor over one gate per group of producers."""

    def __init__(self, network: LocalNetwork, *gate_sizes: int) -> None:
        self.head = Head()
        self.producers: list[ResultPartition] = []
        self.gates: list[SingleInputGate] = []
        for size in gate_sizes:
            producers = [network.partition() for _ in range(size)]
            self.producers += producers
            self.gates.append(network.gate(*producers))
            self.gates[-1].request_partitions()
        self.processor = InputProcessor(self.gates, self.head, "reduce (1/2)")

    def process(self, max_buffers: int = 1_000) -> InputStatus:
        return self.processor.process_input(max_buffers, lambda: False)

    def end_data(self, producer: int, mode: StopMode = StopMode.DRAIN) -> None:
        self.producers[producer].notify_end_of_data(mode)


def test_elements_reach_the_head_in_order(network: LocalNetwork) -> None:
    """Records come with and without timestamps, with watermarks and statuses between them."""
    rig = Rig(network, 1)
    elements: list[StreamElement] = [Chunk([1, 2]), Watermark(5), Chunk(["a"], [7]), IDLE, ACTIVE, Chunk([3])]

    send(rig.producers[0], *elements)

    assert rig.process() is InputStatus.NOTHING_AVAILABLE
    assert rig.head.seen == elements
    assert rig.processor.current_watermark == 5


def test_nothing_to_read_is_reported(network: LocalNetwork) -> None:
    rig = Rig(network, 1)

    assert rig.process() is InputStatus.NOTHING_AVAILABLE
    assert rig.processor.current_watermark == MIN_TIMESTAMP
    assert "data on 1 of 1 gates" in rig.processor.waiting_for


def test_a_record_over_many_buffers_arrives_once_and_whole(network: LocalNetwork) -> None:
    """Every buffer is given back."""
    rig = Rig(network, 1)
    text = "x" * (5 * SEGMENT_BYTES)

    send(rig.producers[0], [text])
    rig.process()

    assert rig.head.values == [text]


def test_parts_of_records_of_different_channels_never_mix(network: LocalNetwork) -> None:
    """The first halves of two records come, then the second halves."""
    rig = Rig(network, 2)
    frames = [serialized(Chunk([text])) for text in ("left" * 20, "right" * 20)]

    for part in (slice(0, 25), slice(25, None)):
        for producer, frame in zip(rig.producers, frames, strict=True):
            producer.emit_record(frame[part], 0)
            producer.flush_all()
        rig.process()

    assert sorted(map(str, rig.head.values)) == ["left" * 20, "right" * 20]


def test_a_call_processes_no_more_buffers_than_asked_for(network: LocalNetwork) -> None:
    rig = Rig(network, 1)
    for number in range(5):
        send(rig.producers[0], [number])

    results = []
    for number in range(5):
        send(rig.producers[0], [str(number) * SEGMENT_BYTES])
        results.append(rig.process(max_buffers=1))

    assert InputStatus.MORE_AVAILABLE in results


def test_a_call_stops_between_buffers_when_it_should(network: LocalNetwork) -> None:
    """A mail must not wait for all buffers that are there."""
    rig = Rig(network, 1)
    send(rig.producers[0], *(["x" * (SEGMENT_BYTES // 2)] for _ in range(10)))

    status = rig.processor.process_input(1_000, lambda: True)

    assert status is InputStatus.MORE_AVAILABLE
    assert len(rig.head.values) < 10
    rig.process()
    assert len(rig.head.values) == 10


class TestWatermarks:
    def test_the_smallest_watermark_of_all_channels_counts(self, network: LocalNetwork) -> None:
        """The watermark counts across two gates, whose channels are numbered densely."""
        rig = Rig(network, 2, 1)

        for producer, timestamp in enumerate((5, 3, 9)):
            send(rig.producers[producer], Watermark(timestamp))
        rig.process()
        send(rig.producers[1], Watermark(7))
        rig.process()

        assert rig.head.seen == [Watermark(3), Watermark(5)]

    def test_a_channel_that_becomes_idle_lets_the_others_go_on(self, network: LocalNetwork) -> None:
        rig = Rig(network, 2)

        send(rig.producers[0], Watermark(5))
        send(rig.producers[1], IDLE)
        rig.process()

        assert rig.head.seen == [Watermark(5)]

    def test_the_end_of_event_time_comes_once(self, network: LocalNetwork) -> None:
        """The end is not repeated if the producers sent it, and follows a status if the input was idle."""
        sent, unsent, idle = Rig(network, 1), Rig(network, 1), Rig(network, 1)
        send(sent.producers[0], MAX_WATERMARK)
        send(idle.producers[0], IDLE)

        for rig in (sent, unsent, idle):
            rig.process()
            rig.processor.advance_to_end_of_event_time()

        assert sent.head.seen == [MAX_WATERMARK]
        assert unsent.head.seen == [MAX_WATERMARK]
        assert idle.head.seen == [IDLE, ACTIVE, MAX_WATERMARK]


class TestEnd:
    def test_the_end_of_data_is_reported_once_all_channels_had_it(self, network: LocalNetwork) -> None:
        """The end of input is reported once all partitions ended."""
        rig = Rig(network, 1, 1)
        send(rig.producers[0], [1])
        rig.end_data(0)
        statuses = [rig.process()]
        rig.end_data(1)
        statuses.append(rig.process())
        statuses.append(rig.process())
        assert "the end of partition on 2 of 2 gates" in rig.processor.waiting_for
        for producer in rig.producers:
            producer.finish()
        statuses.append(rig.process())

        nothing = InputStatus.NOTHING_AVAILABLE
        assert statuses == [nothing, InputStatus.END_OF_DATA, nothing, InputStatus.END_OF_INPUT]
        assert rig.head.values == [1]
        assert rig.processor.stop_mode is StopMode.DRAIN

    def test_each_end_of_data_is_acknowledged_at_once(self, network: LocalNetwork) -> None:
        """The producer waits for it, whatever the other channels do."""
        rig = Rig(network, 2)
        rig.end_data(1)

        rig.process()

        assert rig.producers[1].all_data_processed.is_done
        assert not rig.producers[0].all_data_processed.is_done

    def test_one_channel_that_stops_without_draining_decides_for_all(self, network: LocalNetwork) -> None:
        rig = Rig(network, 2)
        rig.end_data(0, StopMode.NO_DRAIN)
        rig.end_data(1, StopMode.DRAIN)

        assert rig.process() is InputStatus.STOPPED
        assert rig.processor.stop_mode is StopMode.NO_DRAIN

    def test_a_partition_that_ends_without_an_end_of_data_is_an_error(self, network: LocalNetwork) -> None:
        """The producer of the partition did not get to the end: calling it finished would lose data in silence."""
        rig = Rig(network, 2)
        rig.producers[1].finish()

        with pytest.raises(RemoteProtocolError, match=r"reduce .* channel 1 ended without an end of data"):
            rig.process()

    def test_a_record_that_is_cut_off_is_an_error(self, network: LocalNetwork) -> None:
        rig = Rig(network, 1)
        rig.producers[0].emit_record(serialized(Chunk([1, 2, 3]))[:-1], 0)
        rig.end_data(0)

        with pytest.raises(SerdeError, match="middle"):
            rig.process()

    def test_data_after_the_end_of_data_is_an_error(self, network: LocalNetwork) -> None:
        rig = Rig(network, 1)
        rig.end_data(0)
        send(rig.producers[0], [1])

        assert rig.process() is InputStatus.END_OF_DATA
        with pytest.raises(RemoteProtocolError, match="after its end of data"):
            rig.process()


def test_a_failed_producer_surfaces(network: LocalNetwork) -> None:
    rig = Rig(network, 2)
    rig.producers[1].fail(ValueError("of the user"))

    with pytest.raises(ProducerFailedError, match="of the user"):
        rig.process()


def test_corrupt_bytes_name_the_channel(network: LocalNetwork) -> None:
    """The buffer is given back."""
    rig = Rig(network, 2)
    rig.producers[1].emit_record(b"\x00\x00\x00\x01\xee", 0)
    rig.producers[1].flush_all()

    with pytest.raises(SerdeError, match="input channel 1"):
        rig.process()


def test_gates_take_turns(network: LocalNetwork) -> None:
    """A gate that always has more does not starve the other one."""
    rig = Rig(network, 1, 1)
    for _ in range(4):
        for index, producer in enumerate(rig.producers):
            send(producer, [str(index) * (SEGMENT_BYTES - 100)])

    rig.process(max_buffers=4)

    assert {str(value)[0] for value in rig.head.values} == {"0", "1"}


class TestWatching:
    def test_data_calls_back(self, network: LocalNetwork) -> None:
        """The data may come to any gate."""
        rig = Rig(network, 1, 1)
        called: list[int] = []
        rig.process()
        rig.processor.watch(lambda: called.append(1))
        assert called == []

        send(rig.producers[1], [1])

        assert called == [1]

    def test_data_that_is_there_already_calls_back_at_once_and_every_time(self, network: LocalNetwork) -> None:
        """Level triggered: data between the look and the watch calls back, and each ``watch`` does, although one
        future, which is done, serves all of them.
        """
        rig = Rig(network, 1)
        rig.process()
        send(rig.producers[0], [1])
        called: list[int] = []

        for _ in range(3):
            rig.processor.watch(lambda: called.append(1))

        assert called == [1, 1, 1]

    def test_a_quiet_gate_collects_no_callbacks(self, network: LocalNetwork) -> None:
        """A hundred waits that the other gate ended: the quiet one calls back once."""
        rig = Rig(network, 1, 1)
        num_called = 0

        def count() -> None:
            nonlocal num_called
            num_called += 1

        for _ in range(100):
            rig.process()
            rig.processor.watch(count)
            send(rig.producers[0], [1])
        rig.process()
        rig.processor.watch(count)
        before = num_called
        send(rig.producers[1], [1])

        assert num_called == before + 1

    def test_a_finished_gate_is_not_watched(self, network: LocalNetwork) -> None:
        """The future of a finished gate is done for ever: watching it would never let the task sleep."""
        rig = Rig(network, 1, 1)
        rig.end_data(0)
        rig.producers[0].finish()
        rig.process()
        called: list[int] = []

        rig.processor.watch(lambda: called.append(1))

        assert called == []


def test_a_watermark_of_one_of_several_subpartitions_is_refused(network: LocalNetwork) -> None:
    """A channel reads one: the valve would take it for the channel's."""
    rig = Rig(network, 1)

    send(rig.producers[0], InternalWatermark(5, subpartition=1))

    with pytest.raises(
        SerdeError, match=r"sent InternalWatermark\(timestamp=5, subpartition=1\), but it reads only one"
    ):
        rig.process()


def test_what_was_read_and_not_processed_is_in_flight(network: LocalNetwork) -> None:
    """Records that wait for their turn, then the beginning of the one that is not complete; of each channel its own,
    gate by gate.
    """
    rig = Rig(network, 1, 1)
    processor = InputProcessor(rig.gates, rig.head, "slow (1/1)", slices=RecordSlices[int](lambda: 0))
    large = "x" * 2 * SEGMENT_BYTES
    send(rig.producers[1], ["a", "b", "c"])
    rig.producers[1].emit_record(serialized(Chunk([large]))[:100], 0)
    rig.producers[1].flush_all()

    assert processor.process_input(1, lambda: True) is InputStatus.MORE_AVAILABLE

    in_flight = b"".join(processor.in_flight(1, 0)) + serialized(Chunk([large]))[100:]
    elements = ElementDeserializer().feed(memoryview(in_flight))
    assert rig.head.values == ["a"]
    values = [value for element in elements if isinstance(element, Chunk) for value in element.values]
    assert values == ["b", "c", large]
    assert list(processor.in_flight(0, 0)) == []


@pytest.mark.parametrize(("num_records", "is_given_back_before"), [(1, False), (300, True)])
def test_a_little_buffer_is_given_back_after_its_records_and_a_larger_one_before(
    network: LocalNetwork, monkeypatch: pytest.MonkeyPatch, num_records: int, *, is_given_back_before: bool
) -> None:
    """Credit for much shall be on its way while the chain works; for a record that comes alone it is not worth waking
    the loop first.
    """
    monkeypatch.setattr(input_processor, "_LITTLE_BYTES", 100)
    rig = Rig(network, 1)
    polled: list[NetworkBuffer] = []
    holders: list[int] = []
    poll_next = rig.gates[0].poll_next

    def poll() -> BufferOrEvent | None:
        found = poll_next()
        if found is not None and found.buffer is not None:
            polled.append(found.buffer)
        return found

    monkeypatch.setattr(rig.gates[0], "poll_next", poll)
    monkeypatch.setattr(rig.head, "process_chunk", lambda _chunk: holders.append(polled[0].lease.count))
    send(rig.producers[0], list(range(num_records)))

    rig.process()

    assert (holders[0] == polled[0].lease.count) is is_given_back_before


def test_a_little_buffer_is_given_back_also_when_its_records_fail(network: LocalNetwork) -> None:
    """A buffer is recycled although a user's function failed; the network checks this at its end."""
    rig = Rig(network, 1)

    def fail(chunk: Chunk) -> None:
        raise ValueError("of a user's function")

    rig.head.process_chunk = fail  # type: ignore[method-assign]  # the user's function
    send(rig.producers[0], [1])

    with pytest.raises(ValueError, match="of a user's function"):
        rig.process()


def test_the_deserializer_of_a_channel_goes_with_its_data(network: LocalNetwork) -> None:
    """StreamTaskNetworkInputTest, testReleasingDeserializerTimely: not when the task ends, and not those of the other
    channels.
    """
    rig = Rig(network, 3)
    rig.process()
    alive = []

    for producer in range(3):
        rig.end_data(producer)
        rig.process()
        alive.append([each is not None for each in rig.processor._deserializers])

    assert alive == [[False, True, True], [False, False, True], [False, False, False]]


def test_marks_and_ends_of_data_are_reported_by_channel(network: LocalNetwork) -> None:
    """Channels are counted across the gates of a union; a mark is reported behind the records before it, and is nothing
    to the head.
    """
    rig = Rig(network, 1, 2)
    reported: list[tuple[int, CompletionMark | None, int]] = []
    processor = InputProcessor(
        rig.gates,
        rig.head,
        "reduce (1/2)",
        on_mark=lambda channel, mark: reported.append((channel, mark, len(rig.head.values))),
    )

    send(rig.producers[2], [1, 2], CompletionMark(3))
    processor.process_input(1_000, lambda: False)
    rig.end_data(0)
    processor.process_input(1_000, lambda: False)

    assert reported == [(2, CompletionMark(3), 2), (0, None, 2)]
    assert rig.head.seen == [Chunk([1, 2])]


def late_rig(
    network: LocalNetwork, limits: ElementLimits = DEFAULT_ELEMENT_LIMITS
) -> tuple[InputProcessor, ResultPartition]:
    """Return a processor whose producer has ended its data, and may still send records."""
    rig = Rig(network, 1)
    processor = InputProcessor(rig.gates, rig.head, "sink (1/1)", takes_late_data=True, limits=limits)
    rig.end_data(0)
    assert processor.process_input(10, lambda: False) is InputStatus.END_OF_DATA
    return processor, rig.producers[0]


def test_the_beginning_of_a_late_record_is_in_flight(network: LocalNetwork) -> None:
    """A checkpoint that leaves it out loses a record of a sink's last commit."""
    processor, producer = late_rig(network)
    frame = serialized(Chunk(["late" * 20]))

    producer.emit_record(frame[:30], 0)
    producer.flush_all()
    processor.process_input(10, lambda: False)

    elements = ElementDeserializer().feed(memoryview(b"".join(processor.in_flight(0, 0)) + frame[30:]))
    assert elements == [Chunk(["late" * 20])]


def test_the_file_of_a_late_record_goes_at_the_end(network: LocalNetwork, tmp_path: Path) -> None:
    limits = ElementLimits(spill_above_bytes=MIN_SPILL_BYTES, spill_directory=str(tmp_path))
    processor, producer = late_rig(network, limits)
    frame = serialized(Chunk(["x" * (2 * MIN_SPILL_BYTES)]))

    for start in range(0, len(frame) - SEGMENT_BYTES, SEGMENT_BYTES):
        producer.emit_record(frame[start : start + SEGMENT_BYTES], 0)
        producer.flush_all()
        processor.process_input(10, lambda: False)
    open_before = files_open_in(tmp_path)
    processor.close()

    assert (open_before, files_open_in(tmp_path)) == (1, 0)


def files_open_in(folder: Path) -> int:
    return sum(
        os.readlink(entry).startswith(str(folder)) for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()
    )
