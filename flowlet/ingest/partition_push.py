"""``PartitionPush``: one offer of a partition to a gate, and its records on their way there.

``UnacknowledgedRows``: the records that no complete checkpoint holds yet, kept so that they can be sent again.

Side:       shared.
Invariants: rows are kept in the order in which they were written, and given up from the front only: when every subtask
            of the gate has said that it holds its part of a chunk for good.  ``first_records`` and ``num_before`` say
            where the kept ones begin.  Not more than ``max_bytes`` are kept, but for one chunk that is larger.  Every
            call that waits raises the error that ended the offer.  This module repeats no attempt.
Units:      approximate serialized bytes (``estimated_bytes``).
"""

import time
from collections import deque
from collections.abc import Sequence
from typing import Final

from flowlet.graph.partitioner import Rebalance
from flowlet.ingest.description import AttemptRefusedError, GateDescription, GateError, GateLostError, PartitionOffer
from flowlet.ingest.runtime import ProducerRuntime, StallWatch
from flowlet.io.create_record_writer import create_record_writer
from flowlet.io.record_writer import RecordWriterOptions
from flowlet.records import Chunk
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.types.declared_records import DeclaredRecords
from netstack.errors import ResourceClosedError
from netstack.flow.offer_book import Stage
from netstack.ids import ConnectionID, ResultPartitionID, execution_attempt_id, intermediate_partition_id
from netstack.late import dataclass
from netstack.offering_network import GateAccess, OfferedPartition
from netstack.wire import offer_messages
from netstack.wire.events import StopMode
from netstack.wire.offer_messages import GateIdentity


@dataclass(slots=True, eq=False)
class KeptChunk:
    """A chunk that may have to be sent again.

    ``num_sent``: how many records of the partition each subtask was sent, up to and with this chunk; None: the chunk
    was not sent wholly.
    """

    chunk: Chunk
    num_bytes: int
    num_sent: tuple[int, ...] | None = None


