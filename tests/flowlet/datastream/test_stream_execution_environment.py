"""Promises of ``StreamExecutionEnvironment``."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from flowlet.client.running_job import RunningJob
from flowlet.common import Duration, Row, Types, WatermarkStrategy
from flowlet.common.configuration import Configuration
from flowlet.common.execution_config import EnvironmentSettings
from flowlet.common.job_client import SubmittedJob
from flowlet.common.option import view_of
from flowlet.common.options.client_options import ClientHeartbeat
from flowlet.datastream import CloseableIterator, RuntimeExecutionMode, SlotSharingGroup, StreamExecutionEnvironment
from flowlet.datastream.connectors import FileSource, Source, StreamFormat
from flowlet.errors import ConfigError, JobExecutionError, JobGraphError, JobSubmissionError
from flowlet.graph.stream_graph import StreamGraph
from flowlet.graph.transformation import SourceTransformation
from tests.flowlet.datastream.scripted_job import JOB_ID, RESULT, ScriptedJob

CORES = len(os.sched_getaffinity(0))
NO_WATERMARKS = WatermarkStrategy.no_watermarks()


@dataclass
class ScriptedCluster:
    """Takes every graph, and gives out the one job."""

    job: ScriptedJob = field(default_factory=ScriptedJob)
    refusal: Exception | None = None
    graphs: list[StreamGraph] = field(default_factory=list)
    targets: list[tuple[tuple[str, int] | None, bool]] = field(default_factory=list)

    def __call__(
        self,
        stream_graph: StreamGraph,
        address: tuple[str, int] | None,
        in_process: bool,
        keep: Callable[[RunningJob], None],
    ) -> SubmittedJob:
        if self.refusal is not None:
            raise self.refusal
        self.graphs.append(stream_graph)
        self.targets.append((address, in_process))
        external = tuple("edge" for edge in stream_graph.edges if edge.target is None)
        job = cast("RunningJob", self.job)
        keep(job)
        return SubmittedJob(job, external)


class Generator(Source):
    """A source of one's own."""

    def __init__(self, *, is_bounded: bool = True) -> None:
        self.is_bounded = is_bounded

    def create_reader(self, subtask: int, parallelism: int) -> object:
        raise AssertionError("only a task makes readers")


@pytest.fixture(autouse=True)
def _no_cluster_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLOWLET_JOBMANAGER", raising=False)
    monkeypatch.delenv("FLOWLET_LOCAL", raising=False)


@pytest.fixture
def cluster() -> ScriptedCluster:
    return ScriptedCluster()


@pytest.fixture
def environment(cluster: ScriptedCluster) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment(submit=cluster)


@pytest.fixture
def program(environment: StreamExecutionEnvironment) -> StreamExecutionEnvironment:
    """An environment whose program prints a number."""
    environment.from_collection([1]).print()
    return environment


def file_source() -> FileSource:
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a.txt").build()


def test_defaults_are_flinks() -> None:
    environment = StreamExecutionEnvironment.get_execution_environment()

    assert environment.get_parallelism() == environment.get_default_local_parallelism() == CORES
    assert environment.get_max_parallelism() == -1
    assert environment.get_buffer_timeout() == 100
    assert environment.is_chaining_enabled()


def test_settings_are_kept_and_return_the_environment() -> None:
    environment = StreamExecutionEnvironment()

    changed = environment.set_parallelism(3).set_max_parallelism(5).set_buffer_timeout(0).disable_operator_chaining()

    assert changed is environment
    assert environment.register_slot_sharing_group(SlotSharingGroup("x")) is environment
    assert environment.get_parallelism() == 3
    assert environment.get_max_parallelism() == 5
    assert environment.get_buffer_timeout() == 0
    assert environment.get_config().get_parallelism() == 3
    assert not environment.is_chaining_enabled()


def test_a_job_is_attached_as_its_start_and_the_options_say(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment
) -> None:
    """A job whose results are read needs its reader; ``execute`` waits, ``execute_async`` does not."""
    stream = environment.from_collection([1])

    assert stream.execute_and_collect(limit=1) == []
    stream.print()
    environment.execute()
    environment.configure(
        Configuration.from_dict({"execution.shutdown-on-attached-exit": "true", "client.heartbeat.timeout": "900"})
    )
    stream.print()
    environment.execute()
    stream.print()
    environment.execute_async()

    heartbeats = [graph.settings.client_heartbeat for graph in cluster.graphs]
    assert heartbeats == [ClientHeartbeat(10_000, 60_000), None, ClientHeartbeat(150, 900), None]


