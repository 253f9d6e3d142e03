"""A small cluster in one thread, made from one seed: the real network stack, stepped by chance and checked after every
step.

Invariants: one seed makes one series of steps (``trace_hash``).  I1 every byte out == in, order kept; I2 granted ==
            used + outstanding, on both sides; I3 no data without credit; I4 each segment has one place; I5 what a pool
            guarantees can be had; I8 nothing behind the end of a partition; I10 who needs buffers has asked for them;
            I11 memory stays below its bound.  Liveness: once the faults are over everybody finishes within a number of
            steps that is linear in the work, nobody sleeps for ever, and nothing is left behind.
"""

import asyncio
import tempfile
import threading
import zlib
from bisect import bisect
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from netstack import connection_manager
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.connection_manager import ConnectionManager
from netstack.errors import (
    ConnectError,
    ConnectionLostError,
    NetstackError,
    PartitionNotFoundError,
    ProducerFailedError,
)
from netstack.gate.channels.input_channel import InputChannel, ProducerState, RequestBackoff
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.single_input_gate import SingleInputGate
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.handlers.partition_request_server_handler import PartitionRequestServerHandler
from netstack.ids import (
    ConnectionID,
    InputChannelID,
    ResultPartitionID,
    execution_attempt_id,
    input_channel_id,
    intermediate_partition_id,
)
from netstack.partition.bounded_blocking_result_partition import BoundedBlockingResultPartition
from netstack.partition.channel_state import InputChannelInfo
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.testing.embedded_event_loop import ManualClock
from netstack.transport.direct_writer import DirectWriter
from netstack.transport.handler import ChannelHandler
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.network_channel import NetworkChannel
from netstack.wire.frame_decoder import FrameDecoder
from tests.sim.actors import Actor, Consumer, Flusher, LoopActor, Producer, Recycler, SimLoop, StateRecorder, WireActor
from tests.sim.ledger import ClientTap, Ledger, ServerTap
from tests.sim.locks import check_order, watched_locks
from tests.sim.mix import Mix
from tests.sim.streams import RangeStream, Stream
from tests.sim.transport import DirectSocket, Pipe, SimTransport

_FOLDER = Path(tempfile.gettempdir())  # of blocking partitions, which delete their files
_NS_PER_S = 1_000_000_000
_DEEP_CHECK_EVERY = 32  # steps; the checks that walk over every segment, and those of what nobody has touched
_MAX_IDLE_TIMERS = 60  # in a row, without anybody doing anything: more virtual time than any timeout or back-off takes
_WEIGHTS = (1, 1, 2, 4, 16, 64)


class SimulationError(AssertionError):
    """An invariant broke; the text says how to see it again."""


class Node:
    """One TaskManager: memory, partitions, a loop, and its outgoing connections."""

    def __init__(self, world: "World", index: int, num_segments: int) -> None:
        self.index = index
        self.loop = SimLoop(world.clock, f"loop {index}", partial(world.dial, self))
        self.pool = NetworkBufferPool(num_segments, world.mix.segment_size)
        self.timers = self.loop.loop  # in its virtual time
        self.manager = ResultPartitionManager(timers=self.timers)
        self.connections = ConnectionManager(world.config, self.loop)
        self.checks: list[Callable[[], None]] = [self.pool.check_invariants]  # of all that belongs to it

    def create_buffer_pool(self, **options: Any) -> LocalBufferPool:
        pool = self.pool.create_buffer_pool(**options)
        self.checks.append(pool.check_invariants)
        return pool


class StateChecker:
    """The JobManager's answer, which takes its time."""

    def __init__(self, world: "World", loop: SimLoop) -> None:
        self._world = world
        self._loop = loop

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        state = self._world.rng.choice((ProducerState.READY, ProducerState.READY, ProducerState.UNKNOWN))
        self._loop.execute_threadsafe(on_result, state)


