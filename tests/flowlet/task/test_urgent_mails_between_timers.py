"""Source: Flink ``UnalignedCheckpointsInterruptibleTimersTest``, in a whole task."""

from collections.abc import Callable
from typing import Any

from flowlet.datastream import KeyedProcessFunction
from flowlet.mailbox.task_mailbox import MailOptions
from flowlet.operators.process_operator import ProcessOperator
from flowlet.records import Chunk, Watermark
from tests.flowlet.task.local_network import LocalNetwork, edge
from tests.flowlet.task.local_tasks import Tasks, send, step_until_idle


class Timers(KeyedProcessFunction):
    """Sets a timer at each record's timestamp."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer(timestamp)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> list[int]:
        fired.append(timestamp)
        if timestamp == 10:
            on_tenth[0]()
        return [timestamp]


fired: list[int] = []
on_tenth: list[Callable[[], object]] = [lambda: None]


def test_an_urgent_checkpoint_does_not_wait_for_all_timers(network: LocalNetwork, tasks: Tasks) -> None:
    """FLINK-20217: it runs after the tenth timer.

    Consumers see the results in front of the watermark, as if nothing had interrupted.
    """
    upstream, downstream = network.partition(max_buffers=24), network.partition(max_buffers=24)
    reader = network.reader(downstream)
    operator = ProcessOperator(Timers(), lambda value: value)
    task = tasks.restored(tasks.task("timers", operator, gates=[network.gate(upstream)], outputs=[edge(downstream)]))
    fired_before: list[int] = []
    fired.clear()

    def barrier() -> None:
        task.mailbox_processor.executor().execute(
            lambda: fired_before.append(len(fired)), "a barrier", options=MailOptions.URGENT
        )

    on_tenth[0] = barrier
    send(upstream, Chunk(list(range(1, 201)), list(range(1, 201))), Watermark(200))
    step_until_idle(task)

    elements = reader.read()
    reader.view.release()
    assert fired_before == [10]
    assert fired == list(range(1, 201))
    assert [value for element in elements[:-1] if isinstance(element, Chunk) for value in element.values] == list(
        range(1, 201)
    )
    assert elements[-1] == Watermark(200)
