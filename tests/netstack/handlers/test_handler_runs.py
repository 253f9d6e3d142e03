"""Runs between the queue of the server's readers and the client's handler, counted inside: the bytes on the wire do not
depend on them.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import Alignment, CheckpointBarrier, CheckpointOptions, EndOfData, StopMode
from netstack.wire.messages import AddCredit, BufferResponse, BufferRun
from tests.netstack.handlers.client_side import Client, run_of
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, receiver_of, request

MAX = 2**31 - 1
BIG = replace(CONFIG, max_gather_bytes=16 * SEGMENT)
UNALIGNED = CheckpointBarrier(1, 1, CheckpointOptions(alignment=Alignment.UNALIGNED))


class CountingServer(ServerSide):
    """Knows how many buffers left in runs."""

    def __init__(self, *, has_runs: bool = True) -> None:
        super().__init__(BIG)
        self.run_lengths: list[int] = []
        self._has_runs = has_runs

    def open(self, number: int = 0, *, receiver: int = 1, credit: int = 8) -> CreditBasedSequenceNumberingViewReader:
        """Return the reader of a request."""
        self.receive(request(number, receiver=receiver, credit=credit))
        reader = self.queue._readers[receiver_of(receiver)]
        poll_run = reader._poll_run
        assert poll_run is not None

        def count(max_segments: int) -> object:
            run = poll_run(max_segments)
            if run is not None:
                assert len(run.segments) <= max_segments
                self.run_lengths.append(len(run.segments))
            return run

        reader._poll_run = count if self._has_runs else None  # type: ignore[assignment]  # it only counts
        return reader


@pytest.fixture
def server() -> Iterator[CountingServer]:
    one = CountingServer()
    yield one
    one.close()


def subpartition_of(partition: ResultPartition, index: int = 0) -> PipelinedSubpartition:
    found = partition._subpartitions[index]
    assert isinstance(found, PipelinedSubpartition)
    return found


def test_a_reader_that_is_alone_sends_what_it_has_as_one_run(server: CountingServer) -> None:
    """The only reader with data sends one run as far as its credit goes; the rest follows with the next credit."""
    partition = server.partition()
    reader = server.open(credit=3)
    fill(partition, 5)

    assert server.data() == [(1, number) for number in range(3)]
    assert (server.run_lengths, reader.credit.available, reader.last_sequence_number) == ([3], 0, 2)
    server.receive(AddCredit(receiver_of(1), 4))
    assert server.data() == [(1, 3), (1, 4)]
    assert (reader.credit.available, reader.credit.spent) == (2, 5)
    reader.credit.check_invariants()


def script(server: ServerSide, partition: ResultPartition) -> None:
    """Write whole buffers, parts of them, events and flushes in between."""
    record = bytes(range(256)) * (SEGMENT // 256)
    for number in range(3):
        partition.emit_record(record * 3, 0)
        partition.emit_record(record[: 100 * number], 0)
        partition.broadcast_event(
            EndOfData(StopMode.DRAIN) if number == 2 else CheckpointBarrier(number, 1, CheckpointOptions())
        )
        if number < 2:
            server.loop.run_pending()
            subpartition_of(partition).flush()


@pytest.mark.parametrize("first", [0, MAX - 2, MAX - 5])
def test_the_wire_shows_no_difference(first: int) -> None:
    """With and without runs the bytes are equal, with wrapping numbers, backlogs, events and parts."""
    found = []
    for has_runs in (True, False):
        server = CountingServer(has_runs=has_runs)
        partition = server.partition()
        subpartition_of(partition)._sequence_number = first
        reader = server.open(credit=20)
        script(server, partition)
        messages = server.sent()
        for _ in range(2):
            reader.resume_consumption()
            server.queue.enqueue_available_reader(reader)
            messages += server.sent()
        assert bool(server.run_lengths) == has_runs
        found.append(
            [
                (*each[:7], bytes(each.buffer.view))
                for each in messages
                if isinstance(each, BufferResponse) and each.buffer
            ]
        )
        server.close()

    # A run is polled before its reader is asked again: a backlog may be larger by the segment that was not announced
    # yet.
    assert [each[:3] + each[4:] for each in found[0]] == [each[:3] + each[4:] for each in found[1]]
    assert len(found[0]) > 10


def test_one_pass_stops_at_the_batch_limit(server: CountingServer) -> None:
    """A pass sends 16 segments of bytes, and a run at most as many as fit into a gather write, rounded up."""
    partition = server.partition()
    server.open(credit=60)
    fill(partition, 40)

    assert server.data() == [(1, number) for number in range(40)]
    assert max(server.run_lengths) <= 16


# ---------------------------------------------------------------- the client


def test_a_run_for_a_channel_that_was_released_meanwhile_goes_home(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A channel that is released between decoder and handler recycles the run, whose buffers were given out already."""
    gate, [channel] = client.open_channels(1, num_exclusive=4)
    original = client.handler._on_run

    def release_first(run: BufferRun) -> None:
        channel.release()
        original(run)

    monkeypatch.setattr(client.handler, "_on_run", release_first)

    client.connection.write_inbound(run_of(1, 3))

    assert client.pool.num_available == client.pool.num_total
    gate.close()
