"""What remote input channels, and gates that take offers, ask of a connection.

Side:   shared.
Units:  delays in milliseconds, sizes in bytes.
Source: Flink ``PartitionRequestClient``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from netstack.wire.offer_messages import PartitionOffer, RefusalCode

if TYPE_CHECKING:
    from netstack.gate.channels.remote_input_channel import RemoteInputChannel


class PartitionRequestClient(Protocol):
    """The connection to one producing TaskManager.

    Threading: any thread; calls of one thread keep their order.  Failures arrive at the channel through ``on_error``.
    """

    def request_subpartition(self, channel: "RemoteInputChannel", delay_ms: int = 0) -> None:
        """Ask the peer for the channel's subpartition, with the channel's initial credit; after ``delay_ms`` if it is a
        retry.
        """

    def notify_credit_available(self, channel: "RemoteInputChannel") -> None:
        """The channel's unannounced credit rose from zero."""

    def notify_new_buffer_size(self, channel: "RemoteInputChannel", size_bytes: int) -> None:
        """Ask the producer for buffers of this size from now on."""

    def resume_consumption(self, channel: "RemoteInputChannel") -> None:
        """Let the producer go on after a blocking event; without exclusive buffers it forgets the credit it has."""

    def acknowledge_all_records_processed(self, channel: "RemoteInputChannel") -> None:
        """Tell the producer that everything up to the end of data was processed."""

    def send_task_event(self, channel: "RemoteInputChannel", event: bytes) -> None:
        """Bring a serialized event to the producer of the channel's partition."""

    def cancel(self, channel: "RemoteInputChannel") -> None:
        """The channel wants no more."""


class OfferedPartitionClient(PartitionRequestClient, Protocol):
    """The connection over which a producer outside the cluster offers partitions."""

    def refuse(self, offer: PartitionOffer, code: RefusalCode, reason: str) -> None:
        """The gate takes nothing (more) from ``offer``, or nothing yet if the code says so."""

    def run_later(self, function: Callable[[], None]) -> None:
        """Run a function on the connection's loop thread, behind the calls before; never if the loop is closed."""