def test_options_are_settings(cluster: ScriptedCluster) -> None:
    configuration = Configuration.from_dict(
        {
            "parallelism.default": "3",
            "pipeline.max-parallelism": "9",
            "pipeline.name": "counting",
            "pipeline.operator-chaining": "false",
            "execution.buffer-timeout": "-1",
            "execution.runtime-mode": "batch",
        }
    )
    environment = StreamExecutionEnvironment(configuration, cluster)
    environment.from_source(file_source(), NO_WATERMARKS, "lines").print()

    environment.execute()

    (graph,) = cluster.graphs
    assert (graph.name, graph.is_batch, graph.settings.environment.is_chaining_enabled) == ("counting", True, False)
    assert {(node.parallelism, node.max_parallelism, node.buffer_timeout_ms) for node in graph.nodes.values()} == {
        (3, 9, -1)
    }


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("parallelism.default", "many", "option 'parallelism.default' is 'many'"),
        ("execution.runtime-mode", "fast", "is 'fast', which is not one of streaming, batch, automatic"),
        ("pipeline.operator-chaining", "maybe", "not true or false"),
        ("execution.buffer-timeout.interval", "100 lightyears", "not a duration such as '100 ms', or -1"),
    ],
)
def test_a_bad_option_is_refused_by_its_name(option: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({option: value}))


BAD_SETTINGS: list[tuple[Callable[[StreamExecutionEnvironment], object], str]] = [
    (lambda env: env.set_parallelism(0), "the environment's parallelism"),
    (lambda env: env.set_max_parallelism(0), "the environment's max parallelism"),
    (lambda env: env.set_buffer_timeout(-2), r"buffer timeout must be -1 \(no limit\)"),
    (lambda env: env.set_runtime_mode("BATCH"), ("needs a RuntimeExecutionMode, got 'BATCH'")),  # type: ignore[arg-type]  # refused at run time
    (lambda env: env.register_slot_sharing_group("x"), ("needs a SlotSharingGroup, got 'x'")),  # type: ignore[arg-type]  # as above
]


@pytest.mark.parametrize(("change", "message"), BAD_SETTINGS)
def test_bad_settings_are_refused(change: Callable[[StreamExecutionEnvironment], object], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        change(StreamExecutionEnvironment())


def test_a_changed_parallelism_counts_for_later_operators(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment
) -> None:
    environment.set_parallelism(2)
    mapped = environment.from_source(file_source(), NO_WATERMARKS, "lines").map(str)

    environment.set_parallelism(4)
    mapped.map(str)
    environment.execute()

    assert [node.parallelism for node in cluster.graphs[0].nodes.values()] == [2, 2, 4]


def test_a_collection_becomes_a_source_of_one_subtask(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment
) -> None:
    environment.set_parallelism(2)
    elements = [1, 2]

    stream = environment.from_collection(elements)
    elements.append(3)
    stream.print()
    environment.execute()

    node = cluster.graphs[0].nodes[1]
    assert (node.name, node.parallelism) == ("Source: Collection Source", 1)
    assert isinstance(node.transformation, SourceTransformation)
    assert node.transformation.source == [1, 2]


def test_a_declared_type_shapes_the_elements(cluster: ScriptedCluster, environment: StreamExecutionEnvironment) -> None:
    type_info = Types.ROW_NAMED(["name", "age"], [Types.STRING(), Types.INT()])

    stream = environment.from_collection((("Alice", 11), {"name": "Bob", "age": 12}), type_info)
    stream.print()
    environment.execute()

    assert stream.get_type() == type_info
    source = cluster.graphs[0].nodes[1].transformation
    assert isinstance(source, SourceTransformation)
    assert source.source == [Row(name="Alice", age=11), Row(name="Bob", age=12)]


@pytest.mark.parametrize(
    ("collection", "type_info", "message"),
    [
        ("text", None, "needs a list of elements, got 'text' of type str"),
        (b"text", None, "of type bytes"),
        (7, None, "got 7 of type int"),
        ([1], int, "needs type information such as"),
        ([1, "x"], Types.INT(), r"from_collection\(\): element 1 is not a Integer: 'x' is of type str"),
    ],
)
def test_a_bad_collection_is_refused(collection: Any, type_info: Any, message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        StreamExecutionEnvironment().from_collection(collection, type_info)


def test_a_source_has_the_environments_parallelism_and_its_own_name(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment
) -> None:
    environment.set_parallelism(3)
    source = Generator()

    stream = environment.from_source(source, NO_WATERMARKS, "numbers", Types.INT())
    stream.print()
    environment.execute()

    node = cluster.graphs[0].nodes[1]
    assert stream.get_type() == Types.INT()
    assert (node.name, node.parallelism) == ("Source: numbers", 3)
    assert isinstance(node.transformation, SourceTransformation)
    assert node.transformation.source is source


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((7, NO_WATERMARKS, "x"), "needs a source such as FileSource, got 7 of type int"),
        ((Source(), NO_WATERMARKS, "x"), "needs a source such as FileSource"),
        ((Generator(), None, "x"), "needs a WatermarkStrategy such as"),
        ((Generator(), NO_WATERMARKS, ""), "needs a name that is not empty"),
        ((Generator(), NO_WATERMARKS, "x", int), "needs type information"),
    ],
)
def test_a_bad_source_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        StreamExecutionEnvironment().from_source(*arguments)


