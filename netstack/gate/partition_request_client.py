"""What a remote input channel asks of its connection.

Side:   shared.
Source: Flink ``PartitionRequestClient``.
Absent: task events, ``resume_consumption``, new buffer sizes.
"""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from netstack.gate.remote_channel import RemoteInputChannel


class PartitionRequestClient(Protocol):
    """The connection to one producing TaskManager.

    Threading: any thread; calls of one thread keep their order.  Failures arrive at the channel through ``on_error``.
    """

    def request_subpartition(self, channel: "RemoteInputChannel") -> None:
        """Ask the peer for the channel's subpartition, with the channel's initial credit."""

    def notify_credit_available(self, channel: "RemoteInputChannel") -> None:
        """The channel's unannounced credit rose from zero."""

    def acknowledge_all_records_processed(self, channel: "RemoteInputChannel") -> None:
        """Tell the producer that everything up to the end of data was processed."""

    def cancel(self, channel: "RemoteInputChannel") -> None:
        """The channel wants no more."""
