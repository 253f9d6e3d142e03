"""A notifying thread sends small data by itself; the loop sends everything else, and all data stays in order."""

import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest

from netstack.config import NetstackConfig
from netstack.handlers.view_reader import CreditBasedSequenceNumberingViewReader
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_subpartition import BufferAndBacklog, ResultSubpartitionView
from netstack.testing.embedded_channel import EmbeddedChannel
from netstack.wire.events import CheckpointBarrier, CheckpointOptions
from netstack.wire.frame_decoder import FrameSeal
from netstack.wire.message_bytes import CLIENT_MESSAGE_IDS
from netstack.wire.messages import AddCredit, BufferResponse, CancelPartitionRequest, DataType, ResumeConsumption
from tests.netstack.handlers.server_side import CONFIG, SEGMENT, ServerSide, fill, receiver_of, request
from tests.netstack.present import present
from tests.netstack.wire.samples import FedDecoder, HeapAllocator
from tests.waiting import PATIENCE_S


def nothing() -> None:
    """Do nothing: a hook, until a test sets it."""


class Turn:
    """The turn of a channel, with hooks: before a thread waits for it, and when an attempt got it."""

    def __init__(self, lock: "threading.RLock") -> None:
        self.on_wait: Callable[[], object] = nothing
        self.on_success: Callable[[], object] = nothing
        self._lock = lock

    def acquire(self, *, blocking: bool = True) -> bool:
        is_taken = self._lock.acquire(blocking=blocking)
        if is_taken and not blocking:
            self.on_success()
        return is_taken

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.on_wait()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class WatchedChannel(EmbeddedChannel):
    """A channel whose turn has hooks."""

    @property  # type: ignore[override]  # a double
    def turn(self) -> Turn:
        return self._watched

    @turn.setter
    def turn(self, lock: "threading.RLock") -> None:
        self._watched = Turn(lock)


class DirectSocket:
    """A socket for frames, with a hook before each one."""

    def __init__(self, sock: socket.socket) -> None:
        self.on_send: Callable[[], object] = nothing
        self._sock = sock

    def send(self, data: bytes, flags: int, /) -> int:
        self.on_send()
        return self._sock.send(data, flags)

    def close(self) -> None:
        self._sock.close()


class DirectServer(ServerSide):
    """A server whose connection has a socket past the loop: a test sees which side sent a response."""

    def __init__(self, config: NetstackConfig = CONFIG) -> None:
        super().__init__(config, WatchedChannel)
        assert isinstance(self.channel, WatchedChannel)
        self.turn = self.channel.turn
        self._partitions: list[ResultPartition] = []
        sock, self._peer = socket.socketpair()
        sock.setblocking(False)
        self._peer.setblocking(False)
        self.socket = DirectSocket(sock)
        self.channel.open_direct(self.socket)
        self._direct_decoder = FedDecoder(HeapAllocator(), max_data_frame_bytes=4 * config.segment_size_bytes)

    def seal(self, key: bytes) -> None:
        """Expect that all later frames bear the seals of one count, however they are sent."""
        self.channel.seal = FrameSeal(key, "test")
        self._decoder = self._direct_decoder
        self._decoder.accept(CLIENT_MESSAGE_IDS, FrameSeal(key, "server"))

    def sent_directly(self) -> list[BufferResponse]:
        """Return the responses that were sent without the loop."""
        try:
            data = self._peer.recv(1 << 20)
        except BlockingIOError:
            return []
        return [each for each in self._direct_decoder.feed(data) if isinstance(each, BufferResponse)]

    def partition(self, number: int = 0, num_subpartitions: int = 1) -> ResultPartition:
        partition = super().partition(number, num_subpartitions)
        self._partitions.append(partition)
        return partition

    def end(self) -> None:
        for partition in self._partitions:
            partition.close()
        self.close()
        self._peer.close()


@pytest.fixture
def server() -> Iterator[DirectServer]:
    server = DirectServer()
    yield server
    server.end()


