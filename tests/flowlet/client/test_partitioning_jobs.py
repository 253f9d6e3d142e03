"""Jobs that choose the channels of their records: broadcast, shuffle, a partitioner of the user's."""

from collections import Counter
from collections.abc import Iterator

import pytest

from flowlet.datastream import CoProcessFunction, DataStream, RuntimeContext, StreamExecutionEnvironment
from tests.flowlet.client.conftest import SharedCluster
from tests.flowlet.client.jobs import WithSubtask, ran

NUMBERS = list(range(200))


@pytest.fixture
def environment(cluster: SharedCluster) -> StreamExecutionEnvironment:
    """Provide two TaskManagers in this process; they exchange data over TCP."""
    return cluster.environment().set_parallelism(2)


def received(stream: DataStream) -> Counter[tuple[int, int]]:
    """How often each subtask of the next operator gets each value."""
    return Counter(ran(stream.map(WithSubtask())))


def test_broadcast_gives_every_record_to_every_subtask(environment: StreamExecutionEnvironment) -> None:
    assert received(environment.from_collection(NUMBERS).broadcast()) == Counter(
        (subtask, number) for subtask in (0, 1) for number in NUMBERS
    )


def test_shuffle_gives_every_record_to_one_subtask_and_all_subtasks_some(
    environment: StreamExecutionEnvironment,
) -> None:
    """Each subtask gets records: that one of two gets none of 200 has a chance of 2^-199."""
    found = received(environment.from_collection(NUMBERS).shuffle())

    assert sorted(number for _, number in found.elements()) == NUMBERS
    assert {subtask for subtask, _ in found} == {0, 1}


def test_a_partitioner_of_the_user_chooses_the_subtask_by_the_key(environment: StreamExecutionEnvironment) -> None:
    numbers = environment.from_collection(NUMBERS)

    found = received(
        numbers.partition_custom(lambda key, num_partitions: key % num_partitions, lambda number: number // 10)
    )

    assert found == Counter((number // 10 % 2, number) for number in NUMBERS)


class Rules(CoProcessFunction):
    """Says which subtask sees what."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def process_element1(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
        yield "value", self.subtask, value

    def process_element2(self, value: int, ctx: CoProcessFunction.Context) -> Iterator[tuple[str, int, int]]:
        yield "rule", self.subtask, value


def test_a_keyed_stream_meets_one_that_is_broadcast(environment: StreamExecutionEnvironment) -> None:
    """Records of a key come to one subtask, rules to all; the function sees no key, as in PyFlink."""
    keyed = environment.from_collection(NUMBERS).key_by(lambda number: number % 7)
    rules = environment.from_collection([1, 2, 3]).broadcast()

    found = ran(keyed.connect(rules).process(Rules()))

    assert sorted(each for each in found if each[0] == "rule") == [
        ("rule", subtask, rule) for subtask in (0, 1) for rule in (1, 2, 3)
    ]
    values = [(subtask, number) for what, subtask, number in found if what == "value"]
    assert sorted(number for _, number in values) == NUMBERS
    assert len({(subtask, number % 7) for subtask, number in values}) == 7
