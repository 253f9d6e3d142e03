"""Reads one run of an external edge: what its channels carry, as events for ``ResultBuffer``.

Side:       shared.  The user's thread polls; the buffers arrive on the client's loop thread.
Invariants: an end of data is acknowledged, and a channel that a barrier blocks goes on, as soon as it was read: what
            was read is the client's, and the tasks need not wait until it is handed out.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from flowlet.client.remote import ClusterClient
from flowlet.client.result_buffer import BarrierReceived, ChannelEnded, RecordsReceived
from flowlet.records import Chunk
from flowlet.rpc.control_messages import InputChannelDescriptor
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_limits import LARGEST_ELEMENT_LIMITS
from flowlet.tm.task_deployment import channel_spec
from netstack.buffer.network_buffer import NetworkBuffer
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.security import SecurityConfig
from netstack.wire.events import CheckpointBarrier, EndOfData

ChannelEvent = RecordsReceived | BarrierReceived | ChannelEnded

# A TaskManager that has no file descriptors left for a moment must not cost the job: five pauses of together 3 s.  All
# attempts together take no longer than the one of 120 s that is the default of the network stack.
_CONNECT_RETRIES: Final = 5
_CONNECT_TIMEOUT_S: Final = 20.0


class RunReader:
    """The gate of one run, with a network of its own.

    Threading: ``poll`` on one thread; ``close`` on any, but not on the client's loop thread.
    Life cycle: ``close`` it.

    Args:
        client: of the cluster that runs the job.
        channels: one per producer.
        job_name: for people.
    """

    def __init__(self, client: ClusterClient, channels: Sequence[InputChannelDescriptor], job_name: str) -> None:
        self._client = client
        self._producers = [channel.producer for channel in channels]
        self._deserializers = [
            ElementDeserializer(name=f"{job_name}, producer {index}", limits=LARGEST_ELEMENT_LIMITS)
            for index in range(len(channels))
        ]
        self._network = NetworkEnvironment(
            NetstackConfig(
                security=SecurityConfig.hmac(client.secret),
                connect_timeout_s=_CONNECT_TIMEOUT_S,
                connect_retries=_CONNECT_RETRIES,
            ),
            client.loop,
        )
        try:
            self._gate = self._network.create_input_gate(
                f"client of {job_name}", [channel_spec(channel, None) for channel in channels]
            )
            self._gate.request_partitions()
        except BaseException:
            client.run(self._network.close)
            raise

    def __repr__(self) -> str:
        return f"<RunReader of {self._gate!r}>"

    def producer(self, channel: int) -> bytes:
        """The attempt that a channel reads."""
        return self._producers[channel]

    def poll(self) -> ChannelEvent | None:
        """The next event; None: there is none now.

        Raises:
            NetstackError: a channel has failed, or ``close`` was called.
            SerdeError: a producer sent something else than records.
        """
        while (item := self._gate.poll_next()) is not None:
            channel = item.channel_index
            if item.buffer is not None:
                return RecordsReceived(channel, self._records_in(channel, item.buffer), item.size)
            if isinstance(item.event, EndOfData):
                self._gate.acknowledge_all_records_processed(channel)
                return ChannelEnded(channel)
            if isinstance(item.event, CheckpointBarrier):
                if item.event.options.needs_alignment:
                    self._gate.resume_consumption(channel)
                return BarrierReceived(channel, item.event.checkpoint_id)
        return None

    def call_when_available(self, callback: Callable[[], None]) -> None:
        """Call once ``poll`` may find something, at once if it may now; not at all once every partition has ended."""
        if not self._gate.is_finished:
            self._gate.available_future().add_done_callback(callback)

    def close(self) -> None:
        """Give back buffers and connections; a poll raises from then on."""
        self._gate.close()
        self._client.run(self._network.close)

    def _records_in(self, channel: int, buffer: NetworkBuffer) -> list[list[Any]]:
        try:
            elements = self._deserializers[channel].feed(buffer.view)
        finally:
            buffer.recycle()
        return [element.values for element in elements if isinstance(element, Chunk)]