def on_task_thread(call: Callable[[], object]) -> None:
    """Do it on a thread that is not the loop's; it has ended when this returns."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001 - raised by the caller
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def emit(partition: ResultPartition, record: bytes, subpartition: int = 0) -> None:
    """Emit and flush, as a task with a buffer timeout of 0 does."""

    def write() -> None:
        partition.emit_record(record, subpartition)
        partition.flush(subpartition)

    on_task_thread(write)


def contents(responses: list[BufferResponse]) -> list[tuple[int, bytes]]:
    return [(each.sequence_number, bytes(each.buffer.view)) for each in responses if each.buffer is not None]


def test_both_ways_past_and_by_the_loop_count_the_frames_together(server: DirectServer) -> None:
    """A seal that was counted twice, or not, would not fit."""
    server.seal(bytes(32))
    partition = server.partition()
    server.receive(request(credit=20))

    numbers: list[int] = []
    for _ in range(3):
        emit(partition, b"little")
        (little,) = server.sent_directly()
        fill(partition, 2)
        numbers += [little.sequence_number, *[number for _, number in server.data()]]

    assert numbers == list(range(len(numbers)))
    assert len(numbers) > 6


def test_a_little_is_sent_by_the_thread_that_flushes(server: DirectServer) -> None:
    """The loop is not even woken; the credit is spent, and the buffer is given back."""
    partition = server.partition()
    server.receive(request(credit=2))
    num_wakeups = server.loop.statistics().num_wakeups

    emit(partition, b"one")
    emit(partition, b"two")

    assert contents(server.sent_directly()) == [(0, b"one"), (1, b"two")]
    assert server.loop.statistics().num_wakeups == num_wakeups
    reader = present(server.queue.reader(receiver_of(1)))
    assert (reader.credit.available, reader.last_sequence_number) == (0, 1)
    assert server.sent() == []


def test_without_credit_the_loop_sends_when_some_comes(server: DirectServer) -> None:
    """The loop's numbers go on where the direct ones ended."""
    partition = server.partition()
    server.receive(request(credit=1))
    emit(partition, b"one")
    emit(partition, b"two")

    assert contents(server.sent_directly()) == [(0, b"one")]
    server.receive(AddCredit(receiver_of(1), 2))

    assert server.data() == [(1, 1)]
    emit(partition, b"three")
    assert contents(server.sent_directly()) == [(2, b"three")]


def test_what_is_not_little_is_the_loops() -> None:
    """The loop sends more than 4096 bytes, since it can write them together with others."""
    server = DirectServer(replace(CONFIG, segment_size_bytes=16 * SEGMENT, network_memory_bytes=512 * SEGMENT))
    partition = server.partition()
    server.receive(request(credit=9))

    emit(partition, bytes(4097))
    assert server.sent_directly() == []
    assert server.data() == [(1, 0)]

    emit(partition, bytes(4096))
    assert len(server.sent_directly()) == 1
    server.end()


def test_several_buffers_are_the_loops(server: DirectServer) -> None:
    partition = server.partition()
    server.receive(request(credit=9))

    emit(partition, bytes(SEGMENT + 1))

    assert server.sent_directly() == []
    assert [number for _, number in server.data()] == [0, 1]


def test_an_event_is_the_loops_and_what_follows_a_blocking_one_waits(server: DirectServer) -> None:
    partition = server.partition()
    server.receive(request(credit=9))
    barrier = CheckpointBarrier(1, 1, CheckpointOptions())

    on_task_thread(lambda: partition.broadcast_event(barrier))
    [sent] = server.sent()
    emit(partition, b"behind")

    assert isinstance(sent, BufferResponse)
    assert sent.data_type is DataType.ALIGNED_CHECKPOINT_BARRIER
    assert server.sent_directly() == server.sent() == []
    server.receive(ResumeConsumption(receiver_of(1)))
    assert server.data() == [(1, 1)]


def test_nobody_overtakes_a_reader_that_is_ready(server: DirectServer) -> None:
    """The loop has been told of one subpartition and did not write yet; the other one waits for its turn."""
    partition = server.partition(num_subpartitions=2)
    server.receive(request(receiver=1, credit=9))
    server.receive(request(receiver=2, subpartition=1, credit=9))
    server.queue.start_read()  # of several messages, after which everything is written
    fill(partition, 1)
    server.loop.run_pending()

    emit(partition, b"second", 1)
    assert server.sent_directly() == []

    server.loop.run_pending()
    server.channel.pipeline.head.fire_channel_read_complete()
    assert server.data() == [(1, 0), (2, 0)]


def test_nobody_overtakes_bytes_that_the_socket_did_not_take(server: DirectServer) -> None:
    partition = server.partition()
    server.receive(request(credit=9))
    fill(partition, 1)
    server.loop.run_pending()
    assert server.channel.pending_bytes, "the pretended kernel takes nothing yet"

    emit(partition, b"later")

    assert server.sent_directly() == []
    assert server.data() == [(1, 0), (1, 1)]


def test_the_loop_sends_what_a_thread_could_not_because_the_loop_was_writing(server: DirectServer) -> None:
    """The loop looks for such data after it has given the turn back."""
    partition = server.partition()
    server.receive(request(credit=9))

    with server.turn:
        emit(partition, b"one")
        assert server.sent_directly() == []

    assert server.data() == [(1, 0)]


def test_the_loops_own_thread_goes_the_usual_way(server: DirectServer) -> None:
    """The loop's own thread never sends directly: a flusher's timer or a task may run inside one of its writes."""
    partition = server.partition()
    server.receive(request(credit=9))

    partition.emit_record(b"one", 0)
    partition.flush(0)

    assert server.sent_directly() == []
    assert server.data() == [(1, 0)]


class WatchedView:
    """A view of a partition, with a hook before a little is polled."""

    def __init__(self, view: ResultSubpartitionView) -> None:
        self.on_poll_little: Callable[[], object] = nothing
        self._view = view

    def poll_little(self, max_bytes: int) -> BufferAndBacklog | None:
        self.on_poll_little()
        return self._view.poll_little(max_bytes)

    def __getattr__(self, name: str) -> object:
        return getattr(self._view, name)


