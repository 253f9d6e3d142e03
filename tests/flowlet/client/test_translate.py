"""Programs become job graphs whose operators do what the program says, and their authors hear what will not work."""

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from flowlet.chain.operator_chain import OperatorChain
from flowlet.chain.stream_operator import EdgeOutput, OperatorContext
from flowlet.client.embedded import EmbeddedTarget
from flowlet.client.translate import (
    embedded_target,
    routed_at_producers,
    sources_without_position,
    translate,
    warn_of_sources_without_position,
)
from flowlet.common import Row, Types, WatermarkStrategy
from flowlet.datastream import (
    DataStream,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
    RuntimeExecutionMode,
    SourceContext,
    SourceFunction,
    StreamExecutionEnvironment,
)
from flowlet.datastream.connectors import DiscardingSink, FileSource, Sink, Source, StreamFormat
from flowlet.datastream.remote_gate import RemoteGate
from flowlet.errors import ConfigError, JobGraphError
from flowlet.graph.job_graph import JobGraph
from flowlet.graph.partitioner import Forward, KeyGroups
from flowlet.graph.stream_graph import StreamGraph
from flowlet.graph.transformation import SourceTransformation
from flowlet.operators.source_operator import SourceOperator
from flowlet.records import Chunk, ControlElement
from flowlet.rpc.secret import load_secret
from tests.flowlet.operators.local_splits import serve_splits
from tests.flowlet.stream_graphs import graph_of, unstarted

STREAMING, BATCH = RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.BATCH


def job_graph_of(build: Callable[[StreamExecutionEnvironment], object]) -> JobGraph:
    environment = unstarted().set_parallelism(1)
    build(environment)
    return translate(graph_of(environment.execute))


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
        edges = [(edge, Edge()) for edge in graph.edges if edge.source == vertex.id]
        outputs: dict[tuple[int, str | None], list[EdgeOutput]] = defaultdict(list)
        for edge, output in edges:
            outputs[edge.source_operator, edge.tag].append(output)
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
        for edge, output in edges:
            arrived[edge.target] += output.values
    return dict(arrived)


def collected(
    build: Callable[[StreamExecutionEnvironment], DataStream], mode: RuntimeExecutionMode = STREAMING
) -> list[Any]:
    stream = build(unstarted().set_parallelism(1).set_runtime_mode(mode))
    return run(translate(graph_of(stream.execute_and_collect))).get(None, [])


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

    assert dict(collected(count, BATCH)) == expected
    assert dict(collected(count, RuntimeExecutionMode.AUTOMATIC)) == expected
    running = [(word, number) for word, total in expected.items() for number in range(1, total + 1)]
    assert sorted(collected(count)) == sorted(running)


def test_every_step_does_its_work() -> None:
    def build(env: StreamExecutionEnvironment) -> DataStream:
        even = env.from_collection([1, 2, 3, 4]).map(Offset()).filter(lambda value: value % 2 == 0)
        return even.flat_map(lambda value: [value, -value])

    assert collected(build) == [12, -12, 14, -14]


@pytest.mark.parametrize(("mode", "expected"), [(STREAMING, [3, 3, 4, 4]), (BATCH, [3, 4])])
def test_a_reduction_reports_as_the_mode_says(mode: RuntimeExecutionMode, expected: list[int]) -> None:
    def build(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_collection([3, 1, 4, 2]).key_by(lambda value: value % 2).reduce(Largest())

    assert sorted(collected(build, mode)) == expected


def test_rows_are_summed_by_the_name_of_a_field() -> None:
    type_info = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.INT()])

    def build(env: StreamExecutionEnvironment) -> DataStream:
        return env.from_collection([("a", 1), ("b", 2), ("a", 3)], type_info).key_by(lambda row: row.word).sum("count")

    assert collected(build, BATCH) == [Row(word="a", count=4), Row(word="b", count=2)]


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

    [vertex] = graph.vertices
    assert vertex.name == "Source: Collection Source -> my map -> Reduce -> (Sink: Print to Std. Out, nowhere: Writer)"
    names = ["Source: Collection Source", "my map", "Reduce", "Sink: Print to Std. Out", "nowhere: Writer"]
    assert vertex.operator_names == names


def test_printing_prints(capsys: pytest.CaptureFixture[str]) -> None:
    run(job_graph_of(lambda env: env.from_collection([1, "x"]).print("out")))

    assert capsys.readouterr().out == "out> 1\nout> x\n"


class Unknown(Sink):
    """A sink that no translation knows how to run."""


def test_what_cannot_be_run_is_refused_by_its_operator() -> None:
    reason = r"operator 'Sink: Writer': a Unknown cannot be run; use DiscardingSink\(\)"
    with pytest.raises(JobGraphError, match=reason):
        job_graph_of(lambda env: env.from_collection([1]).sink_to(Unknown()))


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


# -------------------------------------------------------------------- routing by key at producers, or a shuffle


def first(record: Any) -> Any:
    return record[0]


