"""Everybody who takes steps in a simulated world: loops, wires, producers and consumers.

Side:       any.
Invariants: an actor's ``step`` is only called while ``is_ready``; it does one thing and returns.  A producer or consumer that found nothing
            sleeps until the future it was given wakes it: a wake-up that is lost leaves it asleep for ever, and the world notices.
            I1 every byte out == in, in order; I8 nothing behind the end of a partition.
Units:      sizes in bytes.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.segment import NetworkBuffer
from netstack.channel.protocol import NetworkChannel
from netstack.errors import NetstackError, ResourceClosedError
from netstack.gate.input_gate import BufferOrEvent, SingleInputGate
from netstack.partition.manager import ResultPartitionManager
from netstack.partition.result_partition import ResultPartition
from netstack.testing.embedded_event_loop import EmbeddedEventLoop, _ManualLoop
from netstack.testing.manual_clock import ManualClock
from netstack.wire.events import EndOfData, EndOfPartition, Event, StopMode
from tests.sim.transport import SimTransport

if TYPE_CHECKING:
    from tests.sim.world import World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PATTERN_BYTES = 1 << 16
_PATTERN = Random(0).randbytes(_PATTERN_BYTES) * 2


Dial = Callable[[Callable[[], NetworkChannel], str, int], "asyncio.Future[tuple[SimTransport, NetworkChannel]]"]


class _TaskLoop(_ManualLoop):
    """With what ``ConnectionManager`` needs of asyncio."""

    def __init__(self, clock: ManualClock, dial: Dial) -> None:
        super().__init__(clock)
        self._dial = dial

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **kwargs: Any) -> "asyncio.Task[T]":  # type: ignore[override]
        return asyncio.Task(coro, loop=self, name=kwargs.get("name"))

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_options: Any) -> Any:
        return await self._dial(protocol_factory, host, port)


class SimLoop(EmbeddedEventLoop):
    """A loop whose functions run one by one, when the world says so."""

    def __init__(self, clock: ManualClock, name: str, dial: Dial) -> None:
        super().__init__(clock, name)
        self.loop = self._manual = _TaskLoop(clock, dial)  # type: ignore[abstract]  # typeshed calls every method of AbstractEventLoop abstract
        self.functions: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def execute_threadsafe(self, function: Callable[[*Ts], None], *args: *Ts) -> None:
        if self._is_closed:
            raise ResourceClosedError(f"the event loop {self.name!r} was closed")
        self.functions.append((function, args))

    @property
    def is_ready(self) -> bool:
        return bool(self.functions or self._manual._ready)

    def run_one(self, rng: Random) -> None:
        """Run the next function or the next callback; each kind keeps its own order."""
        callbacks = self._manual._ready
        if callbacks and (not self.functions or rng.random() < 0.5):
            handle = callbacks.popleft()
            if not handle.cancelled():
                handle._run()
            if self._manual.errors:
                raise self._manual.errors[0]
            return
        function, args = self.functions.popleft()
        function(*args)

    def next_timer(self) -> float | None:
        return self._manual.next_timer() if self._manual._timers else None

    def take_due_timers(self) -> None:
        self._manual.take_due_timers()


class Actor(ABC):
    """Takes steps; ``loop`` is the one that runs meanwhile, if it is a part of one."""

    name: str
    weight: int = 1

    def __init__(self, world: "World", name: str, loop: SimLoop | None = None) -> None:
        self.world = world
        self.name = name
        self.loop = loop

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether there is a step to take."""

    @abstractmethod
    def step(self) -> None:
        """Take it."""


class LoopActor(Actor):
    """Runs a few functions of one loop."""

    def __init__(self, world: "World", loop: SimLoop) -> None:
        super().__init__(world, loop.name, loop)
        self._loop = loop

    @property
    def is_ready(self) -> bool:
        return self._loop.is_ready

    def step(self) -> None:
        loop, rng = self._loop, self.world.rng
        for _ in range(rng.randint(1, self.world.mix.max_loop_batch)):
            if not loop.is_ready:
                break
            loop.run_one(rng)


class WireActor(Actor):
    """Brings bytes to one end of a connection, and takes held ones from it."""

    def __init__(self, world: "World", transport: SimTransport, loop: SimLoop) -> None:
        super().__init__(world, transport.name, loop)
        self._transport = transport

    @property
    def is_ready(self) -> bool:
        transport = self._transport
        return transport.protocol is not None and (transport.can_deliver or transport.can_take)

    def step(self) -> None:
        transport, world = self._transport, self.world
        max_bytes = world.rng.choice(world.mix.cuts)
        if transport.can_deliver and (not transport.can_take or world.rng.random() < 0.5):
            world.note("read", transport.deliver(world.rng, max_bytes))
        else:
            world.note("sent", transport.pump(max_bytes))


