"""Reads an external edge of a running job into the user's program, over the job's restarts.

``RunReader`` reads one run of the edge, ``follow_runs`` tells of new runs and of complete checkpoints, and
``CollectedValues`` joins both, through a ``ResultBuffer``.

Side:       shared.
Invariants: an end of data is acknowledged, and a channel that a barrier blocks goes on, as soon as it was read: data
            that was read is the client's, and the tasks need not wait until it is handed out.  News is told in the
            order in which it happened; a new run is told once its channels are known; of several complete checkpoints
            of one run only the newest waits for the reader, so the news does not grow.  A job that finished was read to
            its end; values of one producer are given out in the order of their arrival, and with exactly-once
            checkpoints each of them once (``ResultBuffer``, which decides when).
Memory:     without checkpoints at most the gate's own buffers wait here, the rest waits in the job.  With exactly-once
            checkpoints all that came since the last complete one waits here, too: it is not limited, because a reader
            that stopped would never see the barrier that it waits for; from ``WARN_BYTES`` on a warning says so.
Rules:      without checkpoints and restarts iteration ends with the data, not with the partition: a task sends the end
            of its partitions only when all of them were acknowledged, so that a reader of two edges would wait for
            itself.  With them it ends when the job has finished: until then a restart may repeat the data, and needs
            its reader.  So two edges of such a job need two threads.  A reader that pauses stops the barriers, and with
            them the checkpoints, too.  A connection that breaks while the job runs loses what was under way: the reader
            has the job start again.
Source:     Flink ``CollectResultIterator``, with a gate in place of a socket per sink.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import InitVar, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from flowlet.client.program.interrupts import DeferredSignals, Latch
from flowlet.client.remote import ClusterClient, JobEndedError, JobManagerApi, RunChannels
from flowlet.client.result_buffer import NO_CHECKPOINT, Guarantee, LostResultsError, ResultBuffer
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError, JobExecutionError
from flowlet.messages.job_messages import InputChannelDescriptor
from flowlet.records import Chunk
from flowlet.serde.element_limits import LARGEST_ELEMENT_LIMITS
from flowlet.serde.element_serializer import ElementDeserializer
from flowlet.tm.task_deployment import channel_spec
from netstack.config import NetstackConfig, SecurityConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import NetstackError
from netstack.late import dataclass
from netstack.log_lines import LogLines
from netstack.wire.events import CheckpointBarrier, EndOfData

if TYPE_CHECKING:
    from flowlet.client.running_job import RunningJob


# A TaskManager that has no file descriptors left for a moment must not cost the job: five pauses of together 3 s.  All
# attempts together take no longer than the one of 120 s that is the default of the network stack.
_CONNECT_RETRIES: Final = 5
_CONNECT_TIMEOUT_S: Final = 20.0


@dataclass(eq=False, repr=False)
class RunReader:
    """The gate of one run, with a network of its own.

    Threading: ``poll`` on one thread; ``close`` on any, but not on the client's loop thread.
    Life cycle: ``close`` it.

    Args:
        client: of the cluster that runs the job.
        channels: one per producer.
        job_name: for people.
        on_barrier: called with the producer and the checkpoint of each barrier that was read.
    """

    client: ClusterClient
    channels: InitVar[Sequence[InputChannelDescriptor]]
    job_name: InitVar[str]
    on_barrier: Callable[[bytes, int], None]

    def __post_init__(self, channels: Sequence[InputChannelDescriptor], job_name: str) -> None:
        self._producers = [channel.producer for channel in channels]
        self._deserializers = [
            ElementDeserializer(name=f"{job_name}, producer {index}", limits=LARGEST_ELEMENT_LIMITS)
            for index in range(len(channels))
        ]
        config = NetstackConfig(
            security=SecurityConfig.hmac(self.client.secret),
            connect_timeout_s=_CONNECT_TIMEOUT_S,
            connect_retries=_CONNECT_RETRIES,
        )
        # As much as the one gate can use: to cut 64 MiB into segments takes a tenth of the time of a small job.
        num_segments = len(channels) * config.exclusive_buffers_per_channel + config.floating_buffers_per_gate
        memory = num_segments * config.segment_size_bytes
        self._network = NetworkEnvironment(replace(config, network_memory_bytes=memory), self.client.loop)
        try:
            self._gate = self._network.create_input_gate(
                f"client of {job_name}", [channel_spec(channel, None) for channel in channels]
            )
            self._gate.request_partitions()
        except BaseException:  # an interrupt, too: the network has threads and sockets, and no owner yet
            self.client.run(self._network.close)
            raise

    def __repr__(self) -> str:
        return f"<RunReader of {self._gate!r}>"

    def poll(self, buffer: ResultBuffer) -> list[Any] | None:
        """Read on into ``buffer``; returns the values that it hands out; None: there is nothing to read now.

        Raises:
            NetstackError: a channel has failed, or ``close`` was called.
            SerdeError: a producer sent something else than records.
        """
        while (item := self._gate.poll_next()) is not None:
            channel = item.channel_index
            if item.buffer is not None:
                try:
                    elements = self._deserializers[channel].feed(item.buffer.view)
                finally:
                    item.buffer.recycle()
                records = [element.values for element in elements if isinstance(element, Chunk)]
                return buffer.receive(channel, records, item.size)
            if isinstance(item.event, EndOfData):
                self._gate.acknowledge_all_records_processed(channel)
                buffer.end_channel(channel)
                return []
            if isinstance(item.event, CheckpointBarrier):
                if item.event.options.needs_alignment:
                    self._gate.resume_consumption(channel)
                buffer.pass_barrier(channel, item.event.checkpoint_id)
                self.on_barrier(self._producers[channel], item.event.checkpoint_id)
                return []
        return None

    def call_when_available(self, callback: Callable[[], None]) -> None:
        """Call once ``poll`` may find something, at once if it may now; not at all once every partition has ended."""
        if not self._gate.is_finished:
            self._gate.available_future().add_done_callback(callback)

    def close(self) -> None:
        """Give back buffers and connections; a poll raises from then on."""
        self._gate.close()
        self.client.run(self._network.close)


News = int | RunChannels
"""A complete checkpoint, or the next run."""


async def follow_runs(
    api: JobManagerApi, job_id: str, edge_id: str, run: RunChannels, tell: Callable[[News], None]
) -> None:
    """Tell the events after the beginning of ``run``, until the job has ended.

    Raises:
        FlowletError: the JobManager cannot be asked.
    """
    attempt, completed = run.attempt, run.restored_checkpoint_id
    while True:
        progress = await api.wait_progress(job_id, edge_id, attempt, completed)
        if progress.attempt == attempt and progress.last_completed_checkpoint_id > completed:
            completed = progress.last_completed_checkpoint_id
            tell(completed)
        if progress.attempt == attempt and progress.state == JobStatus.RUNNING.name:
            continue
        try:
            run = await api.wait_channels(job_id, edge_id, after_attempt=attempt)
        except JobEndedError:
            return
        attempt, completed = run.attempt, max(NO_CHECKPOINT, run.restored_checkpoint_id)
        tell(run)


_log = LogLines(__name__)

WARN_BYTES: Final = 64 * 1024 * 1024
# After a channel broke: how long the JobManager may take to say how the job goes on, before the reader gives up.
_NOTICE_TIMEOUT_S: Final = 60.0
# Then the JobManager is told.  It knows of a TaskManager that was killed within milliseconds, and not of a connection
# to this reader.
_REPORT_AFTER_S: Final = 1.0
# Runs that this reader ended without having read anything of them: starting the job once more does not help.
_MAX_FRUITLESS_RUNS: Final = 3


class CollectedValues(Iterator[Any]):
    """The values of one edge.

    Threading: one thread; ``release`` on any.
    Life cycle: ends by itself; ``close`` before the end cancels the job.  ``release`` only frees what it holds; the job
    calls it when it has ended or is closed.

    Args:
        edge_id: what to read.
        run: where it can be read now.
        job: whose edge it is.
    """

    def __init__(self, edge_id: str, run: RunChannels, job: "RunningJob") -> None:
        client = self._client = job.client
        self._edge_id = edge_id
        self._job = job
        guarantee = self._guarantee = job.guarantee  # None: the job has no checkpoints and never restarts
        self._lock = threading.Lock()
        self._is_released = False  # Guarded by _lock.
        self._has_job_finished = False  # Written by release(), before it wakes the reader.
        self._wakeup = Latch()  # one per wait
        self._news: deque[News] = deque()  # not yet taken by the reader.  Guarded by _lock.
        self._attempt = run.attempt
        self._buffer = ResultBuffer(len(run.channels), guarantee or Guarantee.NONE)
        if run.attempt:  # the job restarted before this reader came
            self._buffer.restart(run.restored_checkpoint_id, run.attempt)
        self._warn_bytes = WARN_BYTES
        self._broken: NetstackError | None = None  # why this run cannot be read any further
        self._broken_s = 0.0  # time.monotonic() of that
        self._is_break_told = False
        self._has_read = False  # something of this run
        self._num_fruitless_runs = 0  # in a row, of which nobody but this reader said that they were over
        self._reader = self._reader_of(run)  # Replaced by the reading thread, under _lock.
        # A job that fails before its partition was found would leave us waiting for the partition.
        self._end_of_job = client.begin(lambda api: api.wait_terminal(job.job_id, None))
        self._end_of_job.add_done_callback(self._wake)
        self._following = None
        if guarantee is not None:
            self._following = client.begin(lambda api: follow_runs(api, job.job_id, edge_id, run, self._tell))
            self._following.add_done_callback(self._wake)
        self._chunks: Iterator[Any] = iter(())  # what was handed out, and not taken yet: a list of values, or columns
        self._values: Iterator[Any] = iter(())  # the values of these
        self._is_ended = False

    def __repr__(self) -> str:
        return f"<CollectedValues of {self._reader!r}{' released' if self._is_released else ''}>"

    def __next__(self) -> Any:
        while True:
            for value in self._values:
                return value
            if self._is_ended:
                raise StopIteration
            self._read_more()

    def chunks(self) -> Iterator[Any]:
        """Iterate over the values that were not taken yet, in the form in which they came: lists of
        values, or columns.
        """
        rest = list(self._values)  # a chunk of which a part was taken is no chunk any more
        if rest:
            yield rest
        while not self._is_ended:
            self._read_more()
            yield from self._chunks

    def close(self) -> None:
        """Take no more values: cancels the job unless the end was reached."""
        if self._is_ended:
            return
        self._is_ended, self._chunks, self._values = True, iter(()), iter(())
        try:
            self._job.cancel_quietly()
        finally:
            self.release()

    def release(self, *, has_job_finished: bool = False) -> None:
        """Give back buffers and connections; a reader that waits gets an error, unless the job has finished and all has
        arrived.
        """
        with DeferredSignals():
            with self._lock:
                if self._is_released:
                    return
                self._is_released = True
                self._has_job_finished = has_job_finished
                reader = self._reader
            self._end_of_job.cancel()
            if self._following is not None:
                self._following.cancel()
            reader.close()
            self._wake()

    # ---------------------------------------------------------------- the reading thread

    def _read_more(self) -> None:
        try:
            with DeferredSignals():
                timeout_s = self._advance()
            if timeout_s is not None:
                # waits for results; ended by data, news of the job, close(), or the time allowed for a broken run
                self._wakeup.wait(None if timeout_s < 0 else timeout_s)
        except (NetstackError, LostResultsError, _JobIsOverError) as error:
            self._is_ended = True
            self.release()
            if isinstance(error, LostResultsError):
                self._job.cancel_quietly()
                raise JobExecutionError(f"job {self._job.name!r}: its results could not be read: {error}") from None
            failure = self._job.explain(error)
            raise failure from failure.__cause__
        except KeyboardInterrupt:
            self.close()
            raise

    def _advance(self) -> float | None:
        """Take the next event; returns how long to wait for another one first, in seconds, negative: for ever; None:
        not at all.
        """
        with self._lock:
            news = self._news.popleft() if self._news else None
        if isinstance(news, RunChannels):
            self._restart(news)
        elif news is not None:
            self._hand_out(self._buffer.complete(news))
        elif self._may_end:
            self._is_ended = True
            self._hand_out(self._buffer.finish())
            self._job.check_output()
        elif self._broken is not None:
            return self._wait_for_next_run(self._broken)
        else:
            return self._poll()
        return None

    def _hand_out(self, released: list[Any]) -> None:
        if released:
            self._chunks = chain.from_iterable(released)  # what was handed out before has been taken
            self._values = chain.from_iterable(self._chunks)
        if self._buffer.kept_bytes >= self._warn_bytes:
            self._warn_bytes *= 2
            _log.warning(
                "results wait for a checkpoint and fill the memory of this program; take checkpoints more often, or "
                "read at least once",
                job=self._job.name,
                megabytes=self._buffer.kept_bytes // 2**20,
            )

    def _restart(self, run: RunChannels) -> None:
        former, self._broken, self._has_read = self._reader, None, False
        self._hand_out(self._buffer.restart(run.restored_checkpoint_id, run.attempt - self._attempt))
        former.close()
        self._attempt = run.attempt
        reader = self._reader_of(run)
        with self._lock:
            self._reader = reader
            is_released = self._is_released
        if is_released:  # meanwhile: the release has closed the former reader, and does not know this one
            reader.close()

    def _poll(self) -> float | None:
        try:
            released = self._reader.poll(self._buffer)
        except NetstackError as error:
            if self._guarantee is None or self._is_released:
                raise  # no restart helps
            self._broken, self._broken_s, self._is_break_told = error, time.monotonic(), False
            return None
        self._has_read = self._has_read or released is not None
        if released is None:
            self._prepare_to_wait()
            self._reader.call_when_available(self._wakeup.open)
            return -1.0
        self._hand_out(released)
        return None

    def _reader_of(self, run: RunChannels) -> RunReader:
        return RunReader(self._client, run.channels, self._job.name, self._report)

    def _report(self, producer: bytes, checkpoint_id: int) -> None:
        """Tell the JobManager that the producer's part of the checkpoint counts: the data before the barrier has
        arrived.
        """
        job_id = self._job.job_id
        told = self._client.begin(lambda api: api.report_barrier(job_id, self._edge_id, producer, checkpoint_id))
        told.add_done_callback(partial(_log_untold, "a barrier has arrived, so its checkpoint will time out"))

    def _wait_for_next_run(self, error: NetstackError) -> float:
        """Prepare to wait for the next run after the channels broke; returns for how many seconds.

        If the JobManager tells of no restart and no end, it does not know of the break yet, and this tells it.
        """
        self._prepare_to_wait()
        waited_s = time.monotonic() - self._broken_s
        if not self._is_break_told:
            if waited_s < _REPORT_AFTER_S:
                return _REPORT_AFTER_S - waited_s
            self._num_fruitless_runs = 0 if self._has_read else self._num_fruitless_runs + 1
            if self._num_fruitless_runs == _MAX_FRUITLESS_RUNS:
                raise error
            self._is_break_told = True
            job_id, attempt, reason = self._job.job_id, self._attempt, str(error)
            _log.warning(
                "the results of this run can be read no further; the job is to start again",
                job=self._job.name,
                reason=reason,
            )
            told = self._client.begin(lambda api: api.report_broken_results(job_id, self._edge_id, attempt, reason))
            told.add_done_callback(partial(_log_untold, "results cannot be read any further"))
        left_s = _NOTICE_TIMEOUT_S + self._client.patience_s - waited_s
        if left_s <= 0:
            raise error
        return left_s

    def _prepare_to_wait(self) -> None:
        self._wakeup = Latch()  # before the reads of everything that would have opened the former latch
        if self._is_released and not self._has_job_finished:
            raise FlowletError("the results were released while they were read")
        if self._end_of_job.done() and not self._has_finished():
            raise _JobIsOverError("the job is over, and its results did not come to their end")
        if self._following is not None and self._following.done() and not self._following.cancelled():
            problem = self._following.exception()
            if problem is not None:
                raise _JobIsOverError(f"the JobManager does not say how the job goes on: {problem}")
        if self._news or self._may_end:
            self._wakeup.open()

    @property
    def _may_end(self) -> bool:
        return self._buffer.are_all_ended and (self._guarantee is None or self._has_finished())

    def _has_finished(self) -> bool:
        """Whether the job ended well: then everything is on its way."""
        if self._has_job_finished:
            return True
        if not self._end_of_job.done() or self._end_of_job.cancelled() or self._end_of_job.exception() is not None:
            return False
        document = self._end_of_job.result()  # no wait: it is done
        return document is not None and document["state"] == JobStatus.FINISHED.name

    def _tell(self, news: News) -> None:
        """Add news, and wake the reader; on the loop thread."""
        with self._lock:
            if isinstance(news, int) and self._news and isinstance(self._news[-1], int):
                self._news.pop()  # A newer complete checkpoint stands for an older one that the reader has not taken.
            self._news.append(news)
        self._wake()

    def _wake(self, _: object = None) -> None:
        self._wakeup.open()


def _log_untold(what: str, told: "Future[None]") -> None:
    if not told.cancelled() and (problem := told.exception()) is not None:
        _log.warning(f"the JobManager was not told that {what}", reason=str(problem))


class _JobIsOverError(FlowletError):
    """The job has ended; turned into the job's own failure before a user sees it."""