class Link(Actor):
    """One connection: two channels with their pipelines, and the bytes between them.

    Its steps: connect, then accept.
    """

    def __init__(self, world: "World", name: str, client: Node, server: Node, client_channel: NetworkChannel) -> None:
        super().__init__(world, name)
        mix = world.mix
        self.client_node, self.server_node = client, server
        self.attempt: asyncio.Future[tuple[SimTransport, NetworkChannel]] = client.loop.loop.create_future()
        self.ledger = Ledger(channels=world.remote_channels)
        self.queue = PartitionRequestQueue(world.config, server.loop)
        self.is_connected = False
        self.is_cut = False
        self._is_accepted = False
        self._refuses = False
        request, response = Pipe(mix.pipe_bytes), Pipe(mix.pipe_bytes)
        self.client_end = SimTransport(
            f"{name} client", ("127.0.0.1", 1), request, response, client.loop.loop.call_soon
        )
        self.server_end = SimTransport(
            f"{name} server", ("127.0.0.2", 2), response, request, server.loop.loop.call_soon
        )
        self.client = client_channel
        self.server = NetworkChannel(world.config, self._server_handlers)
        self.server.direct = self._direct_writer(self.server, self.server_end)
        self.decoders = [self._use_decoder(self.client), self._use_decoder(self.server)]
        tap = self.client.pipeline.find(ClientTap)
        assert tap is not None, "the world puts one into every client's pipeline"
        tap.use(self.ledger)
        self.wires = [WireActor(world, self.client_end, client), WireActor(world, self.server_end, server)]

    def _server_handlers(self) -> tuple[ChannelHandler, ...]:
        config = self.world.config
        handler = PartitionRequestServerHandler(config, self.server_node.loop, self.server_node.manager, self.queue)
        return MessageEncoder(), MessageDecoder(config), ServerTap(self.ledger), handler, self.queue

    def _direct_writer(self, channel: NetworkChannel, end: SimTransport) -> DirectWriter:
        """Return a writer by which producers that flush send a little past the loop, as in production."""
        flush = partial(self.server_node.loop.loop.call_soon, channel.transport_flush)
        sock = DirectSocket(end, self.ledger.note_direct)
        return DirectWriter(
            sock, channel._outbound, channel.turn, lambda: channel.is_active, flush, {threading.get_ident()}
        )

    def _use_decoder(self, channel: NetworkChannel) -> FrameDecoder:
        """Return a decoder with tiny buffers, so that every way of reading is used."""
        mix, decoder = self.world.mix, channel.pipeline.find(MessageDecoder)
        assert decoder is not None, "every pipeline has one"
        decoder.frames = FrameDecoder(
            decoder.frames._allocator,
            max_data_frame_bytes=mix.segment_size + 64,
            staging_bytes=mix.staging_bytes,
            direct_read_bytes=mix.direct_read_bytes,
        )
        return decoder.frames

    @property
    def is_ready(self) -> bool:
        return not self._is_accepted

    def step(self) -> None:
        if self.is_connected:
            self._is_accepted = True
            self.server_end.protocol = self.server
            self.world.run_on(self.server_node.loop, partial(self.server.connection_made, self.server_end))
            self.world.note("accept", 0)
        else:
            self.world.run_on(self.client_node.loop, self._connect)

    def _connect(self) -> None:
        self.is_connected = True
        if self._refuses or self.attempt.done():
            self._is_accepted = self.is_cut = True
            if not self.attempt.done():
                self.attempt.set_exception(ConnectionRefusedError("nobody listens there"))
            self.world.note("refuse", 0)
            return
        self.client_end.protocol = self.client
        self.client.connection_made(self.client_end)
        self.attempt.set_result((self.client_end, self.client))
        self.world.note("connect", 0)

    def cut(self, rng: Random) -> None:
        """The network fails; both ends learn it, at different times."""
        self.is_cut = True
        if not self.is_connected:
            self._refuses = True
            return
        self.client_end.break_off(rng)
        self.server_end.break_off(rng)

    def check(self) -> None:
        """Check I2, I3, I8 and I11 of this connection."""
        self.ledger.check(self.queue)
        config, pending = self.world.config, self.server.pending_bytes
        high = config.high_watermark_bytes
        limit = high + config.max_gather_bytes + config.segment_size_bytes + 64 + self.ledger.num_answer_bytes
        assert pending <= limit, f"I11: {pending} bytes pending at {self.server!r}"
        assert self.client.pending_bytes <= high + 4096, (
            f"I11: {self.client.pending_bytes} bytes pending at {self.client!r}"
        )


