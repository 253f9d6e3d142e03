"""Window joins and co-groups beside a plain pair of loops over the records of each window."""

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from flowlet.client.translate import operator_of
from flowlet.common.job_client import SubmittedJob
from flowlet.common.time import Time
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from flowlet.errors import FlowletError
from flowlet.graph.stream_graph import StreamGraph, StreamNode
from flowlet.testing import StreamRecord
from tests.flowlet.joins.subtasks import Subtasks

NUM_STEPS = 50
Record = tuple[str, int]  # key and serial number


class NotStartedError(FlowletError):
    """Raised instead of running a job."""


def key_of(record: Any) -> Any:
    return record[0]


def pair(first: Record, second: Record) -> tuple[str, Record, Record]:
    return first[0], first, second


def groups(first: list[Record], second: list[Record]) -> Iterable[Any]:
    yield (first or second)[0][0], tuple(sorted(first)), tuple(sorted(second))


def window_step(assigner: WindowAssigner[Any, Any], *, is_join: bool) -> StreamNode:
    """Return the operator of a program with a join or a co-group, which is not run."""
    graphs: list[StreamGraph] = []

    def capture(stream_graph: StreamGraph, *_: object) -> SubmittedJob:
        graphs.append(stream_graph)
        raise NotStartedError

    env = StreamExecutionEnvironment(submit=capture)
    one, two = env.from_collection([("a", 1)]), env.from_collection([("a", 1)])
    if is_join:
        one.join(two).where(key_of).equal_to(key_of).window(assigner).apply(pair).print()
    else:
        one.co_group(two).where(key_of).equal_to(key_of).window(assigner).apply(groups).print()
    with pytest.raises(NotStartedError):
        env.execute()
    (node,) = [
        each for each in graphs[-1].nodes.values() if each.transformation.factory.target.endswith(":WindowOperator")
    ]
    return node


class NestedLoops:
    """The plain interpreter: the records of both streams by window, looked at when the watermark has passed it."""

    def __init__(self, size: int, slide: int) -> None:
        self.size, self.slide = size, slide
        self.windows: dict[tuple[str, int], tuple[list[Record], list[Record]]] = {}
        self.watermark = -1

    def add(self, side: int, record: Record, timestamp: int) -> None:
        last = timestamp - timestamp % self.slide
        for start in range(last, timestamp - self.size, -self.slide):
            if start + self.size - 1 > self.watermark:
                self.windows.setdefault((record[0], start), ([], []))[side].append(record)

    def advance(self, watermark: int, results_of: Callable[..., Iterable[Any]]) -> list[StreamRecord]:
        self.watermark = watermark
        due = [each for each in self.windows if each[1] + self.size - 1 <= watermark]
        return [
            StreamRecord(result, key[1] + self.size - 1) for key in due for result in results_of(*self.windows.pop(key))
        ]


def pairs(first: list[Record], second: list[Record]) -> Iterable[Any]:
    return itertools.starmap(pair, itertools.product(first, second))


def run_beside_loops(seed: int) -> None:
    """Random records, late ones too, watermarks, snapshots and numbers of subtasks."""
    rng = random.Random(seed)
    size, slide, is_join = *rng.choice([(10, 10), (12, 4), (5, 3), (1, 1)]), rng.random() < 0.7
    windows: WindowAssigner[Any, Any] = SlidingEventTimeWindows.of(Time.milliseconds(size), Time.milliseconds(slide))
    if size == slide:
        windows = TumblingEventTimeWindows.of(Time.milliseconds(size))
    node = window_step(windows, is_join=is_join)
    plain, operator = NestedLoops(size, slide), Subtasks(lambda: operator_of(node, is_batch=False), key_of)
    results_of = pairs if is_join else groups
    numbers, now = itertools.count(), 0
    try:
        for _ in range(NUM_STEPS):
            step = rng.random()
            if step < 0.25:
                operator.advance(now)
                (found,) = operator.take()
                assert Counter(found) == Counter(plain.advance(now, results_of)), f"seed {seed}"
            elif step < 0.3:
                operator.rescale(rng.randint(1, 3))
            else:
                now += rng.choice([0, 1, 5])
                side, count = rng.randrange(2), rng.choice([1, 1, 2, 5])
                records = [(rng.choice("abc"), next(numbers)) for _ in range(count)]
                times = [max(0, now + rng.randint(-6, 12)) for _ in range(count)]
                operator.process(1, [(record[0], bool(side), record) for record in records], times)
                for record, at in zip(records, times, strict=True):
                    plain.add(side, record, at)
        operator.advance(now + 1_000)
        assert Counter(operator.take()[0]) == Counter(plain.advance(now + 1_000, results_of)), f"seed {seed}"
        assert operator.num_timers == 0
    finally:
        operator.close()


@pytest.mark.slow
def test_random_streams_give_what_nested_loops_give() -> None:
    """With tumbling and sliding windows, late records, snapshots and other numbers of subtasks."""
    for seed in range(40):
        run_beside_loops(seed)


@pytest.mark.long
def test_many_random_streams_give_what_nested_loops_give() -> None:
    for seed in range(10_000, 12_000):
        run_beside_loops(seed)


def test_a_session_holds_the_records_of_both_streams() -> None:
    """A record of one stream makes one session of two of the other."""
    node = window_step(EventTimeSessionWindows.with_gap(Time.milliseconds(10)), is_join=False)
    operator = Subtasks(lambda: operator_of(node, is_batch=False), key_of)

    operator.process(1, [("a", False, ("a", 1)), ("a", False, ("a", 2)), ("a", False, ("a", 3))], [0, 15, 40])
    operator.process(1, [("a", True, ("a", 4))], [8])
    operator.advance(100)

    assert operator.take()[0] == [
        StreamRecord(("a", (("a", 1), ("a", 2)), (("a", 4),)), 24),
        StreamRecord(("a", (("a", 3),), ()), 49),
    ]
    operator.close()
