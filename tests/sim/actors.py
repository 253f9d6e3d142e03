"""The actors of a simulated world, which take its steps: loops, wires, producers and consumers.

Invariants: an actor's ``step`` is only called while ``is_ready``; it does one thing and returns.  A producer or
            consumer that found nothing sleeps until the future it was given wakes it: a wake-up that is lost leaves it
            asleep for ever, and the world notices.  I1 every byte out == in, in order; I6 a snapshot is exactly what
            was overtaken; I7 an aligned barrier overtakes nothing; I8 nothing behind the end of a partition.
Units:      sizes in bytes.
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from netstack.availability import run_all
from netstack.buffer.buffer_builder import BufferBuilder
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferDecompressor, NetworkBuffer
from netstack.errors import NetstackError, ResourceClosedError
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.gate_channels import BufferOrEvent
from netstack.gate.single_input_gate import SingleInputGate
from netstack.partition.channel_state import InFlightData, InputChannelInfo, ResultSubpartitionInfo
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_subpartition import PipelinedSubpartitionView
from netstack.testing.embedded_event_loop import EmbeddedEventLoop, ManualClock, _ManualLoop
from netstack.transport.network_channel import NetworkChannel
from netstack.wire.events import (
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    EndOfData,
    EndOfPartition,
    Event,
    StopMode,
)
from tests.netstack.buffer.pools import builder_of, num_in_use
from tests.sim.streams import RangeStream, Stream, marked
from tests.sim.transport import SimTransport

if TYPE_CHECKING:
    from tests.sim.world import Node, World

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_PATTERN_BYTES = 1 << 16
_PATTERN = Random(0).randbytes(_PATTERN_BYTES) * 2


Dial = Callable[[Callable[[], NetworkChannel], str, int], "asyncio.Future[tuple[SimTransport, NetworkChannel]]"]


class _TaskLoop(_ManualLoop):
    """A loop with what ``ConnectionManager`` needs of asyncio."""

    def __init__(self, clock: ManualClock, dial: Dial) -> None:
        super().__init__(clock)
        self._dial = dial

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **kwargs: Any) -> "asyncio.Task[T]":  # type: ignore[override]
        return asyncio.Task(coro, loop=self, name=kwargs.get("name"))

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **_options: Any
    ) -> Any:
        return await self._dial(protocol_factory, host, port)


class SimLoop(EmbeddedEventLoop):
    """A loop whose functions run one by one, when the world says so."""

    def __init__(self, clock: ManualClock, name: str, dial: Dial) -> None:
        super().__init__(clock, name)
        self.loop = self._manual = _TaskLoop(clock, dial)  # type: ignore[abstract]  # typeshed calls every method of AbstractEventLoop abstract
        self.functions: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    def is_current_thread(self) -> bool:
        """Whether the present step belongs to this loop."""
        return asyncio.events._get_running_loop() is self.loop

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
    """Takes steps; ``loop`` is the one that runs meanwhile, if it is a part of one.

    ``home``: the node to which all belongs that a step can change, but for connections; None: there is no such node.
    """

    name: str
    weight: int = 1

    def __init__(self, world: "World", name: str, loop: SimLoop | None = None, home: "Node | None" = None) -> None:
        self.world = world
        self.name = name
        self.loop = loop
        self.home = home

    @property
    @abstractmethod
    def is_ready(self) -> bool:
        """Whether there is a step to take."""

    @abstractmethod
    def step(self) -> None:
        """Take it."""


class LoopActor(Actor):
    def __init__(self, world: "World", home: "Node") -> None:
        super().__init__(world, home.loop.name, home.loop, home)
        self._loop = home.loop

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

    def __init__(self, world: "World", transport: SimTransport, home: "Node") -> None:
        super().__init__(world, transport.name, home.loop, home)
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


class StateRecorder:
    """A channel state writer that keeps the bytes, to compare them with the overtaken ones."""

    def __init__(self, decompressor: BufferDecompressor) -> None:
        self._decompressor = decompressor
        self.data: dict[tuple[int, int], bytes] = {}  # (checkpoint, channel or subpartition) -> bytes

    def add_input_data(self, checkpoint_id: int, channel: InputChannelInfo, buffers: Sequence[NetworkBuffer]) -> None:
        self._add((checkpoint_id, channel.channel_index), buffers)

    def add_output_data(self, checkpoint_id: int, subpartition: ResultSubpartitionInfo, data: InFlightData) -> None:
        assert data.end.is_done, "no barrier times out here"
        self._add((checkpoint_id, subpartition.subpartition_index), data.take())

    def _add(self, key: tuple[int, int], buffers: Sequence[NetworkBuffer]) -> None:
        for buffer in buffers:
            plain = self._decompressor.decompress(buffer) if buffer.is_compressed else buffer
            self.data[key] = self.data.get(key, b"") + bytes(plain.view)
            plain.recycle()


class Producer(Actor):
    """A task that writes one partition."""

    def __init__(
        self,
        world: "World",
        name: str,
        home: "Node",
        partition: ResultPartition,
        pool: LocalBufferPool,
        streams: list[Stream],
        recorder: StateRecorder,
    ) -> None:
        super().__init__(world, name, home=home)
        self.partition = partition
        self.streams = streams
        self.recorder = recorder
        self.is_done = False
        self.failure: str | None = None
        self.is_registered = False
        self.register_at = 0
        self.waits_for_acknowledgement = False
        self.num_left = 0
        self.is_dirty = False  # something was written since the last flush
        self._next_checkpoint = 1
        self._manager = home.manager
        self._pool = pool
        self._is_awake = True
        self._has_begun = self._has_finished = False
        self._overdrawn: list[BufferBuilder] = []
        partition.set_channel_state_writer(recorder)
        setattr(pool, "request_builder_blocking", self._request_builder)  # noqa: B010 - nothing may block here

    def _request_builder(self, *args: Any, **kwargs: Any) -> Any:
        builder = builder_of(self._pool, *args, **kwargs)
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
        if self._overdrawn:
            if self.failure is None and self.world.rng.random() < 0.9:
                return
            run_all([builder.close for builder in self._overdrawn])
            self._overdrawn.clear()
        if not self.is_registered and (not self.world.mix.is_blocking or self._has_finished):
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
        """Fail the task, at any moment; a task that was not deployed yet never will be."""
        if self.failure is None and not self.is_done:
            self.is_done = not (self.is_registered or self._has_begun)
            self.failure = why
            self.partition.fail(RuntimeError(why))
            self.wake()

    def cancel(self) -> None:
        """Release the partition, as the job is over: nobody reads the rest."""
        self.failure = self.failure or "its job was cancelled"
        self.partition.release()
        self.wake()

    def _write(self) -> None:
        world, rng = self.world, self.world.rng
        self._has_begun = True
        if not self.num_left:
            self._finish()
        elif self._next_checkpoint <= world.checkpoint_limit() and rng.random() < 0.1:
            self._checkpoint()
        elif not self._sleeps():
            self.num_left -= 1
            self._emit(rng)

    def _emit(self, rng: Random) -> None:
        mix, partition = self.world.mix, self.partition
        size = self._bounded(mix.record_size(rng))
        start = rng.randrange(_PATTERN_BYTES)
        record = bytes(size) if rng.random() < mix.compressible else _PATTERN[start : start + size]
        index = rng.randrange(len(self.streams))
        if mix.width > 1:
            record = marked(record, index % mix.width)
        targets = self.streams if rng.random() < mix.broadcast else [self.streams[index]]
        for stream in targets:
            stream.log += record
        if len(targets) == 1 and mix.broadcast < 1:
            partition.emit_record(record, index)
        else:
            partition.broadcast_record(record)
        self.is_dirty = True
        self.world.note("emit", size)
        if mix.flush == "always" and (not mix.is_blocking or rng.random() < 0.2):
            if len(targets) == 1:
                partition.flush(index)
            else:
                partition.flush_all()

    def _bounded(self, size: int) -> int:
        """Return a size that cannot block: one buffer is free, and the guarantee may hold more."""
        segment = self.world.mix.segment_size
        if size <= segment:
            return size
        num_guaranteed = self._pool.num_required - num_in_use(self._pool)
        return min(size, max(1, num_guaranteed) * segment)

    def flush(self) -> None:
        """Flush in place of another thread."""
        self.is_dirty = False
        self.partition.flush_all()
        self.world.note("flush", 0)

    def _checkpoint(self) -> None:
        is_unaligned = self.world.mix.checkpoints in ("unaligned", "concurrent")
        options = CheckpointOptions(alignment=Alignment.UNALIGNED if is_unaligned else Alignment.ALIGNED)
        barrier = CheckpointBarrier(self._next_checkpoint, 0, options)
        self._next_checkpoint += 1
        for stream in self.streams:
            stream.sent(barrier, is_priority=is_unaligned)
        self.partition.broadcast_event(barrier, is_priority=is_unaligned)
        self.world.note("barrier", barrier.checkpoint_id)

    def _sleeps(self) -> bool:
        """Whether there is no buffer; then one that comes will wake us."""
        future = self.partition.buffer_pool.available_future()
        if future.is_done:
            return False
        if self.world.mix.overdraft and self.world.rng.random() < 0.5:
            # A task in the middle of a record goes on for some steps; no other actor may suffer from that.
            while (builder := builder_of(self._pool, 0)) is not None:
                self._overdrawn.append(builder)
            return True
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
            stream.sent(event)
        send()

    def _close(self) -> None:
        self.partition.close()
        self.is_done = True
        self.world.note("close", 0)


class Flusher(Actor):
    """The thread that flushes a producer's output now and then."""

    def __init__(self, world: "World", producer: Producer) -> None:
        super().__init__(world, f"{producer.name} flusher", home=producer.home)
        self._producer = producer

    @property
    def is_ready(self) -> bool:
        return self._producer.is_dirty and not self._producer.is_done

    def step(self) -> None:
        self._producer.flush()


