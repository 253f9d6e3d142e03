"""The async operator inside tasks: real coroutines, real mailboxes, records over partitions and gates.

Source: Flink ``AsyncWaitOperatorTest``, its tests inside a task.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from flowlet.async_io.async_calls import PROCESS_ASYNC_LOOP, AsyncCall, AsyncCalls, AsyncFunctionCall
from flowlet.async_io.async_wait_operator import AsyncWaitOperator
from flowlet.datastream.async_retry_predicates import empty_result_predicate
from flowlet.datastream.async_retry_strategies import AsyncRetryStrategy
from flowlet.errors import UserFunctionError
from flowlet.records import MAX_WATERMARK
from flowlet.task.source_stream_task import SourceStreamTask, create_stream_task
from netstack.availability import AvailabilityFuture
from tests.flowlet.task.local_network import LocalNetwork, Recorder, Thread, edge
from tests.flowlet.task.local_tasks import Tasks, cancel, chain, is_parked, run, source
from tests.waiting import PATIENCE_S, spin_until


class Pairs:
    """Two results for each record; says where it was called."""

    def __init__(self) -> None:
        self.threads: dict[str, int] = {}

    async def open(self, context: Any) -> None:
        self.threads["open"] = threading.get_ident()

    async def async_invoke(self, value: int) -> list[int]:
        await asyncio.sleep(0 if value % 7 else 0.001)
        self.threads["async_invoke"] = threading.get_ident()
        return [value, -value]

    def close(self) -> None:
        self.threads["close"] = threading.get_ident()


class Gate:
    """Calls wait until the test opens it."""

    def __init__(self) -> None:
        self.is_open = asyncio.Event()
        self.num_calls = 0
        self.num_interrupted = 0

    async def async_invoke(self, value: int) -> list[int]:
        self.num_calls += 1
        try:
            await self.is_open.wait()
        except asyncio.CancelledError:
            self.num_interrupted += 1
            raise
        return [value]


async def echo(value: Any) -> list[Any]:
    return [value]


async def fail_on_three(value: int) -> list[int]:
    await asyncio.sleep(0)
    if value == 3:
        raise ConnectionError("no threes")
    return [value]


def wait(function: Any, *, is_ordered: bool = True, capacity: int = 10) -> AsyncWaitOperator:
    return AsyncWaitOperator(function, timeout_ms=0, capacity=capacity, is_ordered=is_ordered)


@pytest.mark.parametrize("is_ordered", [True, False])
@pytest.mark.parametrize("capacity", [1, 7, 1000])
def test_every_result_arrives_before_the_last_watermark(
    tasks: Tasks, network: LocalNetwork, is_ordered: bool, capacity: int
) -> None:
    """testOperatorChainWithProcessingTime: in order if asked for, across two async operators in one chain and a
    partition.
    """
    partition = network.partition()
    sink, function = Recorder(), Pairs()
    first, second = (wait(each, is_ordered=is_ordered, capacity=capacity) for each in (function, echo))
    script = [list(range(start, start + 50)) for start in range(0, 200, 50)]
    producer = tasks.source(source(*script), Recorder(), first, second, outputs=[edge(partition, source=3)])

    run(producer, tasks.sink(sink, producers=[partition]))

    expected = [result for value in range(200) for result in (value, -value)]
    assert (sink.values if is_ordered else sorted(sink.values)) == (expected if is_ordered else sorted(expected))
    assert sink.controls == [MAX_WATERMARK]
    assert sink.calls[-3:] == ["watermark", "finish", "close"]


def test_coroutines_run_on_the_loop_and_results_are_emitted_on_the_task(tasks: Tasks, network: LocalNetwork) -> None:
    """``open`` where it is written; ``close`` likewise; the operators before and behind never see the loop."""
    partition = network.partition()
    before, behind, function = Recorder(), Recorder(), Pairs()
    producer = tasks.source(source([1, 2, 3]), before, wait(function), behind, outputs=[edge(partition, source=3)])
    consumer = tasks.sink(Recorder(), producers=[partition])
    threads = run(producer, consumer)

    assert before.threads == behind.threads == {threads[0].ident}
    assert function.threads["open"] == function.threads["async_invoke"]
    assert function.threads["open"] not in {thread.ident for thread in threads}
    assert function.threads["close"] == threads[0].ident
    assert PROCESS_ASYNC_LOOP.num_holders == 0


def test_a_result_is_sent_while_the_task_waits_for_input(tasks: Tasks, network: LocalNetwork) -> None:
    """A result that a mail emits does not wait for the next default action."""
    arrived = threading.Event()
    raw, results = network.partition(), network.partition()
    function = Gate()
    middle = tasks.task("look up", wait(function), gates=[network.gate(raw)], outputs=[edge(results)])

    def open_gate_and_wait() -> None:
        spin_until(lambda: function.num_calls == 1 and is_parked(middle))
        loop = PROCESS_ASYNC_LOOP.acquire()
        loop.execute_threadsafe(function.is_open.set)
        PROCESS_ASYNC_LOOP.release()
        assert arrived.wait(PATIENCE_S), "the result waits for the next record"

    first = tasks.source(source([1], open_gate_and_wait, [2]), outputs=[edge(raw)])
    sink = Recorder(on_chunk=lambda chunk: arrived.set())

    run(first, middle, tasks.sink(sink, producers=[results]))

    assert sink.values == [1, 2]


def test_results_are_sent_while_a_long_chunk_waits_for_places(tasks: Tasks, network: LocalNetwork) -> None:
    """The first result of a chunk of three, with one place, is at the consumer before the last call ends."""
    arrived = threading.Event()
    partition = network.partition()

    async def last_waits(value: int) -> list[int]:
        if value == 3:
            await asyncio.get_running_loop().run_in_executor(None, arrived.wait, PATIENCE_S)
            assert arrived.is_set()
        return [value]

    producer = tasks.source(source([1, 2, 3]), wait(last_waits, capacity=1), outputs=[edge(partition, source=1)])
    sink = Recorder(on_chunk=lambda chunk: arrived.set())

    run(producer, tasks.sink(sink, producers=[partition]))

    assert sink.values == [1, 2, 3]


class Hesitant:
    """Answers the second time, except for the last record."""

    def __init__(self) -> None:
        self.seen: set[int] = set()

    async def async_invoke(self, value: int) -> list[int]:
        if value in self.seen or value == 3:
            return [value]
        self.seen.add(value)
        return []


class Silent:
    """Never answers."""

    async def async_invoke(self, value: int) -> list[str]:
        await asyncio.Event().wait()
        return []

    def timeout(self, value: int) -> list[str]:
        return [f"no answer for {value}"]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_calls_are_repeated_by_the_clock_of_the_task(network: LocalNetwork, is_ordered: bool) -> None:
    """testProcessingTimeWithRetry: with one place, each record has its answer before the next comes in."""
    strategy = AsyncRetryStrategy.fixed_delay(3, 1, empty_result_predicate, None)
    operator = AsyncWaitOperator(
        Hesitant(), timeout_ms=60_000, capacity=1, is_ordered=is_ordered, retry_strategy=strategy
    )

    assert values_by_the_clock(network, operator) == [0, 1, 2, 3]


@pytest.mark.parametrize("is_ordered", [True, False])
def test_deadlines_are_those_of_the_clock_of_the_task(network: LocalNetwork, is_ordered: bool) -> None:
    """testAsyncTimeoutIgnore: also while the task waits for its last results."""
    operator = AsyncWaitOperator(Silent(), timeout_ms=1, capacity=3, is_ordered=is_ordered)

    assert sorted(values_by_the_clock(network, operator)) == [f"no answer for {value}" for value in range(4)]


def values_by_the_clock(network: LocalNetwork, operator: AsyncWaitOperator) -> list[Any]:
    """Return the results for the numbers from 0 to 3, in tasks whose timers run by themselves."""
    partition = network.partition()
    environment = network.environment("look up", outputs=[edge(partition, source=1)])
    environment.schedule_timer = start_timer
    sink = Recorder()
    consumer = create_stream_task(network.environment("sink", gates=[network.gate(partition)]), chain(sink))
    run(create_stream_task(environment, chain(source([0, 1, 2, 3]), operator)), consumer)
    return sink.values


def start_timer(delay_s: float, callback: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(delay_s, callback)
    timer.start()
    return timer


def test_a_call_that_fails_fails_the_task(tasks: Tasks, network: LocalNetwork) -> None:
    """The task fails once, with operator, record and cause."""
    partition = network.partition()
    producer = tasks.source(source([1, 2, 3, 4]), wait(fail_on_three), outputs=[edge(partition, source=1)])

    with pytest.raises(
        UserFunctionError, match=r"operator 'async wait operator' \(subtask 0\) failed while processing the record 3"
    ) as caught:
        producer.invoke()

    assert isinstance(caught.value.__cause__, ConnectionError)
    assert PROCESS_ASYNC_LOOP.num_holders == 0


@pytest.mark.parametrize("num_records", [1, 5])
def test_a_task_is_cancelled_while_calls_run(tasks: Tasks, network: LocalNetwork, num_records: int) -> None:
    """The task waits for its results at the end, or a record waits for a place: the calls are interrupted."""
    partition = network.partition()
    function = Gate()
    producer = tasks.source(
        source(list(range(num_records))), wait(function, capacity=2), outputs=[edge(partition, source=1)]
    )
    thread = Thread(producer.invoke)
    spin_until(lambda: function.num_calls == min(num_records, 2) and is_parked(producer))

    cancel(producer, thread)
    assert function.num_interrupted == function.num_calls
    assert PROCESS_ASYNC_LOOP.num_holders == 0


class AnswersAtOnce(AsyncCalls):
    """Calls that have ended when they have started: each answer is a mail, and starts the next call."""

    def __init__(self, on_outcomes: Callable[[], None], *, at: int, act: Callable[[], None]) -> None:
        self.on_outcomes = on_outcomes
        self.outcomes: list[tuple[AsyncCall, Any]] = []
        self.num_started = 0
        self.at = at
        self.act = act

    def start(self, calls: Sequence[AsyncCall]) -> None:
        self.outcomes += [(call, [call.value]) for call in calls]
        self.num_started += len(calls)
        if self.num_started == self.at:
            self.act()
        self.on_outcomes()

    def take_outcomes(self) -> list[tuple[AsyncCall, Any]]:
        outcomes, self.outcomes = self.outcomes, []
        return outcomes

    def cancel(self, call: AsyncCall) -> None:
        raise NotImplementedError("none runs")

    def run(
        self, function: AsyncFunctionCall, *args: Any, wait: Callable[[AvailabilityFuture], None] | None = None
    ) -> Any:
        raise NotImplementedError("the function has no coroutine but its calls")

    def cancel_all(self) -> None:
        pass

    def close(self) -> None:
        pass


def test_a_task_that_stops_without_drain_starts_no_further_calls(tasks: Tasks, network: LocalNetwork) -> None:
    """Each answer makes a place free for one of many waiting records, whose mails would keep the task from its end."""
    partition = network.partition()
    operator, sink = wait(echo, capacity=1), Recorder()
    environment = network.environment("source", outputs=[edge(partition, source=1)])
    # With a clock that stands still: no action ends because it took long.
    producer = tasks.timed(environment, source(list(range(3000))), operator)
    assert isinstance(producer, SourceStreamTask)
    operator.create_calls = partial(AnswersAtOnce, at=100, act=producer.stop)

    run(producer, tasks.sink(sink, producers=[partition]))

    assert sink.values == list(range(100))
    assert operator.snapshot_state(1) is None
    assert producer.metrics().operators[0].num_records_out == 100, "the records behind them have not left the source"


@pytest.mark.slow
def test_many_small_tasks_leave_nothing_behind(tasks: Tasks, network: LocalNetwork) -> None:
    """Sixty tasks one after another: no thread, no descriptor and no holder of the loop is left."""
    for _ in range(60):
        partition = network.partition()
        sink = Recorder()
        run(
            tasks.source(source([1, 2]), wait(Pairs(), is_ordered=False), outputs=[edge(partition, source=1)]),
            tasks.sink(sink, producers=[partition]),
        )
        assert sorted(sink.values) == [-2, -1, 1, 2]

    assert PROCESS_ASYNC_LOOP.num_holders == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "flowlet async functions"]
