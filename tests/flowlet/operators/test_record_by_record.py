"""A record passes all functions of its task before the next one is made, whatever the functions keep, change and emit
again.

Source: Flink ``ChainingOutput``; PyFlink's chained Python operators, which hand on one result at a time.
        Random programs: ``tests/differential``.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.common import Time
from flowlet.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from flowlet.datastream import AsyncDataStream, CloseableIterator, OutputTag, StreamExecutionEnvironment
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.functions import (
    AsyncFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessFunction,
)
from flowlet.datastream.user_functions.source_function import SourceContext, SourceFunction
from flowlet.errors import JobExecutionError
from flowlet.testing.mini_cluster import MiniCluster

LEFT = OutputTag("left")

# What functions write and read; the tasks of these tests run in this process.
seen: list[Any] = []
current: Any = None

# How the stream under test is read: by the client, by an operator of its task, by one of another task.
Reader = Callable[[DataStream], DataStream]


def copied(record: Any) -> Any:
    """Return the record as it is now."""
    return {"now": repr(record)}


def now(found: Any) -> str:
    text: str = found["now"]
    return text


def same(record: Any) -> Any:
    return record


READERS: dict[str, Reader] = {
    "collected": lambda stream: stream,
    "chained": lambda stream: stream.map(same),
    "looked at in the chain": lambda stream: stream.map(copied).map(now),
    "in another task": lambda stream: stream.map(same).disable_chaining(),
    "keyed": lambda stream: stream.key_by(lambda record: 0).process(PassOn()),
    "read twice": lambda stream: read_twice(stream),
}


class PassOn(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield value


def read_twice(stream: DataStream) -> DataStream:
    stream.map(same).disable_chaining()
    return stream.map(same)


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest) -> Reader:
    return READERS[request.param]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MiniCluster]:
    with MiniCluster(num_task_managers=1) as cluster:
        yield cluster


@pytest.fixture
def environment(cluster: MiniCluster) -> Iterator[StreamExecutionEnvironment]:
    environment = cluster.environment()
    environment.set_parallelism(1)
    yield environment
    environment.close()


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    global current
    seen.clear()
    current = None


def results_of(stream: DataStream) -> list[Any]:
    results = stream.execute_and_collect()
    assert isinstance(results, CloseableIterator)
    with results:
        return list(results)


def texts_of(stream: DataStream) -> list[str]:
    """Return each result as text."""
    return [found if isinstance(found, str) else repr(found) for found in results_of(stream)]


def failure_of(stream: DataStream) -> str:
    with pytest.raises(JobExecutionError) as raised:
        results_of(stream)
    return str(raised.value)


# ---------------------------------------------------------------- each result is what it was when it was emitted


class Grow(MapFunction):
    """Returns one list that grows."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def map(self, value: Any) -> Any:
        self.items.append(value)
        return self.items


class ChangeTheLast(MapFunction):
    def __init__(self) -> None:
        self.last: list[Any] = []

    def map(self, value: list[Any]) -> list[Any]:
        self.last.append("changed")
        self.last = value
        return value


def yield_one_dict(value: int) -> Iterator[dict[str, int]]:
    found = {"value": value}
    for number in range(2):
        found["number"] = number
        yield found


class EmitOneList(SourceFunction):
    """Emits one list that grows."""

    def run(self, ctx: SourceContext) -> None:
        found: list[int] = []
        for number in (1, 2, 3):
            found.append(number)
            ctx.collect(found)


class CoGrow(CoMapFunction):
    def __init__(self) -> None:
        self.items: list[Any] = []

    def map1(self, value: Any) -> Any:
        self.items.append(value)
        return self.items

    map2 = map1


class CoYield(CoFlatMapFunction):
    def __init__(self) -> None:
        self.items: list[Any] = []

    def flat_map1(self, value: Any) -> Iterator[Any]:
        self.items.append(value)
        yield self.items

    flat_map2 = flat_map1