def watched(
    server: DirectServer, partition: ResultPartition, *, credit: int, before_set: Callable[[], object] = nothing
) -> tuple[CreditBasedSequenceNumberingViewReader, WatchedView]:
    """Return a reader of ``partition``, made as for a request, and its view."""
    reader = CreditBasedSequenceNumberingViewReader(request(credit=credit), server.queue)
    server.queue.add_reader(reader)
    view = WatchedView(partition.create_subpartition_view(0, reader))
    before_set()
    reader.set_view(view)  # type: ignore[arg-type]  # a double
    return reader, view


def test_a_producer_may_flush_while_the_loop_opens_its_view(server: DirectServer) -> None:
    """The view tells the reader from its first moment on; a reader that cannot poll yet leaves it to the loop."""
    partition = server.partition()

    reader, _ = watched(server, partition, credit=9, before_set=lambda: emit(partition, b"one"))
    reader.notify_data_available()

    assert server.sent_directly() == []
    assert server.data() == [(1, 0)]


def test_a_signal_in_the_users_thread_leaves_the_turn_free(server: DirectServer) -> None:
    """Ctrl-C while the main thread writes: the loop, which serves all the others, does not wait for ever."""
    partition = server.partition()
    server.receive(request(credit=9))
    server.turn.on_success = partial(signal.raise_signal, signal.SIGINT)

    partition.emit_record(b"one", 0)
    with contextlib.suppress(KeyboardInterrupt):
        partition.flush(0)

    server.turn.on_success = nothing  # one signal is enough
    on_task_thread(partial(assert_is_free, server.turn))
    assert server.data() == [(1, 0)]


def assert_is_free(turn: Turn) -> None:
    """Assert that the turn is free; the calling thread must be another one than the one that may have it."""
    assert turn.acquire(blocking=False), "the main thread still has it"
    turn.release()


def test_nothing_is_sent_to_a_receiver_that_cancelled(server: DirectServer) -> None:
    partition = server.partition()
    server.receive(request(credit=9))
    server.receive(CancelPartitionRequest(receiver_of(1)))

    emit(partition, b"one")

    assert server.sent_directly() == server.sent() == []


def test_a_failed_producer_is_told_by_the_loop(server: DirectServer) -> None:
    partition = server.partition()
    server.receive(request(credit=9))
    emit(partition, b"one")

    on_task_thread(lambda: partition.fail(ValueError("no more")))

    assert contents(server.sent_directly()) == [(0, b"one")]
    assert [type(each).__name__ for each in server.sent()] == ["ErrorResponse"]


def test_a_release_waits_for_a_buffer_that_is_being_sent(server: DirectServer) -> None:
    """The loop hears the cancellation while a thread has polled and not written yet: it goes on after the thread."""
    partition = server.partition()
    server.receive(request(credit=9))
    reader = present(server.queue.reader(receiver_of(1)))
    has_polled, may_write = threading.Event(), threading.Event()

    def wait() -> None:
        has_polled.set()
        assert may_write.wait(PATIENCE_S)
        assert not reader.is_released, "its view is released under the turn"

    server.socket.on_send = wait

    def write_one() -> None:
        partition.emit_record(b"one", 0)
        partition.flush(0)

    task = threading.Thread(target=write_one)
    task.start()
    assert has_polled.wait(PATIENCE_S)
    server.turn.on_wait = may_write.set
    server.receive(CancelPartitionRequest(receiver_of(1)))
    task.join()

    assert reader.is_released
    assert contents(server.sent_directly()) == [(0, b"one")]


def test_the_last_credit_is_spent_once(server: DirectServer) -> None:
    """Credit that the loop finds while a thread is about to send with it is spent once."""
    partition = server.partition()
    reader, view = watched(server, partition, credit=1)
    has_looked, may_go_on = threading.Event(), threading.Event()

    def wait() -> None:
        has_looked.set()
        assert may_go_on.wait(PATIENCE_S)

    view.on_poll_little = wait
    partition.emit_record(b"one", 0)
    task = threading.Thread(target=partition.flush, args=(0,))
    task.start()
    assert has_looked.wait(PATIENCE_S)
    server.turn.on_wait = may_go_on.set
    server.queue.start_read()  # of several messages, after which everything is written
    reader.notify_data_available()  # by the loop's thread, which may not send it past itself
    server.loop.run_pending()
    may_go_on.set()
    task.join()
    view.on_poll_little = nothing
    partition.emit_record(b"two", 0)
    partition.flush(0)
    server.loop.run_pending()
    server.channel.pipeline.head.fire_channel_read_complete()

    assert contents(server.sent_directly()) == [(0, b"one")]
    assert server.sent() == []
    server.receive(AddCredit(receiver_of(1), 1))
    assert server.data() == [(1, 1)]
