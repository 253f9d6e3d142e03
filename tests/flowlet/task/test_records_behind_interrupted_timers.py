"""Mails interrupt the timers of a watermark, and the records behind it wait until all of them have fired."""

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from flowlet.checkpoint.task.snapshots import RecoveredStream
from flowlet.datastream import KeyedProcessFunction
from flowlet.errors import TaskCancelled
from flowlet.operators.process_operator import ProcessOperator
from flowlet.records import Chunk, Watermark
from tests.flowlet.task.local_network import LocalNetwork, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, send, step_until_idle
from tests.flowlet.task.test_stream_task_recovery import recovering, stream
from tests.waiting import spin_until


class Timers(KeyedProcessFunction):
    """Sets a timer at each record's timestamp; ``on_call`` is called with each record and with each timer."""

    def __init__(self) -> None:
        self.on_call: dict[object, Callable[[], object]] = {}
        self.seen: list[object] = []

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        timestamp = ctx.timestamp()
        assert timestamp is not None
        ctx.timer_service().register_event_time_timer(timestamp)
        self._see(value)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        self._see(timestamp)

    def _see(self, what: object) -> None:
        self.seen.append(what)
        self.on_call.get(what, lambda: None)()


def test_a_watermark_that_a_mail_has_cut_from_its_records_holds_the_next_buffer_back(
    network: LocalNetwork, tasks: Tasks
) -> None:
    """A mail at the last record leaves the watermark alone for the next action, and another one interrupts its
    timers.
    """
    upstream, downstream = network.partition(max_buffers=24), network.partition(max_buffers=24)
    function = Timers()
    operator = ProcessOperator(function, lambda value: value)
    task = tasks.restored(tasks.task("timers", operator, gates=[network.gate(upstream)], outputs=[edge(downstream)]))

    def mail() -> None:
        task.mailbox_processor.executor().execute(lambda: None, "a mail")

    def mail_and_buffer() -> None:
        mail()
        send(upstream, Chunk(["c"], [110]))

    function.on_call = {"b": mail_and_buffer, 10: mail}

    send(upstream, Chunk(["a", "b"], [10, 20]), Watermark(100))
    step_until_idle(task)

    assert function.seen == ["a", "b", 10, 20, "c"]


@pytest.mark.parametrize("lengths", [[1, 1, 1], [2, 1], [3]], ids=["alone", "behind records", "amid records"])
def test_records_in_flight_wait_for_the_timers_of_the_watermark_before_them(
    network: LocalNetwork, lengths: list[int]
) -> None:
    """Whatever piece the watermark is in.  Each mail is put while a timer fires, so the next one waits for the batch
    of mails after this one, and the default action comes in between.
    """
    function = Timers()
    operator = ProcessOperator(function, lambda value: value)
    elements = iter(stream(0, Chunk(["a", "b", "c"], [10, 20, 30]), Watermark(100), Chunk(["d"], [110])).pieces)
    in_flight = RecoveredStream(0, 0, tuple(b"".join(islice(elements, length)) for length in lengths))
    task = recovering(network, operator, [network.partition()], in_flight)

    def mail() -> None:
        task.mailbox_processor.executor().execute(lambda: None, "a mail")

    function.on_call = {"c": mail, 10: mail, 20: mail}

    thread = Thread(task.invoke, task.name)
    spin_until(lambda: len(function.seen) == 7)
    task.cancel()
    with pytest.raises(TaskCancelled):
        thread.result()

    assert function.seen == ["a", "b", "c", 10, 20, 30, "d"]
