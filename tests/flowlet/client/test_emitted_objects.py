"""A function may change, and emit again, a record that it has emitted, if object reuse is off.

Source: Flink ``ExecutionConfig.enableObjectReuse``; there a record is copied or serialized as it is emitted, here
        later, in a chunk.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.datastream import CloseableIterator, OutputTag, ProcessFunction, StreamExecutionEnvironment
from flowlet.datastream.data_stream import DataStream

SUMS = OutputTag("sums")


class Summing(ProcessFunction):
    """Emits one list object for every record."""

    def __init__(self, tag: OutputTag | None = None) -> None:
        self.sum = [0]
        self.tag = tag

    def process_element(self, value: list[int], ctx: ProcessFunction.Context) -> Iterator[Any]:
        self.sum[0] += value[0]
        yield self.sum if self.tag is None else (self.tag, self.sum)


def add_to_first(first: list[int], second: list[int]) -> list[int]:
    first[0] += second[0]
    return first


SUMMINGS: dict[str, Callable[[DataStream], DataStream]] = {
    "process": lambda stream: stream.process(Summing()),
    "side output": lambda stream: stream.process(Summing(SUMS)).get_side_output(SUMS),
    "reduce": lambda stream: stream.key_by(lambda record: 0).reduce(add_to_first),
}


@pytest.mark.parametrize("name", SUMMINGS)
@pytest.mark.parametrize("is_chained", [True, False])
def test_each_result_is_what_it_was_when_it_was_emitted(
    environment: StreamExecutionEnvironment, name: str, is_chained: bool
) -> None:
    if not is_chained:
        environment.disable_operator_chaining()
    sums = SUMMINGS[name](environment.from_collection([[1], [2], [3]]))

    results = sums.map(list).execute_and_collect()
    assert isinstance(results, CloseableIterator)
    with results:
        assert list(results) == [[1], [3], [6]]


def gather(so_far: Any, number: int) -> list[int]:
    """Records are numbers, results are a list that grows."""
    numbers: list[int] = so_far if isinstance(so_far, list) else [so_far]
    numbers.append(number)
    return numbers


def test_a_reduce_function_may_give_something_that_can_change_where_records_cannot(
    environment: StreamExecutionEnvironment,
) -> None:
    results = environment.from_collection([1, 2, 3, 4]).key_by(lambda record: 0).reduce(gather).execute_and_collect()
    assert isinstance(results, CloseableIterator)
    with results:
        assert list(results) == [1, [1, 2], [1, 2, 3], [1, 2, 3, 4]]
