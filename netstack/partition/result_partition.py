"""The data that one task produces for one edge: a subpartition per consumer.

Side:       shared.  ``finish``, ``close`` and all calls that write on the task thread; ``fail``, ``release``,
            checkpoints and views from any thread.
Invariants: the partition is released when every subpartition was consumed and the task closed it (users = subpartitions
            + 1), or at once by ``fail`` and ``release``.  A subpartition whose consumer left early counts as processed:
            a consumer that is gone never holds up its producer.
Lock order: ``ResultPartition._lock`` is a leaf: subpartitions, pool, futures and listeners are called after it.
Source:     Flink ``ResultPartition``, ``PipelinedResultPartition``; records are written by
            ``BufferWritingResultPartition``.
Absent:     addition of recovered state.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial

from netstack.availability import AvailabilityFuture, run_all
from netstack.buffer.local_buffer_pool import LocalBufferPool
from netstack.buffer.network_buffer import BufferCompressor
from netstack.errors import LocalProtocolError, PartitionNotFoundError, ProducerFailedError, ResourceClosedError
from netstack.ids import ResultPartitionID
from netstack.log_lines import caused_by
from netstack.partition.buffer_writing_result_partition import (
    ALL,
    BufferWritingResultPartition,
    ResultPartitionState,
    ResultPartitionType,
)
from netstack.partition.channel_state import ChannelStateWriter, ResultSubpartitionInfo
from netstack.partition.pipelined_subpartition import PipelinedSubpartition
from netstack.partition.result_subpartition import (
    BufferAndBacklog,
    BufferAvailabilityListener,
    ConsumerListener,
    PipelinedSubpartitionView,
    ResultSubpartition,
    ResultSubpartitionView,
    UnionResultSubpartitionView,
)


class PipelinedApproximateSubpartitionView(PipelinedSubpartitionView):
    """One of the readers that follow each other.

    Invariants: one view at a time; a new one takes the place of the last, starts at a whole record and with sequence
        number 0; from then on the last one finds and takes nothing more, whatever it was about to do: it says who it is
        when it polls and resumes, and ``PipelinedSubpartition`` compares under its lock.
    """

    __slots__ = ()

    def __init__(self, subpartition: PipelinedSubpartition, listener: BufferAvailabilityListener) -> None:
        super().__init__(subpartition, listener)
        # Not the methods of the subpartition: a reader that has retired must find nothing.
        self.next_buffer = self._next_buffer
        self.poll_little = lambda _max_bytes: None
        self.poll_run = None

    def _next_buffer(self) -> BufferAndBacklog | None:
        return None if self._is_view_released else self._subpartition.poll(self)

    def availability(self, is_credit_available: bool) -> tuple[bool, int]:  # noqa: FBT001 - see ResultSubpartitionView
        """Return whether this reader can poll something, and how many data buffers."""
        return (False, 0) if self._is_view_released else super().availability(is_credit_available)

    def resume_consumption(self) -> None:
        """Go on after a blocking event, if this reader is the one that was blocked."""
        if not self._is_view_released:
            self._subpartition.resume_consumption(self)

    def release(self) -> None:
        """Read no more; the queued elements are the next reader's."""
        self.retire()


class PipelinedApproximateSubpartition(PipelinedSubpartition):
    """A subpartition that a new consumer may go on reading when the last one failed: some records are lost then, but
    none is torn.

    Life cycle: released by its partition only; a view that goes leaves everything queued.
    Lock order: ``PipelinedSubpartition._lock``, then that of the view which retires.
    Source: Flink ``PipelinedApproximateSubpartition`` and its view.  Unlike there, the rest of a record is skipped also
        if the first reader had read all of its beginning before that buffer was finished.  As there, channel state is
        not recovered: approximate recovery and unaligned checkpoints exclude each other.
    """

    @property
    def takes_contents(self) -> bool:
        """Always False: the next reader may be in another process."""
        return False

    def _new_view_locked(self, listener: BufferAvailabilityListener) -> PipelinedSubpartitionView:
        former = self._view
        if former is not None:
            # Under the lock under which readers poll: the former one has taken its last element.
            former.retire()
            # The former reader may have taken the beginning of a record, whose rest would be garbage to the next one.
            self._skips_partial_record = True
            # Only the former reader could resume it.
            self._is_blocked = False
            # A new receiver counts from 0.
            self._sequence_number = 0
        return PipelinedApproximateSubpartitionView(self, listener)


