"""Promises of ``translate``: programs become job graphs whose operators do what the program says."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain.operator_chain import OperatorChain
from flowlet.chain.stream_operator import EdgeOutput, OperatorContext
from flowlet.client.embedded import EmbeddedTarget
from flowlet.client.translate import embedded_target, translate
from flowlet.common import Row, Types, WatermarkStrategy
from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import (
    DataStream,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink, FileSource, Sink, Source, StreamFormat
from flowlet.errors import JobGraphError
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.stream_graph import StreamGraph
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import Chunk, ControlElement
from tests.flowlet.operators.local_splits import serve_splits


class CapturedError(Exception):
    """Carries the graph out of ``execute``."""

    def __init__(self, graph: JobGraph) -> None:
        super().__init__()
        self.graph = graph


def capture(stream_graph: StreamGraph, *_: object) -> SubmittedJob:
    raise CapturedError(translate(stream_graph))


def job_graph_of(
    build: Callable[[StreamExecutionEnvironment], object], mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING
) -> JobGraph:
    environment = StreamExecutionEnvironment(submit=capture).set_parallelism(1).set_runtime_mode(mode)
    build(environment)
    with pytest.raises(CapturedError) as captured:
        environment.execute("job")
    return captured.value.graph


class Edge:
    """An output that keeps the records."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def collect(self, chunk: Chunk) -> None:
        self.values += chunk.values

    def emit_control(self, element: ControlElement) -> None:
        raise AssertionError("there are only records here")


def run(graph: JobGraph) -> dict[str | None, list[Any]]:
    """Run a graph of parallelism 1 vertex by vertex; return the records that came over the edges to each vertex, or to
    the client (None).
    """
    arrived: defaultdict[str | None, list[Any]] = defaultdict(list)
    for vertex in graph.topological_order():
        edges = {edge.id: Edge() for edge in graph.edges if edge.source == vertex.id}
        outputs: dict[tuple[int, str | None], list[EdgeOutput]] = defaultdict(list)
        for edge in graph.edges:
            if edge.source != vertex.id:
                continue
            outputs[edge.source_operator, edge.tag].append(edges[edge.id])
        links = cloudpickle.loads(cloudpickle.dumps(list(vertex.chain)))
        chain = OperatorChain(links, outputs, lambda _, name, task=vertex.name: OperatorContext(task, 0, 1, 128, name))  # type: ignore[misc]  # the default binds it
        if isinstance(chain.head, SourceOperator):
            serve_splits(chain.head, cast(Any, vertex.chain[0]).operator.source)
        chain.open()
        if isinstance(chain.head, SourceOperator):
            while chain.head.emit_next():
                pass
        else:
            chain.process_chunk(Chunk(arrived[vertex.id]))
        chain.finish()
        chain.close()
        for edge in graph.edges:
            if edge.source == vertex.id:
                arrived[edge.target] += edges[edge.id].values
    return dict(arrived)


def collected(
    build: Callable[[StreamExecutionEnvironment], DataStream],
    mode: RuntimeExecutionMode = RuntimeExecutionMode.STREAMING,
) -> list[Any]:
    environment = StreamExecutionEnvironment(submit=capture).set_parallelism(1).set_runtime_mode(mode)
    with pytest.raises(CapturedError) as captured:
        build(environment).execute_and_collect()
    return run(captured.value.graph).get(None, [])