def routed(build: Callable[[DataStream], object]) -> tuple[StreamGraph, RemoteGate]:
    """Return the graph of a job that reads a gate, and what became of the gate."""
    env = unstarted().set_parallelism(1)
    build(env.from_remote_gate("clicks", allow_pickle=True))
    graph = routed_at_producers(graph_of(env.execute))
    transformation = next(iter(graph.nodes.values())).transformation
    assert isinstance(transformation, SourceTransformation)
    assert isinstance(transformation.source, RemoteGate)
    return graph, transformation.source


def test_the_gate_takes_over_what_its_keyed_reader_has() -> None:
    graph, gate = routed(lambda gate: gate.key_by(first).sum(1).set_parallelism(3).set_max_parallelism(12).print())

    node = next(iter(graph.nodes.values()))
    assert (node.parallelism, node.max_parallelism) == (3, 12)
    assert gate.key_groups == KeyGroups(first, 12)
    assert isinstance(graph.outputs_of(1)[0].partitioner, Forward)


def two_keys(gate: DataStream) -> None:
    gate.key_by(first).sum(1).print()
    gate.key_by(lambda record: record[1]).sum(1).print()


def two_widths(gate: DataStream) -> None:
    keyed = gate.key_by(first)
    keyed.sum(1).set_parallelism(2).print()
    keyed.sum(1).set_parallelism(3).print()


def also_unkeyed(gate: DataStream) -> None:
    gate.key_by(first).sum(1).print()
    gate.print()


@pytest.mark.parametrize("build", [two_keys, two_widths, also_unkeyed])
def test_readers_of_different_keys_or_parallelism_or_none_leave_the_shuffle(
    build: Callable[[DataStream], None],
) -> None:
    graph, gate = routed(build)

    assert gate.key_groups is None
    assert any(isinstance(edge.partitioner, KeyGroups) for edge in graph.edges)


def test_what_is_no_gate_stays_as_it_is() -> None:
    env = unstarted()
    env.from_collection([(1, 2)]).key_by(first).sum(1).print()
    graph = graph_of(env.execute)

    assert routed_at_producers(graph) is graph


# -------------------------------------------------------------------- sources that cannot go on from a checkpoint


class Pushed(SourceFunction):
    def run(self, ctx: SourceContext) -> None:
        pass


class Replayed(Pushed):
    def restore_position(self, position: object) -> None:
        pass


def graph_of_all_sources(options: dict[str, str] | None = None) -> StreamGraph:
    environment = unstarted(options)
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a").build()
    environment.from_collection([1]).union(
        environment.from_source(lines, WatermarkStrategy.no_watermarks(), "lines"),
        environment.add_source(Replayed(), "replayed"),
        environment.add_source(Pushed(), "pushed"),
        environment.from_remote_gate("gate", allow_pickle=True),
    ).print()
    return graph_of(lambda: environment.execute("job"))


CHECKPOINTED = {"execution.checkpointing.interval": "1 s"}


def test_sources_that_keep_no_position_are_named_with_what_follows() -> None:
    found = dict(sources_without_position(graph_of_all_sources()))

    assert list(found) == ["Source: pushed", "Source: Gate gate"]  # without checkpoints no write waits for one
    assert "restore_position()" in found["Source: pushed"]
    assert "lost" in found["Source: Gate gate"]


def test_a_warning_is_logged_for_each_if_checkpoints_are_taken() -> None:
    """A gate whose writes wait for checkpoints loses nothing."""
    with capture_logs() as logs:
        warn_of_sources_without_position(graph_of_all_sources())
        assert logs == []
        warn_of_sources_without_position(graph_of_all_sources(CHECKPOINTED))

    seen = [(line["log_level"], line["source"], line["job"]) for line in logs]
    assert seen == [("warning", "Source: pushed", "job")]


# -------------------------------------------------------------------- savepoints that other programs can read


@pytest.mark.parametrize(
    ("options", "is_shared", "is_needed"),
    [
        pytest.param({}, False, False, id="no checkpoints"),
        pytest.param(CHECKPOINTED, True, False, id="checkpoints that end with the job"),
        pytest.param({"execution.checkpointing.savepoint-dir": "/savepoints"}, True, True, id="a folder of savepoints"),
        pytest.param({"execution.state-recovery.path": "/savepoints/savepoint-1"}, True, True, id="a savepoint"),
        pytest.param(
            CHECKPOINTED | {"execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION"},
            True,
            True,
            id="checkpoints that stay",
        ),
    ],
)
def test_a_job_shares_the_secret_if_somebody_else_may_read_its_state(
    options: dict[str, str], is_shared: bool, is_needed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs with one secret can read the savepoints of jobs that ran in each other's own clusters.

    Only a job whose state stays is refused without a home: any other job might take a savepoint, which no program
    could read.
    """
    environment = unstarted(options)
    environment.from_collection([1]).print()
    graph = translate(graph_of(environment.execute))
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "secret"))
    secret = embedded_target(graph, in_process=True).checkpoint_secret
    assert secret == (load_secret() if is_shared else None)

    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("FLOWLET_SECRET_FILE", str(tmp_path / "file" / "secret"))
    if is_needed:
        with pytest.raises(ConfigError, match="secret"):
            embedded_target(graph, in_process=True)
    else:
        assert embedded_target(graph, in_process=True).checkpoint_secret is None
