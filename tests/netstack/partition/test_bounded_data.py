"""``BoundedBlockingSubpartition``: every reader gets exactly the data that was written."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.network_buffer import NetworkBuffer
from netstack.errors import ResourceBrokenError
from netstack.partition.bounded_blocking_result_partition import (
    NUM_READ_BUFFERS,
    BoundedBlockingSubpartition,
    BoundedBlockingSubpartitionReader,
    BoundedDataFile,
)
from netstack.wire.messages import DataType
from tests.netstack.partition.doubles import RecordingListener, RecordingParent
from tests.netstack.present import present

Written = tuple[DataType, bool, bytes]
SOME: list[Written] = [
    (DataType.DATA_BUFFER, False, b"first"),
    (DataType.EVENT_BUFFER, False, b"event"),
    (DataType.DATA_BUFFER, True, b"compressed"),
    (DataType.DATA_BUFFER, False, b""),
    (DataType.END_OF_PARTITION, False, b"\0\0\0\0"),
]


def reader_of(
    data: BoundedBlockingSubpartition, listener: RecordingListener | None = None
) -> BoundedBlockingSubpartitionReader:
    return BoundedBlockingSubpartitionReader(data, listener or RecordingListener())


def store(directory: Path) -> BoundedBlockingSubpartition:
    """Open data in a file of its own."""
    return BoundedBlockingSubpartition(0, RecordingParent(), BoundedDataFile(directory))


def write(data: BoundedBlockingSubpartition, buffers: Sequence[Written]) -> None:
    for data_type, is_compressed, content in buffers:
        data.write(NetworkBuffer.unpooled(content, data_type, is_compressed=is_compressed))


def read(reader: BoundedBlockingSubpartitionReader) -> list[Written]:
    found = []
    while (each := reader.next_buffer()) is not None:
        buffer = each.buffer
        found.append((buffer.data_type, buffer.is_compressed, bytes(buffer.view)))
        buffer.recycle()
    return found


def test_write_and_read(tmp_path: Path) -> None:
    """BoundedDataTestBase.testWriteAndReadData: readers do not move each other; the file has no name."""
    data = store(tmp_path)
    write(data, SOME)
    outer = reader_of(data)
    present(outer.next_buffer()).buffer.recycle()

    assert read(reader_of(data)) == SOME
    assert read(outer) == SOME[1:]
    data.release()
    assert list(tmp_path.iterdir()) == []


@given(contents=st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_any_sizes_come_back(contents: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> None:
    """BoundedDataTestBase.testWriteAndReadDataAcrossRegions: buffers of any sizes are read as they were written."""
    data = store(tmp_path_factory.mktemp("bounded"))
    buffers = [(DataType.DATA_BUFFER, False, content) for content in contents]
    write(data, buffers)

    assert read(reader_of(data)) == buffers
    data.release()


@pytest.mark.parametrize("region_bytes", [30, 1000])
def test_stores_share_a_file_in_regions(region_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Written in turns; a buffer larger than a region has one for itself."""
    monkeypatch.setattr("netstack.partition.bounded_blocking_result_partition.REGION_BYTES", region_bytes)
    file = BoundedDataFile(tmp_path, 3)
    stores = [BoundedBlockingSubpartition(0, RecordingParent(), file) for _ in range(3)]
    expected: list[list[Written]] = [[], [], []]
    for number in range(40):
        index = number * number % 3
        expected[index].append((DataType.DATA_BUFFER, False, bytes([number]) * number))
        write(stores[index], expected[index][-1:])
    for index in range(3):
        expected[index].append((DataType.END_OF_PARTITION, False, b"\0\0\0\0"))
        write(stores[index], expected[index][-1:])

    found = [read(reader_of(each)) for each in stores]
    for each in stores:
        each.release()

    assert found == expected


def test_buffers_outlive_reader_and_data(tmp_path: Path) -> None:
    """A buffer on its way to the network stays readable when the partition is gone."""
    data = store(tmp_path)
    write(data, SOME)
    reader = reader_of(data)
    found = present(reader.next_buffer())

    reader.release()
    data.release()

    assert (bytes(found.buffer.view), reader.next_buffer()) == (b"first", None)
    found.buffer.recycle()


def test_a_file_reader_waits_for_its_buffers(tmp_path: Path) -> None:
    """TestReadNextBuffer / testRecycleBufferForNotifyingSubpartitionView: told when one comes home, once."""
    data, listener = store(tmp_path), RecordingListener()
    write(data, SOME)
    reader = reader_of(data, listener)
    taken = [reader.next_buffer() for _ in range(NUM_READ_BUFFERS)]
    states = [reader.availability(True)[0], reader.next_buffer() is None]

    for each in taken:
        assert each is not None
        each.buffer.recycle()

    assert (states, listener.count, reader.availability(True)[0]) == ([False, True], 1, True)
    assert read(reader) == SOME[2:]
    data.release()


def test_writes_in_pieces_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system that takes less than it was given gets the rest."""
    data, whole = store(tmp_path), os.pwritev

    def write_three(fd: int, parts: Sequence[bytes | memoryview], position: int) -> int:
        return whole(fd, [b"".join(parts)[:3]], position)

    monkeypatch.setattr("netstack.partition.bounded_blocking_result_partition.os.pwritev", write_three)
    write(data, SOME)
    monkeypatch.undo()

    assert read(reader_of(data)) == SOME
    data.release()


def fail(*_: object) -> int:
    raise OSError("no space left on device")


def test_errors_name_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system's trouble is not ours: ResourceBrokenError with the path."""
    data = store(tmp_path)
    monkeypatch.setattr("netstack.partition.bounded_blocking_result_partition.os.pwritev", fail)

    with pytest.raises(ResourceBrokenError, match=rf"{tmp_path}.*no space left"):
        write(data, SOME)
    with pytest.raises(ResourceBrokenError, match="No such file"):
        store(tmp_path / "nowhere")
    data.release()


def test_a_cut_file_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No reader takes half a buffer for a whole one; its read buffer is not lost."""
    data = store(tmp_path)
    write(data, SOME)
    whole, end = os.preadv, sum(len(content) for *_, content in SOME) - 1

    def read_to_the_cut(fd: int, parts: list[memoryview | bytearray], position: int) -> int:
        return min(whole(fd, parts, position), max(0, end - position))

    monkeypatch.setattr("netstack.partition.bounded_blocking_result_partition.os.preadv", read_to_the_cut)
    reader = reader_of(data)

    for _ in range(NUM_READ_BUFFERS + 1):
        with pytest.raises(ResourceBrokenError, match="ends in the middle of a buffer"):
            read(reader)
    data.release()