def _with_tap(make: Callable[..., tuple[ChannelHandler, ...]]) -> Callable[..., tuple[ChannelHandler, ...]]:
    def with_tap(*args: Any) -> tuple[ChannelHandler, ...]:
        *first, handler = make(*args)
        return (*first, ClientTap(), handler)

    return with_tap


class World:
    """The parts that one seed makes, and their steps."""

    def __init__(self, seed: int, *, is_traced: bool = False, is_checked: bool = True) -> None:
        self.seed = seed
        self.rng = rng = Random(seed)
        self.mix = Mix.draw(rng)
        self.config = self.mix.config
        self.clock = ManualClock()
        self.step_number = 0
        self.trace_hash = 0
        self.trace: deque[str] = deque(maxlen=200)
        self._is_traced = is_traced
        self._is_checked = is_checked
        self._is_any_node_changed = False  # since the last check, by something else than the step of an actor
        self._actor = "world"
        self._num_notes = self._num_notes_at_idle = self._num_idle = 0
        self.decompressor = BufferDecompressor(self.mix.segment_size)
        self.remote_channels: dict[InputChannelID, RemoteInputChannel] = {}
        self.links: list[Link] = []
        self.producers: list[Producer] = []
        self.consumers: list[Consumer] = []
        self.actors: list[Actor] = []
        self._cumulated: list[int] = []
        with watched_locks():
            self._build()
        self._plan()

    def __repr__(self) -> str:
        return f"<World {self.seed} after {self.step_number} steps: {self.mix}>"

    # ---------------------------------------------------------------- set-up

    def _build(self) -> None:
        mix, rng = self.mix, self.rng
        homes = [rng.randrange(mix.num_nodes) for _ in range(mix.num_partitions)]
        gate_homes = [rng.randrange(mix.num_nodes) for _ in range(mix.num_gates * mix.num_readers)]
        num_segments = [mix.num_extra_segments] * mix.num_nodes
        for home in homes:
            num_segments[home] += mix.num_subpartitions + 1
            for gate_home in gate_homes:
                num_segments[gate_home] += mix.exclusive * (gate_home != home)
        for gate_home in gate_homes:
            num_segments[gate_home] += bool(mix.floating)
        self.nodes = [Node(self, index, max(1, number)) for index, number in enumerate(num_segments)]
        for number, home in enumerate(homes):
            self._add_producer(number, self.nodes[home])
        for number, home in enumerate(gate_homes):
            self._add_consumer(number, self.nodes[home], homes)
        self.actors += [LoopActor(self, node) for node in self.nodes]
        self._draw_weights()

    def _add_producer(self, number: int, node: Node) -> None:
        mix, name = self.mix, f"producer {number}"
        num_required = mix.num_subpartitions + 1
        pool = node.create_buffer_pool(
            owner=name,
            num_required=num_required,
            max_buffers=num_required + mix.max_pool_extra,
            num_subpartitions=mix.num_subpartitions,
            max_buffers_per_channel=mix.max_per_channel,
            max_overdraft_buffers=mix.overdraft,
        )
        partition = self._partition(number, name, pool)
        node.checks.append(partition.check_invariants)
        streams = [Stream(f"{name} to {index}") for index in range(mix.num_subpartitions)]
        producer = Producer(self, name, node, partition, pool, streams, StateRecorder(self.decompressor))
        producer.num_left = mix.num_records
        producer.register_at = self.rng.randint(0, 400) if mix.is_late else 0
        # Nobody reads a blocking partition before its producer is done.
        producer.waits_for_acknowledgement = self.rng.random() < 0.5 and not mix.is_blocking
        self.producers.append(producer)
        self.actors.append(producer)
        if mix.flush == "random":
            self.actors.append(Flusher(self, producer))

    def _partition(self, number: int, name: str, pool: LocalBufferPool) -> ResultPartition:
        mix = self.mix
        compressor = BufferCompressor() if mix.is_compressed else None
        if not mix.is_blocking:
            return ResultPartition(
                _partition_id(number),
                mix.num_subpartitions,
                pool,
                name,
                partition_index=number,
                sends_empty_buffers=mix.exclusive == 0,
                compressor=compressor,
            )
        return BoundedBlockingResultPartition(
            _partition_id(number), mix.num_subpartitions, pool, name, _FOLDER, compressor=compressor
        )

    def _add_consumer(self, number: int, node: Node, homes: list[int]) -> None:
        mix, recorder = self.mix, StateRecorder(self.decompressor)
        checker = StateChecker(self, node.loop) if mix.is_retried else None
        gate = SingleInputGate(
            f"consumer {number}", state_checker=checker, decompressor=self.decompressor, clock_ns=self.clock.now_ns
        )
        for index, home in enumerate(homes):
            channel = self._channel(gate, index, number, node, home)
            channel.set_channel_state_writer(recorder, InputChannelInfo(0, index))
            gate.add_channel(channel)
        if mix.floating and any(home != node.index for home in homes):
            gate.set_buffer_pool(
                node.create_buffer_pool(owner=f"{gate.owner} floating", num_required=1, max_buffers=mix.floating)
            )
        streams = [self._stream(producer, number) for producer in self.producers]
        consumer = Consumer(self, f"consumer {number}", node, gate, streams, number, recorder)
        node.checks += [gate.check_invariants, consumer.check_priority]
        consumer.max_held = mix.max_held
        self.consumers.append(consumer)
        self.actors += [consumer, Recycler(self, consumer)]

    def _stream(self, producer: Producer, number: int) -> Stream | RangeStream:
        """Return the stream that a consumer reads of a producer; consumers whose numbers are ``num_gates`` apart read
        one stream.
        """
        mix = self.mix
        first = number % mix.num_gates * mix.width
        streams = producer.streams[first : first + mix.width]
        if number >= mix.num_gates:
            streams = [stream.copy() for stream in streams]
        return streams[0] if mix.width == 1 else RangeStream(streams)

    def _channel(self, gate: SingleInputGate, index: int, number: int, node: Node, home: int) -> InputChannel:
        mix, timeout_s = self.mix, self.config.partition_request_timeout_s
        first = number % mix.num_gates * mix.width
        last = first + mix.width - 1
        backoff = RequestBackoff(20_000, round(timeout_s * 1000)) if mix.is_retried else RequestBackoff()
        partition, now_ns = _partition_id(index), self.clock.now_ns
        if home == node.index:
            return LocalInputChannel(
                gate,
                index,
                partition,
                first,
                node.manager,
                last=last,
                wait_timeout_ms=timeout_s * 1000,
                backoff=backoff,
                clock_ns=now_ns,
            )
        client = node.connections.client(ConnectionID(f"127.0.0.{1 + home}", 0 if mix.shares_connections else number))
        receiver = input_channel_id(number, index)
        channel = RemoteInputChannel(
            gate, index, partition, first, receiver, client, last=last, backoff=backoff, clock_ns=now_ns
        )
        channel.assign_exclusive_segments(node.pool, mix.exclusive)
        self.remote_channels[receiver] = channel
        node.checks.append(channel.check_invariants)
        return channel

    def _plan(self) -> None:
        self._faults = deque(sorted((self.rng.randint(0, 1500), kind) for kind in self.mix.faults))
        self._changes = deque(sorted(self.rng.randint(0, 2000) for _ in range(self.rng.randint(0, 4))))

    def dial(
        self, client: Node, protocol_factory: Callable[[], NetworkChannel], host: str, port: int
    ) -> asyncio.Future[tuple[SimTransport, NetworkChannel]]:
        """Open a new connection, which takes its time."""
        link = Link(
            self, f"link {len(self.links)}", client, self.nodes[int(host.rpartition(".")[2]) - 1], protocol_factory()
        )
        self.links.append(link)
        self.actors += [link, *link.wires]
        self._draw_weights()
        return link.attempt

    def _draw_weights(self) -> None:
        for actor in self.actors:
            actor.weight = self.rng.choice(_WEIGHTS)
        self._cumulated = list(accumulate(actor.weight for actor in self.actors))

    # ---------------------------------------------------------------- steps

    def run(self) -> int:
        """Run until nobody has anything to do; return the number of steps.

        Raises:
            SimulationError: an invariant broke, somebody sleeps for ever, or something is left behind.
        """
        max_steps = 20_000 + 400 * self.mix.num_records * self.mix.num_partitions
        before, make_handlers = asyncio.events._get_running_loop(), connection_manager._client_handlers
        connection_manager._client_handlers = _with_tap(make_handlers)
        try:
            with watched_locks():
                while self._step():
                    if self.step_number >= max_steps:
                        raise AssertionError(f"not finished after {max_steps} steps: {self._unfinished()}")
                self._check_end()
                check_order()
        except BaseException as error:
            raise SimulationError(
                f"seed {self.seed}, step {self.step_number}, {self._actor}: {type(error).__name__}: {error}\n"
                f"  {self.mix}\n  see it again: make sim SEED={self.seed} STEPS=1   (python -m tests.sim --seed "
                f"{self.seed} --trace)"
            ) from error
        finally:
            connection_manager._client_handlers = make_handlers
            asyncio.events._set_running_loop(before)
        return self.step_number

    def _step(self) -> bool:
        self.step_number += 1
        if self._faults and self._faults[0][0] <= self.step_number:
            self._actor = "fault"
            self._inject(self._faults.popleft()[1])
        if self._changes and self._changes[0] <= self.step_number:
            self._changes.popleft()
            self._draw_weights()
        actor = self._choose()
        if actor is None:
            return self._pass_time()
        self._actor = actor.name
        asyncio.events._set_running_loop(None if actor.loop is None else actor.loop.loop)
        actor.step()
        if self._is_checked:
            self._check(None if self._is_any_node_changed else actor.home)
            self._is_any_node_changed = False
        return True

    def _choose(self) -> Actor | None:
        actors, cumulated = self.actors, self._cumulated
        random, total = self.rng.random, self._cumulated[-1]
        for _ in range(6):
            actor = actors[bisect(cumulated, random() * total)]
            if actor.is_ready:
                return actor
        ready = [actor for actor in actors if actor.is_ready]
        return self.rng.choice(ready) if ready else None

    def _pass_time(self) -> bool:
        """Go on when no actor is ready: with the next timer, late partition or fault, or with the end of the job."""
        self._actor = "clock"
        self._is_any_node_changed = True
        times = [when for node in self.nodes if (when := node.loop.next_timer()) is not None]
        # Connections look at their clocks for ever; that is not progress.
        self._num_idle = 0 if self._num_notes != self._num_notes_at_idle else self._num_idle + 1
        if self._num_idle > _MAX_IDLE_TIMERS:
            times = []
        late = [producer.register_at for producer in self.producers if not (producer.is_registered or producer.is_done)]
        if late and (not times or self.rng.random() < 0.5):
            self.step_number = max(self.step_number, min(late))
        elif times:
            when = round(min(times) * _NS_PER_S)
            self.clock.advance(max(0, when - self.clock.now_ns()))
            self._num_notes_at_idle = self._num_notes
            for node in self.nodes:
                node.loop.take_due_timers()
        elif self._faults:
            self._inject(self._faults.popleft()[1])
        else:
            return self._cancel_job() or self._release_results() or self._close_connections()
        return True

    def _close_connections(self) -> bool:
        """Hang up both ends when all are done; return whether there was anything to close."""
        is_open = False
        for link in self.links:
            for channel, loop in ((link.client, link.client_node.loop), (link.server, link.server_node.loop)):
                if channel.is_active:
                    is_open = True
                    self.run_on(loop, channel.close)
        self._num_idle = 0
        return is_open

    def _cancel_job(self) -> bool:
        """End a job of which a part failed, or was never deployed, as its coordinator would; return whether there was
        anything to end.
        """
        is_deployed = all(producer.is_registered for producer in self.producers)
        if is_deployed and not any(consumer.state in ("failed", "cancelled") for consumer in self.consumers):
            return False
        alive = [producer for producer in self.producers if not producer.partition.is_released]
        for producer in alive:
            producer.cancel()
        return bool(alive)

    def _release_results(self) -> bool:
        """Release results in files that nobody reads any more; return whether there were any."""
        alive = [producer for producer in self.producers if not producer.partition.is_released]
        if not self.mix.is_blocking or not all(consumer.is_done for consumer in self.consumers):
            return False
        for producer in alive:
            producer.partition.release()
        return bool(alive)

    def run_on(self, loop: SimLoop, function: Callable[[], None]) -> None:
        asyncio.events._set_running_loop(loop.loop)
        function()

    def note(self, what: str, number: int) -> None:
        """Remember that something happened, for the trace and its hash."""
        self._num_notes += 1
        text = f"{self._actor} {what} {number}"
        self.trace_hash = zlib.crc32(text.encode(), self.trace_hash)
        if self._is_traced:
            self.trace.append(f"{self.step_number:6} {text}")

    def checkpoint_limit(self) -> int:
        """The last checkpoint for which producers may send barriers: one unaligned checkpoint at a time, if its
        snapshot is looked at.
        """
        mix = self.mix
        if mix.checkpoints == "none":
            return 0
        if mix.checkpoints != "unaligned":
            return mix.num_checkpoints
        return min(
            [
                mix.num_checkpoints,
                *(consumer.num_checkpoints + 1 for consumer in self.consumers if not consumer.is_done),
            ]
        )

    # ---------------------------------------------------------------- faults

    def _inject(self, kind: str) -> None:
        rng = self.rng
        self._is_any_node_changed = True
        self.note(kind, 0)
        asyncio.events._set_running_loop(None)
        match kind:
            case "cut":
                if self.links:
                    rng.choice(self.links).cut(rng)
            case "refuse":
                for link in self.links:
                    if not link.is_connected:
                        link.cut(rng)
            case "fail":
                rng.choice(self.producers).fail("a fault was injected")
            case "cancel":
                rng.choice(self.consumers).cancel()
            case "stall":
                rng.choice(self.consumers).max_held = 50
            case _:
                raise ValueError(kind)

    def check_failure(self, consumer: Consumer, error: NetstackError) -> None:
        """Whether ``error`` is what some fault explains."""
        root: BaseException = error
        while root.__cause__ is not None:
            root = root.__cause__
        is_cut = any(link.is_cut for link in self.links)
        match error:
            case PartitionNotFoundError():
                is_explained = self.mix.is_late or any(producer.failure for producer in self.producers)
            case ProducerFailedError():
                is_explained = any(producer.failure for producer in self.producers)
            case ConnectError() | ConnectionLostError():
                is_explained = is_cut
            case _:
                is_explained = False
        is_foreign = not isinstance(root, NetstackError | OSError) and "injected" not in str(root)
        if is_foreign or not is_explained:
            raise AssertionError(
                f"{consumer.name} failed without a reason: {type(error).__name__}: {error} from {root!r}"
            )

    # ---------------------------------------------------------------- checks

    def _check(self, home: Node | None) -> None:
        """Check all connections, and all that belongs to ``home``; now and then what the step cannot have changed."""
        is_deep = not self.step_number % _DEEP_CHECK_EVERY
        for link in self.links:
            link.check()
            if is_deep:
                for decoder in link.decoders:
                    decoder.check_invariants()
        nodes = self.nodes if home is None or is_deep else (home,)
        for node in nodes:
            for check in node.checks:
                check()

    def _unfinished(self) -> str:
        producers = [each.name for each in self.producers if not each.is_done]
        return ", ".join(producers + [each.name for each in self.consumers if not each.is_done]) or "nobody"

    def _check_end(self) -> None:
        self._actor = "end"
        if self._is_checked:
            self._check(None)
        sleepers = self._unfinished()
        assert sleepers == "nobody", f"asleep for ever: {sleepers}; {[*self.producers, *self.consumers]}"
        for consumer in self.consumers:
            if consumer.state == "finished":
                assert all(stream.has_ended for stream in consumer.streams), (
                    f"{consumer.name} finished before its inputs"
                )
                assert all(stream.is_complete for stream in consumer.streams), f"{consumer.name} missed data"
        for producer in self.producers:
            assert producer.partition.is_released, f"{producer.partition!r} was never released"
        for node in self.nodes:
            assert len(node.manager) == 0, f"{node.manager!r} keeps partitions"
            assert node.pool.num_available == node.pool.num_total, f"I4: segments are missing in {node.pool!r}"
            node.pool.destroy()


def _partition_id(number: int) -> ResultPartitionID:
    return ResultPartitionID(
        intermediate_partition_id(b"d" * 16, number), execution_attempt_id(b"g" * 16, b"v" * 16, number, 0)
    )
