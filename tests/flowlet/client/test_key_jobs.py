"""Jobs by keys of every type, and by keys that cannot be one, with and without an exchange between the subtasks."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from flowlet.datastream import KeyedCoProcessFunction, KeyedProcessFunction, KeyedStream, StreamExecutionEnvironment
from flowlet.errors import JobExecutionError
from flowlet.keys.exact_keys import exact_key
from tests.flowlet.client.jobs import ran
from tests.flowlet.keys_of_every_type import GOLDEN

pytestmark = pytest.mark.slow
KEYS = [key for key, _ in GOLDEN]
Kind = Callable[[Callable[[], KeyedStream]], Any]


@pytest.fixture(params=[1, 2], autouse=True)
def parallelism(request: pytest.FixtureRequest, environment: StreamExecutionEnvironment) -> None:
    environment.set_parallelism(request.param)


class Session:
    """Equal to nothing but itself, so that no other process would find it again."""

    def __repr__(self) -> str:
        return "<Session>"


class Keys(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        yield ctx.get_current_key(), value[1]


class KeysAtTheEnd(KeyedProcessFunction):
    """Each key once, from its timer."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
        ctx.timer_service().register_event_time_timer(1_000)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield ctx.get_current_key()


class KeysOfBoth(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        yield ctx.get_current_key(), value[1]

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterator[Any]:
        yield ctx.get_current_key(), value[1]


KINDS: dict[str, Kind] = {
    "process": lambda keyed: keyed().process(Keys()),
    "reduce": lambda keyed: keyed().reduce(lambda first, second: (first[0], first[1] + second[1])),
    "sum": lambda keyed: keyed().sum(1),
    "max": lambda keyed: keyed().max(1),
    "count": lambda keyed: keyed().count(),
    "co-process": lambda keyed: keyed().connect(keyed()).process(KeysOfBoth()),
}


def exactly(results: list[Any]) -> Counter[Any]:
    """Count the results by exact keys, in any order."""
    return Counter((exact_key(key), count) for key, count in results)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("position", [0, 1])
def test_a_key_that_cannot_be_one_fails_the_job_with_the_reason(
    environment: StreamExecutionEnvironment, kind: Kind, position: int
) -> None:
    """The record is named, and the way out; the key is a field, or something that a function made."""
    records: list[Any] = [("a", 1), ("b", 1)]
    records.insert(position, (Session(), 1))
    select = (lambda record: record[0]) if position == 0 else (lambda record: (record[0], 1)[0])
    source = environment.from_collection(["go"]).flat_map(lambda _: records)

    with pytest.raises(JobExecutionError) as caught:
        ran(kind(lambda: source.key_by(select)))

    message = str(caught.value)
    assert "while processing the record (<Session>, 1)" in message
    assert (
        "a value of type Session cannot be a key: without an __eq__ of its own it goes by its place in memory"
        in message
    )
    assert "use a tuple of the fields that identify it, or a frozen dataclass" in message


@pytest.mark.parametrize("times", [1, 40], ids=["few", "many"])
def test_every_type_of_key_has_a_state_of_its_own(environment: StreamExecutionEnvironment, times: int) -> None:
    records = [(key, 1) for key in KEYS] * times

    stream = environment.from_collection(["go"]).flat_map(lambda _: records)
    results = ran(stream.key_by(lambda record: record[0]).sum(1))

    assert exactly(results) == exactly([(key, count + 1) for key in KEYS for count in range(times)])


def test_every_type_of_key_has_a_timer_of_its_own(environment: StreamExecutionEnvironment) -> None:
    """The key is the user's object, not its stand-in."""
    records = [(key, 1) for key in KEYS] * 2

    stream = environment.from_collection(["go"]).flat_map(lambda _: records)
    keys = ran(stream.key_by(lambda record: record[0]).process(KeysAtTheEnd()))

    assert exactly([(key, 1) for key in keys]) == exactly([(key, 1) for key in KEYS])
    assert sorted(type(key).__name__ for key in keys) == sorted(type(key).__name__ for key in KEYS)
