"""Programs whose key selectors and partitioners have ``open`` and ``close``."""

from collections.abc import Iterator

import pytest

from flowlet.common import Types
from flowlet.datastream import (
    CoMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import JobExecutionError
from tests.flowlet.client.jobs import RESTARTING_ONCE, WithSubtask, ran

CALLS: list[str] = []  # what the functions of the running test did; they run in this process


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


class Remainder(KeySelector):
    """Needs its ``open``: the divisor is made there."""

    def open(self, runtime_context: RuntimeContext) -> None:
        CALLS.append("open")
        runtime_context.get_metrics_group().counter("opened").inc()
        self._divisor = 3

    def close(self) -> None:
        CALLS.append("close")

    def get_key(self, value: int) -> int:
        return value % self._divisor


class CountPerKey(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield ctx.get_current_key(), count


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_selector_is_opened_and_closed_once_per_sender(
    environment: StreamExecutionEnvironment, parallelism: int
) -> None:
    """The ``key_by`` lies inside a chain or a task of its own with one subtask, and is an exchange with two."""
    environment.set_parallelism(parallelism)
    numbers = environment.from_sequence(0, 29)

    found = dict(sorted(ran(numbers.key_by(Remainder()).process(CountPerKey()))))

    assert found == {0: 10, 1: 10, 2: 10}
    assert sorted(CALLS) == ["close"] * parallelism + ["open"] * parallelism


def test_a_selector_inside_a_chain_is_opened_before_the_first_record(environment: StreamExecutionEnvironment) -> None:
    keyed = environment.from_collection(list(range(9))).map(abs).key_by(Remainder())

    found = ran(keyed.map(str))

    assert sorted(found) == [str(number) for number in range(9)]
    assert CALLS == ["open", "close"]


def test_a_reduction_opens_its_selector(environment: StreamExecutionEnvironment) -> None:
    environment.set_parallelism(2)
    numbers = environment.from_sequence(0, 29).key_by(Remainder())

    found = ran(numbers.reduce(max))

    assert {max(value for value in found if value % 3 == key) for key in range(3)} == {27, 28, 29}
    assert sorted(CALLS) == ["close"] * 2 + ["open"] * 2


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_keyed_stream_that_is_collected_opens_its_selector(
    environment: StreamExecutionEnvironment, parallelism: int
) -> None:
    """The selector is opened where records are sent, and where the client's rows of key and record are made."""
    environment.set_parallelism(parallelism)

    found = ran(environment.from_sequence(0, 8).key_by(Remainder()))

    assert sorted((row[1], row[0]) for row in found) == [(number, number % 3) for number in range(9)]
    assert sorted(CALLS) == ["close"] * 2 * parallelism + ["open"] * 2 * parallelism


class Both(CoMapFunction):
    """Maps both inputs; None emits nothing, as in PyFlink."""

    def map1(self, value: int) -> str | None:
        return f"a{value}" if value % 2 else None

    def map2(self, value: int) -> str | None:
        return f"b{value}" if value % 2 else None


def test_two_streams_have_a_selector_each(environment: StreamExecutionEnvironment) -> None:
    first, second = (environment.from_collection([1, 2, 3]) for _ in range(2))

    connected = first.connect(second).key_by(Remainder(), Remainder())
    found = sorted(ran(connected.map(Both())))

    assert found == ["a1", "a3", "b1", "b3"]
    assert sorted(CALLS) == ["close", "close", "open", "open"]


class ByTable(Partitioner):
    def open(self, runtime_context: RuntimeContext) -> None:
        CALLS.append("open partitioner")
        self._table = {0: 0, 1: 1, 2: 0}

    def close(self) -> None:
        CALLS.append("close partitioner")

    def partition(self, key: int, num_partitions: int) -> int:
        return self._table[key] % num_partitions


def test_a_partitioner_and_its_selector_are_opened(environment: StreamExecutionEnvironment) -> None:
    environment.set_parallelism(2)
    numbers = environment.from_collection(list(range(9))).partition_custom(ByTable(), Remainder())

    found = sorted(ran(numbers.map(WithSubtask())))

    assert found == sorted((int(number % 3 == 1), number) for number in range(9))
    assert sorted(CALLS) == ["close", "close partitioner", "open", "open partitioner"]


class FailsInOpen(Remainder):
    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        raise ValueError("no table")


def test_an_error_of_open_names_the_operator_and_closes_the_selector(environment: StreamExecutionEnvironment) -> None:
    numbers = environment.from_collection([1, 2]).map(abs).name("numbers")

    with pytest.raises(JobExecutionError, match="numbers"):
        ran(numbers.key_by(FailsInOpen()).process(CountPerKey()))

    assert CALLS == ["open", "close"]


class FailsOnce(MapFunction):
    def map(self, value: int) -> int:
        if value == 5 and "failed" not in CALLS:
            CALLS.append("failed")
            raise ValueError("once")
        return value


def test_a_restarted_task_opens_its_selector_again(environment: StreamExecutionEnvironment) -> None:
    """The first run closes its selector although it fails."""
    environment.configure(RESTARTING_ONCE)
    numbers = environment.from_collection(list(range(9))).map(FailsOnce())
    numbers.key_by(Remainder()).process(CountPerKey()).sink_to(DiscardingSink())

    environment.execute()

    assert CALLS == ["open", "failed", "close", "open", "close"]


class WantsState(Remainder):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))


def test_a_selector_has_no_keyed_state(environment: StreamExecutionEnvironment) -> None:

    with pytest.raises(JobExecutionError, match="key selectors and partitioners have no keyed state"):
        ran(environment.from_collection([1]).key_by(WantsState()).process(CountPerKey()))
