"""Programs of the DataStream API, run to their end in this process: unions, connected streams, side outputs, process functions."""

from collections.abc import Iterator
from typing import Any

import pytest

from flowlet.common import Configuration
from flowlet.datastream import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    OutputTag,
    ProcessFunction,
    StreamExecutionEnvironment,
)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[StreamExecutionEnvironment]:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    made = StreamExecutionEnvironment.get_execution_environment(Configuration())
    made.set_parallelism(2)
    yield made
    made.close()


def collected(stream: Any) -> list[Any]:
    with stream.execute_and_collect() as results:
        return sorted(results)


class Label(CoMapFunction):
    def map1(self, value: int) -> tuple[str, int]:
        return "first", value

    def map2(self, value: int) -> tuple[str, int]:
        return "second", value


class Twice(CoFlatMapFunction):
    def flat_map1(self, value: int) -> list[int]:
        return [value, value]

    def flat_map2(self, value: int) -> None:
        return None


class Small(ProcessFunction):
    BIG = OutputTag("big")

    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        if value < 3:
            yield value
        else:
            yield self.BIG, value


class Pair(CoProcessFunction):
    def process_element1(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield 1, value

    def process_element2(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[Any]:
        yield 2, value


def test_a_union_has_the_records_of_all_streams(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([1, 2]), environment.from_collection([3])

    assert collected(first.union(second, first).map(lambda value: value * 10)) == [10, 10, 20, 20, 30]


def test_connected_streams_meet_in_one_operator(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([1, 2]), environment.from_collection([7])

    assert collected(first.connect(second).map(Label())) == [("first", 1), ("first", 2), ("second", 7)]


def test_flat_map_and_process_of_two_streams(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([1, 2]), environment.from_collection([7])
    doubled = first.connect(second).flat_map(Twice())

    assert collected(doubled.connect(second).process(Pair())) == [(1, 1), (1, 1), (1, 2), (1, 2), (2, 7)]


def test_a_side_output_is_a_stream_of_its_own(environment: StreamExecutionEnvironment) -> None:
    small = environment.from_collection([1, 2, 3, 4]).process(Small())

    both = small.map(lambda value: ("small", value)).union(small.get_side_output(Small.BIG).map(lambda value: ("big", value)))

    assert collected(both) == [("big", 3), ("big", 4), ("small", 1), ("small", 2)]


def test_a_side_output_can_be_collected_itself(environment: StreamExecutionEnvironment) -> None:
    small = environment.from_collection([1, 2, 3, 4]).process(Small())

    assert collected(small.get_side_output(Small.BIG)) == [3, 4]


def test_a_union_can_be_collected_itself(environment: StreamExecutionEnvironment) -> None:
    assert collected(environment.from_collection([1]).union(environment.from_collection([2]))) == [1, 2]


def test_split_and_select_deliver_each_record_once(environment: StreamExecutionEnvironment) -> None:
    split = environment.from_collection([1, 2, 3, 4]).split(lambda value: ["even"] if value % 2 == 0 else ["odd", "strange"])

    assert collected(split.select("odd", "strange").union(split.select("even").map(lambda value: -value))) == [-4, -2, 1, 3]


def test_a_union_is_keyed_as_one_stream(environment: StreamExecutionEnvironment) -> None:
    first, second = environment.from_collection([("a", 1), ("b", 2)]), environment.from_collection([("a", 5)])

    sums = collected(first.union(second).key_by(lambda pair: pair[0]).sum(1))

    assert max(value for key, value in sums if key == "a") == 6