class ResultPartition(BufferWritingResultPartition):
    """A pipelined partition.

    Life cycle: ``ResultPartitionState``.  A task closes its partition in any case.
    State, guarded by ``_lock``: ``_state`` and ``_failure_cause``, which others read bare; ``_unconsumed``,
    ``_unprocessed``, ``_release_listeners``, ``_consumer_listeners``.  What the writing side adds belongs to the task
    thread.

    Args:
        partition_type: how it is consumed and released.
        partition_index: which output of its task it is; channel state is kept under it.
        sends_empty_buffers: whether its receivers have no exclusive buffers, and so have to see empty buffers too.
        compressor: makes buffers smaller on their way to the reader (an extension: Flink compresses blocking partitions
            only).
        new_subpartition: makes the subpartitions of another kind of partition.
    """

    def __init__(
        self,
        partition_id: ResultPartitionID,
        num_subpartitions: int,
        buffer_pool: LocalBufferPool,
        owner: str,
        *,
        partition_type: ResultPartitionType = ResultPartitionType.PIPELINED_BOUNDED,
        partition_index: int = 0,
        sends_empty_buffers: bool = False,
        compressor: BufferCompressor | None = None,
        new_subpartition: "Callable[[int, ResultPartition], ResultSubpartition] | None" = None,
    ) -> None:
        if num_subpartitions < 1:
            raise ValueError(f"{owner}: a partition of {num_subpartitions} subpartitions")
        super().__init__(partition_id, num_subpartitions, buffer_pool, owner, partition_type=partition_type)
        self.all_data_processed = AvailabilityFuture()
        self._lock = threading.Lock()
        # All below guarded by _lock.
        self._unconsumed = set(range(num_subpartitions))
        self._unprocessed = set(range(num_subpartitions))
        self._release_listeners: list[Callable[[], None]] = []
        self._consumer_listeners: list[ConsumerListener] = []  # Only ever appended to; copied bare.
        if new_subpartition is None:
            kind = PipelinedApproximateSubpartition if partition_type.is_reconsumable else PipelinedSubpartition
            new_subpartition = partial(
                kind, sends_empty_buffers=sends_empty_buffers, partition_index=partition_index, compressor=compressor
            )
        self._subpartitions += [new_subpartition(index, self) for index in range(num_subpartitions)]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.partition_id} of {self.owner}: {self._state.value}, {len(self._unconsumed)} "
            f"of {self.num_subpartitions} subpartitions unconsumed, {self.buffer_pool!r}>"
        )

    @property
    def is_finished(self) -> bool:
        """Whether the end of the partition was written, and it was not released since."""
        return self._state in (ResultPartitionState.FINISHED, ResultPartitionState.CLOSED)

    @property
    def is_released(self) -> bool:
        """Whether nothing of it can be read any more."""
        return self._state is ResultPartitionState.RELEASED

    @property
    def failure_cause(self) -> ProducerFailedError | None:
        """Why it was released before it was consumed, if it was."""
        return self._failure_cause

    def finish(self) -> None:
        """Append the end of the partition to every subpartition.

        Raises:
            ResourceClosedError: the partition was released or closed.
            LocalProtocolError: the partition is finished already.
        """
        # A state of its own while the ends are written: nothing comes behind them, and a close still fails readers
        # without one.
        if not self._change_state(ResultPartitionState.OPEN, ResultPartitionState.FINISHING):
            self._refuse()
        self._finish_builders()
        for subpartition in self._subpartitions:
            subpartition.finish()
        # Changes nothing if a release came while the ends were written.
        self._change_state(ResultPartitionState.FINISHING, ResultPartitionState.FINISHED)

    def close(self) -> None:
        """End the task's use of the partition; the second call does nothing.

        An unfinished partition fails, so that no consumer waits for ever.
        """
        is_finished = self._change_state(ResultPartitionState.FINISHED, ResultPartitionState.CLOSED)
        # Also those of a partition that another thread released: builders are this thread's, no release closes them.
        self._finish_builders()
        if not is_finished and self._state is not ResultPartitionState.CLOSED:
            self.release(ResourceClosedError("it was closed before it was finished"))
        self.buffer_pool.destroy()
        self._release_if_unused()

    def _change_state(self, before: ResultPartitionState, after: ResultPartitionState) -> bool:
        """Go from state ``before`` to ``after``; False, and nothing changes, if the state is another one."""
        with self._lock:
            is_changed = self._state is before
            if is_changed:
                self._state = after
        return is_changed

    # ---------------------------------------------------------------- any thread

    def set_channel_state_writer(self, writer: ChannelStateWriter, partition_index: int | None = None) -> None:
        """Hand data that barriers overtake to ``writer`` from now on; called before the first barrier.

        ``partition_index``: which output of its task this is; None: what it was made with.
        """
        for subpartition in self._subpartitions:
            subpartition.channel_state = writer
            if partition_index is not None:
                subpartition.info = ResultSubpartitionInfo(partition_index, subpartition.index)

    def aligned_barrier_timeout(self, checkpoint_id: int) -> None:
        """Let the barriers of ``checkpoint_id`` that were not consumed yet overtake what is queued before them."""
        run_all([partial(subpartition.aligned_barrier_timeout, checkpoint_id) for subpartition in self._subpartitions])

    def abort_checkpoint(self, checkpoint_id: int, cause: BaseException) -> None:
        """End the wait for the data before the barriers of ``checkpoint_id``."""
        run_all([partial(subpartition.abort_checkpoint, checkpoint_id, cause) for subpartition in self._subpartitions])

    def create_subpartition_view(
        self, index: int, listener: BufferAvailabilityListener, last: int | None = None
    ) -> ResultSubpartitionView:
        """Make a view of subpartition ``index``, or of all from ``index`` to ``last``: for pipelined types the one view
        there is.

        A range is read as a whole or refused as a whole: a refused range loses and consumes nothing.

        Raises:
            PartitionNotFoundError: the partition or subpartition was released.
            LocalProtocolError: there is no such subpartition, it is read already, or it is not finished (blocking
                types).
        """
        last = index if last is None else last
        if not 0 <= index <= last < self.num_subpartitions:
            what = f"{index} is" if index == last else f"{index} to {last} are"
            raise LocalProtocolError(
                f"partition {self.partition_id} has {self.num_subpartitions} subpartitions, {what} none of them"
            )
        if index == last:
            return self._create_view(index, listener)
        union = UnionResultSubpartitionView(listener, range(index, last + 1))
        try:
            for number in range(index, last + 1):
                union.add_view(number, self._create_view(number, union.listener_of(number)))
        except BaseException:
            # Not ``release``: it would consume the subpartitions that this range got.
            union.hand_back()
            raise
        # Behind the last view: what the others have told until now has waited.
        union.start()
        return union

    def _create_view(self, index: int, listener: BufferAvailabilityListener) -> ResultSubpartitionView:
        view = self._subpartitions[index].create_read_view(listener)
        if view is None:
            reason = self._failure_cause or f"its subpartition {index} was consumed"
            raise PartitionNotFoundError(f"partition {self.partition_id} was released at its producer: {reason}")
        return view

    def add_release_listener(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` once when the partition is released, at once if it was."""
        with self._lock:
            # Under the lock: a release between this look and the append would never call the listener.
            if not self.is_released:
                self._release_listeners.append(listener)
                return
        listener()

    @property
    def subpartitions(self) -> Sequence[ResultSubpartition]:
        """The subpartitions, one per consumer, with their queues and views."""
        return self._subpartitions

    def fail(self, error: BaseException) -> None:
        """Release the partition; readers learn that the producer failed, and why.  Writers wake up with an error."""
        self.release(error)

    def release(self, cause: BaseException | None = None) -> None:
        """Drop everything, from any state; views that are still read report ``cause``.

        The second call does nothing.
        """
        # Asks for the text of an exception, which may be a user's: not under the lock.
        failure = self._producer_failed(cause)
        # The calls follow the lock: a release listener takes the manager's lock, a reader asks at once why it ended.
        with self._lock:
            if self.is_released:
                return
            calls = self._release_locked(failure)
        run_all(calls)

    def add_consumer_listener(self, listener: ConsumerListener) -> None:
        """Tell ``listener`` from now on when consumers acknowledge or leave."""
        with self._lock:
            self._consumer_listeners.append(listener)

    def on_consumed_subpartition(self, index: int, *, has_read_all: bool) -> None:
        """Note that the view of ``index`` was released; called by the view."""
        with self._lock:
            self._unconsumed.discard(index)
        # A consumer that leaves early acknowledges nothing any more: its producer must not wait for it.
        self._processed(index)
        self._release_if_unused()
        self._tell_consumer_left(index, has_read_all=has_read_all)

    def _tell_consumer_left(self, index: int, *, has_read_all: bool) -> None:
        listeners = list(self._consumer_listeners)
        run_all([partial(listener.on_consumer_left, index, has_read_all=has_read_all) for listener in listeners])

    def on_all_data_processed(self, index: int) -> None:
        """Note that the consumer of ``index`` processed everything up to the end of data; called by the view."""
        self._processed(index)
        run_all([partial(listener.on_acknowledged, index) for listener in list(self._consumer_listeners)])

    def _processed(self, index: int) -> None:
        with self._lock:
            self._unprocessed.discard(index)
            # Also true for a later call: the second completion of a future changes nothing.
            is_last = not self._unprocessed
        if is_last:
            self.all_data_processed.complete()

    def check_invariants(self) -> None:
        """Assert the invariants of this module and of the subpartitions."""
        for subpartition in self._subpartitions:
            subpartition.check_invariants()
        with self._lock:
            assert self._unconsumed or self._state is not ResultPartitionState.CLOSED, (
                "nobody uses it and it is not released"
            )
            assert self._unprocessed <= self._unconsumed, "a consumed subpartition counts as processed"
        assert self._builders[ALL] is None or not any(self._builders[:ALL]), (
            "a builder for all and one for a single subpartition"
        )

    # ---------------------------------------------------------------- helpers

    def _release_if_unused(self) -> None:
        with self._lock:
            if self._unconsumed or self._state is not ResultPartitionState.CLOSED:
                return
            # In the lock round of the look: the last consumer and the closing task may both come here.
            calls = self._release_locked(None)
        run_all(calls)

    def _release_locked(self, cause: ProducerFailedError | None) -> list[Callable[[], None]]:
        # The cause first: threads without the lock look at the state, and then for its cause.
        self._failure_cause = cause
        self._state = ResultPartitionState.RELEASED
        listeners, self._release_listeners = self._release_listeners, []
        releases: list[Callable[[], None]] = [subpartition.release for subpartition in self._subpartitions]
        return [*listeners, *releases, self.buffer_pool.destroy, self.all_data_processed.complete]

    def _producer_failed(self, cause: BaseException | None) -> ProducerFailedError:
        if isinstance(cause, ProducerFailedError):
            return cause
        what = "it was released before it was consumed" if cause is None else f"{type(cause).__name__}: {cause}"
        text = f"the producer of partition {self.partition_id}, {self.owner}, failed: {what}"
        return caused_by(cause, ProducerFailedError(text))
