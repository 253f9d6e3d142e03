"""The author of a job with checkpoints hears which of its sources cannot go on where one was taken."""

from structlog.testing import capture_logs

from flowlet.client.source_positions import sources_without_position, warn_of_sources_without_position
from flowlet.common import WatermarkStrategy
from flowlet.common.checkpoint_settings import CheckpointSettings
from flowlet.common.job_settings import JobSettings
from flowlet.datastream import DataStream, SourceContext, SourceFunction, StreamExecutionEnvironment
from flowlet.datastream.connectors import FileSource, StreamFormat
from flowlet.graph.stream_graph import StreamGraph, StreamGraphSettings, build_stream_graph


class Pushed(SourceFunction):
    def run(self, ctx: SourceContext) -> None:
        pass


class Replayed(Pushed):
    def restore_position(self, position: object) -> None:
        pass


def graph_of(*streams: DataStream, checkpoints: CheckpointSettings | None = None) -> StreamGraph:
    first, *others = streams
    end = first.union(*others).print()
    return build_stream_graph([end._transformation], "job", StreamGraphSettings(job=JobSettings(checkpoints=checkpoints)))


def all_sources(environment: StreamExecutionEnvironment) -> list[DataStream]:
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "a").build()
    return [
        environment.from_collection([1]),
        environment.from_source(lines, WatermarkStrategy.no_watermarks(), "lines"),
        environment.add_source(Replayed(), "replayed"),
        environment.add_source(Pushed(), "pushed"),
        environment.from_remote_gate("gate", allow_pickle=True),
    ]


def test_sources_that_keep_no_position_are_named_with_what_follows() -> None:
    found = dict(sources_without_position(graph_of(*all_sources(StreamExecutionEnvironment()))))

    assert list(found) == ["Source: pushed", "Source: Gate gate"]
    assert "restore_position()" in found["Source: pushed"]
    assert "lost" in found["Source: Gate gate"]


def test_a_warning_is_logged_for_each_if_checkpoints_are_taken() -> None:
    environment = StreamExecutionEnvironment()

    with capture_logs() as logs:
        warn_of_sources_without_position(graph_of(environment.add_source(Pushed(), "pushed")))
        assert logs == []
        warn_of_sources_without_position(graph_of(environment.add_source(Pushed(), "pushed"), checkpoints=CheckpointSettings(1000, "/d")))

    assert [(line["log_level"], line["source"], line["job"]) for line in logs] == [("warning", "Source: pushed", "job")]
