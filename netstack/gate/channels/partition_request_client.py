"""What a remote channel needs to ask for its partition: a client, the state of the producer, and when to ask again.

Whether the producer of a partition that was not found is alive.

How long a consumer waits before it asks once more for a partition that was not found.

Side:   shared.
Source: Flink ``PartitionProducerStateProvider``.  Flink ``InputChannel.increaseBackoff``, and
        ``RemoteInputChannel.increaseBackoff`` for producers that keep a request for a while before they say that they
        do not know the partition (1.18 and later).  Flink ``PartitionRequestClient``.
Units:  milliseconds.  delays in milliseconds, sizes in bytes.
"""

from collections.abc import Callable
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

from netstack.ids import ResultPartitionID
from netstack.wire.messages import ChannelOrder
from netstack.wire.offer_messages import PartitionOffer, RefusalCode

if TYPE_CHECKING:
    from netstack.gate.channels.remote_input_channel import RemoteInputChannel


class ProducerState(Enum):
    """What is known about the producer of a partition that was not found."""

    READY = auto()
    """Scheduled, running or finished: the partition will be there, or was moved."""
    FAILED = auto()
    """Failed or cancelled: the consumer will be cancelled, too."""
    UNKNOWN = auto()


class PartitionStateChecker(Protocol):
    """Knows whether a producer is alive: asks the JobManager."""

    def check(self, partition_id: ResultPartitionID, on_result: Callable[[ProducerState], None]) -> None:
        """Call ``on_result`` once, on any thread, now or later; must not block."""


class RequestBackoff:
    """Doubles from ``initial_ms`` to ``max_ms``, then there is no further attempt; 0 means that there is none at all.

    With a ``listener_timeout_ms`` the producer has waited that long already: the next request goes out at once, and the
    time that is spent this way only counts, until it reaches twice ``max_ms``.
    """

    __slots__ = ("_current_ms", "_initial_ms", "_listener_timeout_ms", "_max_ms")

    def __init__(self, initial_ms: int = 0, max_ms: int = 0, *, listener_timeout_ms: int = 0) -> None:
        if not 0 <= initial_ms <= max_ms:
            raise ValueError(f"a back-off from {initial_ms} to {max_ms} ms")
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._listener_timeout_ms = listener_timeout_ms
        self._current_ms = 0

    def __repr__(self) -> str:
        return f"<RequestBackoff at {self._current_ms} of {self._max_ms} ms>"

    @property
    def current_ms(self) -> int:
        """How far it has grown."""
        return self._current_ms

    @property
    def is_counting_only(self) -> bool:
        """Whether it is the producer's side that waits."""
        return self._listener_timeout_ms > 0

    def next_delay_ms(self) -> int | None:
        """How long to wait before the next request; None if there shall be none."""
        if self._listener_timeout_ms:
            self._current_ms += self._listener_timeout_ms
            return 0 if self._current_ms < 2 * self._max_ms else None
        if self._initial_ms == 0 or self._current_ms == self._max_ms:
            return None
        self._current_ms = min(2 * self._current_ms, self._max_ms) if self._current_ms else self._initial_ms
        return self._current_ms


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

    def order(self, channel: "RemoteInputChannel", message: ChannelOrder) -> None:
        """Send ``message`` to the producer, behind what was ordered before."""

    def cancel(self, channel: "RemoteInputChannel") -> None:
        """The channel wants no more."""


class OfferedPartitionClient(PartitionRequestClient, Protocol):
    """The connection over which a producer outside the cluster offers partitions.

    One implementer: ``NetworkOfferedPartitionClient`` imports this module, which therefore cannot import it.
    """

    def refuse(self, offer: PartitionOffer, code: RefusalCode, reason: str) -> None:
        """The gate takes nothing (more) from ``offer``, or nothing yet if the code says so."""

    def run_later(self, function: Callable[[], None]) -> None:
        """Run a function on the connection's loop thread, behind the calls before; never if the loop is closed."""