class Stream:
    """What one subpartition was given, and what its consumer got so far."""

    def __init__(self, name: str, base: int) -> None:
        self.name = name
        self.base = base
        self.produced = 0
        self.consumed = 0
        self.events: deque[tuple[int, Event]] = deque()  # (bytes before it, event)
        self.has_ended = False

    def next_record(self, size: int) -> bytes:
        """The next ``size`` bytes to emit."""
        start = (self.base + self.produced) % _PATTERN_BYTES
        self.produced += size
        return _PATTERN[start : start + size]

    def on_data(self, data: bytes) -> None:
        """I1 and I8 for a buffer."""
        assert not self.has_ended, f"{self.name}: {len(data)} bytes behind the end of the partition"
        start, end = (self.base + self.consumed) % _PATTERN_BYTES, self.consumed + len(data)
        if data != _PATTERN[start : start + len(data)]:
            raise AssertionError(f"{self.name}: the bytes {self.consumed} to {end} are not what was written: {data[:32].hex()}...")
        self.consumed = end
        limit = self.events[0][0] if self.events else self.produced
        assert end <= limit, f"{self.name}: data up to {end} overtook an event at {limit}"

    def on_event(self, event: Event) -> None:
        """I1 and I8 for an event."""
        assert not self.has_ended, f"{self.name}: {event} behind the end of the partition"
        assert self.events, f"{self.name}: {event} was never sent"
        at, expected = self.events.popleft()
        assert event == expected, f"{self.name}: {event} instead of {expected}"
        assert at == self.consumed, f"{self.name}: {event} after {self.consumed} bytes, it was sent after {at}"
        self.has_ended = isinstance(event, EndOfPartition)


class Producer(Actor):
    """A task that writes one partition."""

    def __init__(
        self,
        world: "World",
        name: str,
        partition: ResultPartition,
        pool: LocalBufferPool,
        manager: ResultPartitionManager,
        streams: list[Stream],
    ) -> None:
        super().__init__(world, name)
        self.partition = partition
        self.streams = streams
        self.is_done = False
        self.failure: str | None = None
        self.is_registered = False
        self.register_at = 0
        self.waits_for_acknowledgement = False
        self.num_left = 0
        self._manager = manager
        self._pool = pool
        self._is_awake = True
        self._has_finished = False
        setattr(pool, "request_builder_blocking", self._request_builder)  # noqa: B010 - nothing may block here

    def _request_builder(self, *args: Any, **kwargs: Any) -> Any:
        builder = self._pool.request_builder_nowait(*args, **kwargs)
        assert builder is not None, f"I5: {self.name} would block, but {self._pool!r} promised a buffer"
        return builder

    @property
    def is_ready(self) -> bool:
        if self.is_done or not self._is_awake:
            return False
        return self.is_registered or self.world.step_number >= self.register_at

    def wake(self) -> None:
        self._is_awake = True

    def step(self) -> None:
        if not self.is_registered:
            self._manager.register(self.partition)
            self.is_registered = True
            self.world.note("register", self.partition.num_subpartitions)
        elif self._has_finished:
            self._close()
        else:
            try:
                self._write()
            except ResourceClosedError:
                assert self.failure is not None, f"{self.name} was stopped without a reason"
                self._close()

    def fail(self, why: str) -> None:
        """The task fails, whatever it does right now; one that was not deployed yet never will be."""
        if self.failure is None and not self.is_done:
            self.is_done = not self.is_registered
            self.failure = why
            self.partition.fail(RuntimeError(why))
            self.wake()

    def cancel(self) -> None:
        """The job is over: nobody reads the rest."""
        self.failure = self.failure or "its job was cancelled"
        self.partition.release()
        self.wake()

    def _write(self) -> None:
        world, rng = self.world, self.world.rng
        mix = world.mix
        if not self.num_left:
            self._finish()
            return
        if mix.flush == "random" and rng.random() < 0.2:
            self._flush(rng)
            return
        if self._sleeps():
            return
        self.num_left -= 1
        index = rng.randrange(len(self.streams))
        size = self._bounded(mix.record_size(rng))
        self.partition.emit_record(self.streams[index].next_record(size), index)
        world.note("emit", size)
        if mix.flush == "always":
            self.partition.flush(index)

    def _bounded(self, size: int) -> int:
        """A size that cannot block: one buffer is free, and the guarantee may hold more."""
        segment = self.world.mix.segment_size
        if size <= segment:
            return size
        num_guaranteed = self._pool.num_required - self._pool.best_effort_used
        return min(size, max(1, num_guaranteed) * segment)

    def _flush(self, rng: Random) -> None:
        if rng.random() < 0.5:
            self.partition.flush_all()
        else:
            self.partition.flush(rng.randrange(len(self.streams)))
        self.world.note("flush", 0)

    def _sleeps(self) -> bool:
        """Whether there is no buffer; then one that comes will wake us."""
        future = self.partition.available_future()
        if future.is_done:
            return False
        self._is_awake = False
        future.add_done_callback(self.wake)
        self.world.note("blocked", 0)
        return True

    def _finish(self) -> None:
        self._broadcast(EndOfData(StopMode.DRAIN), lambda: self.partition.notify_end_of_data(StopMode.DRAIN))
        self._broadcast(EndOfPartition(), self.partition.finish)
        self._has_finished = True
        self.world.note("finish", 0)
        if self.waits_for_acknowledgement and not self.partition.all_data_processed.is_done:
            self._is_awake = False
            self.partition.all_data_processed.add_done_callback(self.wake)

    def _broadcast(self, event: Event, send: Callable[[], None]) -> None:
        for stream in self.streams:
            stream.events.append((stream.produced, event))
        send()

    def _close(self) -> None:
        self.partition.close()
        self.is_done = True
        self.world.note("close", 0)


