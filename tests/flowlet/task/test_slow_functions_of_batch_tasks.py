"""Slow functions of tasks that read sorted inputs: BATCH tasks take mails and end as quickly as others."""

from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import pytest

from flowlet.chain.stream_operator import StreamOperator
from flowlet.common import Duration
from flowlet.common.job_settings import BatchSettings
from flowlet.datastream.functions import WindowFunction
from flowlet.datastream.window import EventTimeTrigger, TumblingEventTimeWindows
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.errors import TaskCancelled
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator
from flowlet.operators.process_operator import ProcessOperator
from flowlet.records import Chunk
from flowlet.task.stream_task import StreamTask
from flowlet.windows.window_operator import WindowOperator
from netstack.wire.events import StopMode
from tests.flowlet.task.local_tasks import Tasks, send
from tests.flowlet.task.test_mails_between_records import Job, Process

NUM_RECORDS = 600


class Windows(WindowFunction):
    def __init__(self, call: Callable[[Any], Any]) -> None:
        self.call = call

    def apply(self, key: Any, window: Any, inputs: Iterable[Any]) -> list[Any]:
        return [self.call(key)]


def window_operator(call: Callable[[Any], Any]) -> StreamOperator:
    spec = WindowSpec(
        TumblingEventTimeWindows.of(Duration.of_millis(1)), EventTimeTrigger.create(), function=Windows(call)
    )
    return WindowOperator(spec, itemgetter(0), is_batch=True)


OPERATORS: dict[str, Callable[[Callable[[Any], Any]], StreamOperator]] = {
    "process": lambda call: ProcessOperator(Process(call), itemgetter(0)),
    "reduce": lambda call: KeyedReduceOperator(itemgetter(0), lambda first, second: call(second), emit_on_finish=True),
    "window": window_operator,
}


def batch_task(tasks: Tasks, operator: StreamOperator, selector: Callable[[Any], Any] = itemgetter(0)) -> StreamTask:
    """Return a task whose input has ended: 600 records of three keys, each with a window of its own."""
    upstream = tasks.network.partition(max_buffers=60)
    operator.sorted_inputs = (selector,)
    environment = tasks.network.environment("batch", gates=[tasks.network.gate(upstream)])
    environment.batch = BatchSettings()
    task = tasks.timed(environment, operator)
    send(upstream, Chunk([(each % 3, each) for each in range(NUM_RECORDS)], list(range(NUM_RECORDS))))
    upstream.notify_end_of_data(StopMode.DRAIN)
    return task


@pytest.mark.parametrize("name", OPERATORS)
def test_a_mail_waits_for_one_call_of_a_function_behind_a_sorted_input(tasks: Tasks, name: str) -> None:
    """The function may be called for a whole run of records; all windows of a key are one step, as timers at the end of
    a key.
    """
    job = Job()

    def call(value: Any) -> Any:
        tasks.clock.advance_ms(20)
        return job.call(value)

    job.run(batch_task(tasks, OPERATORS[name](call)), tasks)

    assert job.at_mail == [NUM_RECORDS // 3 if name == "window" else 10]
    assert job.num_calls == NUM_RECORDS - (3 if name == "reduce" else 0)


@pytest.mark.parametrize("name", [*OPERATORS, "key selector"])
def test_a_cancelled_task_calls_its_function_behind_a_sorted_input_no_more(tasks: Tasks, name: str) -> None:
    """The task calls the key selector if the sender did not take the keys."""
    job = Job()
    if name == "key selector":
        task = batch_task(tasks, OPERATORS["process"](lambda value: value), lambda value: job.call(value[0]))
    else:
        task = batch_task(tasks, OPERATORS[name](job.call))
    job.on_tenth = task.cancel

    with pytest.raises(TaskCancelled):
        job.run(task, tasks)

    assert job.num_calls == 10