class CoEmit(CoProcessFunction):
    def __init__(self) -> None:
        self.items: list[Any] = []

    def process_element1(self, value: Any, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        self.items.append(value)
        yield self.items

    process_element2 = process_element1


def join_in_place(first: list[int], second: list[int]) -> list[int]:
    first += second
    return first


class EmitAgain(ProcessFunction):
    """Keeps what it emitted, changes it, and emits it again, into the main output and a side output."""

    def __init__(self) -> None:
        self.last: list[Any] | None = None

    def process_element(self, value: list[Any], ctx: ProcessFunction.Context) -> Iterator[Any]:
        if self.last is not None:
            self.last.append("again")
            yield self.last
        yield LEFT, value
        value.append("main")
        yield value
        self.last = value


class StatePerKey(KeyedProcessFunction):
    """Emits the state of its key, which changes with the records and at the end of time."""

    def __init__(self) -> None:
        self.states: dict[Any, list[Any]] = {}

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        state = self.states.setdefault(ctx.get_current_key(), [])
        state.append(value)
        ctx.timer_service().register_event_time_timer(value)
        yield state

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        state = self.states[ctx.get_current_key()]
        state.append("timer")
        yield state


class Itself(TimestampAssigner):
    def extract_timestamp(self, value: int, record_timestamp: int) -> int:
        return value


class AnswerOneList(AsyncFunction):
    """Gives one list that grows, which is kept."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    async def async_invoke(self, value: Any) -> list[Any]:
        self.items.append(value)
        return [self.items]


def answered(environment: StreamExecutionEnvironment, capacity: int) -> DataStream:
    numbers = environment.from_collection([1, 2, 3])
    return AsyncDataStream.ordered_wait(numbers, AnswerOneList(), Time.seconds(60), capacity=capacity)


def timed(environment: StreamExecutionEnvironment) -> DataStream:
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(Itself())
    return environment.from_collection([1, 2]).assign_timestamps_and_watermarks(strategy)


GROWN = ["[1]", "[1, 2]", "[1, 2, 3]"]
PROGRAMS: dict[str, tuple[Callable[[StreamExecutionEnvironment], DataStream], list[str]]] = {
    "a map returns one list that grows": (lambda env: env.from_collection([1, 2, 3]).map(Grow()), GROWN),
    "a map changes what it returned when the next record comes": (
        lambda env: env.from_collection([[1], [2], [3]]).map(ChangeTheLast()),
        ["[1]", "[2]", "[3]"],
    ),
    "a flat_map yields one dict that changes": (
        lambda env: env.from_collection([1, 2]).flat_map(yield_one_dict),
        [repr({"value": value, "number": number}) for value in (1, 2) for number in (0, 1)],
    ),
    "a source emits one list that grows": (lambda env: env.add_source(EmitOneList()), GROWN),
    "a reduce function returns what it was given, changed": (
        lambda env: env.from_collection([[1], [2], [3]]).key_by(lambda record: 0).reduce(join_in_place),
        GROWN,
    ),
    "a process function emits again what it kept": (
        lambda env: env.from_collection([[1], [2]]).process(EmitAgain()),
        ["[1, 'main']", "[1, 'main', 'again']", "[2, 'main']"],
    ),
    "a side output gets what was yielded before the change": (
        lambda env: env.from_collection([[1], [2]]).process(EmitAgain()).get_side_output(LEFT),
        ["[1]", "[2]"],
    ),
    "state and timers emit one object": (
        lambda env: timed(env).key_by(lambda value: 0).process(StatePerKey()),
        ["[1]", "[1, 2]", "[1, 2, 'timer']", "[1, 2, 'timer', 'timer']"],
    ),
    "a coroutine returns one list that grows": (lambda env: answered(env, 1), GROWN),
    "coroutines of which many wait for their turn": (lambda env: answered(env, 100), GROWN),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_result_is_what_it_was_when_it_was_emitted(
    environment: StreamExecutionEnvironment, name: str, reader: Reader
) -> None:
    program, expected = PROGRAMS[name]

    assert texts_of(reader(program(environment))) == expected


CONNECTED: dict[str, Callable[[Any], DataStream]] = {
    "map": lambda connected: connected.map(CoGrow()),
    "flat_map": lambda connected: connected.flat_map(CoYield()),
    "process": lambda connected: connected.process(CoEmit()),
}


@pytest.mark.parametrize("method", CONNECTED)
@pytest.mark.parametrize("is_first", [True, False])
def test_functions_of_two_streams_may_emit_one_list_that_grows(
    environment: StreamExecutionEnvironment, method: str, is_first: bool
) -> None:
    full, empty = environment.from_collection([1, 2, 3]), environment.from_collection([])
    connected = full.connect(empty) if is_first else empty.connect(full)

    assert texts_of(CONNECTED[method](connected).map(copied).map(now)) == GROWN


# ---------------------------------------------------------------- functions of one task run in turns


def write_current(value: Any) -> Any:
    global current
    current = value
    return value


def with_current(value: Any) -> Any:
    return (value, current)


def test_a_global_has_the_value_that_this_record_gave_it(environment: StreamExecutionEnvironment) -> None:
    stream = environment.from_collection([1, 2, 3]).map(write_current).map(with_current)

    assert results_of(stream) == [(1, 1), (2, 2), (3, 3)]


def yield_two(value: int) -> Iterator[int]:
    global current
    for number in range(2):
        current = (value, number)
        seen.append(f"before {value}.{number}")
        yield value


def look(value: Any) -> Any:
    seen.append(f"looked at {value}, {current}")
    return value


def test_a_generator_goes_on_when_its_last_result_has_passed_the_chain(environment: StreamExecutionEnvironment) -> None:
    results_of(environment.from_collection([1, 2]).flat_map(yield_two).map(look))

    assert seen == [
        text
        for value in (1, 2)
        for number in (0, 1)
        for text in (f"before {value}.{number}", f"looked at {value}, ({value}, {number})")
    ]


def append_changed(value: list[Any]) -> list[Any]:
    value.append("changed")
    return value


class Keep(MapFunction):
    """Keeps the first record, and shows its present content."""

    def __init__(self) -> None:
        self.first: Any = None

    def map(self, value: Any) -> Any:
        self.first = value if self.first is None else self.first
        seen.append(repr(self.first))
        return value


def test_operators_of_a_task_hand_on_the_very_object(environment: StreamExecutionEnvironment) -> None:
    """A function that keeps a record sees later functions' changes of it, as in PyFlink; no record is copied."""
    results_of(environment.from_collection([[1], [2]]).map(Keep()).map(append_changed))

    assert seen == ["[1]", "[1, 'changed']"]


def test_more_records_than_a_chunk_has_do_not_change_the_order(environment: StreamExecutionEnvironment) -> None:
    count = 2_500

    results = results_of(environment.from_collection(range(count)).map(write_current).map(with_current))

    assert results == [(number, number) for number in range(count)]


# ---------------------------------------------------------------- failures


def fail_at_three(value: Any) -> Any:
    if value == 3:
        raise ValueError("three is too many")
    return value


def yield_then_fail(value: Any) -> Iterator[Any]:
    yield value
    fail_at_three(value)


def test_what_was_emitted_before_a_failure_arrives_at_a_chained_sink(
    environment: StreamExecutionEnvironment, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.from_collection([1, 2, 3, 4]).map(fail_at_three).map(look).print()

    with pytest.raises(JobExecutionError, match="three is too many"):
        environment.execute()

    assert capsys.readouterr().out == "1\n2\n"
    assert seen == ["looked at 1, None", "looked at 2, None"]


def test_what_a_generator_yielded_before_it_failed_arrives_at_a_chained_sink(
    environment: StreamExecutionEnvironment, capsys: pytest.CaptureFixture[str]
) -> None:
    environment.from_collection([2, 3, 4]).flat_map(yield_then_fail).print()

    with pytest.raises(JobExecutionError, match="three is too many"):
        environment.execute()

    assert capsys.readouterr().out == "2\n3\n"


def test_nothing_before_the_failing_function_sees_a_later_record(environment: StreamExecutionEnvironment) -> None:
    failure_of(environment.from_collection([2, 3, 4]).map(look).map(fail_at_three))

    assert seen == ["looked at 2, None", "looked at 3, None"]


def test_an_error_names_the_operator_and_the_record(environment: StreamExecutionEnvironment) -> None:
    """The error names the function that raised, not the functions that were still at work around it."""
    stream = (
        environment.from_collection([1, 2])
        .flat_map(lambda value: (10 * value + 1, 3))
        .name("outer")
        .map(fail_at_three)
        .name("inner")
    )

    text = failure_of(stream.map(same).name("behind"))

    assert "operator 'inner'" in text
    assert "operator 'outer'" not in text
    assert "while processing the record 3\n" in text
    assert "ValueError: three is too many" in text


class ChangeAndFail(MapFunction):
    def map(self, value: list[Any]) -> Any:
        value.append("changed")
        raise ValueError("after the change")


def test_an_error_shows_the_record_as_the_function_left_it(environment: StreamExecutionEnvironment) -> None:
    text = failure_of(environment.from_collection([[1], [2]]).map(ChangeAndFail()).name("changing"))

    assert "operator 'changing'" in text
    assert "while processing the record [1, 'changed']\n" in text


def test_an_error_of_a_generator_names_the_record_that_it_works_on(environment: StreamExecutionEnvironment) -> None:
    stream = environment.from_collection([2, 3]).map(same).flat_map(yield_then_fail).name("yielding").map(look)

    text = failure_of(stream)

    assert "operator 'yielding'" in text
    assert "while processing the record 3\n" in text
    assert seen == ["looked at 2, None", "looked at 3, None"]