def test_a_source_takes_every_strategy() -> None:
    environment = StreamExecutionEnvironment()
    monotonous = WatermarkStrategy.for_monotonous_timestamps()

    second = Duration.of_seconds(1)
    others = [monotonous.with_idleness(second), monotonous.with_watermark_alignment("group", second)]
    for strategy in (monotonous, *others):
        for source in (file_source(), Generator()):
            stream = environment.from_source(source, strategy, "numbers")
            step = stream._transformation
            assert isinstance(step, SourceTransformation)
            # Lines of text have no timestamps that the operator could follow.
            is_followed = strategy is not monotonous or isinstance(source, Generator)
            assert step.factory.arguments["strategy"] is (strategy if is_followed else None)


@pytest.mark.parametrize("mode", [RuntimeExecutionMode.STREAMING, RuntimeExecutionMode.AUTOMATIC])
def test_unbounded_sources_give_running_results(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment, mode: RuntimeExecutionMode
) -> None:
    environment.set_runtime_mode(mode)
    environment.from_source(Generator(is_bounded=False), NO_WATERMARKS, "numbers").print()

    environment.execute()

    assert not cluster.graphs[0].is_batch


def test_the_option_knows_every_mode() -> None:
    for mode in RuntimeExecutionMode:
        options = Configuration.from_dict({"execution.runtime-mode": mode.value})
        assert view_of(EnvironmentSettings, options).runtime_mode == mode.value


def test_execute_waits_and_gives_everything_back_once(
    cluster: ScriptedCluster, program: StreamExecutionEnvironment
) -> None:
    """Afterwards the environment is empty."""
    result = program.execute("my job")

    assert result is RESULT
    assert cluster.graphs[0].name == "my job"
    assert cluster.job.calls == ["wait", "close"]
    program.close()
    assert cluster.job.calls == ["wait", "close"]
    with pytest.raises(JobGraphError, match="has no operators"):
        program.execute()


@pytest.mark.parametrize(
    ("failure", "calls"),
    [
        (JobExecutionError("boom"), ["wait", "close"]),
        (KeyboardInterrupt(), ["wait", "cancel after interrupt", "close"]),
    ],
    ids=["a failure", "an interrupt, which cancels the job"],
)
def test_a_job_that_ends_otherwise_gives_everything_back_too(
    cluster: ScriptedCluster, program: StreamExecutionEnvironment, failure: BaseException, calls: list[str]
) -> None:
    cluster.job.failure = failure

    with pytest.raises(type(failure)) as caught:
        program.execute()

    assert caught.value is failure
    assert cluster.job.calls == calls


def test_a_source_alone_is_no_job(environment: StreamExecutionEnvironment) -> None:
    environment.from_collection([1]).rebalance()

    with pytest.raises(JobGraphError, match="job 'Flink Streaming Job' has no operators"):
        environment.execute()


