"""The network stack of one process: pools, partitions, gates, server and connections in one place.

Side:   shared.  ``create_*`` from any thread; ``start`` and ``close`` on the loop thread.
Source: Flink ``NettyShuffleEnvironment``.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from netstack.buffer.network_buffer_pool import NetworkBufferPool
from netstack.channel.handler import ChannelHandler
from netstack.channel.message_codec import MessageDecoder, MessageEncoder
from netstack.channel.server import NetworkServer
from netstack.config import NetstackConfig
from netstack.connection_manager import ConnectionManager
from netstack.errors import LocalProtocolError, ResourceClosedError
from netstack.eventloop import EventLoopThread
from netstack.gate.input_gate import SingleInputGate
from netstack.gate.local_channel import LocalInputChannel
from netstack.gate.remote_channel import RemoteInputChannel
from netstack.handlers.request_queue import PartitionRequestQueue
from netstack.handlers.request_server import PartitionRequestServerHandler
from netstack.ids import ConnectionID, ResultPartitionID, new_input_channel_id
from netstack.partition.manager import ResultPartitionManager
from netstack.partition.result_partition import ResultPartition


@dataclass(frozen=True, slots=True)
class ChannelSpec:
    """Where one input channel reads; ``connection`` None means: in this process.

    ``initial_credit`` buffers are the channel's own; None: as many as the config says.  A local channel needs none.
    """

    partition_id: ResultPartitionID
    subpartition: int
    connection: ConnectionID | None
    initial_credit: int | None = None


class NetworkEnvironment:
    """Makes partitions and gates that share one buffer pool, one server and one connection per peer.

    Life cycle: made on any thread, ``start``-ed on the loop thread if it shall serve partitions to others, ``close``-d there.
    """

    def __init__(self, config: NetstackConfig, loop: EventLoopThread) -> None:
        self.config = config
        self.buffer_pool = NetworkBufferPool(config.num_segments, config.segment_size_bytes)
        self.partition_manager = ResultPartitionManager()
        self._loop = loop
        self._connections = ConnectionManager(config, loop)
        self._server: NetworkServer | None = None
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<NetworkEnvironment {self.buffer_pool!r}, {self._connections!r}>"

    @property
    def is_closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._is_closed

    @property
    def num_accepted_connections(self) -> int:
        """How many connections of consumers there are now; any thread, one pass stale is fine."""
        server = self._server
        return 0 if server is None else server.num_channels

    async def start(self, host: str, port: int) -> ConnectionID:
        """Listen for consumers; port 0 picks a free one.  Returns where the data port is.

        Raises:
            ConfigError: ``host`` is not a loopback address.
            LocalProtocolError: it was started already.
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
        return (
            MessageEncoder(),
            MessageDecoder.of(self.config),
            PartitionRequestServerHandler(self.config, self._loop, self.partition_manager, queue),
            queue,
        )

    def create_result_partition(self, owner: str, partition_id: ResultPartitionID, num_subpartitions: int) -> ResultPartition:
        """A pipelined partition, registered, so that consumers find it.

        Raises:
            InsufficientNetworkBuffersError: the network memory cannot guarantee ``num_subpartitions + 1`` buffers.
            ResourceClosedError: the environment was closed.
        """
        self._check_open()
        config = self.config
        pool = self.buffer_pool.create_buffer_pool(
            owner=owner,
            num_required=num_subpartitions + 1,
            max_buffers=num_subpartitions * config.exclusive_buffers_per_channel + config.floating_buffers_per_gate,
        )
        try:
            partition = ResultPartition(partition_id, num_subpartitions, pool, owner)
        except BaseException:
            pool.destroy()
            raise
        try:
            self.partition_manager.register(partition)
        except BaseException:
            partition.release()
            partition.close()
            raise
        return partition

    def create_input_gate(self, owner: str, channels: Sequence[ChannelSpec]) -> SingleInputGate:
        """A gate over the given channels, with the exclusive buffers of the remote ones; nothing is requested yet.

        Raises:
            InsufficientNetworkBuffersError: the network memory cannot give every remote channel its exclusive buffers.
            ResourceClosedError: the environment was closed.
        """
        self._check_open()
        gate = SingleInputGate(owner)
        try:
            for index, spec in enumerate(channels):
                self._add_channel(gate, index, spec)
        except BaseException:
            gate.close()
            raise
        return gate

    def _add_channel(self, gate: SingleInputGate, index: int, spec: ChannelSpec) -> None:
        if spec.connection is None:
            gate.add_channel(LocalInputChannel(gate, index, spec.partition_id, spec.subpartition, self.partition_manager))
            return
        client = self._connections.client(spec.connection)
        channel = RemoteInputChannel(gate, index, new_input_channel_id(), spec.partition_id, spec.subpartition, client)
        credit = self.config.exclusive_buffers_per_channel if spec.initial_credit is None else spec.initial_credit
        channel.assign_exclusive_segments(self.buffer_pool, credit)
        gate.add_channel(channel)

    async def close(self) -> None:
        """Stop serving and reading; partitions still registered are released.  Gates are closed by their tasks."""
        self._is_closed = True
        server, self._server = self._server, None
        async with contextlib.AsyncExitStack() as rest:  # last in, first out, and all of it, whatever fails
            rest.callback(self.buffer_pool.destroy)
            rest.callback(self.partition_manager.shutdown)
            rest.push_async_callback(self._connections.close)
            if server is not None:
                rest.push_async_callback(server.close)

    def _check_open(self) -> None:
        if self._is_closed:
            raise ResourceClosedError("the network environment was closed")
