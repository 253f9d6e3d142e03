"""The network stack of one process: buffer pool, partitions, gates, server and connections.

``StandaloneNetwork``: the network stack without flowlet, with blocking calls and an event loop on a thread of its own.

Side:   shared.  ``create_*`` from any thread; ``start`` and ``close`` on the loop thread.  ``StandaloneNetwork``: every
        method from any thread but the loop's; one thread writes a partition, one thread reads a gate.  Its ``close``
        ends connections, server, partitions and the loop, in this order, even if one of them fails.
Units:  seconds.
Source: Flink ``NettyShuffleEnvironment``.
"""

import contextlib
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferCompressor, BufferDecompressor
from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.config import NetstackConfig
from netstack.connection_manager import BusyPoller, ConnectionManager
from netstack.errors import ConfigError, LocalProtocolError, ResourceClosedError
from netstack.flow.offer_book import GateShape
from netstack.gate.channels.input_channel import (
    InputChannel,
    OfferedPartitionClient,
    PartitionStateChecker,
    RequestBackoff,
)
from netstack.gate.channels.local_input_channel import LocalInputChannel
from netstack.gate.channels.remote_input_channel import RemoteInputChannel
from netstack.gate.offered_input_gate import OfferedGates, OfferedInputGate, ProducerQuota
from netstack.gate.single_input_gate import SingleInputGate
from netstack.handlers.partition_request_client_handler import ConnectionRoles, OfferedPartitionsHandler
from netstack.handlers.partition_request_queue import PartitionRequestQueue
from netstack.handlers.partition_request_server_handler import PartitionRequestServerHandler
from netstack.handlers.view_reader import ViewReaderStatistics
from netstack.ids import ConnectionID, ResultPartitionID, new_input_channel_id
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.eventloop import EventLoopThread, LoopTimers
from netstack.partition.bounded_blocking_result_partition import BoundedBlockingResultPartition
from netstack.partition.buffer_writing_result_partition import ResultPartitionType
from netstack.partition.result_partition import ResultPartition
from netstack.partition.result_partition_manager import ResultPartitionManager
from netstack.transport.handler import ChannelHandler
from netstack.transport.message_codec import MessageDecoder, MessageEncoder
from netstack.transport.server import NetworkServer
from netstack.wire.message_bytes import SERVER_MESSAGE_IDS
from netstack.wire.offer_messages import SubpartitionOffer

_log = LogLines(__name__)


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """The partition and subpartitions that one input channel reads, and where they are.

    ``connection``: None for a partition of this process.  ``initial_credit``: exclusive buffers of a remote channel,
    None for the config's.  ``last``: the last subpartition of a range.
    """

    partition_id: ResultPartitionID
    subpartition: int
    connection: ConnectionID | None
    initial_credit: int | None = None
    last: int | None = None


