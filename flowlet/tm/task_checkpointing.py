"""``TaskCheckpointing``: the checkpoints of one attempt on its TaskManager: orders in, state to and from the storage,
reports out.

``SnapshotPool``: the threads that finish and write the checkpoints of all tasks of one TaskManager.

Side:       shared.  Orders come on the loop thread, acknowledgements on any; state is written on threads of the
            snapshot pool, which any thread may call, and read on the task thread before the operators open.
Invariants: an acknowledgement is sent after its state was written.  Each checkpoint is acknowledged or declined at most
            once from here.  After ``close``, or after a checkpoint was aborted, nothing is sent about it.  A storage
            that fails declines the checkpoint and leaves the task alone; a state that cannot be restored fails the
            task.  The pool has at most ``num_threads`` threads, each made when there is work for it.  Calls begin in
            the order in which they came; after ``close`` none begins.  An error of a call is logged and ends nothing.
Lock order: ``_lock`` is a leaf: storage, pool and loop are called without it.
Source:     Flink ``Task.triggerCheckpointBarrier``, ``RpcCheckpointResponder``, ``TaskStateManagerImpl``,
            ``AsyncCheckpointRunnable``; ``StreamTask.asyncOperationsThreadPool``, which every task has for itself.
Absent:     local copies of the state.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import field, replace
from functools import partial
from typing import Final

import msgspec

from flowlet.chain.stream_operator import StreamOperator
from flowlet.checkpoint.task.barrier_orders import CheckpointError, CheckpointFailureReason
from flowlet.checkpoint.task.channel_state_writer import InMemoryChannelStateWriter, decode_channels, encode_channels
from flowlet.checkpoint.task.operator_snapshots import CheckpointStatistics
from flowlet.checkpoint.task.single_checkpoint_barrier_handler import BarrierMode
from flowlet.checkpoint.task.snapshots import OperatorState, RecoveredStream, SubtaskState
from flowlet.checkpoint.task.state_assignment import assigned_states, is_by_key
from flowlet.checkpoint.task.task_checkpoints import TaskCheckpoints
from flowlet.common.job_settings import CheckpointSettings
from flowlet.errors import FlowletError, StateRestoreError
from flowlet.logs import bind_task
from flowlet.messages import control_messages as messages
from flowlet.messages.execution_state import ExecutionState
from flowlet.messages.job_messages import RestoredState, StateHandle, SubtaskEntry
from flowlet.serde.pickles.former_classes import RunningClasses
from flowlet.shipping.program_modules import MAIN_OBJECTS
from flowlet.state.state_backends import SharedFiles, handle_of
from flowlet.state.state_snapshots import IncrementalSnapshot, StateShare
from flowlet.storage.checkpoint_storage import CheckpointStorage, SavepointStorage
from flowlet.storage.state_files import StateFiles
from flowlet.task.stream_task import StreamTask
from flowlet.task.task_environment import Checkpointing
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.loop.forks import end_stranded_child, serving_thread
from netstack.wire.events import (
    NO_ALIGNED_TIMEOUT,
    Alignment,
    CheckpointBarrier,
    CheckpointOptions,
    SavepointFormat,
    SnapshotType,
)

_log = LogLines(__name__)

_NS_PER_MS: Final = 1_000_000
_MAX_ABORTED: Final = 32  # not measured; at most as many are under way at a time as ``max_concurrent`` says


NUM_THREADS: Final = 4  # they wait for disks most of the time; not measured


class SnapshotPool:
    """Runs calls on a few threads.  Life cycle: ``close`` once, after the tasks have ended.

    Args:
        name: of the threads, which are numbered.
        num_threads: at most.
    """

    def __init__(self, name: str, *, num_threads: int = NUM_THREADS) -> None:
        self._name = name
        self._num_threads = num_threads
        self._changed = threading.Condition()
        # Guarded by _changed.
        self._calls: deque[Callable[[], object]] = deque()
        self._threads: list[threading.Thread] = []
        self._num_idle = 0
        self._is_closed = False

    def __repr__(self) -> str:
        return f"<SnapshotPool {self._name}: {len(self._threads)} threads, {len(self._calls)} calls wait>"

    def execute(self, call: Callable[[], object]) -> None:
        """Run ``call`` soon; a closed pool drops it, because its TaskManager has ended the task.

        Raises:
            FlowletError: the system allows no thread, and the pool has none.
        """
        with self._changed:
            if self._is_closed:
                return
            # A notified thread still counts as idle: only idle threads beyond the waiting calls are free.
            if self._num_idle <= len(self._calls) and len(self._threads) < self._num_threads:
                # A daemon: a file system that does not answer must not keep the process from its end.
                thread = threading.Thread(target=self._run, name=f"{self._name} {len(self._threads) + 1}", daemon=True)
                try:
                    thread.start()  # it waits for the lock, and then finds the call
                except (RuntimeError, MemoryError) as error:
                    if not self._threads:
                        raise FlowletError(f"no thread can be started for {self._name}: {error}") from error
                else:
                    self._threads.append(thread)
            self._calls.append(call)
            self._changed.notify()

    def close(self, timeout_s: float) -> bool:
        """Drop the waiting calls, and wait for the running ones, at most ``timeout_s``; False: one still runs, and its
        thread ends after it.
        """
        with self._changed:
            self._is_closed = True
            # In the lock round of the mark: a thread that looks now finds neither.
            self._calls.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        deadline = time.monotonic() + timeout_s
        # Outside the lock, which a thread needs to find that the pool is closed.
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def _run(self) -> None:
        with serving_thread():
            while (call := self._next()) is not None:
                try:
                    call()
                except BaseException:  # noqa: BLE001 - the top of the thread; a user's pickling code may even call sys.exit()
                    end_stranded_child()
                    _log.exception("a snapshot failed", thread=threading.current_thread().name)
                end_stranded_child()

    def _next(self) -> Callable[[], object] | None:
        """Return the next call; None: the pool is closed."""
        with self._changed:
            self._num_idle += 1
            while not self._calls and not self._is_closed:
                self._changed.wait()  # waits for a call; ended by execute(), or close()
            self._num_idle -= 1
            return None if self._is_closed else self._calls.popleft()


@dataclass(frozen=True, slots=True)
class CheckpointServices:
    """The services that the checkpoints of all tasks of one TaskManager share."""

    pool: SnapshotPool
    # URL, job id; only manifests need the key.
    open_storage: Callable[[str, str], CheckpointStorage] = CheckpointStorage
    clock_ns: Callable[[], int] = time.monotonic_ns
    open_savepoint: Callable[[str], SavepointStorage] = SavepointStorage  # its directory


@dataclass(slots=True, eq=False)
class TaskCheckpointing:
    """The checkpoints of one attempt; implements ``CheckpointResponder``.

    Life cycle: ``open`` once, on the task thread; ``close`` when the task has ended.

    Args:
        descriptor: names the attempt, the job's settings, and what is restored.
        name: the task's, for people.
        services: of the TaskManager.
        send: sends a message to the JobManager.
    """

    descriptor: messages.TaskDeploymentDescriptor
    name: str
    services: CheckpointServices
    send: Callable[[messages.FromTask], None]
    # Written by the task thread before the first checkpoint; so are the operators' names, by their ids.
    _storage: CheckpointStorage | None = field(init=False, default=None)
    _names: Mapping[str, str] = field(init=False, default_factory=dict)
    _lock: threading.Lock = field(init=False)
    # Guarded by _lock.  Read anywhere: it is replaced as a whole.
    statistics: CheckpointStatistics = field(init=False, default_factory=CheckpointStatistics)
    _unsent: set[int] = field(init=False, default_factory=set)  # checkpoints whose state is being written
    # An acknowledgement may come after its abort.
    _aborted: deque[int] = field(init=False, default_factory=lambda: deque(maxlen=_MAX_ABORTED))
    _is_closed: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"<TaskCheckpointing of {self.name}: {sorted(self._unsent)} being "
            f"written{', closed' if self._is_closed else ''}>"
        )

    # ---------------------------------------------------------------- task thread

    def open(self, operators: Mapping[str, StreamOperator]) -> Checkpointing | None:
        """Open the task's checkpointing, with the state that the task begins with; None: the job takes no checkpoints.

        Reads files.

        ``operators``: the operators of the task's chain, by their ids in hex.

        Raises:
            StateRestoreError: the state cannot be restored; the message names the task, the checkpoint, and the file or
                the operator.
            StorageError: the checkpoints' directory cannot be used.
        """
        descriptor = self.descriptor
        settings = descriptor.settings.checkpoints
        if settings is None:
            if descriptor.restored is not None:
                raise StateRestoreError(
                    f"task {self.name} shall be restored, but its job names no directory of checkpoints"
                )
            return None
        own = self._storage = (
            self.services.open_storage(settings.directory, descriptor.job_id) if settings.is_periodic else None
        )
        self._names = {operator_id: each.name for operator_id, each in operators.items()}
        restored = descriptor.restored
        storage = self._storage_of(restored)
        return Checkpointing(
            self,
            self._execute,
            InMemoryChannelStateWriter(),
            _mode(settings),
            restored={} if restored is None or storage is None else self._read(storage, restored, operators),
            restored_checkpoint_id=None if restored is None else restored.checkpoint_id,
            in_flight=[] if storage is None else self._read_in_flight(storage),
            are_taken_after_finish=settings.after_tasks_finish,
            are_periodic=settings.is_periodic,
            shared_files=_shared_files(own, storage, None if restored is None else _former_classes(restored)),
            max_concurrent=settings.max_concurrent,
            report_end=partial(self.send, messages.FinalCheckpointAwaited(descriptor.attempt)),
        )

    def _storage_of(self, restored: RestoredState | None) -> StateFiles | None:
        """Open the files of the state that the task begins with; None: it begins without, and takes no checkpoints."""
        former = None if restored is None else restored.former
        # After a failure the job goes on with its own files; another job's, or a savepoint's, are only read.
        if former is None:
            return self._storage
        if former.savepoint:
            return self.services.open_savepoint(former.savepoint)
        return self.services.open_storage(former.directory, former.job_id)

    def _read(
        self, storage: StateFiles, restored: RestoredState, operators: Mapping[str, StreamOperator]
    ) -> Mapping[str, OperatorState]:
        # Operators that had finished are not run again, so nobody needs their state; sinks still commit.
        if restored.is_finished:
            operators = {operator_id: each for operator_id, each in operators.items() if each.runs_after_finish}
            if not operators:
                return {}
        found: dict[str, OperatorState] = {}
        for vertex in restored.vertices:
            states = {
                each.subtask: self._read_part(storage, restored, each.state)
                for each in vertex.parts
                if each.state is not None
            }
            own = self.descriptor
            finished = frozenset(vertex.finished)
            share = StateShare(own.subtask, own.parallelism, own.max_parallelism, vertex.parallelism, finished)
            try:
                found |= assigned_states(operators, vertex.operators or operators, states, share)
            except StateRestoreError as error:
                raise StateRestoreError(
                    f"task {self.name}: its state in checkpoint {restored.checkpoint_id} cannot be restored: {error}"
                ) from error
        return found

    def _read_part(
        self, storage: StateFiles, restored: RestoredState, handle: StateHandle
    ) -> Mapping[str, OperatorState]:
        from flowlet.checkpoint.task.state_codec import (
            decode_state,  # here and below, as most tasks begin without a state
        )

        place = "in the deployment" if handle.path is None else f"in the file {handle.path}"
        with self._restoring(restored, "state", f" ({handle.num_bytes} bytes {place})"):
            state = decode_state(storage.read_state(handle), self._names, _former_classes(restored))
        _log.info(
            "restored", checkpoint=restored.checkpoint_id, num_bytes=handle.num_bytes, operators=len(state.operators)
        )
        return state.operators

    def _read_in_flight(self, storage: StateFiles) -> list[RecoveredStream]:
        restored = self.descriptor.restored
        if restored is None or not restored.edges:
            return []
        from flowlet.checkpoint.task.input_recovery import restored_streams

        with self._restoring(restored, "data in flight"):
            streams = restored_streams(self.descriptor, lambda handle: decode_channels(storage.read_state(handle)))
            classes = _former_classes(restored)
            if classes is not None:
                streams = [replace(each, find_class=classes.by_reference) for each in streams]
        num_bytes = sum(len(piece) for stream in streams for piece in stream.pieces)
        _log.info(
            "restored data in flight", checkpoint=restored.checkpoint_id, num_bytes=num_bytes, channels=len(streams)
        )
        return streams

    @contextmanager
    def _restoring(self, restored: RestoredState, what: str, size: str = "") -> Iterator[None]:
        """Name the task and the checkpoint in the error of the block, if it fails."""
        try:
            yield
        except Exception as error:
            raise StateRestoreError(
                f"task {self.name}: its {what} in checkpoint {restored.checkpoint_id}{size} cannot be restored: "
                f"{str(error) or type(error).__name__}"
            ) from error

    # ---------------------------------------------------------------- orders of the JobManager, loop thread

    def handle(self, order: messages.CheckpointOrder, task: StreamTask | None) -> None:
        """Carry out an order for ``task``; None: the task was not made yet, or has ended.  Returns at once."""
        checkpoints = None if task is None else task.checkpoints
        match order:
            case messages.TriggerCheckpoint(checkpoint_id=checkpoint_id):
                if task is None or checkpoints is None or task.state is not ExecutionState.RUNNING:
                    state = "not made" if task is None else f"{task.state}"
                    if task is not None and checkpoints is None:
                        state = "without checkpoints"
                    reason = CheckpointFailureReason.TASK_NOT_READY
                    self.decline_checkpoint(
                        checkpoint_id, CheckpointError(checkpoint_id, reason, f"{self.name} is {state}")
                    )
                else:
                    self._trigger(order, checkpoints)
            case messages.CheckpointCompleted(checkpoint_id=checkpoint_id):
                if checkpoints is not None:
                    checkpoints.notify_checkpoint_complete_async(checkpoint_id)
            case messages.CheckpointAborted(checkpoint_id=checkpoint_id):
                with self._lock:
                    # Remembered: the task may acknowledge it only after this.
                    self._aborted.append(checkpoint_id)
                    self._unsent.discard(checkpoint_id)
                if checkpoints is not None:
                    checkpoints.notify_checkpoint_aborted_async(checkpoint_id)

    def _trigger(self, order: messages.TriggerCheckpoint, checkpoints: TaskCheckpoints) -> None:
        settings = self.descriptor.settings.checkpoints
        assert settings is not None, "a task with checkpoints has their settings"
        barrier = CheckpointBarrier(order.checkpoint_id, order.timestamp_ms, _options(settings, order))
        try:
            future = checkpoints.trigger_checkpoint_async(barrier)
        except CheckpointError as error:
            self.decline_checkpoint(order.checkpoint_id, error)
            return
        future.add_done_callback(partial(self._triggered, order.checkpoint_id))

    def _triggered(self, checkpoint_id: int, future: "Future[bool]") -> None:
        """Act on the result of a trigger: the task has begun the checkpoint, or declined it (False), or ends.  Any
        thread.
        """
        # Its mail was dropped with the mailbox: without an answer the checkpoint would wait for its timeout.
        if future.cancelled():
            self.decline_checkpoint(
                checkpoint_id, CheckpointError(checkpoint_id, CheckpointFailureReason.TASK_CLOSING, self.name)
            )
        elif (error := future.exception()) is not None:  # it fails the task, too, which says more
            _log.info(
                "a checkpoint failed, and its task with it",
                task=self.name,
                checkpoint=checkpoint_id,
                error=f"{error!r}",
            )
            self.decline_checkpoint(
                checkpoint_id, self._failed(checkpoint_id, CheckpointFailureReason.SYNCHRONOUS_PART_FAILED, error)
            )

    # ---------------------------------------------------------------- the responder, any thread

    def acknowledge_checkpoint(
        self, checkpoint_id: int, durations: messages.CheckpointDurations, state: SubtaskState
    ) -> None:
        """Write the state on a thread of the pool, then send the acknowledgement."""
        with self._lock:
            if self._is_closed or checkpoint_id in self._aborted:
                return
            # In the lock round of the look: an abort that comes behind it takes the id away again.
            self._unsent.add(checkpoint_id)
        if not state.operators and not state.channels.num_bytes:
            self._acknowledge(checkpoint_id, durations, self._part(state))
            return
        try:
            self._execute(partial(self._write, checkpoint_id, durations, state, self.services.clock_ns()))
        except FlowletError as error:  # there is no thread for it
            self.decline_checkpoint(
                checkpoint_id, self._failed(checkpoint_id, CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED, error)
            )

    def decline_checkpoint(self, checkpoint_id: int, error: CheckpointError) -> None:
        """Report that the task could not take its part."""
        with self._lock:
            # The JobManager hears that the attempt has ended, which fails its checkpoints.
            if self._is_closed:
                return
            self._unsent.discard(checkpoint_id)
            self.statistics = replace(self.statistics, num_declined=self.statistics.num_declined + 1)
        _log.info(
            "declined a checkpoint",
            task=self.name,
            checkpoint=checkpoint_id,
            reason=error.reason.name,
            error=f"{error}",
        )
        self.send(messages.CheckpointDeclined(self.descriptor.attempt, checkpoint_id, error.reason.name, f"{error}"))

    def close(self) -> None:
        """End with the task: send nothing more, and drop writes that have not begun; idempotent."""
        with self._lock:
            self._is_closed = True
            # Writes that wait for a thread look here first, and then write nothing.
            self._unsent.clear()

    # ---------------------------------------------------------------- threads of the pool

    def _execute(self, call: Callable[[], None]) -> None:
        """Run ``call`` on the pool as the task would: its log lines name the task, its pickles find the job's main
        module.
        """

        # Names and main module belong to the thread, and the pool's serve one job after the other.
        def run() -> None:
            bind_task(self.descriptor.job_name, self.descriptor.task_name, self.descriptor.subtask)
            MAIN_OBJECTS.use(self.descriptor.code.main_objects)
            call()

        self.services.pool.execute(run)

    def _write(
        self, checkpoint_id: int, durations: messages.CheckpointDurations, state: SubtaskState, begun_ns: int
    ) -> None:
        with self._lock:
            if checkpoint_id not in self._unsent:  # aborted, or the task ended, while the call waited for a thread
                return
        try:
            part = self._keep(checkpoint_id, state)
        except BaseException as error:  # noqa: BLE001 - a user's pickling code, any file system: it fails the checkpoint, not the task
            end_stranded_child()
            with self._lock:
                # A directory that is gone with an aborted checkpoint is no failure of this task.
                is_wanted = checkpoint_id in self._unsent
            if is_wanted:
                self.decline_checkpoint(
                    checkpoint_id, self._failed(checkpoint_id, CheckpointFailureReason.ASYNCHRONOUS_PART_FAILED, error)
                )
            return
        async_ms = durations.async_ms + (self.services.clock_ns() - begun_ns) // _NS_PER_MS
        self._acknowledge(checkpoint_id, msgspec.structs.replace(durations, async_ms=async_ms), part)

    def _keep(self, checkpoint_id: int, state: SubtaskState) -> SubtaskEntry:
        storage = self.services.open_savepoint(state.location) if state.location else self._storage
        descriptor = self.descriptor
        assert storage is not None, "opened before the first checkpoint"
        # With the number of the attempt: a late write of a former attempt replaces nothing.
        name = f"{descriptor.vertex_id}-{descriptor.subtask}-{int.from_bytes(descriptor.attempt[-4:], 'big')}"
        from flowlet.checkpoint.task.state_codec import encode_state

        operators = channels = None
        if state.operators:
            operators = storage.write_state(checkpoint_id, name, encode_state(state, self._names))
        if state.channels.num_bytes:
            channels = storage.write_state(checkpoint_id, f"{name}-channels", encode_channels(state.channels))
        return self._part(state, operators, channels)

    def _part(
        self,
        state: SubtaskState,
        operators: StateHandle | None = None,
        channels: StateHandle | None = None,
    ) -> SubtaskEntry:
        keyed = [each.keyed for each in state.operators.values()]
        # The files that the state names and that other checkpoints use, too.
        # With the acknowledgement: the JobManager keeps a shared file for as long as a checkpoint names it.
        shared = [file for each in keyed if isinstance(each, IncrementalSnapshot) for file in each.shared.values()]
        return SubtaskEntry(
            self.descriptor.vertex_id,
            self.descriptor.subtask,
            operators,
            state.is_finished,
            channels,
            list(map(handle_of, shared)),
            has_union_state=state.has_union_state,
            is_by_key=is_by_key(state.operators),
            operators=list(state.operators),
        )

    def _failed(self, checkpoint_id: int, reason: CheckpointFailureReason, cause: BaseException) -> CheckpointError:
        error = CheckpointError(checkpoint_id, reason, f"{self.name}: {type(cause).__name__}: {cause}")
        error.__cause__ = cause
        return error

    def _acknowledge(self, checkpoint_id: int, durations: messages.CheckpointDurations, part: SubtaskEntry) -> None:
        with self._lock:
            if checkpoint_id not in self._unsent:
                return  # it was aborted, or the task has ended: the JobManager removes the checkpoint with its files
            # In the lock round of the look: of an abort and this acknowledgement one wins, and only one is sent.
            self._unsent.remove(checkpoint_id)
            number = self.statistics.num_acknowledged + 1
            self.statistics = replace(
                self.statistics, num_acknowledged=number, last_checkpoint_id=checkpoint_id, last=durations
            )
        self.send(messages.CheckpointAcknowledged(self.descriptor.attempt, checkpoint_id, part, durations))


def _former_classes(restored: RestoredState) -> RunningClasses | None:
    """Return the way to find the classes of another program by name; None for a job that goes on after a failure, which
    has the very classes of its state.
    """
    return RunningClasses(MAIN_OBJECTS.class_of) if restored.former is not None else None


def _shared_files(
    own: CheckpointStorage | None, storage: StateFiles | None, classes: RunningClasses | None
) -> SharedFiles | None:
    """Make the shared files of the job, and of the checkpoint that it starts from.

    None: the job takes no periodic checkpoints, and starts from none, or from a savepoint, which shares no files.
    """
    former = storage if isinstance(storage, CheckpointStorage) else None
    if own is None:
        return None if former is None else SharedFiles(former, None, classes)
    return SharedFiles(own, former, classes)


def _options(settings: CheckpointSettings, order: messages.TriggerCheckpoint) -> CheckpointOptions:
    """Make the options of a checkpoint (Flink ``CheckpointOptions.forConfig``); savepoints are never unaligned."""
    if order.location:
        alignment = Alignment.ALIGNED if settings.is_exactly_once else Alignment.AT_LEAST_ONCE
        kind = SnapshotType(order.snapshot_type)
        return CheckpointOptions(kind, SavepointFormat.CANONICAL, order.location.encode(), alignment)
    if not settings.is_exactly_once:
        return CheckpointOptions(alignment=Alignment.AT_LEAST_ONCE)
    if not settings.is_unaligned:
        return CheckpointOptions()
    # 0: unaligned from the source on, so that no barrier waits for a timer.
    if settings.aligned_timeout_ms == 0:
        return CheckpointOptions(alignment=Alignment.UNALIGNED)
    return CheckpointOptions(aligned_timeout_ms=min(settings.aligned_timeout_ms, NO_ALIGNED_TIMEOUT))


def _mode(settings: CheckpointSettings) -> BarrierMode | None:
    if not settings.is_exactly_once:
        return None
    return BarrierMode.ALTERNATING if settings.is_unaligned else BarrierMode.ALIGNED
