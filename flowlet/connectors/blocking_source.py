"""Runs a ``SourceFunction``, which may block, on a thread of its own.

``CheckpointLock``: a checkpoint sees all changes and records that a source function makes while it holds the lock, or
none of them.

Side:       shared.  Functions take the lock on their threads, the task on its own.
Invariants: the lock has one owner at a time.  Once the task wants the lock, the next owner is the task: a function in a
            tight loop cannot keep it from the task.  Records and watermarks keep their order; when
            ``MAX_PENDING_RECORDS`` are pending, the helper thread waits; the future is done exactly while elements are
            pending or the function has ended; the user's function runs on no other thread.  After a restart a function
            that can be replayed begins at its last mark; the records that followed the mark before the checkpoint are
            dropped.  While a snapshot is taken of a function that is a ``CheckpointedFunction``, the function is
            outside its checkpoint lock, and all that it has emitted is in front of the barrier.
Source:     Flink ``SourceContext.getCheckpointLock``, ``SourceStreamTask.LegacySourceFunctionThread``, which emits into
            the chain under the checkpoint lock; this one only fills a buffer, so that records enter the chain on the
            task thread alone.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Any, Final

from flowlet.chain.record_shape import copy_if_mutable, unpickled
from flowlet.datastream.states.runtime_context import FunctionInitializationContext, FunctionSnapshotContext
from flowlet.datastream.user_functions.function import CheckpointedFunction
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction, can_be_replayed
from flowlet.errors import FlowletError, JobGraphError, TaskCancelled
from flowlet.operators.source_reader import MAX_CHUNK_RECORDS, ReaderElement, Source, SourceReaderBase
from flowlet.operators.user_function import run_checkpoint_step
from flowlet.records import ACTIVE, IDLE, Chunk, Watermark, WatermarkStatus
from netstack.availability import AvailabilityFuture
from netstack.late import dataclass
from netstack.loop.forks import end_stranded_child, serving_thread


class CheckpointLock:
    """A lock for ``with``, which its owner may take again; the task uses ``hold`` and ``let_go``.

    ``changed``: guards the fields, and wakes threads that wait for the lock.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._owner: int | None = None  # the thread of the function
        self._depth = 0  # how often the owner has taken it
        self.is_wanted = False  # by the task, or held by it

    def __repr__(self) -> str:
        return f"<CheckpointLock of thread {self._owner}{', held by the task' if self.is_wanted else ''}>"

    def __enter__(self) -> None:
        me = threading.get_ident()
        with self._changed:
            if self._owner != me:
                while self._owner is not None or self.is_wanted:
                    # waits for the task's snapshot or another thread of the function; ended by either
                    self._changed.wait()
                self._owner = me
            self._depth += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._changed.notify_all()

    def hold(self) -> None:
        """Wait until the function does not hold the lock, and keep the function from taking it until ``let_go``."""
        with self._changed:
            self.is_wanted = True
            self._changed.notify_all()
            while self._owner is not None:
                self._changed.wait()  # waits for the function to leave the lock; ended by the function

    def let_go(self) -> None:
        """Allow the function to take the lock again; idempotent."""
        with self._changed:
            self.is_wanted = False
            self._changed.notify_all()


MAX_PENDING_RECORDS: Final = 2 * MAX_CHUNK_RECORDS
# If a function ignores cancel() for so long, that is reported and its thread left running: no call can end a thread.
# Not measured.
CANCEL_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Mark:
    """A position that the function has marked; it may be pickled."""

    position: Any


@dataclass(frozen=True, slots=True)
class SourceFunctionPosition:
    """The place ``num_records`` behind the last mark; ``mark`` None: behind the start."""

    mark: Any
    num_records: int


class BlockingSource(Source):
    """A source that emits the records of a ``SourceFunction``.

    Args:
        function: pickled; every subtask runs a copy.
        is_bounded: whether ``run`` returns by itself.

    Raises:
        JobGraphError: the function can be replayed, and keeps states, too.
    """

    def __init__(self, function: SourceFunction, *, is_bounded: bool = False) -> None:
        if can_be_replayed(function) and isinstance(function, CheckpointedFunction):
            raise JobGraphError(
                f"{type(function).__name__} overrides restore_position() and is a CheckpointedFunction, too: keep its "
                "position in one way"
            )
        self._function = function
        self.is_bounded = is_bounded

    def create_reader(self, subtask: int, parallelism: int) -> "BlockingSourceReader":
        """A reader that runs the function on a new thread."""
        return BlockingSourceReader(self._function, f"source {subtask + 1}/{parallelism}")


class _State(Enum):
    RUNNING = auto()
    CANCELLED = auto()
    ENDED = auto()