class Consumer(Actor):
    """A task that reads one gate, keeps some buffers for a while, and acknowledges."""

    def __init__(self, world: "World", name: str, gate: SingleInputGate, streams: list[Stream], producers: list[Producer]) -> None:
        super().__init__(world, name)
        self.gate = gate
        self.streams = streams
        self.producers = producers
        self.state = "reading"  # then finished, failed or cancelled
        self.error: NetstackError | None = None
        self.max_held = 0
        self.held: deque[NetworkBuffer] = deque()
        self._is_awake = True
        self._is_requested = False

    @property
    def is_done(self) -> bool:
        return self.state != "reading"

    @property
    def is_ready(self) -> bool:
        return self._is_awake and self.state == "reading"

    def wake(self) -> None:
        self._is_awake = True

    def step(self) -> None:
        if not self._is_requested:
            self._is_requested = True
            self.gate.request_partitions()
            self.world.note("request", len(self.streams))
            return
        try:
            found = self.gate.poll_next()
        except NetstackError as error:
            self._fail(error)
            return
        if found is not None:
            self._take(found)
        elif self.gate.is_finished:
            self._end("finished")
        else:
            self._sleep()

    def _take(self, found: BufferOrEvent) -> None:
        stream, buffer = self.streams[found.channel_index], found.buffer
        if buffer is not None:
            stream.on_data(bytes(buffer.view))
            self.world.note("got", buffer.size)
            self.held.append(buffer)
            while len(self.held) > self.max_held:
                self.recycle_one()
            return
        assert found.event is not None, "an element is a buffer or an event"
        stream.on_event(found.event)
        self.world.note(type(found.event).__name__, found.channel_index)
        if isinstance(found.event, EndOfData):
            self.gate.acknowledge_all_records_processed(found.channel_index)
        if self.gate.is_finished:
            self._end("finished")

    def recycle_one(self) -> None:
        """Give back one of the buffers in hand, any of them."""
        held = self.held
        held.rotate(self.world.rng.randrange(len(held)))
        held.popleft().recycle()

    def _sleep(self) -> None:
        future = self.gate.available_future()
        if not future.is_done:
            self._is_awake = False
            future.add_done_callback(self.wake)
            self.world.note("parked", 0)

    def _fail(self, error: NetstackError) -> None:
        self.error = error
        self.world.note(type(error).__name__, 0)
        self.world.check_failure(self, error)
        self._end("failed")

    def cancel(self) -> None:
        """Somebody else ends the task."""
        if not self.is_done:
            self._end("cancelled")

    def _end(self, state: str) -> None:
        self.state = state
        self.world.note(state, 0)
        self.gate.close()


class Recycler(Actor):
    """Another thread of a consumer, which gives back what the task has in hand."""

    def __init__(self, world: "World", consumer: Consumer) -> None:
        super().__init__(world, f"{consumer.name} recycler")
        self._consumer = consumer

    @property
    def is_ready(self) -> bool:
        return bool(self._consumer.held)

    def step(self) -> None:
        self._consumer.recycle_one()
        self.world.note("recycle", len(self._consumer.held))
