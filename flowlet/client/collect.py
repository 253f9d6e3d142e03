"""Reads an external edge of a running job into the user's program.

Side:       shared.  Values are taken on one thread of the user's; the buffers arrive on the client's loop thread.
Invariants: the end of data is acknowledged only after the last value was taken, so a job that finished was read to its end; values are
            given out in the order of their arrival; at most the gate's own buffers wait here, the rest waits in the job.
Rules:      iteration ends with the data, not with the partition: a task sends the end of its partitions only when all of them were
            acknowledged, so that a reader of two edges would wait for itself.
Source:     Flink ``CollectResultIterator``, with a gate in place of a socket per sink.
"""

import threading
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final, Protocol

from flowlet.client.interrupts import DeferredSignals, Latch
from flowlet.client.remote import ClusterClient
from flowlet.common.job_status import JobStatus
from flowlet.errors import FlowletError, JobExecutionError
from flowlet.records import Chunk
from flowlet.rpc.control_messages import InputChannelDescriptor
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_limits import LARGEST_ELEMENT_LIMITS
from flowlet.tm.task_deployment import channel_spec
from netstack.config import NetstackConfig
from netstack.environment import NetworkEnvironment
from netstack.errors import NetstackError
from netstack.gate.single_input_gate import SingleInputGate
from netstack.security import SecurityConfig
from netstack.wire.events import EndOfData

# A TaskManager that has no file descriptors left for a moment must not cost the job: five pauses of together 3 s.  All attempts together
# take no longer than the one of 120 s that is the default of the network stack.
_CONNECT_RETRIES: Final = 5
_CONNECT_TIMEOUT_S: Final = 20.0


class JobHandle(Protocol):
    """What the reader needs of the job that it reads."""

    @property
    def job_id(self) -> str:
        """32 hex digits."""

    @property
    def name(self) -> str:
        """The job's name."""

    def explain(self, error: Exception) -> JobExecutionError:
        """The failure of the job that lies behind an error of the reader's; its cause is what the user should see first."""

    def cancel_quietly(self) -> None:
        """Ask for the job's end; a cluster that cannot be reached is no error."""


class CollectedValues(Iterator[Any]):
    """The values of one edge.

    Threading: one thread; ``release`` on any.
    Life cycle: ends by itself; ``close`` before the end cancels the job.  ``release`` only frees what it holds; the job calls it when it
    has ended or is closed.
    """

    def __init__(
        self,
        client: ClusterClient,
        channels: Sequence[InputChannelDescriptor],
        job: JobHandle,
    ) -> None:
        self._client = client
        self._job = job
        self._lock = threading.Lock()
        self._is_released = False  # Guarded by _lock.
        self._wakeup = Latch()  # one per wait
        self._deserializers = [
            ElementDeserializer(name=f"{job.name}, producer {index}", limits=LARGEST_ELEMENT_LIMITS) for index in range(len(channels))
        ]
        self._network = NetworkEnvironment(
            NetstackConfig(
                security=SecurityConfig.hmac(client.secret), connect_timeout_s=_CONNECT_TIMEOUT_S, connect_retries=_CONNECT_RETRIES
            ),
            client.loop,
        )
        try:
            self._gate = self._open(channels)
        except BaseException:
            client.run(self._network.close)
            raise
        # A job that fails before its partition was found would leave us waiting for the partition.
        self._end_of_job = client.begin(lambda api: api.wait_terminal(job.job_id, None))
        self._end_of_job.add_done_callback(lambda _future: self._wakeup.open())
        self._chunk: Iterator[Any] = iter(())  # what is left of the chunk being read
        self._num_with_data = len(channels)  # channels whose end of data was not reached
        self._is_ended = False

    def __repr__(self) -> str:
        return f"<CollectedValues of {self._gate!r}{' released' if self._is_released else ''}>"

    def __next__(self) -> Any:
        while True:
            for value in self._chunk:
                return value
            if self._is_ended:
                raise StopIteration
            self._read_more()

    def close(self) -> None:
        """Take no more values: cancels the job unless the end was reached."""
        if self._is_ended:
            return
        self._is_ended, self._chunk = True, iter(())
        try:
            self._job.cancel_quietly()
        finally:
            self.release()

    def release(self) -> None:
        """Give back buffers and connections; a reader that waits gets an error."""
        with DeferredSignals():
            with self._lock:
                if self._is_released:
                    return
                self._is_released = True
            self._end_of_job.cancel()
            self._gate.close()
            self._client.run(self._network.close)
            self._wakeup.open()

    def _open(self, channels: Sequence[InputChannelDescriptor]) -> SingleInputGate:
        gate = self._network.create_input_gate(f"client of {self._job.name}", [channel_spec(channel, None) for channel in channels])
        gate.request_partitions()
        return gate

    def _read_more(self) -> None:
        try:
            if self._num_with_data:
                with DeferredSignals():
                    is_waiting = not self._poll()
                if is_waiting:
                    self._wakeup.wait()  # waits for results; ended by data, the end of the job, or close()
            else:
                self._is_ended = True
        except (NetstackError, _JobIsOverError) as error:
            self._is_ended = True
            self.release()
            failure = self._job.explain(error)
            raise failure from failure.__cause__
        except KeyboardInterrupt:
            self.close()
            raise

    def _poll(self) -> bool:
        """Take the next buffer or event; False: there is none, and ``_wakeup`` opens when there may be one."""
        item = self._gate.poll_next()
        if item is None:
            self._prepare_to_wait()
            return False
        if item.buffer is not None:
            try:
                elements = self._deserializers[item.channel_index].feed(item.buffer.view)
            finally:
                item.buffer.recycle()
            self._chunk = chain.from_iterable(element.values for element in elements if isinstance(element, Chunk))
        elif isinstance(item.event, EndOfData):
            self._num_with_data -= 1
            self._gate.acknowledge_all_records_processed(item.channel_index)
        return True

    def _prepare_to_wait(self) -> None:
        self._wakeup = Latch()  # before the looks at what would have opened the former one
        if self._is_released:
            raise FlowletError("the results were released while they were read")
        if self._end_of_job.done() and not self._has_finished():
            raise _JobIsOverError("the job is over, and its results did not come to their end")
        self._gate.available_future().add_done_callback(self._wakeup.open)

    def _has_finished(self) -> bool:
        """Whether the job ended well: then everything is on its way."""
        if self._end_of_job.cancelled() or self._end_of_job.exception() is not None:
            return False
        document = self._end_of_job.result()  # no wait: it is done
        return document is not None and document["state"] == JobStatus.FINISHED.name


class _JobIsOverError(FlowletError):
    """Turned into the job's own failure before anybody sees it."""
