"""``StreamTask``: the finish handshake, waiting, flushing, stopping, input.

Its end and its checkpoints have files of their own.

Source: Flink ``StreamTaskTest``, ``StreamTaskNetworkInputTest``: also scenarios that take a whole task.
"""

import os
import time
from dataclasses import dataclass
from typing import Any

import pytest

from flowlet.io import record_writer
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.messages.execution_state import ExecutionState
from flowlet.operators.source_operator import SourceOperator
from flowlet.operators.source_reader import Source, SourceReader
from flowlet.records import ACTIVE, IDLE, MAX_WATERMARK, Chunk, Watermark
from flowlet.serde.element_limits import ElementLimits
from flowlet.task.source_stream_task import create_stream_task
from flowlet.task.stream_task import StreamTask
from netstack.errors import NetstackError
from netstack.wire.events import StopMode
from tests.flowlet.task.local_network import SEGMENT_BYTES, LocalNetwork, Recorder, SubpartitionReader, Thread, edge
from tests.flowlet.task.local_tasks import (
    Noting,
    Tasks,
    cancel,
    chain,
    is_parked,
    parked,
    run_in_mail,
    send,
    serialized,
    source,
    step_until_idle,
)
from tests.waiting import spin_until

FULL = "x" * (SEGMENT_BYTES - 100)  # fills a buffer by itself


@dataclass(frozen=True)
class Times:
    """How long a task was idle, busy, and under both kinds of backpressure."""

    idle_ms: int = 0
    busy_ms: int = 0
    soft_ms: int = 0
    hard_ms: int = 0


def times_of(task: StreamTask) -> Times:
    metrics = task.metrics()
    soft_ms, hard_ms = metrics.accumulated_soft_back_pressured_ms, metrics.accumulated_hard_back_pressured_ms
    assert metrics.accumulated_back_pressured_ms == soft_ms + hard_ms
    return Times(metrics.accumulated_idle_ms, metrics.accumulated_busy_ms, soft_ms, hard_ms)


def read_to_the_end(task: StreamTask, thread: Thread, reader: SubpartitionReader) -> list[object]:
    """Read what a task writes, and let it end."""
    received: list[object] = []

    def waits_for_the_acknowledgement() -> bool:
        received.extend(reader.read_values())
        return "process all data" in (task.waiting_for or "")

    spin_until(waits_for_the_acknowledgement)
    received.extend(reader.read_values())
    reader.view.acknowledge_all_data_processed()
    thread.result()
    return received


class TestFinishHandshake:
    def test_mails_run_before_the_operators_finish(self, tasks: Tasks) -> None:
        """Deferrable mails run, too: they were skipped once, and windows never fired (FLINK-39481)."""
        recorder = Recorder()
        order: list[str] = []

        def post() -> None:
            executor = task.mailbox_processor.executor(1)
            executor.execute(
                lambda: order.append(f"mail after {recorder.calls}"), "late", options=MailOptions.DEFERRABLE
            )

        class LastWords(Source):
            """Posts a mail in the call with which it ends."""

            def create_reader(self, subtask: int, parallelism: int) -> SourceReader:
                return self

            def poll_chunk(self) -> None:
                post()

            def close(self) -> None:
                pass

        task = tasks.source(SourceOperator(LastWords()), recorder)
        task.invoke()

        assert order == ["mail after ['open']"]
        assert recorder.calls[-2:] == ["finish", "close"]


