"""Partitions of Flink's own classes, read by our gate: what is compressed in parts, and an event larger than a segment.

Needs a JDK and Flink's jars: ``make flink-wire``.  Prints how the data came.
"""

import re
import shutil
import socket
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from netstack import (
    ChannelSpec,
    ConnectionID,
    ExecutionAttemptID,
    IntermediateResultPartitionID,
    NetstackConfig,
    ResultPartitionID,
    SecurityConfig,
    StandaloneNetwork,
)
from netstack.wire.events import CheckpointBarrier, EndOfData, EndOfPartition, Event
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
JARS = sorted(ROOT.glob(".venv-flink/lib/python3*/site-packages/pyflink/lib/*.jar"))
NUM_RECORDS = 20_000
LOCATION_BYTES = 100_000
HEADER = struct.Struct(">IIB16siiiiBBi")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not JARS or shutil.which("javac") is None, reason="needs a JDK and Flink's jars: make flink-wire"
    ),
]


def record(number: int) -> bytes:
    return b"record %08d %s\n" % (number, b"abcdefgh" * 10)


@pytest.fixture(scope="module")
def flink(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with serving(tmp_path_factory.mktemp("flink"), NUM_RECORDS, 32 * 1024) as said:
        yield said


@contextmanager
def serving(folder: Path, num_records: int, segment_bytes: int) -> Iterator[dict[str, str]]:
    """Yield the output of ``ServePartitions``: its port, and the ids of its partitions in hex."""
    path = ":".join(map(str, JARS))
    subprocess.run(
        ["javac", "-cp", path, "-d", folder, ROOT / "tests/flink/ServePartitions.java"], check=True, timeout=PATIENCE_S
    )
    main = "org.apache.flink.runtime.io.network.partition.ServePartitions"
    opens = "--add-opens=java.base/java.nio=ALL-UNNAMED"
    command = [
        "java",
        opens,
        "-cp",
        f"{folder}:{path}",
        main,
        str(folder),
        *map(str, (num_records, LOCATION_BYTES, segment_bytes)),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        said = {}
        for line in process.stdout:
            if line.strip() == "READY":
                break
            if match := re.fullmatch(r"(PORT|SORTED|PIPELINED) (\w+)\n", line):
                said[match[1]] = match[2]
        assert process.poll() is None, "ServePartitions has ended: start it by hand to see why"
        yield said
        process.stdin.close()
        process.wait(PATIENCE_S)


class Tap:
    """Passes one connection on, and keeps the bytes that the server sends."""

    def __init__(self, port: int) -> None:
        self._to = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.from_server = bytearray()

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(self._listener)
            threads: list[threading.Thread] = []
            acceptor = threading.Thread(target=self._accept, args=(stack, threads))
            acceptor.start()
            yield
            acceptor.join(PATIENCE_S)
            for thread in threads:
                thread.join(PATIENCE_S)

    def _accept(self, stack: ExitStack, threads: list[threading.Thread]) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._to)
        for each in (client, server):
            stack.enter_context(each)
        threads += [
            threading.Thread(target=_pass_on, args=args)
            for args in ((client, server, None), (server, client, self.from_server))
        ]
        for thread in threads:
            thread.start()

    def frames(self) -> Iterator[tuple[int, int, bool, int]]:
        """Yield, for each BufferResponse, its sequence number, number of parts, whether it is compressed, and its
        size.
        """
        for frame in self.raw_frames():
            _, _, kind, _, _, num_parts, number, _, _, is_compressed, size = HEADER.unpack_from(frame)
            if kind == 0:
                yield number, num_parts, bool(is_compressed), size

    def raw_frames(self) -> Iterator[bytes]:
        """Yield every frame of the server, whole."""
        position = 0
        while position < len(self.from_server):
            (length,) = struct.unpack_from(">I", self.from_server, position)
            yield bytes(self.from_server[position : position + length])
            position += length


def _pass_on(source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            if kept is not None:
                kept += data
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def read(flink: dict[str, str], name: str) -> tuple[bytes, list[Event], Tap]:
    identity = bytes.fromhex(flink[name])
    partition = ResultPartitionID(IntermediateResultPartitionID(identity[:20]), ExecutionAttemptID(identity[20:]))
    tap, data, events = Tap(int(flink["PORT"])), bytearray(), []
    with tap.running(), StandaloneNetwork(NetstackConfig(security=SecurityConfig.none())) as network:
        gate = network.open_gate([ChannelSpec(partition, 0, ConnectionID("127.0.0.1", tap.port))])
        while (found := gate.get_next(PATIENCE_S)) is not None:
            if found.buffer is not None:
                data += found.buffer.view
                found.buffer.recycle()
            elif found.event is not None:
                events.append(found.event)
                if isinstance(found.event, CheckpointBarrier):
                    gate.resume_consumption(found.channel_index)  # an aligned barrier blocks its channel
        gate.close()
    return bytes(data), events, tap


def test_a_sort_merge_partition_with_lz4_is_read(flink: dict[str, str]) -> None:
    """Small compressed buffers of a partition travel together, and each counts as one."""
    data, events, tap = read(flink, "SORTED")

    frames = list(tap.frames())
    parts = Counter(num_parts for _, num_parts, _, _ in frames)
    compressed = sum(is_compressed for _, _, is_compressed, _ in frames)
    print(
        f"{len(frames)} frames, {compressed} compressed, by number of parts: {sorted(parts.items())}, {len(data):,} "
        "bytes of records"
    )
    assert data == b"".join(map(record, range(NUM_RECORDS)))
    assert [type(event) for event in events] == [EndOfData, EndOfPartition]
    assert max(parts) > 1
    assert compressed > 0
    expected = 0
    for number, num_parts, _, _ in frames:
        assert number == expected
        expected += max(1, num_parts)


def test_a_barrier_larger_than_a_segment_is_read(flink: dict[str, str]) -> None:
    data, events, tap = read(flink, "PIPELINED")

    sizes = [size for _, _, _, size in tap.frames()]
    print(f"the largest frame has {max(sizes):,} bytes")
    assert data == b"".join(map(record, range(3)))
    assert [type(event) for event in events] == [CheckpointBarrier, EndOfData, EndOfPartition]
    barrier = events[0]
    assert isinstance(barrier, CheckpointBarrier)
    assert (barrier.checkpoint_id, barrier.timestamp_ms) == (7, 1234567890123)
    assert max(sizes) > LOCATION_BYTES
