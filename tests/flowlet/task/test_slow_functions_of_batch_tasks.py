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
from flowlet.mailbox.mailbox_processor import TaskTimings
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator
from flowlet.operators.process_operator import ProcessOperator
from flowlet.records import Chunk
from flowlet.task.one_input_stream_task import GateFedStreamTask
from flowlet.windows.window_operator import WindowOperator
from netstack.wire.events import StopMode
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.local_tasks import Clock, Tasks, chain, send
from tests.flowlet.task.test_mails_between_records import Job, Process

NUM_RECORDS = 600
CALL_NS = 20_000_000


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


def batch_task(
    network: LocalNetwork, operator: StreamOperator, clock: Clock, selector: Callable[[Any], Any]
) -> GateFedStreamTask:
    """Return a task whose input has ended: 600 records of three keys, each with a window of its own."""
    upstream = network.partition(max_buffers=60)
    operator.sorted_inputs = (selector,)
    environment = network.environment("batch", gates=[network.gate(upstream)])
    environment.batch = BatchSettings()
    task = GateFedStreamTask(environment, chain(operator), timings=TaskTimings(clock))
    send(upstream, Chunk([(each % 3, each) for each in range(NUM_RECORDS)], list(range(NUM_RECORDS))))
    upstream.notify_end_of_data(StopMode.DRAIN)
    return task


@pytest.mark.parametrize("name", OPERATORS)
def test_a_mail_waits_for_one_call_of_a_function_behind_a_sorted_input(
    network: LocalNetwork, tasks: Tasks, name: str
) -> None:
    """The function may be called for a whole run of records; all windows of a key are one step, as timers at the end of
    a key.
    """
    job, clock = Job(), Clock()

    def call(value: Any) -> Any:
        clock.now_ns += CALL_NS
        return job.call(value)

    task = batch_task(network, OPERATORS[name](call), clock, itemgetter(0))

    job.run(task, tasks)

    assert job.at_mail == [NUM_RECORDS // 3 if name == "window" else 10]
    assert job.num_calls == NUM_RECORDS - (3 if name == "reduce" else 0)


@pytest.mark.parametrize("name", OPERATORS)
def test_a_cancelled_task_calls_its_function_behind_a_sorted_input_no_more(
    network: LocalNetwork, tasks: Tasks, name: str
) -> None:
    job, clock = Job(), Clock()
    task = batch_task(network, OPERATORS[name](job.call), clock, itemgetter(0))
    job.on_tenth = task.cancel

    with pytest.raises(TaskCancelled):
        job.run(task, tasks)

    assert job.num_calls == 10


def test_a_cancelled_task_calls_the_key_selector_of_a_sorted_input_no_more(network: LocalNetwork, tasks: Tasks) -> None:
    """The task calls the key selector if the sender did not take the keys."""
    job, clock = Job(), Clock()
    task = batch_task(network, OPERATORS["process"](lambda value: value), clock, lambda value: job.call(value[0]))
    job.on_tenth = task.cancel

    with pytest.raises(TaskCancelled):
        job.run(task, tasks)

    assert job.num_calls == 10