class TestWaiting:
    def test_a_task_without_input_is_idle_and_costs_nothing(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The task parks once and is woken by data; only the parked time is idle, 42 ms, not the 44 ms of a mail."""
        environment = network.environment("sink", gates=[network.gate(network.partition())])
        task = tasks.timed(environment, Recorder())
        thread = parked(task)
        tasks.clock.now_ns += 42_000_000

        assert times_of(task) == Times(idle_ms=42)
        assert "data on 1 of 1 gates" in (task.waiting_for or "")
        assert "sink (1/1) RUNNING" in repr(task)
        run_in_mail(task, lambda: tasks.clock.advance_ms(44))
        assert times_of(task) == Times(idle_ms=42, busy_ms=44)
        cancel(task, thread)
        assert task.mailbox.statistics().num_rescued_wakeups == 0

    def test_a_task_without_room_for_output_is_backpressured(self, network: LocalNetwork, tasks: Tasks) -> None:
        """testProcessWithUnAvailableOutput: 42 ms parked for a buffer are soft backpressure, the 44 ms of a mail are
        not, 42 ms parked again are; reading makes it go on.
        """
        partition = network.partition(max_buffers=2)
        reader = network.reader(partition)
        environment = network.environment("source", outputs=[edge(partition)])
        task = tasks.timed(environment, source(*([FULL] for _ in range(10))))
        thread = parked(task)
        tasks.clock.now_ns += 42_000_000
        assert times_of(task) == Times(soft_ms=42)
        assert task.metrics().is_back_pressured
        assert "a free buffer for partition" in (task.waiting_for or "")

        run_in_mail(task, lambda: tasks.clock.advance_ms(44))
        spin_until(lambda: is_parked(task))
        tasks.clock.now_ns += 42_000_000

        assert times_of(task) == Times(soft_ms=84, busy_ms=44)
        assert read_to_the_end(task, thread, reader) == [FULL] * 10

    def test_a_task_that_waits_inside_a_write_is_hard_backpressured(self, network: LocalNetwork, tasks: Tasks) -> None:
        """A wait inside a write, of 42 ms or of 5 s, is hard backpressure alone: the task is neither soft nor busy."""
        partition = network.partition(max_buffers=2)
        reader = network.reader(partition)
        large = "x" * 5 * SEGMENT_BYTES
        environment = network.environment("source", outputs=[edge(partition)])
        task = tasks.timed(environment, source([large]))
        thread = Thread(task.invoke)
        spin_until(lambda: "wait for a buffer" in repr(partition))
        tasks.clock.now_ns += 42_000_000
        assert times_of(task) == Times(hard_ms=42)
        assert task.metrics().is_back_pressured

        tasks.clock.now_ns += 4_958_000_000

        late = task.metrics()
        assert (late.hard_back_pressured_ms_per_second, late.busy_ms_per_second) == (1_000, 0)
        assert late.max_hard_back_pressure_ms == 5_000
        assert read_to_the_end(task, thread, reader) == [large]

    @pytest.mark.parametrize("is_late", [False, True])
    def test_data_that_comes_around_the_suspension_is_not_missed(
        self, network: LocalNetwork, tasks: Tasks, is_late: bool
    ) -> None:
        """The forced interleavings are between the empty poll and the suspension, and between it and watching."""
        partition = network.partition()
        recorder = Recorder()
        task = tasks.sink(recorder, producers=[partition])
        tasks.restored(task)
        feeder = tasks.restored(tasks.source(source([1]), outputs=[edge(partition)]))
        processor = task.mailbox_processor
        suspend = processor.suspend_default_action

        def suspend_around(*args: Any) -> object:
            suspension = suspend(*args) if is_late else None
            Thread(partition.flush_all).result()
            return suspension or suspend(*args)

        feeder.mailbox_processor.run_mailbox_step()
        processor.suspend_default_action = suspend_around  # type: ignore[method-assign, assignment]  # the seam of the interleaving
        for _ in range(4):
            processor.run_mailbox_step()

        assert recorder.values == [1]

    def test_a_released_partition_ends_the_task_instead_of_spinning(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The partition is not available, and never will be: the error of a write says why."""
        partition = network.partition()
        task = tasks.source(source([1], [2]), outputs=[edge(partition)])
        partition.release()

        with pytest.raises(NetstackError, match="released"):
            task.invoke()


class TestFlushing:
    def test_the_timer_makes_a_lone_record_visible(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The record is not visible before the timer fires."""
        partition = network.partition()
        reader = network.reader(partition)
        task = tasks.source(source([1], [2]), outputs=[edge(partition, buffer_timeout_ms=100)])
        tasks.restored(task)

        task.mailbox_processor.run_mailbox_step()
        before = reader.num_notifications
        assert len(network.timer.armed) == 1
        network.timer.fire()

        assert (before, reader.num_notifications) == (0, 1)
        assert reader.read() == [Chunk([1])]

    def test_a_failed_flush_fails_the_task(self, network: LocalNetwork, tasks: Tasks) -> None:
        partition = network.partition()
        error = OSError("no flush today")
        task = tasks.source(
            source([1], lambda: network.timer.fire(), [2]), outputs=[edge(partition, buffer_timeout_ms=100)]
        )

        def fail() -> None:
            raise error

        partition.flush_all = fail  # type: ignore[method-assign]  # nothing in memory fails to flush by itself
        with pytest.raises(OSError, match="no flush today"):
            task.invoke()

        assert task.state is ExecutionState.FAILED

    def test_records_of_one_action_leave_with_it(self, network: LocalNetwork, tasks: Tasks) -> None:
        """One default action makes one flush with timeout 0."""
        partition = network.partition()
        reader = network.reader(partition)
        task = tasks.restored(tasks.source(source([1], [2]), outputs=[edge(partition)]))

        task.mailbox_processor.run_mailbox_step()

        assert reader.read() == [Chunk([1])]


class TestStopping:
    """The default action looks around between two buffers."""

    def test_a_mail_waits_for_one_buffer_only(self, network: LocalNetwork, tasks: Tasks) -> None:
        upstream = network.partition()
        recorder = Recorder()
        task = tasks.restored(tasks.sink(recorder, producers=[upstream]))
        send(upstream, *[Chunk([FULL])] * 6)
        seen: list[int] = []

        def post(chunk: Chunk) -> None:
            if not seen and not task.mailbox.has_mail:
                task.mailbox_processor.executor().execute(lambda: seen.append(len(recorder.values)), "how many")

        recorder.on_chunk = post
        step_until_idle(task)

        assert seen == [1]
        assert len(recorder.values) == 6

    def test_a_task_stops_reading_when_its_output_is_full(
        self, network: LocalNetwork, tasks: Tasks, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A task with a full output waits in its mailbox, where a cancel or a mail reaches it, not inside the write."""
        monkeypatch.setattr(record_writer, "MAX_PENDING_RECORDS", 0)
        monkeypatch.setattr(record_writer.RecordWriter, "collect", lambda self, chunk: self._collect_part(chunk))
        upstream, downstream = network.partition(), network.partition(max_buffers=2)
        network.reader(downstream)
        recorder = Recorder()
        task = tasks.task("middle", recorder, gates=[network.gate(upstream)], outputs=[edge(downstream)])

        def run_all() -> None:
            tasks.restored(task)
            send(upstream, *[Chunk([FULL])] * 6)
            step_until_idle(task)

        Thread(run_all).result()

        assert "a free buffer" in (task.waiting_for or "")
        assert len(recorder.values) == 2
        assert downstream.statistics().hard_blocked_ns == 0


class TestProcessInput:
    def test_room_that_comes_around_the_suspension_is_not_missed(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The forced interleaving: a buffer comes back after the look at the partition and before the future is
        watched.
        """
        partition = network.partition(max_buffers=2)
        reader = network.reader(partition)
        task = tasks.restored(tasks.source(source([FULL], [FULL], [1]), outputs=[edge(partition)]))
        task.mailbox_processor.run_mailbox_step()
        task.mailbox_processor.run_mailbox_step()
        assert not partition.buffer_pool.is_available
        look = partition.buffer_pool.available_future
        received: list[object] = []

        def read_after_the_look() -> object:
            future = look()
            received.extend(reader.read_values())
            return future

        partition.buffer_pool.available_future = read_after_the_look  # type: ignore[method-assign, assignment]  # the seam of the interleaving
        step_until_idle(task)

        assert "process all data" in (task.waiting_for or "")
        assert received + reader.read_values() == [FULL, FULL, 1]

    def test_one_action_emits_all_records_that_are_there(self, network: LocalNetwork, tasks: Tasks) -> None:
        """testProcessMultipleRecords...: three records, one call of emitNext, and the task is idle."""
        partition = network.partition()
        recorder = Recorder()
        task = tasks.restored(tasks.sink(recorder, producers=[partition]))
        send(partition, Chunk([1]), Chunk([2]), Chunk([3]))

        task.mailbox_processor.run_mailbox_step()

        assert recorder.values == [1, 2, 3]
        assert "data on 1 of 1 gates" in (task.waiting_for or "")

    def test_a_slow_consumer_sets_the_pace_of_its_source(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Each buffer that is read lets the source fill one more; records under way never exceed the pool."""
        max_buffers, num_asked = 3, 0
        partition = network.partition(max_buffers=max_buffers)
        reader = network.reader(partition)

        def ask() -> None:
            nonlocal num_asked
            num_asked += 1

        task = tasks.restored(
            tasks.source(source(*[step for _ in range(50) for step in ([FULL], ask)]), outputs=[edge(partition)])
        )
        for num_read in range(30):
            step_until_idle(task)
            assert "a free buffer" in (task.waiting_for or "")
            # A record that was begun is written to its end.
            assert num_read * SEGMENT_BYTES <= num_asked * len(FULL) <= (num_read + max_buffers + 1) * SEGMENT_BYTES
            item = reader.view.next_buffer()
            assert item is not None
            item.buffer.recycle()


class TestDeserializers:
    """StreamTaskNetworkInputTest: the resources of a channel are given back as soon as they can be."""

    @staticmethod
    def num_open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    @pytest.mark.parametrize("num_inputs", [1, 2])
    def test_a_task_that_ends_early_leaves_no_file_of_a_half_record(
        self, network: LocalNetwork, tasks: Tasks, num_inputs: int
    ) -> None:
        """testCloseReleasesDeserializers: the file goes although the task object is still referenced."""
        before = self.num_open_files()
        partition = network.partition()
        producers = [partition, *(network.partition() for _ in range(1, num_inputs))]
        environment = network.environment("sink", gates=[network.gate(producer) for producer in producers])
        environment.gate_inputs = list(range(1, num_inputs + 1))
        environment.limits = ElementLimits(spill_above_bytes=102_400)
        task = tasks.restored(create_stream_task(environment, chain(Noting(num_inputs))))
        half = serialized(Chunk(["x" * 200_000]))[:150_000]
        for start in range(0, len(half), 8 * SEGMENT_BYTES):
            partition.emit_record(half[start : start + 8 * SEGMENT_BYTES], 0)
            partition.flush_all()
            step_until_idle(task)
        assert self.num_open_files() == before + 1

        for close in task._closers():
            close()

        assert self.num_open_files() == before


def test_a_finished_producer_beside_an_idle_one_leaves_the_task_idle(network: LocalNetwork, tasks: Tasks) -> None:
    """FLINK-38477: later records of the idle producer are not late."""
    first, second = network.partition(), network.partition()
    recorder = Recorder()
    task = tasks.restored(tasks.sink(recorder, producers=[first, second]))
    send(first, Watermark(5))
    send(second, Watermark(7))
    send(second, IDLE)
    send(first, MAX_WATERMARK)
    first.notify_end_of_data(StopMode.DRAIN)
    step_until_idle(task)
    assert MAX_WATERMARK not in recorder.controls
    assert recorder.controls[-1:] == [IDLE]

    send(second, ACTIVE, Chunk(["in time"]), Watermark(20))
    step_until_idle(task)

    assert recorder.controls[-1:] == [Watermark(20)]


class Ticking(Recorder):
    """Sets a timer that is due when it opens and another one when it finishes."""

    def __init__(self) -> None:
        super().__init__("ticking")
        self.fired: list[str] = []

    def _set(self, when: str) -> None:
        clock = self.ctx.processing_time_service
        clock.register_timer(clock.current_time_ms() - 10, lambda timestamp: self.fired.append(when))

    def open(self) -> None:
        super().open()
        self._set("open")

    def finish(self) -> None:
        super().finish()
        self._set("finish")


@pytest.mark.parametrize("fires_before_the_end", [True, False])
def test_no_timer_fires_once_the_operators_finish(
    network: LocalNetwork, tasks: Tasks, *, fires_before_the_end: bool
) -> None:
    """testProcessingTimeTimersAfterQuiesce: a mail that was posted before still runs; a timer that fires or is set
    later does not.
    """
    operator = Ticking()
    partition = network.partition()
    task = tasks.restored(tasks.sink(operator, producers=[partition]))
    step_until_idle(task)
    late = list(network.timer.armed)
    while fires_before_the_end and not task.mailbox.has_mail:
        network.timer.fire()  # armed again until its time has really come

    partition.notify_end_of_data(StopMode.DRAIN)
    step_until_idle(task)
    due_ns = time.monotonic_ns() + 2_000_000
    spin_until(lambda: time.monotonic_ns() > due_ns)  # a timer for the past waits a millisecond
    for fire in [*late, *network.timer.armed]:
        fire()
    step_until_idle(task)

    assert operator.calls[-1] == "finish"
    assert operator.fired == (["open"] if fires_before_the_end else [])
