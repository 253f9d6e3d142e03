"""The engine in 300 lines that teach: two tasks, a mailbox each, credits over TCP, and a barrier that cuts.

Run it: ``python examples/mini_flowlet.py``.  Then read it from the top; each class names the part of flowlet that does
this for real programs.

    source task              the loop's thread                        count task
    -----------              -----------------                        ----------
    reads words    add ->    Sender ==== buffers, barriers ===> Receiver    -> mails    counts words
    waits for      <- mail          <=========== credits =======            <- recycle  gives a credit back
    free buffers                                                                        for each buffer

Three rules make it an engine:

1. Each piece of state has one owner.  A task's thread owns what the task knows, the loop's thread owns the sockets and
   the queues.  There are no locks: a thread that wants something of another one leaves a message there, a *mail* for a
   task, a callback for the loop.
2. A buffer is sent only if the receiver has announced room for it, with *credits*.  A slow receiver gives none, the
   sender's queue fills up, the source finds no free buffer and waits: that is backpressure, without a message of its
   own.
3. A *barrier* travels in the stream, after the records that were sent before it and ahead of the later ones.  The
   states that both tasks keep at the barrier belong together: a restart from there counts each word once.
"""

import asyncio
import json
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

BUFFER_RECORDS = 10  # of one buffer; flowlet fills buffers of 32 KiB
NUM_BUFFERS = 4  # that the source may have filled and not sent; flowlet: ``LocalBufferPool``
INITIAL_CREDIT = (
    2  # buffers that the receiver has of its own; flowlet: ``taskmanager.network.memory.buffers-per-channel``
)

Mail = Callable[[], None]


class KilledError(Exception):
    """Ends a task that is killed, between two buffers."""


# -- 1. A task: a thread, a mailbox, and a default action


class Mailbox:
    """Messages to a task: any thread puts them, the task's thread runs them (flowlet: ``mailbox/``)."""

    def __init__(self) -> None:
        self._mails: deque[Mail] = deque()  # appends and pops of a deque are safe between threads
        self._has_mail = threading.Event()

    def put(self, mail: Mail) -> None:
        """Leave a message for the task."""
        self._mails.append(mail)
        self._has_mail.set()

    def run_mails(self, *, waits: bool) -> None:
        """Run the mails that are there; if there are none and ``waits``, sleep until one comes."""
        if waits:
            self._has_mail.wait()
        # Cleared before the look: a mail that comes after the look sets the event again, and none is slept over.
        self._has_mail.clear()
        while self._mails:
            self._mails.popleft()()