class Offset(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._offset = 10 * runtime_context.get_number_of_parallel_subtasks()

    def map(self, value: int) -> int:
        return value + self._offset


class Largest(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return max(value1, value2)


@given(lines=st.lists(st.text(alphabet="ab ", max_size=8)))
def test_a_word_count_counts_words(lines: list[str]) -> None:
    """The final counts of every text are Counter's, and the running ones are all counts on the way there."""

    def count(env: StreamExecutionEnvironment) -> DataStream:
        words = env.from_collection(lines).flat_map(str.split)
        return words.map(lambda word: (word, 1)).key_by(lambda pair: pair[0]).sum(1)

    expected = Counter(word for line in lines for word in line.split())

    assert dict(collected(count, RuntimeExecutionMode.BATCH)) == expected
    assert dict(collected(count, RuntimeExecutionMode.AUTOMATIC)) == expected
    running = collected(count)
    assert sorted(running) == sorted(
        (word, number) for word, total in expected.items() for number in range(1, total + 1)
    )


def test_every_step_does_its_work() -> None:
    def build(env: StreamExecutionEnvironment) -> DataStream:
        return (
            env.from_collection([1, 2, 3, 4])
            .map(Offset())
            .filter(lambda value: value % 2 == 0)
            .flat_map(lambda value: [value, -value])
        )

    assert collected(build) == [12, -12, 14, -14]


@pytest.mark.parametrize(
    ("mode", "expected"), [(RuntimeExecutionMode.STREAMING, [3, 3, 4, 4]), (RuntimeExecutionMode.BATCH, [3, 4])]
)
def test_a_reduction_reports_as_the_mode_says(mode: RuntimeExecutionMode, expected: list[int]) -> None:
    def build(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_collection([3, 1, 4, 2]).key_by(lambda value: value % 2).reduce(Largest())

    assert sorted(collected(build, mode)) == expected


def test_rows_are_summed_by_the_name_of_a_field() -> None:
    type_info = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.INT()])

    def build(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_collection([("a", 1), ("b", 2), ("a", 3)], type_info).key_by(lambda row: row.word).sum("count")

    assert collected(build, RuntimeExecutionMode.BATCH) == [Row(word="a", count=4), Row(word="b", count=2)]


@pytest.mark.parametrize("charset", ["UTF-8", "latin-1", "utf-16"])
def test_files_are_read_in_their_charset(tmp_path: Path, charset: str) -> None:
    file = tmp_path / "text"
    file.write_bytes("é\nü".encode(charset))

    def build(env: StreamExecutionEnvironment) -> DataStream:
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset), str(file)).build()
        return env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "lines")

    assert collected(build) == ["é", "ü"]


class Once(Source):
    """A source of one's own."""

    def create_reader(self, subtask: int, parallelism: int) -> "OnceReader":
        return OnceReader([subtask, parallelism])


class OnceReader:
    def __init__(self, values: list[int]) -> None:
        self._values = values

    def poll_chunk(self) -> Chunk | None:
        values, self._values = self._values, []
        return Chunk(values) if values else None

    def close(self) -> None:
        pass


def test_a_source_of_ones_own_is_read() -> None:
    assert collected(lambda env: env.from_source(Once(), WatermarkStrategy.no_watermarks(), "once")) == [0, 1]


def test_operators_have_the_names_of_the_program() -> None:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_collection([1]).map(abs).name("my map").key_by(abs).reduce(max)
        stream.print("here")
        stream.sink_to(DiscardingSink()).name("nowhere")

    graph = job_graph_of(build)

    assert [vertex.name for vertex in graph.vertices] == [
        "Source: Collection Source -> my map -> Reduce -> (Sink: Print to Std. Out, nowhere: Writer)",
    ]
    assert graph.vertices[0].operator_names == [
        "Source: Collection Source",
        "my map",
        "Reduce",
        "Sink: Print to Std. Out",
        "nowhere: Writer",
    ]


def test_printing_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run(job_graph_of(lambda env: env.from_collection([1, "x"]).print("out")))

    assert capsys.readouterr().out == "out> 1\nout> x\n"


class Unknown(Sink):
    """A sink that no translation knows how to run."""


def test_what_cannot_be_run_is_refused_by_its_operator() -> None:
    environment = StreamExecutionEnvironment(submit=capture)
    environment.from_collection([1]).sink_to(Unknown())

    with pytest.raises(
        JobGraphError, match=r"operator 'Sink: Writer': a Unknown cannot be run; use DiscardingSink\(\)"
    ):
        environment.execute()


@pytest.mark.parametrize(
    ("parallelism", "in_process", "expected"),
    [
        (1, False, EmbeddedTarget(1, None, True)),
        (3, False, EmbeddedTarget(3, None, False)),
        (3, True, EmbeddedTarget(3, None, True)),
    ],
)
def test_an_embedded_cluster_is_as_wide_as_the_widest_vertex(
    parallelism: int, in_process: bool, expected: EmbeddedTarget
) -> None:
    graph = job_graph_of(lambda env: env.from_collection([1]).map(abs).set_parallelism(parallelism))

    assert embedded_target(graph, in_process=in_process) == expected