class BlockingSourceReader(SourceReaderBase):
    """The buffer between the function's thread and the task thread.

    Threading: ``poll_chunk``, ``available_future`` and ``close`` on the task thread; the rest on the helper thread.
    Life cycle: the thread starts with the first poll; ``close`` ends it.
    """

    def __init__(self, function: SourceFunction, name: str) -> None:
        self._function = function
        self._name = name
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._is_replayed = can_be_replayed(function)
        # While the function holds it, the task takes no snapshot; None: the function has no state that needs it.
        self.checkpoint_lock = CheckpointLock(self._room) if isinstance(function, CheckpointedFunction) else None
        self.gives_again = self.checkpoint_lock is None  # else its states tell which records it has emitted
        self._mark: Any = None  # Task thread only, as the next two.
        self._num_behind_mark = 0  # records that were given, also before a restart
        self._num_to_drop = 0  # of these, the records that the function emits again
        self._elements: deque[ReaderElement | _Mark] = deque()  # Guarded by _lock, as the fields below.
        self._num_pending = 0  # records, watermarks and statuses
        self._is_idle = False
        self._state = _State.RUNNING
        self._error: BaseException | None = None
        self._available = AvailabilityFuture()  # Replaced by the task thread when no element is left.

    def __repr__(self) -> str:
        return f"<BlockingSourceReader {self._name} {self._state.name}, {self._num_pending} elements pending>"

    never_waits = True  # poll_chunk never waits; only the function may

    # -- task thread

    def poll_chunk(self) -> ReaderElement | None:
        """The next elements; an empty chunk if there are none yet, None when the function has returned.

        Raises:
            Exception: whatever the function raised.
            FlowletError: the function gave fewer records than before the restart.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        while True:
            with self._lock:
                element = self._take_locked() if self._elements else None
                if element is None and self._state is not _State.ENDED:
                    return Chunk([])
            if element is None:
                break
            given = self._behind_position(element)
            if given is not None:
                return given
        if self._error is not None:  # without the lock: it was written before ENDED was seen under it
            raise self._error
        if self._num_to_drop and not self.is_cancelled:
            raise FlowletError(
                f"{self._name}: after the restart its function gave {self._num_to_drop} records less than before; it "
                "cannot be replayed"
            )
        return None

    def snapshot_position(self) -> SourceFunctionPosition | None:
        """The position behind the polled records; None for a function that cannot be replayed."""
        return SourceFunctionPosition(self._mark, self._num_behind_mark) if self._is_replayed else None

    def restore_position(self, position: SourceFunctionPosition) -> None:
        """Go on at a position; called before the first poll."""
        self._mark = position.mark
        self._num_behind_mark = self._num_to_drop = position.num_records
        if position.mark is not None:
            # The function may change it, also while a snapshot is written.
            (own,) = unpickled([copy_if_mutable(position.mark)])
            self._function.restore_position(own)

    def _behind_position(self, element: ReaderElement | _Mark) -> ReaderElement | None:
        """The part of an element that was not given before the restart; None: there is none, or it was a mark."""
        if isinstance(element, _Mark):
            (self._mark,) = unpickled([element.position])
            self._num_behind_mark = self._num_to_drop
            return None
        if isinstance(element, Chunk):
            if self._is_replayed:
                num_dropped = min(self._num_to_drop, len(element))
                self._num_to_drop -= num_dropped
                self._num_behind_mark += len(element) - num_dropped
                if num_dropped == len(element):
                    return None
                if num_dropped:
                    element = element.slice(num_dropped, len(element))
            element.values[:] = unpickled(element.values)  # instead of the pickles of records that could change
        return element

    def available_future(self) -> AvailabilityFuture:
        """A future that is done while elements are pending or the function has ended."""
        with self._lock:
            if not self._elements and self._state is not _State.ENDED and self._available.is_done:
                self._available = AvailabilityFuture()
            return self._available

    def close(self) -> None:
        """Cancel the function if it runs, and wait for its thread.

        Raises FlowletError: the function does not return.
        """
        thread = self._thread
        self._thread = None
        if thread is None:
            return
        with self._lock:
            is_running = self._state is _State.RUNNING
            if is_running:
                self._state = _State.CANCELLED
            self._room.notify_all()
        if self.checkpoint_lock is not None:
            self.checkpoint_lock.let_go()  # a task that failed during a snapshot still holds it, and the function waits
        try:
            if is_running:
                self._function.cancel()
        finally:
            # Also if cancel() failed: the function sees ``is_cancelled``, or fails when it emits.
            thread.join(CANCEL_TIMEOUT_S)
        if thread.is_alive():
            raise FlowletError(
                f"{self._name}: run() did not return within {CANCEL_TIMEOUT_S:g} s after cancel(); make it check "
                "is_cancelled"
            )

    # -- checkpoints of the function, task thread

    def start(self, request_splits: Callable[[], None]) -> None:
        """Let the function get its states, before it runs."""
        run_checkpoint_step(self.ctx, self._function, "initialize_state", FunctionInitializationContext(self.ctx))

    def hold(self) -> Sequence[ReaderElement]:
        """Wait until the function is outside its checkpoint lock; return the pending elements.

        For a function without states, return none, and do not wait.
        """
        if self.checkpoint_lock is None:
            return []
        self.checkpoint_lock.hold()
        with self._lock:
            pending = [self._take_locked() for _ in range(len(self._elements))]
        return [each for element in pending if (each := self._behind_position(element)) is not None]

    def snapshot_function(self, checkpoint_id: int, timestamp_ms: int) -> None:
        """Let the function fill its states, copy them, and let the function go on."""
        if self.checkpoint_lock is None:
            return
        try:
            context = FunctionSnapshotContext(checkpoint_id, timestamp_ms)
            run_checkpoint_step(self.ctx, self._function, "snapshot_state", context)
            self.ctx.operator_state_backend.freeze()
        finally:
            self.checkpoint_lock.let_go()

    def position_kept(self, checkpoint_id: int) -> None:
        """Tell a ``CheckpointListener`` that the checkpoint is complete; ``run`` goes on meanwhile."""
        run_checkpoint_step(self.ctx, self._function, "notify_checkpoint_complete", checkpoint_id)

    def position_lost(self, checkpoint_id: int) -> None:
        """Tell a ``CheckpointListener`` that the checkpoint has failed; ``run`` goes on meanwhile."""
        run_checkpoint_step(self.ctx, self._function, "notify_checkpoint_aborted", checkpoint_id)

    def _take_locked(self) -> ReaderElement | _Mark:
        element = self._elements.popleft()
        self._num_pending -= len(element) if isinstance(element, Chunk) else 1
        self._room.notify_all()
        return element

    # -- helper thread

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with serving_thread():
                try:
                    self._function.run(SourceContext(self))
                finally:
                    end_stranded_child()
        except TaskCancelled:
            pass  # raised by the context, or by the user's function
        except BaseException as raised:  # noqa: BLE001 - poll_chunk raises it on the task's thread
            error = raised
        with self._lock:
            # A function may raise anything after it was cancelled: that is no failure.
            self._error = None if self._state is _State.CANCELLED else error
            self._state = _State.ENDED
            available = self._available
        available.complete()  # outside the lock: callbacks run on this thread

    @property
    def is_cancelled(self) -> bool:
        """Whether the function should return; any thread."""
        return self._state is _State.CANCELLED  # without the lock: one read, and ``emit`` looks again under it

    def emit(self, value: Any, timestamp: int | None) -> None:
        """Append a record as it is now; waits for room."""
        end_stranded_child()
        value = copy_if_mutable(value)
        with self._lock:
            self._wait_for_room_locked()
            self._become_active_locked()
            last = self._elements[-1] if self._elements else None
            if (
                not isinstance(last, Chunk)
                or len(last) >= MAX_CHUNK_RECORDS
                or (last.timestamps is None) is not (timestamp is None)
            ):
                self._elements.append(Chunk([value], None if timestamp is None else [timestamp]))
            else:
                last.values.append(value)
                if last.timestamps is not None and timestamp is not None:
                    last.timestamps.append(timestamp)
            self._num_pending += 1
            available = self._available
        available.complete()

    def emit_watermark(self, timestamp: int) -> None:
        """Append a watermark; waits for room."""
        self._emit_control(Watermark(timestamp))

    def become_idle(self) -> None:
        """Append that no records follow for a while; waits for room."""
        self._emit_control(IDLE)

    def mark(self, position: Any) -> None:
        """Append a mark, with the position as it is now; waits for room."""
        if not self._is_replayed:
            raise FlowletError(
                f"{self._name}: mark_position() needs a function that overrides restore_position(), which begins there"
            )
        self._emit_control(_Mark(copy_if_mutable(position)))

    def _emit_control(self, element: Watermark | WatermarkStatus | _Mark) -> None:
        end_stranded_child()
        with self._lock:
            self._wait_for_room_locked()
            if isinstance(element, WatermarkStatus):
                if self._is_idle is element.is_idle:
                    return
                self._is_idle = element.is_idle
            elif isinstance(element, Watermark):
                self._become_active_locked()
            self._append_control_locked(element)
            available = self._available
        available.complete()

    def _become_active_locked(self) -> None:
        if self._is_idle:
            self._is_idle = False
            self._append_control_locked(ACTIVE)

    def _append_control_locked(self, element: Watermark | WatermarkStatus | _Mark) -> None:
        self._elements.append(element)
        self._num_pending += 1

    def _wait_for_room_locked(self) -> None:
        lock = self.checkpoint_lock
        # The task reads nothing while it waits for the checkpoint lock, so the function, which holds it, must not wait.
        while (
            self._num_pending >= MAX_PENDING_RECORDS
            and self._state is _State.RUNNING
            and not (lock is not None and lock.is_wanted)
        ):
            self._room.wait()  # waits for room in the source's queue; ended by the task that reads, or cancel
        if self._state is not _State.RUNNING:
            raise TaskCancelled(f"{self._name} was cancelled")