class Task(threading.Thread):
    """Calls its default action again and again, and runs its mails in between (flowlet: ``MailboxProcessor``).

    All code that touches the task's state is one of the two, so that no record sees half of a checkpoint.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.mailbox = Mailbox()
        self.can_process = True  # whether the default action has something to do; mails set it again
        self.is_finished = False
        self.error: Exception | None = None

    def run(self) -> None:
        """Run the mailbox loop: mails first, then one buffer."""
        try:
            while not self.is_finished:
                self.mailbox.run_mails(waits=not self.can_process)
                if self.can_process and not self.is_finished:
                    self.process()
        except Exception as error:  # noqa: BLE001 - whoever joins the task looks at it
            self.error = error

    def process(self) -> None:
        """Process one buffer of records: the default action."""
        raise NotImplementedError

    def kill(self) -> None:
        """End the task between two buffers; its state is lost."""
        self.mailbox.put(self._die)

    def _die(self) -> None:
        raise KilledError(self.name)


# -- 2. The wire: frames of a kind, a length, and content

RECORDS, BARRIER, END, CREDIT = range(4)
_HEAD = struct.Struct("!BI")


def frame(kind: int, content: bytes = b"") -> bytes:
    """Return the bytes of a message (flowlet: ``netstack/wire``, where they are Flink's)."""
    return _HEAD.pack(kind, len(content)) + content


class Connection(asyncio.Protocol):
    """One end of the connection: takes frames out of the bytes that arrive; the loop's thread."""

    def __init__(self) -> None:
        self._received = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; asyncio calls this when there is a connection."""
        assert isinstance(transport, asyncio.Transport), "a stream"
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Cut the bytes into frames; asyncio calls this with whatever arrived: a piece of a frame, or several at
        once.
        """
        self._received += data
        while len(self._received) >= _HEAD.size:
            kind, size = _HEAD.unpack_from(self._received)
            end = _HEAD.size + size
            if len(self._received) < end:
                return
            content, self._received = self._received[_HEAD.size : end], self._received[end:]
            self.on_frame(kind, content)

    def on_frame(self, kind: int, content: bytes) -> None:
        """Handle one message of the other end."""
        raise NotImplementedError


# -- 3. Credits


class Sender(Connection):
    """The source's end: sends a buffer for each credit (flowlet: ``PartitionRequestQueue``); the loop's thread.

    Args:
        source: gets a mail for each buffer that is free again.
    """

    def __init__(self, source: "SourceTask") -> None:
        super().__init__()
        self._source = source
        self._queue: deque[tuple[int, bytes]] = deque()
        self.credit = 0
        self.is_held = threading.Event()  # all buffers are full, and there is no credit to send one

    def add(self, kind: int, content: bytes) -> None:
        """Queue a buffer or an event at the end."""
        self._queue.append((kind, content))
        self._send()

    def on_frame(self, kind: int, content: bytes) -> None:
        """Take credits: the receiver has room for more buffers."""
        assert kind == CREDIT, f"a receiver sends credits, not {kind}"
        (num_credits,) = struct.unpack("!I", content)
        self.credit += num_credits
        self._send()

    def _send(self) -> None:
        # A barrier takes no buffer of the receiver's, and so needs no credit; it keeps its place in the queue.
        while self.transport is not None and self._queue and (self.credit or self._queue[0][0] != RECORDS):
            kind, content = self._queue.popleft()
            self.transport.write(frame(kind, content))
            if kind == RECORDS:
                self.credit -= 1
                self._source.mailbox.put(self._source.buffer_is_free)
        num_full = sum(kind == RECORDS for kind, _ in self._queue)
        (self.is_held.set if num_full == NUM_BUFFERS else self.is_held.clear)()


class Receiver(Connection):
    """The counting task's end: turns frames into mails of the task (flowlet: ``RemoteInputChannel``); the loop's
    thread.
    """

    def __init__(self, counter: "CountTask") -> None:
        super().__init__()
        self._counter = counter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the stream by announcing room for its first buffers."""
        super().connection_made(transport)
        self.add_credit(INITIAL_CREDIT)

    def on_frame(self, kind: int, content: bytes) -> None:
        """Hand over a buffer or an event, in the order in which the source made them."""
        self._counter.mailbox.put(lambda: self._counter.receive(kind, content))

    def add_credit(self, num_credits: int) -> None:
        """Tell the sender that ``num_credits`` buffers are free again."""
        assert self.transport is not None, "before the first buffer the connection is made"
        self.transport.write(frame(CREDIT, struct.pack("!I", num_credits)))


# -- 4. Checkpoints


@dataclass
class Checkpoint:
    """The states that both tasks kept at one barrier: a cut through the stream."""

    checkpoint_id: int
    position: int | None = None  # the words before the barrier
    counts: dict[str, int] | None = None  # of exactly these words


@dataclass
class Coordinator:
    """Puts the parts of checkpoints together (flowlet: ``CheckpointCoordinator``); the loop's thread.

    A checkpoint counts when all parts are there.  Until then a restart goes back to the previous one.
    """

    completed: Checkpoint = field(default_factory=lambda: Checkpoint(0, 0, {}))
    pending: dict[int, tuple[Checkpoint, "Future[Checkpoint]"]] = field(default_factory=dict)

    def acknowledge(self, checkpoint_id: int, **part: Any) -> None:
        """Take the part of one task."""
        checkpoint, done = self.pending[checkpoint_id]
        for name, value in part.items():
            setattr(checkpoint, name, value)
        if checkpoint.position is not None and checkpoint.counts is not None:
            self.completed = checkpoint
            del self.pending[checkpoint_id]
            done.set_result(checkpoint)


# -- 5. The two tasks


class SourceTask(Task):
    """Reads words into buffers."""

    def __init__(self, job: "Job", words: Sequence[str], position: int) -> None:
        super().__init__("source")
        self._job = job
        self._words = words
        self.position = position
        self.num_free = NUM_BUFFERS

    def process(self) -> None:
        """Fill a buffer; without a free one, or at the end, there is no work until a mail comes."""
        part = self._words[self.position : self.position + BUFFER_RECORDS]
        if part:
            self.position += len(part)
            self.num_free -= 1
            self._job.call(self._job.sender.add, RECORDS, json.dumps(part).encode())
        else:
            self._job.call(self._job.sender.add, END, b"")
            self.is_finished = True
        self.can_process = self.num_free > 0

    def buffer_is_free(self) -> None:
        """Take back a buffer that was sent: a mail of the sender."""
        self.num_free += 1
        self.can_process = True

    def trigger(self, checkpoint_id: int) -> None:
        """Cut here, between two buffers: a mail of the coordinator."""
        self._job.call(self._job.sender.add, BARRIER, struct.pack("!I", checkpoint_id))
        self._job.acknowledge(checkpoint_id, position=self.position)


class CountTask(Task):
    """Counts words; calls ``before_each`` with each of them, which may be as slow as it likes."""

    def __init__(self, job: "Job", counts: dict[str, int], before_each: Callable[[str], object]) -> None:
        super().__init__("count")
        self._job = job
        self._input: deque[tuple[int, bytes]] = deque()
        self._before_each = before_each
        self.counts = Counter(counts)
        self.can_process = False

    def receive(self, kind: int, content: bytes) -> None:
        """Queue a buffer or an event: a mail of the receiver."""
        self._input.append((kind, content))
        self.can_process = True

    def process(self) -> None:
        """Take one buffer or event from the input."""
        kind, content = self._input.popleft()
        if kind == RECORDS:
            for word in json.loads(content):
                self._before_each(word)
                self.counts[word] += 1
            self._job.call(self._job.receiver.add_credit, 1)  # only now: the words are counted
        elif kind == BARRIER:
            # All words before the barrier are counted, and none after it: the other half of the cut.
            (checkpoint_id,) = struct.unpack("!I", content)
            self._job.acknowledge(checkpoint_id, counts=dict(self.counts))
        else:
            self.is_finished = True
        self.can_process = bool(self._input)


# -- 6. A job: both tasks, the loop, and how to start again


class Job:
    """Runs both tasks from the last complete checkpoint on; ``close`` ends its loop.

    Args:
        words: the input, which can be read again from any position.
        coordinator: outlives the job, as a JobManager outlives its tasks.
        before_each: see ``CountTask``.
    """

    def __init__(self, words: Sequence[str], coordinator: Coordinator, before_each: Callable[[str], object]) -> None:
        start = coordinator.completed
        self.coordinator = coordinator
        self.source = SourceTask(self, words, start.position or 0)
        self.counter = CountTask(self, start.counts or {}, before_each)
        self.sender = Sender(self.source)
        self.receiver = Receiver(self.counter)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="loop", daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._connect(), self._loop).result()
        self.source.start()
        self.counter.start()

    async def _connect(self) -> asyncio.Server:
        server = await self._loop.create_server(lambda: self.sender, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        await self._loop.create_connection(lambda: self.receiver, *address)
        return server

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Leave a call for the loop's thread; calls of one thread keep their order."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def checkpoint(self, checkpoint_id: int) -> "Future[Checkpoint]":
        """Begin a checkpoint; the returned future has it once both tasks have kept their part."""
        done: Future[Checkpoint] = Future()
        self.call(self.coordinator.pending.__setitem__, checkpoint_id, (Checkpoint(checkpoint_id), done))
        self.source.mailbox.put(lambda: self.source.trigger(checkpoint_id))
        return done

    def acknowledge(self, checkpoint_id: int, **part: Any) -> None:
        """Pass a task's part of a checkpoint on to the coordinator."""
        self.call(lambda: self.coordinator.acknowledge(checkpoint_id, **part))

    def close(self) -> Counter[str]:
        """Wait for the tasks, end the loop, and return the counts."""
        self.source.join()
        self.counter.join()
        asyncio.run_coroutine_threadsafe(self._disconnect(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return self.counter.counts

    async def _disconnect(self) -> None:
        for connection in (self.sender, self.receiver):
            if connection.transport is not None:
                connection.transport.abort()
        self._server.close()
        await self._server.wait_closed()


def main() -> None:
    """Show a slow consumer, a checkpoint, a kill and a restart."""
    words = ["to", "be", "or", "not", "to", "be"] * 100
    coordinator = Coordinator()
    permits = threading.Semaphore(0)  # one for each word that may be counted
    stands_still = threading.Event()  # the consumer wants to count, and has no permit

    def wait_for_permit(_: str) -> None:
        if not permits.acquire(blocking=False):
            stands_still.set()
            permits.acquire()

    job = Job(words, coordinator, wait_for_permit)
    job.sender.is_held.wait()
    print(f"The consumer stands still, and credits hold the source at word {job.source.position} of {len(words)}.")

    cut = job.checkpoint(1)
    stands_still.clear()
    permits.release(100)
    kept = cut.result()
    print(f"The barrier cut the stream after {kept.position} words, and the counts are those of these words.")

    stands_still.wait()
    job.counter.kill()
    job.source.kill()
    permits.release(BUFFER_RECORDS)  # the counter ends between two buffers, so let it finish the current one
    lost = job.close()
    print(f"Killed after {sum(lost.values())} words.  The next attempt goes on behind word {kept.position}.")

    counts = Job(words, coordinator, lambda _: None).close()
    print(f"Counted: {dict(counts)}; {'exactly' if counts == Counter(words) else 'NOT'} what the words are.")


if __name__ == "__main__":
    main()
