"""Programs whose key selectors and partitioners have ``open`` and ``close``."""

from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.common import Configuration, Types
from flowlet.datastream import (
    CoMapFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import JobExecutionError

# What the functions of the running test did, by its name; they run in this process.
CALLS: dict[str, list[str]] = {}


@pytest.fixture
def calls(request: pytest.FixtureRequest) -> Iterator[str]:
    name = request.node.name
    CALLS[name] = []
    yield name
    del CALLS[name]


def environment_of(parallelism: int, options: dict[str, str] | None = None) -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment(Configuration.from_dict(options or {}))
    environment.set_parallelism(parallelism)
    return environment


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")


class Remainder(KeySelector):
    """Needs its ``open``: the divisor is made there."""

    def __init__(self, calls: str) -> None:
        self._calls = calls
        self._divisor = 0

    def open(self, runtime_context: RuntimeContext) -> None:
        CALLS[self._calls].append("open")
        runtime_context.get_metrics_group().counter("opened").inc()
        self._divisor = 3

    def close(self) -> None:
        CALLS[self._calls].append("close")

    def get_key(self, value: int) -> int:
        return value % self._divisor


class CountPerKey(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[tuple[int, int]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        yield ctx.get_current_key(), count


def last_counts(found: Any) -> dict[int, int]:
    return dict(sorted(found))


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_selector_is_opened_and_closed_once_per_sender(calls: str, parallelism: int) -> None:
    """The ``key_by`` lies inside a chain or a task of its own with one subtask, and is an exchange with two."""
    environment = environment_of(parallelism)
    numbers = environment.from_sequence(0, 29)

    found = last_counts(numbers.key_by(Remainder(calls)).process(CountPerKey()).execute_and_collect())
    environment.close()

    assert found == {0: 10, 1: 10, 2: 10}
    assert sorted(CALLS[calls]) == ["close"] * parallelism + ["open"] * parallelism


def test_a_selector_inside_a_chain_is_opened_before_the_first_record(calls: str) -> None:
    environment = environment_of(1)
    keyed = environment.from_collection(list(range(9))).map(abs).key_by(Remainder(calls))

    found = list(keyed.map(str).execute_and_collect())
    environment.close()

    assert sorted(found) == [str(number) for number in range(9)]
    assert CALLS[calls] == ["open", "close"]


def test_a_reduction_opens_its_selector(calls: str) -> None:
    environment = environment_of(2)
    numbers = environment.from_sequence(0, 29).key_by(Remainder(calls))

    found = list(numbers.reduce(max).execute_and_collect())
    environment.close()

    assert {max(value for value in found if value % 3 == key) for key in range(3)} == {27, 28, 29}
    assert sorted(CALLS[calls]) == ["close"] * 2 + ["open"] * 2


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_keyed_stream_that_is_collected_opens_its_selector(calls: str, parallelism: int) -> None:
    """The selector is opened where records are sent, and where the client's rows of key and record are made."""
    environment = environment_of(parallelism)

    found = list(environment.from_sequence(0, 8).key_by(Remainder(calls)).execute_and_collect())
    environment.close()

    assert sorted((row[1], row[0]) for row in found) == [(number, number % 3) for number in range(9)]
    assert sorted(CALLS[calls]) == ["close"] * 2 * parallelism + ["open"] * 2 * parallelism


class Both(CoMapFunction):
    """Maps both inputs; None emits nothing, as in PyFlink."""

    def map1(self, value: int) -> str | None:
        return f"a{value}" if value % 2 else None

    def map2(self, value: int) -> str | None:
        return f"b{value}" if value % 2 else None


def test_two_streams_have_a_selector_each(calls: str) -> None:
    environment = environment_of(1)
    first, second = (environment.from_collection([1, 2, 3]) for _ in range(2))

    connected = first.connect(second).key_by(Remainder(calls), Remainder(calls))
    found = sorted(connected.map(Both()).execute_and_collect())
    environment.close()

    assert found == ["a1", "a3", "b1", "b3"]
    assert sorted(CALLS[calls]) == ["close", "close", "open", "open"]


class ByTable(Partitioner):
    def __init__(self, calls: str) -> None:
        self._calls = calls
        self._table: dict[int, int] = {}

    def open(self, runtime_context: RuntimeContext) -> None:
        CALLS[self._calls].append("open partitioner")
        self._table = {0: 0, 1: 1, 2: 0}

    def close(self) -> None:
        CALLS[self._calls].append("close partitioner")

    def partition(self, key: int, num_partitions: int) -> int:
        return self._table[key] % num_partitions


class WithSubtask(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: int) -> tuple[int, int]:
        return self._subtask, value


def test_a_partitioner_and_its_selector_are_opened(calls: str) -> None:
    environment = environment_of(2)
    numbers = environment.from_collection(list(range(9))).partition_custom(ByTable(calls), Remainder(calls))

    found = sorted(numbers.map(WithSubtask()).execute_and_collect())
    environment.close()

    assert found == sorted((int(number % 3 == 1), number) for number in range(9))
    assert sorted(CALLS[calls]) == ["close", "close partitioner", "open", "open partitioner"]


class FailsInOpen(Remainder):
    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        raise ValueError("no table")


def test_an_error_of_open_names_the_operator_and_closes_the_selector(calls: str) -> None:
    environment = environment_of(1)
    numbers = environment.from_collection([1, 2]).map(abs).name("numbers")

    with pytest.raises(JobExecutionError, match="numbers"):
        list(numbers.key_by(FailsInOpen(calls)).process(CountPerKey()).execute_and_collect())
    environment.close()

    assert CALLS[calls] == ["open", "close"]


class FailsOnce(MapFunction):
    def __init__(self, calls: str) -> None:
        self._calls = calls

    def map(self, value: int) -> int:
        if value == 5 and "failed" not in CALLS[self._calls]:
            CALLS[self._calls].append("failed")
            raise ValueError("once")
        return value


def test_a_restarted_task_opens_its_selector_again(calls: str) -> None:
    """The first run closes its selector although it fails."""
    environment = environment_of(
        1,
        {
            "restart-strategy.type": "fixed-delay",
            "restart-strategy.fixed-delay.attempts": "1",
            "restart-strategy.fixed-delay.delay": "0",
        },
    )
    counted = (
        environment.from_collection(list(range(9)))
        .map(FailsOnce(calls))
        .key_by(Remainder(calls))
        .process(CountPerKey())
    )
    counted.add_sink(print_nothing)

    environment.execute()
    environment.close()

    assert CALLS[calls] == ["open", "failed", "close", "open", "close"]


def print_nothing(_: object) -> None:
    pass


class WantsState(Remainder):
    def open(self, runtime_context: RuntimeContext) -> None:
        runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))


def test_a_selector_has_no_keyed_state(calls: str) -> None:
    environment = environment_of(1)

    with pytest.raises(JobExecutionError, match="key selectors and partitioners have no keyed state"):
        list(environment.from_collection([1]).key_by(WantsState(calls)).process(CountPerKey()).execute_and_collect())
    environment.close()