class NetworkEnvironment:
    """Makes partitions and gates that share one buffer pool, one server and one connection per peer.

    Life cycle: made on any thread; ``start`` (only to serve other processes) and ``close`` on the loop thread.
    """

    def __init__(self, config: NetstackConfig, loop: EventLoopThread) -> None:
        self.config = config
        self.buffer_pool = NetworkBufferPool(config.num_segments, config.segment_size_bytes)
        self._decompressor = BufferDecompressor(config.segment_size_bytes)
        self.offered_gates = OfferedGates()
        self._producer_quota = ProducerQuota(
            config.num_segments, config.exclusive_buffers_per_channel, config.max_producer_memory_percent
        )
        self.partition_manager = ResultPartitionManager(timers=LoopTimers(loop))
        self._loop = loop
        # Loop thread only.
        self.busy_poller = BusyPoller(loop.loop.call_soon, config.busy_poll_us) if config.busy_poll_us else None
        self._connections = ConnectionManager(config, loop, None if self.busy_poller is None else self.busy_poller.news)
        self._server: NetworkServer | None = None
        # Loop thread only; one per connection.
        self._queues: weakref.WeakSet[PartitionRequestQueue] = weakref.WeakSet()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<NetworkEnvironment {self.buffer_pool!r}, {self._connections!r}>"

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def num_accepted_connections(self) -> int:
        """The number of accepted connections; any thread, one pass stale."""
        server = self._server
        return 0 if server is None else server.num_channels

    @property
    def has_lost_port(self) -> bool:
        """Whether a function of this process has closed or replaced the listening socket; loop thread."""
        return self._server is not None and self._server.has_lost_port

    def reader_statistics(self) -> list[ViewReaderStatistics]:
        """Make one row per remote reader of this process's partitions, for a dump; loop thread.

        ``SingleInputGate.channel_statistics`` has the consumer's side of these channels.
        """
        return [row for queue in list(self._queues) for row in queue.statistics()]

    async def start(self, host: str, port: int) -> ConnectionID:
        """Listen for consumers; port 0 picks a free one.  Returns the address of the data port.

        Raises:
            ConfigError: ``host`` is not a loopback address.
            LocalProtocolError: the environment was started before.
            OSError: the address cannot be bound.
            ResourceClosedError: the environment was closed, before or meanwhile.
        """
        self._check_open()
        if self._server is not None:
            raise LocalProtocolError(f"the network environment was started already: {self._server!r}")
        server = self._server = NetworkServer(self.config, self._server_handlers)
        try:
            bound_host, bound_port = await server.start(host, port)
            self._check_open()
        except BaseException:
            self._server = None
            await server.close()
            raise
        return ConnectionID(bound_host, bound_port)

    def _server_handlers(self) -> tuple[ChannelHandler, ...]:
        queue = PartitionRequestQueue(self.config, self._loop)
        self._queues.add(queue)
        server = PartitionRequestServerHandler(self.config, self._loop, self.partition_manager, queue)
        offers = OfferedPartitionsHandler(self._loop, self.offered_gates.take_offer)
        return (
            MessageEncoder(),
            MessageDecoder(self.config, offers, accepted_ids=SERVER_MESSAGE_IDS),
            ConnectionRoles((server, queue), offers),
            offers,
            server,
            queue,
        )

    def create_result_partition(
        self,
        owner: str,
        partition_id: ResultPartitionID,
        num_subpartitions: int,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        directory: Path | None = None,
    ) -> ResultPartition:
        """Make and register a partition.

        Args:
            owner: who writes; named in errors.
            partition_id: the partition and the attempt that produces it.
            num_subpartitions: one per consumer.
            partition_type: pipelined or blocking.
            directory: of a blocking partition's file; None: the system's folder for temporary files.

        Raises:
            InsufficientNetworkBuffersError: the network memory cannot guarantee ``num_subpartitions + 1`` buffers.
            ResourceBrokenError: the file of a blocking partition cannot be created.
            ResourceClosedError: the environment was closed.
        """
        self._check_open()
        if num_subpartitions < 1:
            raise ValueError(f"{owner}: a partition of {num_subpartitions} subpartitions")
        pool = self._output_pool(owner, num_subpartitions, partition_type)
        compressor = None if self.config.compression is None else BufferCompressor()
        made_of = (partition_id, num_subpartitions, pool, owner)
        with contextlib.ExitStack() as undo:
            undo.callback(pool.destroy)
            if partition_type.is_blocking:
                folder = Path(tempfile.gettempdir()) if directory is None else directory
                partition: ResultPartition = BoundedBlockingResultPartition(
                    *made_of, folder, partition_type=partition_type, compressor=compressor
                )
            else:
                partition = ResultPartition(*made_of, partition_type=partition_type, compressor=compressor)
            undo.callback(partition.close)
            self.partition_manager.register(partition)
            undo.pop_all()
        return partition

    def _output_pool(self, owner: str, num_subpartitions: int, partition_type: ResultPartitionType) -> LocalBufferPool:
        config = self.config
        num_required = num_subpartitions + 1
        num_wanted = partition_type.max_pool_buffers(
            num_subpartitions, config.exclusive_buffers_per_channel, config.floating_buffers_per_gate
        )
        pool = self.buffer_pool.create_buffer_pool(
            owner=owner,
            num_required=num_required,
            max_buffers=None if num_wanted is None else max(num_required, num_wanted),
            num_subpartitions=num_subpartitions,
            max_buffers_per_channel=config.max_buffers_per_channel,
            max_overdraft_buffers=config.max_overdraft_buffers_per_gate,
        )
        self._warn_of_usage()
        return pool

    def create_input_gate(
        self, owner: str, channels: Sequence[ChannelSpec], state_checker: PartitionStateChecker | None = None
    ) -> SingleInputGate:
        """Make a gate with the exclusive and floating buffers of its channels; no partition is requested yet.

        Waits at most ``request_buffers_timeout_s`` for guaranteed buffers that others still use; not on the loop
        thread.

        Args:
            owner: who reads; named in errors.
            channels: what each channel reads.
            state_checker: asked for the state of a producer whose partition is not found; the request of a live one is
                repeated.  None: the channel fails.

        Raises:
            ConfigError: a remote channel would have neither exclusive nor floating buffers.
            InsufficientNetworkBuffersError: the network memory cannot give every remote channel its exclusive buffers.
            ResourceClosedError: the environment was closed.
        """
        self._check_open()
        config = self.config
        gate = SingleInputGate(owner, state_checker=state_checker, decompressor=self._decompressor)
        try:
            for index, spec in enumerate(channels):
                gate.add_channel(self._channel(gate, index, spec))
            if config.floating_buffers_per_gate and any(spec.connection is not None for spec in channels):
                gate.set_buffer_pool(self._floating_pool(owner))
        except BaseException:
            gate.close()
            raise
        self._warn_of_usage()
        return gate

    def create_offered_gate(self, owner: str, job_id: bytes, subtask: int, shape: GateShape) -> OfferedInputGate:
        """Make a gate that takes offers of producers outside the cluster, from now on until it is closed.

        Args:
            owner: who reads; named in errors.
            job_id: 16 bytes; a producer's token is for this job and the gate's name.
            subtask: of the gate, counted from 0.
            shape: the properties that offers must match.

        Raises:
            ConfigError: a channel would have neither exclusive nor floating buffers.
            InsufficientNetworkBuffersError: the network memory cannot guarantee one floating buffer.
            LocalProtocolError: this subtask of the gate exists already.
            ResourceClosedError: the environment was closed.
        """
        self._check_open()
        config = self.config
        if not config.exclusive_buffers_per_channel and not config.floating_buffers_per_gate:
            raise ConfigError(
                f"{owner}: exclusive_buffers_per_channel and floating_buffers_per_gate are 0: it could never receive"
            )
        gate = OfferedInputGate(
            owner,
            shape,
            self._offered_channel,
            self._producer_quota,
            max_producers=config.max_producers_per_gate,
            decompressor=self._decompressor,
        )
        try:
            if config.floating_buffers_per_gate:
                gate.set_buffer_pool(self._floating_pool(owner))
            self.offered_gates.add(job_id, subtask, gate)
        except BaseException:
            gate.close()
            raise
        return gate

    def _offered_channel(
        self, gate: SingleInputGate, index: int, offer: SubpartitionOffer, client: OfferedPartitionClient
    ) -> RemoteInputChannel:
        place = (gate, index, offer.result_partition, offer.subtask)
        channel = RemoteInputChannel(*place, new_input_channel_id(), client, config=self.config)
        # The loop must not wait.
        channel.assign_exclusive_segments(self.buffer_pool, self.config.exclusive_buffers_per_channel, 0.0)
        return channel

    def _channel(self, gate: SingleInputGate, index: int, spec: ChannelSpec) -> InputChannel:
        config = self.config
        timeout_ms = config.partition_request_timeout_s * 1000
        backoff = RequestBackoff(config.max_request_backoff_ms, round(timeout_ms))
        place = (gate, index, spec.partition_id, spec.subpartition)
        if spec.connection is None:
            manager = self.partition_manager
            return LocalInputChannel(*place, manager, last=spec.last, wait_timeout_ms=timeout_ms, backoff=backoff)
        connection = (new_input_channel_id(), self._connections.client(spec.connection))
        channel = RemoteInputChannel(*place, *connection, last=spec.last, backoff=backoff, config=config)
        credit = config.exclusive_buffers_per_channel if spec.initial_credit is None else spec.initial_credit
        if not credit and not config.floating_buffers_per_gate:
            raise ConfigError(
                f"channel {index} of {gate.owner}: initial_credit is 0 and floating_buffers_per_gate too: it could "
                "never receive"
            )
        timeout_s = 0.0 if self._loop.is_current_thread() else config.request_buffers_timeout_s
        channel.assign_exclusive_segments(self.buffer_pool, credit, timeout_s)
        return channel

    def _floating_pool(self, owner: str) -> LocalBufferPool:
        # One guaranteed buffer: without it, a channel without exclusive buffers could wait for ever.
        return self.buffer_pool.create_buffer_pool(
            owner=f"{owner} (floating buffers)", num_required=1, max_buffers=self.config.floating_buffers_per_gate
        )

    def _warn_of_usage(self) -> None:
        warning = self.buffer_pool.usage_warning()
        if warning is not None:
            _log.warning("network memory", usage=warning)

    async def close(self) -> None:
        """Close server and connections, release registered partitions; tasks close their gates themselves."""
        self._is_closed = True
        if self.busy_poller is not None:
            self.busy_poller.close()
        server, self._server = self._server, None
        async with contextlib.AsyncExitStack() as rest:  # last in, first out; each step runs even if another one fails
            rest.callback(self.buffer_pool.destroy)
            rest.callback(self.partition_manager.shutdown)
            rest.push_async_callback(self._connections.close)
            if server is not None:
                rest.push_async_callback(server.close)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ResourceClosedError("the network environment was closed")


