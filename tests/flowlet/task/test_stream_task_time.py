"""Event time and processing time of whole tasks.

Source: Flink ``UnalignedCheckpointsInterruptibleTimersTest``, ``StreamTaskTest`` (FLINK-20217, FLINK-35886),
        ``WatermarkGaugeTest``.
"""

from collections.abc import Iterator
from typing import Any

from flowlet.common import WatermarkStrategy
from flowlet.datastream import KeyedProcessFunction
from flowlet.mailbox.mailbox_processor import TaskTimings, WaitKind
from flowlet.mailbox.task_mailbox import MAX_PRIORITY, MailOptions
from flowlet.operators.event_time_stream import TimestampsAndWatermarksOperator
from flowlet.operators.process_operator import ProcessOperator
from flowlet.records import IDLE, MIN_TIMESTAMP, Chunk, LatencyMarker, Watermark
from flowlet.task.one_input_stream_task import STALL_NS, GateFedStreamTask
from flowlet.task.stream_task import StreamTask
from netstack.wire.events import StopMode
from tests.flowlet.operators.test_multiple_input_operator import Tagging
from tests.flowlet.task.local_network import LocalNetwork, Recorder, edge
from tests.flowlet.task.local_tasks import Tasks, chain, send, step_until_idle


class Timers(KeyedProcessFunction):
    """A timer at each value; the test may do something when one fires."""

    task: StreamTask
    seen: list[Any]

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        self.seen.append(timestamp)
        if timestamp == 2:
            self.task.mailbox_processor.executor(MAX_PRIORITY).execute(
                lambda: self.seen.append("barrier"), "b", options=MailOptions.URGENT
            )
            self.task.mailbox_processor.executor().execute(lambda: self.seen.append("mail"), "an ordinary mail")
        yield timestamp


def test_a_barrier_passes_between_two_timers_of_one_watermark(network: LocalNetwork, tasks: Tasks) -> None:
    """FLINK-20217: a mail that can wait passes after the barrier; the watermark and "idle" come behind the rest of the
    timers.
    """
    partition, function, sink = network.partition(), Timers(), Recorder()
    environment = network.environment("timers", gates=[network.gate(partition)])
    # With a clock that stands still: timers that take long pause, too.
    task = tasks.timed(environment, ProcessOperator(function, same), sink)
    function.task, function.seen = task, []
    tasks.restored(task)

    send(partition, Chunk([1, 2, 3, 4], [0] * 4), Watermark(10), IDLE)
    step_until_idle(task)

    assert function.seen == [1, 2, "barrier", "mail", 3, 4]
    assert sink.values == [1, 2, 3, 4]
    assert sink.controls == [Watermark(10), IDLE]
    assert sink.calls[-2:] == ["watermark", "status"], "consumers see all results in front of them"
    assert task.metrics().operators[1].current_input_watermark == 10


def same(value: int) -> int:
    return 0


def test_the_last_watermark_lets_mails_pass_and_the_end_waits_for_all_timers(
    network: LocalNetwork, tasks: Tasks
) -> None:
    partition, function, sink = network.partition(), Timers(), Recorder()
    task = tasks.task("timers", ProcessOperator(function, same), sink, gates=[network.gate(partition)], outputs=[])
    function.task, function.seen = task, []
    tasks.restored(task)

    send(partition, Chunk([1, 2, 3, 4], [0] * 4))
    partition.notify_end_of_data(StopMode.DRAIN)
    step_until_idle(task)

    assert function.seen == [1, 2, "barrier", "mail", 3, 4]
    assert sink.values == [1, 2, 3, 4]
    assert sink.calls[-2:] == ["watermark", "finish"]


def test_time_without_room_for_output_is_not_idle_time(network: LocalNetwork, tasks: Tasks) -> None:
    """42 ms for want of a buffer are missing on the clock that measures idleness, 7 ms for want of input are not."""
    timings = TaskTimings(tasks.clock)
    operator = Recorder()
    environment = network.environment("sink", gates=[network.gate(network.partition())])
    GateFedStreamTask(environment, chain(operator), timings=timings)
    clock = operator.ctx.clock
    shown = [clock.relative_time_ns() - clock.clock_ns()]  # type: ignore[union-attr]  # the clock of tasks

    for kind, duration_ms in [(WaitKind.BACK_PRESSURED, 42), (WaitKind.IDLE, 7)]:
        timings.mark_start()
        timings.start_wait(kind)
        tasks.clock.now_ns += duration_ms * 1_000_000
        shown.append(clock.relative_time_ns() - clock.clock_ns())  # type: ignore[union-attr]  # see above
        timings.end_wait()

    assert abs(shown[1] - shown[0] + 42_000_000) < 20_000_000
    assert abs(shown[2] - shown[1]) < 20_000_000


def test_gauges_show_where_each_operator_is(network: LocalNetwork, tasks: Tasks) -> None:
    """The gauges show input, output, records from the future, and how long they took."""
    partition, out = network.partition(), network.partition()
    times = TimestampsAndWatermarksOperator(WatermarkStrategy.no_watermarks())
    task = tasks.task("times", times, Recorder(), gates=[network.gate(partition)], outputs=[edge(out, source=1)])
    tasks.restored(task)
    before = task.metrics()

    send(partition, Chunk([1, 2], [5, 6]), Watermark(10), LatencyMarker(0, bytes(16), 0))
    step_until_idle(task)
    times.ctx.counters.num_records_from_the_future += 3
    head, second = task.metrics().operators

    assert before.operators[0].current_input_watermarks == [MIN_TIMESTAMP]
    assert head.name == "Timestamps/Watermarks"
    assert (head.current_input_watermark, head.current_output_watermark) == (10, MIN_TIMESTAMP)
    assert (head.num_records_in, head.num_records_out, head.num_records_from_the_future) == (2, 2, 3)
    assert (second.current_input_watermarks, second.num_records_in) == ([MIN_TIMESTAMP], 2)
    assert [latency.count for latency in head.latencies + second.latencies] == [1, 1]
    assert head.latencies[0].max > 1_600_000_000_000


def test_the_inputs_of_an_operator_have_gauges_of_their_own(network: LocalNetwork, tasks: Tasks) -> None:
    """The metrics say after a minute without progress which input and which channel hold the watermark back."""
    first, second, third = network.partition(), network.partition(), network.partition()
    environment = network.environment("join", gates=[network.gate(first, second), network.gate(third)])
    environment.gate_inputs = [1, 2]
    task = tasks.timed(environment, Tagging())
    tasks.restored(task)

    send(first, Watermark(10))
    send(third, Watermark(7))
    step_until_idle(task)
    early = task.metrics()
    tasks.clock.now_ns += STALL_NS
    late = task.metrics()
    send(second, Watermark(9))
    step_until_idle(task)
    joined = task.metrics()

    assert early.operators[0].current_input_watermarks == [MIN_TIMESTAMP, 7]
    assert early.watermark_held_back_by == []
    assert late.watermark_held_back_by == ["input 1, channel 1", "input 1"]
    assert joined.watermark_held_back_by == []
    assert joined.operators[0].current_input_watermarks == [9, 7]
    assert (joined.operators[0].current_input_watermark, joined.operators[0].current_output_watermark) == (7, 7)
