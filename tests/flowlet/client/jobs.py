"""Small jobs for the tests of clients, TaskManagers and commands.

``hold``, ``released`` and ``counts`` work for jobs in this process: the tasks find this module by its name.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common import Configuration
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import MapFunction, RuntimeContext
from flowlet.graph.job_graph import JobEdge, JobGraph, JobVertex, stable_id
from flowlet.graph.partitioner import Forward, KeyGroups, Rebalance
from flowlet.operators.keyed_aggregation_operator import KeyedSumOperator
from flowlet.operators.process_operator import FlatMapOperator, MapOperator
from flowlet.operators.source_operator import CollectionSource, SourceOperator
from flowlet.operators.source_reader import Source
from flowlet.records import Chunk
from flowlet.sinks.function_sink import DiscardSink
from tests.waiting import PATIENCE_S

# One attempt may fail.
RESTARTING_ONCE = Configuration.from_dict(
    {
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "1 ms",
    }
)
LINES = ["the quick brown fox", "jumps over the lazy dog", "", "the end"] * 500


class Flags(dict[str, threading.Event]):
    """Events by name; a test and a task that ask for a new one at one moment get one event."""

    def __missing__(self, name: str) -> threading.Event:
        return self.setdefault(name, threading.Event())


reached, released = Flags(), Flags()
counts = Counter[str]()


def hold(name: str, value: Any = None) -> Any:
    """Say that the place was reached, and stay there until the test releases it."""
    reached[name].set()
    assert released[name].wait(PATIENCE_S), f"the test did not release {name!r}"
    return value


def ran(stream: Any) -> list[Any]:
    """Run the job of a stream to its end; return what it emitted."""
    with stream.execute_and_collect() as results:
        return list(results)


def operators_of(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the metrics of operators from the document of a job, by name."""
    tasks = [task for vertex in document["vertices"] for task in vertex["subtasks"]]
    return {each["name"]: each for task in tasks for each in task["metrics"]["operators"]}


class TimeIs(TimestampAssigner):
    """Takes the event time of a record from it."""

    def __init__(self, time_of: Callable[[Any], int]) -> None:
        self._time_of = time_of

    def extract_timestamp(self, value: Any, record_timestamp: int) -> int:
        return self._time_of(value)


class WithSubtask(MapFunction):
    """Puts the number of its subtask before each value."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: int) -> tuple[int, int]:
        return self._subtask, value


@contextmanager
def ctrl_c_inside(*functions: Callable[..., Any], after: threading.Event) -> Iterator[None]:
    """Interrupt this program, once ``after`` is set, when its main thread is inside all of ``functions``."""
    main = threading.main_thread().ident
    assert main is not None
    codes = {function.__code__ for function in functions}

    def interrupt() -> None:
        after.wait(PATIENCE_S)
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if codes <= {frame.f_code for frame, _ in traceback.walk_stack(sys._current_frames()[main])}:
                os.kill(os.getpid(), signal.SIGINT)
                return

    thread = threading.Thread(target=interrupt)
    thread.start()
    yield
    thread.join()


class EndlessReader:
    def poll_chunk(self) -> Chunk:
        return Chunk(list(range(1000)))

    def close(self) -> None:
        return


class EndlessSource(Source):
    is_bounded = False

    def create_reader(self, subtask: int, parallelism: int) -> EndlessReader:
        return EndlessReader()


def vertex(name: str, *operators: StreamOperator, parallelism: int = 1, group: str = "default") -> JobVertex:
    """Return a vertex whose operators read each other in a row."""
    chain = [ChainedOperator(operator, index - 1) for index, operator in enumerate(operators)]
    return JobVertex(stable_id(name), name, parallelism, chain=chain, slot_sharing_group=group)


def source(values: Iterable[Any]) -> SourceOperator:
    return SourceOperator(CollectionSource(list(values)))


def word_count(
    lines: Sequence[str] = LINES, split: Callable[[str], Iterable[tuple[str, int]]] | None = None
) -> tuple[JobGraph, str]:
    """Source and splitter -> keyed sum with parallelism 2 -> the client; the job, and the id of the edge to read."""
    splitter = (lambda line: [(word, 1) for word in line.split()]) if split is None else split
    head = vertex("split", source(lines), FlatMapOperator(splitter, name="flat map"))
    total = vertex("count", KeyedSumOperator(lambda pair: pair[0], 1, emit_on_finish=True, name="sum"), parallelism=2)
    shuffle = JobEdge(head.id, 1, total.id, KeyGroups(lambda pair: pair[0]))
    results = JobEdge(total.id, 0, None, Forward())
    return JobGraph("word count", vertices=[head, total], edges=[shuffle, results]), results.id


def expected_counts(lines: Sequence[str] = LINES) -> dict[str, int]:
    return dict(Counter(word for line in lines for word in line.split()))


def mapped(values: Iterable[Any], function: Callable[[Any], Any], name: str = "mapped") -> tuple[JobGraph, str]:
    """Source -> map -> the client."""
    head = vertex(name, source(values), MapOperator(function, name="map"))
    results = JobEdge(head.id, 1, None, Forward())
    return JobGraph(name, vertices=[head], edges=[results]), results.id


def endless(function: Callable[[Any], Any] = lambda value: value) -> tuple[JobGraph, str]:
    """Return an endless source -> map -> the client."""
    head = vertex("endless", SourceOperator(EndlessSource()), MapOperator(function, name="map"))
    results = JobEdge(head.id, 1, None, Forward())
    return JobGraph("endless", vertices=[head], edges=[results]), results.id


def endless_shuffle(function: Callable[[Any], Any] = lambda value: value) -> JobGraph:
    """Return an endless source -> rebalance -> map and discard with parallelism 2: two TaskManagers share it."""
    head = vertex("endless", SourceOperator(EndlessSource()))
    tail = vertex("tail", MapOperator(function, name="map"), DiscardSink(), parallelism=2)
    return JobGraph("endless", vertices=[head, tail], edges=[JobEdge(head.id, 0, tail.id, Rebalance())])