_CLOSE_TIMEOUT_S: Final = 30.0


class StandaloneNetwork:
    """The network of one process that produces and consumes partitions without flowlet.

    Life cycle: a context manager, or ``close``.  Close gates and partitions before it: those still open fail.
    """

    def __init__(self, config: NetstackConfig, name: str = "netstack") -> None:
        self._loop = EventLoopThread.start(name)
        try:
            self._environment = NetworkEnvironment(config, self._loop)
        except BaseException:
            self._loop.close()
            raise
        self._name = name

    def __repr__(self) -> str:
        return f"<StandaloneNetwork {self._name!r}, {self._environment!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def environment(self) -> NetworkEnvironment:
        """Buffer pool, ``ResultPartitionManager`` and connections."""
        return self._environment

    @property
    def event_loop(self) -> EventLoopThread:
        """The loop; never block it."""
        return self._loop

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> ConnectionID:
        """Serve the partitions of this process to others; port 0 picks a free one.  Returns the address.

        Raises:
            ConfigError: the config has no security, or ``host`` needs TLS.
            OSError: the address cannot be bound.
        """
        # waits for the data port; ended by the system's answer
        return self._loop.submit(self._environment.start(host, port)).result()

    def create_partition(
        self,
        partition_id: ResultPartitionID,
        num_subpartitions: int = 1,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        directory: Path | None = None,
    ) -> ResultPartition:
        """Make a partition with one subpartition per consumer; waiting requests for it are served now.

        Args:
            partition_id: the ids of partition and attempt, which consumers know.
            num_subpartitions: how many consumers.
            partition_type: pipelined, or blocking: then consumers read files, after ``finish``.
            directory: of these files; None: the system's folder for temporary files.

        The caller emits records (``emit_record``) and events (``broadcast_event``), then calls ``notify_end_of_data``,
        ``finish`` and, even after an error, ``close``.  ``emit_record`` blocks while consumers grant no credit and the
        partition's share of the memory is used.  The last buffer of a subpartition is sent when the next one begins, at
        an event, by ``finish_buffer``, or, unfinished, by ``flush``.  ``add_consumer_listener`` tells when consumers
        acknowledge or leave.

        Raises:
            InsufficientNetworkBuffersError: the network memory cannot guarantee ``num_subpartitions + 1`` buffers.
        """
        return self._environment.create_result_partition(
            self._name, partition_id, num_subpartitions, partition_type, directory
        )

    def open_gate(
        self, channels: Sequence[ChannelSpec], state_checker: PartitionStateChecker | None = None
    ) -> SingleInputGate:
        """Make a gate and send the requests of its channels; the caller reads it with ``get_next`` and closes it.

        ``state_checker`` is asked for a producer whose partition is not found: the request of a live one is repeated.

        Raises:
            InsufficientNetworkBuffersError: the network memory is too small for the credit of all channels.
        """
        gate = self._environment.create_input_gate(self._name, channels, state_checker)
        gate.request_partitions()
        return gate

    def close(self) -> None:
        """End everything; a second call, and one in a forked child, does nothing."""
        if self._environment.is_closed or self._loop.is_inherited:
            return
        try:
            self._loop.submit(self._environment.close()).result(_CLOSE_TIMEOUT_S)
        finally:
            self._loop.close()


def wait_consumed(partition: ResultPartition, timeout_s: float | None = None) -> bool:
    """Wait until every consumer of a closed partition has read it or has gone; False after ``timeout_s``."""
    is_released = threading.Event()
    partition.add_release_listener(is_released.set)
    return is_released.wait(timeout_s)  # waits for the partition's consumers; ended by them, or by release