class Consumer(Actor):
    """A task that reads one gate, keeps some buffers for a while, aligns or persists at barriers, and acknowledges."""

    def __init__(
        self,
        world: "World",
        name: str,
        home: "Node",
        gate: SingleInputGate,
        streams: Sequence[Stream | RangeStream],
        number: int,
        recorder: StateRecorder,
    ) -> None:
        super().__init__(world, name, home=home)
        self.gate = gate
        self.number = number
        self.streams = streams
        self.recorder = recorder
        self.state = "reading"  # then finished, failed or cancelled
        self.error: NetstackError | None = None
        self.max_held = 0
        self.held: deque[NetworkBuffer] = deque()
        self.num_checkpoints = 0  # complete ones
        self._is_awake = True
        self._is_requested = False
        self._blocked: dict[int, int] = {}  # channel -> checkpoint that it waits for
        self._to_resume: list[int] = []
        self._checkpoint: CheckpointBarrier | None = None  # the unaligned one under way
        self._starts: list[int] = []
        self._ends: dict[int, int] = {}

    @property
    def is_done(self) -> bool:
        return self.state != "reading"

    @property
    def is_ready(self) -> bool:
        return (self._is_awake or bool(self._to_resume)) and self.state == "reading"

    def wake(self) -> None:
        self._is_awake = True

    def step(self) -> None:
        if not self._is_requested:
            self._is_requested = True
            self.gate.request_partitions()
            self.world.note("request", len(self.streams))
        elif self._to_resume and (not self._is_awake or self.world.rng.random() < 0.5):
            index = self._to_resume.pop()
            del self._blocked[index]
            self.gate.resume_consumption(index)
            self.world.note("resume", index)
            self._align()
        else:
            self._poll()

    def _poll(self) -> None:
        is_promised = self.gate.priority_event_available_future().is_done
        try:
            if self.world.rng.random() < self.world.mix.announce:
                self._announce()
            found = self._poll_gate(self.world.mix.poll_items)
        except NetstackError as error:
            self._fail(error)
            return
        # No event is told late here: each is told in the step in which it happened.
        assert not is_promised or (found and _is_priority(found[0].event)), (
            f"{self.name}: a priority event was promised, but it is {found}"
        )
        if found:
            assert len(found) == 1 or all(each.buffer is not None for each in found), "an event comes alone"
            for each in found:
                self._take(each)
        elif self.gate.is_finished:
            self._end("finished")
        else:
            self._sleep()

    def _poll_gate(self, max_items: int) -> list[BufferOrEvent]:
        if max_items > 1:
            return self.gate.poll_many(max_items)
        found = self.gate.poll_next()
        return [] if found is None else [found]

    def check_priority(self) -> None:
        """Check that the gate was told of a priority event that can be polled, remote or local, so that it overtakes
        the data of all channels.
        """
        if self.is_done or not self._is_requested or self.gate.priority_event_available_future().is_done:
            return
        for channel in self.gate.channels:
            if isinstance(channel, RemoteInputChannel):
                num_waiting = 0 if channel.is_released else len(channel.received.priority)
            else:
                view = channel._view if isinstance(channel, LocalInputChannel) and not channel.is_released else None
                read = view._subpartition if isinstance(view, PipelinedSubpartitionView) else None
                num_waiting = read._num_priority if isinstance(read, PipelinedSubpartition) else 0
            assert not num_waiting, f"{self.name}: {num_waiting} priority events that nobody was told of in {channel!r}"

    def _announce(self) -> None:
        size = self.world.rng.randint(1, self.world.mix.segment_size)
        for channel in self.gate.channels:
            if not channel.is_released:
                channel.announce_buffer_size(size)

    def _take(self, found: BufferOrEvent) -> None:
        index, buffer = found.channel_index, found.buffer
        stream = self.streams[index]
        if buffer is not None:
            assert index not in self._blocked, f"{stream.name}: data while it is blocked"
            stream.on_data(bytes(buffer.view))
            self.world.note("got", buffer.size)
            self.held.append(buffer)
            while len(self.held) > self.max_held:
                self.recycle_one()
            return
        event = found.event
        assert event is not None, "an element is a buffer or an event"
        at = stream.on_event(event)
        self.world.note(type(event).__name__, index)
        match event:
            case EndOfData():
                self.gate.acknowledge_all_records_processed(index)
            case EndOfPartition():
                self._align()
                self._complete()
            case CheckpointBarrier():
                if event.options.is_unaligned:
                    self._on_unaligned(event, index, at)
                else:
                    assert index not in self._blocked, f"{stream.name}: a barrier while it is blocked"
                    self._blocked[index] = event.checkpoint_id
                    self._align()
            case _:
                raise AssertionError(f"{stream.name}: {event}")
        if self.gate.is_finished:
            self._end("finished")

    # ---------------------------------------------------------------- checkpoints

    def _live(self) -> set[int]:
        return {index for index, stream in enumerate(self.streams) if not stream.has_ended}

    def _align(self) -> None:
        """Let all channels go on once every channel stands at its barrier, or has ended."""
        if self._blocked and not self._to_resume and self._live() == self._blocked.keys():
            assert len(set(self._blocked.values())) == 1, f"{self.name} aligns different checkpoints: {self._blocked}"
            self.num_checkpoints = next(iter(self._blocked.values()))
            self._to_resume = sorted(self._blocked)
            self.world.rng.shuffle(self._to_resume)

    def _on_unaligned(self, barrier: CheckpointBarrier, index: int, at: int) -> None:
        if self.world.mix.checkpoints == "concurrent":
            self.num_checkpoints = max(self.num_checkpoints, barrier.checkpoint_id)
            return
        if self._checkpoint is None:
            self._checkpoint = barrier
            self._ends = {}
            self._starts = [stream.consumed for stream in self.streams]
            for channel in self.gate.channels:
                channel.checkpoint_started(barrier)
        assert self._checkpoint == barrier, f"{self.name} got {barrier} while it takes {self._checkpoint}"
        self._ends[index] = at
        self._complete()

    def _complete(self) -> None:
        """Check I6: the checkpoint has persisted exactly what the barriers overtook."""
        barrier = self._checkpoint
        if barrier is None or not self._live() <= self._ends.keys():
            return
        checkpoint_id, self._checkpoint = barrier.checkpoint_id, None
        for channel in self.gate.channels:
            channel.checkpoint_stopped(checkpoint_id)
        for index, end in self._ends.items():
            stream, producer = self.streams[index], self.world.producers[index]
            assert isinstance(stream, Stream), "no range has barriers"
            received = self.recorder.data.get((checkpoint_id, index), b"")
            sent = producer.recorder.data.get((checkpoint_id, self.number), b"")
            overtaken = stream.log[self._starts[index] : end]
            assert received + sent == overtaken, (
                f"I6: {stream.name}, checkpoint {checkpoint_id}: {len(received)} bytes of the input and {len(sent)} of "
                "the output were "
                f"persisted, {len(overtaken)} were overtaken"
            )
        self.num_checkpoints = checkpoint_id
        self.world.note("complete", checkpoint_id)

    # ---------------------------------------------------------------- the end, and sleep

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
        """Cancel the task, in place of another thread."""
        if not self.is_done:
            self._end("cancelled")

    def _end(self, state: str) -> None:
        self.state = state
        self.world.note(state, 0)
        self.gate.close()


def _is_priority(event: Event | None) -> bool:
    return isinstance(event, CheckpointBarrier) and event.options.is_unaligned


class Recycler(Actor):
    """A thread of a consumer that gives back what its task has in hand."""

    def __init__(self, world: "World", consumer: Consumer) -> None:
        super().__init__(world, f"{consumer.name} recycler", home=consumer.home)
        self._consumer = consumer

    @property
    def is_ready(self) -> bool:
        return bool(self._consumer.held)

    def step(self) -> None:
        self._consumer.recycle_one()
        self.world.note("recycle", len(self._consumer.held))
