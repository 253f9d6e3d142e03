"""Source: Flink ``StreamTaskTest``, ``StreamTaskNetworkInputTest``: scenarios that take a whole task, but for its end and state."""

import os
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from flowlet.errors import TaskCancelled
from flowlet.io import input_processor
from flowlet.mailbox.task_timings import TaskTimings
from flowlet.records import ACTIVE, IDLE, MAX_WATERMARK, Chunk, StreamElement, Watermark
from flowlet.serde.element_deserializer import ElementDeserializer
from flowlet.serde.element_limits import ElementLimits
from flowlet.serde.element_serializer import StreamElementSerializer
from flowlet.task.create_stream_task import create_stream_task
from flowlet.task.one_input_stream_task import MultipleInputStreamTask, OneInputStreamTask
from flowlet.task.source_stream_task import SourceStreamTask
from netstack.partition.result_partition import ResultPartition
from netstack.wire.events import StopMode
from tests.flowlet.task.local_network import SEGMENT_BYTES, LocalNetwork, Recorder, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, chain, is_parked, source, step_until_idle
from tests.flowlet.task.test_multiple_input_stream_task import Noting
from tests.waiting import spin_until

FULL = "x" * (SEGMENT_BYTES - 100)  # fills a buffer by itself


def serialized(element: StreamElement) -> bytes:
    return bytes(StreamElementSerializer().serialize(element))


def send(partition: ResultPartition, *elements: StreamElement) -> None:
    for element in elements:
        partition.emit_record(serialized(element), 0)
    partition.flush_all()