@pytest.mark.parametrize("collects", [False, True], ids=["execute", "execute_and_collect"])
def test_a_job_that_could_not_be_started_can_be_tried_again(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment, *, collects: bool
) -> None:
    stream = environment.from_collection([1])
    if not collects:
        stream.print()

    def start() -> object:
        return list(stream.execute_and_collect()) if collects else environment.execute()

    cluster.refusal = JobSubmissionError("nobody there")

    with pytest.raises(JobSubmissionError, match="nobody there"):
        start()
    cluster.refusal = None
    start()

    assert [edge.target for edge in cluster.graphs[0].edges] == ([None] if collects else [2])


def test_execute_async_returns_at_once_and_close_gives_back_what_nobody_waited_for(
    cluster: ScriptedCluster, program: StreamExecutionEnvironment
) -> None:
    client = program.execute_async()
    assert cluster.job.calls == []
    program.close()

    assert str(client.get_job_id()) == JOB_ID
    assert cluster.graphs[0].name == "Flink Streaming Job"
    assert cluster.job.calls == ["close"]


def test_a_result_may_be_asked_for_twice_and_leaves_nothing_to_close(
    cluster: ScriptedCluster, program: StreamExecutionEnvironment
) -> None:
    future = program.execute_async("later").get_job_execution_result()

    first = future.result()
    program.close()
    assert cluster.job.calls == ["wait", "close"]
    assert future.result() is first is RESULT


def test_records_are_collected_to_their_end(cluster: ScriptedCluster, environment: StreamExecutionEnvironment) -> None:
    cluster.job.values = (1, 2, 3)

    values = environment.from_collection([1]).map(abs).execute_and_collect("collecting")

    assert isinstance(values, CloseableIterator)
    with values:
        assert list(values) == [1, 2, 3]
    assert cluster.graphs[0].name == "collecting"
    assert cluster.job.calls == ["collect edge", "wait", "close"]


def test_a_source_can_be_collected_and_so_can_a_keyed_stream(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment
) -> None:
    cluster.job.values = (1,)
    stream = environment.from_collection([1])

    assert list(stream.execute_and_collect()) == [1]
    assert list(stream.key_by(abs).execute_and_collect()) == [1]

    assert [len(graph.nodes) for graph in cluster.graphs] == [1, 2]  # the second one makes rows of key and record


@pytest.mark.parametrize(
    ("limit", "values", "end"),
    [(2, [1, 2], "cancel"), (4, [1, 2, 3], "wait")],
    ids=["the rest is cancelled", "fewer records are all of them"],
)
def test_a_limit_gives_a_list(
    cluster: ScriptedCluster, environment: StreamExecutionEnvironment, limit: int, values: list[int], end: str
) -> None:
    cluster.job.values = (1, 2, 3)

    assert environment.from_collection([1]).execute_and_collect(limit=limit) == values
    assert cluster.job.calls == ["collect edge", end, "close"]


def test_the_plan_shows_the_operators_and_keeps_them(environment: StreamExecutionEnvironment) -> None:
    environment.from_collection([1]).map(abs).print()

    plan = json.loads(environment.get_execution_plan())

    assert [node["type"] for node in plan["nodes"]] == ["Source: Collection Source", "Map", "Sink: Print to Std. Out"]
    environment.execute()


def test_jobs_go_where_options_and_variables_say(cluster: ScriptedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(configuration: Configuration | None = None) -> None:
        environment = StreamExecutionEnvironment(configuration, cluster)
        environment.from_collection([1]).print()
        environment.execute()

    run()
    run(Configuration.from_dict({"rest.address": "here", "rest.port": "1"}))
    monkeypatch.setenv("FLOWLET_LOCAL", "inprocess")
    run()
    monkeypatch.setenv("FLOWLET_JOBMANAGER", "there:2")
    run()

    assert cluster.targets == [(None, False), (("here", 1), False), (None, True), (("there", 2), True)]


def test_on_a_remote_cluster_the_default_parallelism_is_one() -> None:
    environment = StreamExecutionEnvironment(Configuration.from_dict({"flowlet.jobmanager": "here:1"}))

    assert environment.get_parallelism() == 1
    assert environment.set_parallelism(4).get_parallelism() == 4


@pytest.mark.parametrize("method", ["add_jars", "create_input", "read_text_file"])
def test_what_this_version_cannot_do_is_absent(method: str) -> None:
    assert not hasattr(StreamExecutionEnvironment(), method)