class UnacknowledgedRows:
    """The rows of one partition.  Threading: the writing thread.

    Args:
        num_subtasks: of the gate.
        max_bytes: see the invariants.
    """

    def __init__(self, num_subtasks: int, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept: deque[KeptChunk] = deque()
        self.num_bytes = 0
        self.first_records: tuple[int, ...] = (0,) * num_subtasks
        """How many records each subtask holds for good, which are not kept here any more."""
        self.num_before = 0
        """How many records of the partition were given up, at its front."""

    def __repr__(self) -> str:
        return f"<UnacknowledgedRows {len(self._kept)} chunks, {self.num_bytes} of {self._max_bytes} bytes>"

    @property
    def kept(self) -> list[KeptChunk]:
        """The chunks, the oldest first."""
        return list(self._kept)

    @property
    def next_needed(self) -> tuple[int, ...] | None:
        """How many records each subtask must hold before the oldest chunk is given up.

        None: no chunk is kept, or the oldest was not sent wholly.
        """
        return self._kept[0].num_sent if self._kept else None

    def has_room(self, num_bytes: int) -> bool:
        """Whether so many more bytes may be kept; true if none are kept, so that a chunk of any size passes."""
        return not self._kept or self.num_bytes + num_bytes <= self._max_bytes

    def add(self, chunk: Chunk, num_bytes: int) -> KeptChunk:
        """Keep a chunk that is about to be sent."""
        kept = KeptChunk(chunk, num_bytes)
        self._kept.append(kept)
        self.num_bytes += num_bytes
        return kept

    def acknowledge(self, held: Sequence[int]) -> None:
        """Give up the chunks of which the subtasks hold all records for good: ``held`` records each."""
        while self._kept and (sent := self._kept[0].num_sent) is not None:
            if any(has < wanted for has, wanted in zip(held, sent, strict=True)):
                return
            oldest = self._kept.popleft()
            self.num_bytes -= oldest.num_bytes
            self.num_before += len(oldest.chunk)
            self.first_records = sent

    def check_invariants(self) -> None:
        """Raise AssertionError if an invariant does not hold."""
        assert self.num_bytes == sum(each.num_bytes for each in self._kept)
        assert self.num_bytes <= self._max_bytes or len(self._kept) == 1
        assert sum(self.first_records) == self.num_before


_AWAITED: Final = {
    Stage.PROCESSED: "all operators and sinks of the gate's job, which have not processed everything",
    Stage.ENDED: "the gate, which has not counted the partition",
}
_AWAITED_CHECKPOINT: Final = "a checkpoint of the gate's job that holds everything"
_ROOM_CHECK_S: Final = 1.0


@dataclass(eq=False)
class PartitionPush:
    """One offer of a partition.

    Threading: one thread, but for the loop.
    Life cycle: ``offer``, ``begin``, ``write``, ``end``; ``release`` or ``withdraw`` at last.

    Args:
        runtime: of this process.
        description: the gate, with its present endpoints.
        offer: with a nonce of its own.
        stall: is told when this thread waits.
        first_records: how many records are left out, by subtask.
    """

    _runtime: ProducerRuntime
    _description: GateDescription
    _offer: PartitionOffer
    _stall: StallWatch
    _first_records: tuple[int, ...]

    def __post_init__(self) -> None:
        """Make the partition, whose id is unique in this process, because the nonce is."""
        self._name = f"{self._offer} to {self._description}"
        num_subtasks = len(self._description.endpoints)
        nonce = self._offer.nonce.bytes
        producer = execution_attempt_id(nonce, nonce, self._offer.partition, self._offer.attempt)
        partition_id = ResultPartitionID(intermediate_partition_id(nonce, self._offer.partition), producer)
        self._partition = self._runtime.environment.create_result_partition(
            f"the producer of {self._name}", partition_id, num_subtasks
        )
        self._partition.buffer_pool.observe_blocking(self._stall)
        self.offered = OfferedPartition(self._partition, num_subtasks)

    def __repr__(self) -> str:
        return f"<PartitionPush of {self._name}>"

    @property
    def num_sent(self) -> tuple[int, ...]:
        """How many records of the partition each subtask was sent, counting those that were left out."""
        return tuple(first + sent for first, sent in zip(self._first_records, self._writer.num_written, strict=True))

    def offer(self, timeout_s: float, room_deadline: float, wait_for_room_s: float) -> None:
        """Offer the partition to all subtasks, and wait until they have requested it.

        Raises:
            OfferRefusedError: the gate does not take it.
            AttemptRefusedError: there was no room until ``room_deadline``.
            GateLostError: a TaskManager did not answer within ``timeout_s``.
            NetstackError: a TaskManager cannot be reached.
        """
        description = self._description
        offered = self.offered
        identity = GateIdentity(bytes.fromhex(description.job_id), description.name, description.expires_ms)
        access = GateAccess(identity, description.token)
        places = [
            (ConnectionID(endpoint.host, endpoint.port), self._message(subtask))
            for subtask, endpoint in enumerate(description.endpoints)
        ]
        # The first subtask is asked before the others.  Were all asked at once, two producers could each have a place
        # that the other one waits for.
        for new in (slice(1), slice(1, None)) if len(places) > 1 else (slice(1),):
            deadline = time.monotonic() + timeout_s
            self._runtime.run(self._runtime.offering.offer(access, places[new], offered, timeout_s))
            if not offered.wait_for(Stage.QUEUED, max(0.0, deadline - time.monotonic()), new.stop):
                late = offered.late_subtasks(Stage.QUEUED)[: new.stop]
                raise GateLostError(
                    f"{self._offer}: subtasks {late} of {description} did not answer within {timeout_s:g} s"
                )
            if not offered.wait_for(Stage.REQUESTED, max(0.0, room_deadline - time.monotonic()), new.stop):
                late = offered.late_subtasks(Stage.REQUESTED)[: new.stop]
                raise no_room(
                    self._offer, description, wait_for_room_s, f"subtasks {late} take as many producers as they may"
                )

    def begin(self, declared: DeclaredRecords | None, num_before: int | None) -> None:
        """Make the writer that routes the records.

        ``num_before``: how many records of the partition are left out; then each attempt routes its records alike.
        None: records that go to the subtasks in turn may begin with any of them.
        """
        partitioner = self._description.partitioner
        first_channel = None
        if num_before is not None and isinstance(partitioner, Rebalance):
            first_channel = (self._offer.partition + num_before) % len(self._description.endpoints)
        options = RecordWriterOptions(0, self._offer.partition, serializer=StreamElementSerializer(declared=declared))
        self._writer = create_record_writer(self._partition, partitioner, options, first_channel=first_channel)

    def write(self, chunk: Chunk) -> None:
        """Send records; waits for credit.  Raises NetstackError: the offer has ended."""
        self._writer.collect(chunk)
        self._writer.flush_pending()

    def wait_until_held(self, num_records: Sequence[int]) -> bool:
        """Wait a while until each subtask holds so many of its records for good; False if they do not yet.

        Raises:
            NetstackError: the offer has ended.
        """
        self._stall.mark_start(_AWAITED_CHECKPOINT)
        try:
            return self.offered.wait_until_held(num_records, _ROOM_CHECK_S)
        finally:
            self._stall.mark_end()

    def end(self, deadline: float | None) -> None:
        """Send the end of the data, and wait until every subtask has counted the partition.

        Raises:
            GateLostError: it was not counted by ``deadline``.
            NetstackError: the offer has ended.
        """
        self._partition.notify_end_of_data(StopMode.DRAIN)
        self._wait_for(Stage.PROCESSED, deadline)
        self._partition.finish()
        self._partition.close()
        self._wait_for(Stage.ENDED, deadline)

    def _wait_for(self, stage: Stage, deadline: float | None) -> None:
        is_kept = stage is Stage.PROCESSED and self._description.acknowledges_checkpointed
        awaited = _AWAITED_CHECKPOINT if is_kept else _AWAITED[stage]
        self._stall.mark_start(awaited)
        try:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            # waits for the gate's tasks; ended by them, the JobManager, or heartbeats
            if not self.offered.wait_for(stage, left_s):
                late = self.offered.late_subtasks(stage)
                raise GateLostError(
                    f"{self._name}: no more time to wait for {awaited}; subtasks {late} have not confirmed it"
                )
        finally:
            self._stall.mark_end()

    def release(self, error: BaseException) -> None:
        """Abort the offer; another one may follow; idempotent."""
        self.offered.abort(error if isinstance(error, Exception) else GateError(f"{type(error).__name__}: {error}"))
        self._partition.close()
        self.withdraw()

    def withdraw(self) -> None:
        """End the watch over the offer, and take no more messages about it."""
        try:
            self._runtime.unwatch(self._stall)
            self._runtime.loop.execute_threadsafe(self.offered.withdraw)
        except ResourceClosedError:
            return  # the runtime was closed meanwhile, and with it this partition

    def _message(self, subtask: int) -> offer_messages.SubpartitionOffer:
        offer = self._offer
        description = self._description
        return offer_messages.SubpartitionOffer(
            offer_id=offer.nonce.bytes,
            result_partition=self._partition.partition_id,
            subtask=subtask,
            num_subtasks=len(description.endpoints),
            num_producers=offer.num_producers or 0,
            job=offer.job,
            epoch=offer.epoch,
            partition=offer.partition,
            attempt=offer.attempt,
            fingerprint=description.fingerprint,
            first_record=self._first_records[subtask],
        )


def no_room(offer: PartitionOffer, description: GateDescription, waited_s: float, reason: str) -> AttemptRefusedError:
    """The error of an offer that found no room."""
    return AttemptRefusedError(
        f"{offer}: no room at {description} within {waited_s:g} s (wait_for_room_s, in Spark waitForRoom): {reason}; "
        "push fewer partitions at a time, or start its TaskManager with a larger limit (--max-producers-per-gate: "
        "NetstackConfig.max_producers_per_gate)"
    )