class TestProcessInput:
    def test_waiting_for_room_is_soft_backpressure_and_mails_meanwhile_are_not(self, network: LocalNetwork, tasks: Tasks) -> None:
        """testProcessWithUnAvailableOutput: 42 ms parked, 44 ms in a mail, 42 ms parked again."""
        partition = network.partition(max_buffers=2)
        reader = network.reader(partition)
        environment = network.environment("source", outputs=[edge(partition)])
        task = SourceStreamTask(environment, chain(source(*([FULL] for _ in range(4)))), timings=TaskTimings(tasks.clock))
        thread = Thread(task.invoke)
        spin_until(lambda: is_parked(task))

        def work() -> None:
            tasks.clock.now_ns += 44_000_000

        tasks.clock.now_ns += 42_000_000
        task.mailbox_processor.executor().submit(work, "work").result()
        spin_until(lambda: is_parked(task))
        tasks.clock.now_ns += 42_000_000
        metrics = task.metrics()
        task.cancel()
        with pytest.raises(TaskCancelled):
            thread.result()
        reader.view.release()

        assert (metrics.accumulated_soft_back_pressured_ms, metrics.accumulated_busy_ms) == (84, 44)
        assert (metrics.accumulated_idle_ms, metrics.accumulated_hard_back_pressured_ms) == (0, 0)

    def test_room_that_comes_around_the_suspension_is_not_missed(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The forced interleaving: a buffer comes back after the look at the partition and before the future is watched."""
        partition = network.partition(max_buffers=2)
        reader = network.reader(partition)
        task = tasks.restored(tasks.source(source([FULL], [FULL], [1]), outputs=[edge(partition)]))
        task.mailbox_processor.run_mailbox_step()
        task.mailbox_processor.run_mailbox_step()
        assert not partition.is_available
        look = partition.available_future
        received: list[object] = []

        def read_after_the_look() -> object:
            future = look()
            received.extend(reader.read_values())
            return future

        partition.available_future = read_after_the_look  # type: ignore[method-assign, assignment]  # the seam of the interleaving
        step_until_idle(task)

        assert "process all data" in (task.waiting_for or "")
        assert received + reader.read_values() == [FULL, FULL, 1]
        reader.view.release()

    def test_one_action_emits_all_records_that_are_there(self, network: LocalNetwork, tasks: Tasks) -> None:
        """testProcessMultipleRecords...: three records, one call of emitNext, and the task is idle."""
        partition = network.partition()
        recorder = Recorder()
        task = tasks.restored(tasks.sink(recorder, producers=[partition]))
        send(partition, Chunk([1]), Chunk([2]), Chunk([3]))

        task.mailbox_processor.run_mailbox_step()

        assert recorder.values == [1, 2, 3]
        assert "data on 1 of 1 gates" in (task.waiting_for or "")

    def test_a_mail_ends_the_action_after_the_buffer_that_is_being_processed(self, network: LocalNetwork, tasks: Tasks) -> None:
        """testProcessInputStopsForMails: the rest of the input comes after the mail."""
        partition = network.partition()
        order: list[object] = []
        recorder = Recorder(on_chunk=lambda chunk: order.append(len(chunk.values)))
        task = tasks.restored(tasks.sink(recorder, producers=[partition]))
        for _ in range(3):
            send(partition, Chunk([FULL]))
        task.mailbox_processor.executor().execute(lambda: order.append("mail"), "a mail")

        step_until_idle(task)

        assert order == ["mail", 1, 1, 1]

    def test_a_task_is_woken_step_by_step(self, network: LocalNetwork, tasks: Tasks) -> None:
        """The channel notifies the gate, its future resumes the task by a control mail, the loop polls: in this order, once each."""
        partition = network.partition()
        recorder = Recorder(on_chunk=lambda chunk: order.append("record"))
        task = tasks.restored(tasks.sink(recorder, producers=[partition]))
        step_until_idle(task)
        order: list[str] = []
        gate, processor = network.gates[0], task.mailbox_processor
        notify, post, poll = gate.notify_channel_non_empty, processor.send_control_mail, gate.poll_next

        def noted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
            def noting(*args: Any, **named: Any) -> Any:
                order.append(name)
                return call(*args, **named)

            return noting

        gate.notify_channel_non_empty = noted("channel", notify)  # type: ignore[method-assign]  # watched, not changed
        processor.send_control_mail = noted("mail", post)  # type: ignore[method-assign]
        gate.poll_next = noted("poll", poll)  # type: ignore[method-assign]
        Thread(lambda: send(partition, Chunk([1]))).result()
        assert recorder.values == []
        step_until_idle(task)

        assert order == ["channel", "mail", "poll", "record", "poll"]

    def test_a_slow_consumer_sets_the_pace_of_its_source(self, network: LocalNetwork, tasks: Tasks) -> None:
        """Each buffer that is read lets the source fill one more; what is under way never exceeds the pool."""
        max_buffers, num_asked = 3, 0
        partition = network.partition(max_buffers=max_buffers)
        reader = network.reader(partition)

        def ask() -> None:
            nonlocal num_asked
            num_asked += 1

        task = tasks.restored(tasks.source(source(*[step for _ in range(50) for step in ([FULL], ask)]), outputs=[edge(partition)]))
        for num_read in range(30):
            step_until_idle(task)
            assert "a free buffer" in (task.waiting_for or "")
            # A record that was begun is written to its end.
            assert num_read * SEGMENT_BYTES <= num_asked * len(FULL) <= (num_read + max_buffers + 1) * SEGMENT_BYTES
            item = reader.view.next_buffer()
            assert item is not None
            item.buffer.recycle()

        reader.view.release()


class TestDeserializers:
    """StreamTaskNetworkInputTest: what a channel keeps is given back as soon as it can be."""

    @staticmethod
    def num_open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    def test_the_deserializer_of_a_channel_goes_with_its_data(self, network: LocalNetwork, tasks: Tasks) -> None:
        """testReleasingDeserializerTimely: not when the task ends, and not those of the other channels."""
        producers = [network.partition(owner=f"producer {number}") for number in range(3)]
        environment = network.environment("sink", gates=[network.gate(*producers)])
        task = OneInputStreamTask(environment, chain(Recorder()))
        tasks.restored(task)
        alive = []
        for producer in producers:
            producer.notify_end_of_data(StopMode.DRAIN)
            step_until_idle(task)
            alive.append([each is not None for each in task._input._deserializers])  # type: ignore[union-attr]  # it has one input

        assert alive == [[False, True, True], [False, False, True], [False, False, False]]

    @pytest.mark.parametrize("num_inputs", [1, 2])
    def test_a_task_that_ends_early_leaves_no_file_of_a_half_record(
        self, network: LocalNetwork, tasks: Tasks, monkeypatch: pytest.MonkeyPatch, num_inputs: int
    ) -> None:
        """testCloseReleasesDeserializers: although somebody still holds the task."""
        small = partial(ElementDeserializer, limits=ElementLimits(spill_above_bytes=102_400))
        monkeypatch.setattr(input_processor, "ElementDeserializer", small)
        before = self.num_open_files()
        partition = network.partition()
        producers = [partition, *(network.partition() for _ in range(1, num_inputs))]
        environment = network.environment("sink", gates=[network.gate(producer) for producer in producers])
        environment.gate_inputs = list(range(1, num_inputs + 1))
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
    """FLINK-38477: what comes from the idle one later is not late."""
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


def test_a_task_takes_63_inputs_and_not_one_more() -> None:
    """MultipleInputSelectionHandlerTest: rejected when the task is made, before anything runs."""
    with LocalNetwork(num_segments=256) as network:

        def make(num_inputs: int) -> MultipleInputStreamTask:
            gates = [network.gate(network.partition(max_buffers=2)) for _ in range(num_inputs)]
            environment = network.environment("many", gates=gates)
            environment.gate_inputs = list(range(1, num_inputs + 1))
            return MultipleInputStreamTask(environment, chain(Noting(num_inputs)))

        make(63)
        with pytest.raises(ValueError, match="1 to 63 inputs, got 64"):
            make(64)


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
def test_no_timer_fires_once_the_operators_finish(network: LocalNetwork, tasks: Tasks, *, fires_before_the_end: bool) -> None:
    """testProcessingTimeTimersAfterQuiesce: a mail that was posted before still runs; what fires or is set later does not."""
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
