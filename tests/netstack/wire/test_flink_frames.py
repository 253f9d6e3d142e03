"""Frames of Flink's own classes, byte by byte as they were sent: a gate reads them as Flink's does.

``tests/flink`` runs these classes themselves, where a JDK and Flink's jars are.
"""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from netstack import ChannelSpec, ConnectionID, NetstackConfig, RemoteProtocolError, SecurityConfig, StandaloneNetwork
from netstack.gate.single_input_gate import SingleInputGate
from netstack.wire.events import CheckpointBarrier, EndOfData, EndOfPartition, Event
from netstack.wire.message_bytes import CLIENT_MESSAGE_IDS, SERVER_MESSAGE_IDS
from netstack.wire.messages import BufferResponse, DataType, PartitionRequest
from tests.netstack.wire.flink_frames import (
    LARGE_BARRIER,
    LENGTH_4,
    LOCATION_BYTES,
    NUM_PIPELINED_RECORDS,
    NUM_SORTED_RECORDS,
    PARTIAL_BUFFERS,
    PIPELINED_END_OF_DATA,
    PIPELINED_END_OF_PARTITION,
    PIPELINED_RECORDS,
    SORTED_END_OF_DATA,
    SORTED_END_OF_PARTITION,
    SORTED_SEGMENT_BYTES,
    record,
)
from tests.netstack.wire.samples import PARTITION, FedDecoder, HeapAllocator
from tests.waiting import PATIENCE_S

RECEIVER = slice(9, 25)  # in a BufferResponse, behind length, magic number and id
CONFIG = NetstackConfig(
    segment_size_bytes=SORTED_SEGMENT_BYTES,
    network_memory_bytes=64 * SORTED_SEGMENT_BYTES,
    security=SecurityConfig.none(),
)
SORTED = [PARTIAL_BUFFERS, SORTED_END_OF_DATA, SORTED_END_OF_PARTITION]
PIPELINED = [LARGE_BARRIER, PIPELINED_RECORDS, PIPELINED_END_OF_DATA, PIPELINED_END_OF_PARTITION]


def decode(frame: bytes) -> BufferResponse:
    decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, max_frame_bytes=2048, staging_bytes=4096)
    decoder.accept(CLIENT_MESSAGE_IDS)
    [message] = decoder.feed(frame)
    assert isinstance(message, BufferResponse)
    return message


def replay(listener: socket.socket, frames: Sequence[bytes], is_over: threading.Event) -> None:
    """Run a server that answers the first request with these frames, and stays connected."""
    decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=1024, max_frame_bytes=2048, staging_bytes=4096)
    decoder.accept(SERVER_MESSAGE_IDS)
    connection, _ = listener.accept()
    with connection:
        [request] = decoder.feed(connection.recv(4096))
        assert isinstance(request, PartitionRequest)
        for frame in frames:
            connection.sendall(
                frame[: RECEIVER.start] + request.receiver + frame[RECEIVER.stop :]
                if len(frame) > RECEIVER.stop
                else frame
            )
        assert is_over.wait(PATIENCE_S)


@contextmanager
def gate_of(frames: Sequence[bytes]) -> Iterator[SingleInputGate]:
    """Open a gate whose one producer sends these frames."""
    is_over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, StandaloneNetwork(CONFIG) as network:
        listener.settimeout(PATIENCE_S)
        server = threading.Thread(target=replay, args=(listener, frames, is_over))
        server.start()
        gate = network.open_gate([ChannelSpec(PARTITION, 0, ConnectionID(*listener.getsockname()))])
        try:
            yield gate
        finally:
            is_over.set()
            gate.close()
            server.join(PATIENCE_S)


def read(frames: Sequence[bytes]) -> tuple[list[bytes], list[Event]]:
    """Return the buffers and events that the gate gives."""
    buffers, events = [], []
    with gate_of(frames) as gate:
        while (found := gate.get_next(PATIENCE_S)) is not None:
            if found.buffer is not None:
                buffers.append(bytes(found.buffer.view))
                found.buffer.recycle()
            elif found.event is not None:
                events.append(found.event)
                if isinstance(found.event, CheckpointBarrier):
                    gate.resume_consumption(found.channel_index)  # an aligned barrier blocks its channel
    return buffers, events


def test_partial_buffers_are_told_by_their_sizes_which_add_up() -> None:
    message = decode(PARTIAL_BUFFERS)

    assert message.partial_sizes == (66, 71, 72, 71, 54)
    assert message.buffer is not None
    assert message.buffer.size == sum(message.partial_sizes)
    assert (message.is_compressed, message.data_type, message.sequence_number) == (True, DataType.DATA_BUFFER, 0)


def test_partial_buffers_have_a_sequence_number_each() -> None:
    """Flink numbers the event behind five of them with 5; a gate that counts messages refuses it as out of order."""
    assert [decode(frame).sequence_number for frame in SORTED] == [0, 5, 6]

    buffers, events = read(SORTED)

    assert len(buffers) == 5
    assert b"".join(buffers) == b"".join(map(record, range(NUM_SORTED_RECORDS)))
    assert [type(event) for event in events] == [EndOfData, EndOfPartition]


def test_partial_buffers_that_do_not_add_up_are_refused() -> None:
    """The first of the five sizes is changed."""
    wrong = PARTIAL_BUFFERS.replace((66).to_bytes(4, "big"), (67).to_bytes(4, "big"), 1)

    with pytest.raises(
        RemoteProtocolError, match="the 5 partial sizes of a BufferResponse do not add up to its 334 bytes"
    ):
        read([wrong])


def test_an_event_larger_than_a_segment_is_delivered() -> None:
    """A large event needs no credit and none of the channel's segments, and later frames are read."""
    assert len(LARGE_BARRIER) > LOCATION_BYTES > SORTED_SEGMENT_BYTES

    buffers, events = read(PIPELINED)

    assert b"".join(buffers) == b"".join(map(record, range(NUM_PIPELINED_RECORDS)))
    assert [type(event) for event in events] == [CheckpointBarrier, EndOfData, EndOfPartition]
    barrier = events[0]
    assert isinstance(barrier, CheckpointBarrier)
    assert (barrier.checkpoint_id, barrier.timestamp_ms) == (7, 1234567890123)


def test_a_frame_of_length_4_is_refused_at_once() -> None:
    """The decoder does not wait for the rest of a header, which never comes: the peer stays connected."""
    with gate_of([LENGTH_4]) as gate, pytest.raises(RemoteProtocolError, match="a frame of 4 bytes, the least is 9"):
        gate.get_next(PATIENCE_S)
