"""Programs whose operators drop records on purpose: each of these is counted, and the program reads the count by its
reason.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pytest

from flowlet.common import Time, TypeInformation, Types, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import DataStream, ProcessJoinFunction, StreamExecutionEnvironment
from flowlet.datastream.connectors import NO_RECORD, DiscardingSink, SplitSource
from flowlet.datastream.window import TumblingEventTimeWindows
from tests.waiting import spin_until

pytestmark = pytest.mark.slow

GO_ON: dict[str, threading.Event] = {}
LATE = ("a", 2_000)


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")


class Stamp(TimestampAssigner):
    def extract_timestamp(self, value: tuple[str, int], record_timestamp: int) -> int:
        return value[1]


class LateAtLast(SplitSource):
    """Two records, and a third that comes when the test says so: after the watermark of the second."""

    def __init__(self, name: str) -> None:
        self._name = name

    def create_splits(self, parallelism: int) -> Mapping[str, Any]:
        return {"only": None}

    def read_split(self, split: Any, num_read: int) -> Iterator[Any]:
        yield from [("a", 1_000), ("a", 9_000)]
        while not GO_ON[self._name].is_set():
            yield NO_RECORD
        yield LATE


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: ProcessJoinFunction.Context) -> Iterable[Any]:
        yield left, right


def in_windows(source: Callable[[], DataStream]) -> DataStream:
    return source().key_by(lambda pair: pair[0]).window(TumblingEventTimeWindows.of(Time.seconds(1))).reduce(max)


def joined_by_windows(source: Callable[[], DataStream]) -> DataStream:
    left, right = source(), source()
    keyed = left.join(right).where(lambda pair: pair[0]).equal_to(lambda pair: pair[0])
    return keyed.window(TumblingEventTimeWindows.of(Time.seconds(1))).apply(lambda one, other: (one, other))


def joined_by_an_interval(source: Callable[[], DataStream]) -> DataStream:
    left, right = (source().key_by(lambda pair: pair[0]) for _ in range(2))
    return left.interval_join(right).between(Time.seconds(-1), Time.seconds(1)).process(Pairs())


@pytest.mark.parametrize(
    ("build", "dropped"),
    [
        (in_windows, {"num_late_records_dropped": 1}),
        (joined_by_windows, {"num_late_records_dropped": 2}),
        (joined_by_an_interval, {"num_late_records_dropped": 2}),
    ],
)
def test_late_records_that_go_nowhere_are_counted(build: Callable[..., DataStream], dropped: dict[str, int]) -> None:
    """Late records of both inputs of a join are counted, too; ``JobClient.metrics`` has the counts under the names of
    docs/metrics.md.
    """
    environment = StreamExecutionEnvironment.get_execution_environment()
    environment.set_parallelism(1).get_config().set_auto_watermark_interval(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Stamp())
    pair: TypeInformation = Types.TUPLE([Types.STRING(), Types.LONG()])
    GO_ON[build.__name__] = threading.Event()
    build(lambda: environment.from_source(LateAtLast(build.__name__), strategy, "pairs", pair)).sink_to(
        DiscardingSink()
    )

    client = environment.execute_async("late")
    try:
        spin_until(lambda: any(sum(each["current_input_watermarks"]) > 8_000 for each in takers(client.metrics())))
        GO_ON[build.__name__].set()
        client.get_job_execution_result().result()
        found = takers(client.metrics())
    finally:
        GO_ON.pop(build.__name__).set()
        environment.close()

    counts: dict[str, int] = {}
    for operator in found:
        for name, count in operator.items():
            if name.endswith("_dropped") and count:
                counts[name] = counts.get(name, 0) + count
    assert counts == dropped


def takers(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the operators that have windows or join."""
    operators = [
        each for vertex in document["vertices"] for task in vertex["subtasks"] for each in task["metrics"]["operators"]
    ]
    return [
        each for each in operators if any(word in each["name"].lower() for word in ("window", "join", "reduce", "sum"))
    ]
