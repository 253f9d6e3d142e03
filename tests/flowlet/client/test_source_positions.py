"""The author of a job with checkpoints hears which of its sources cannot go on where one was taken."""

import contextlib
from collections.abc import Callable
from typing import Any

from structlog.testing import capture_logs

from flowlet.client.translate import sources_without_position, warn_of_sources_without_position
from flowlet.common import WatermarkStrategy
from flowlet.datastream import DataStream, SourceContext, SourceFunction, StreamExecutionEnvironment
from flowlet.datastream.connectors import FileSource, StreamFormat
from flowlet.graph.stream_graph import StreamGraph


class Pushed(SourceFunction):
    def run(self, ctx: SourceContext) -> None:
        pass


class Replayed(Pushed):
    def restore_position(self, position: object) -> None:
        pass


class Seen(Exception):
    """The job was seen."""


def graph_of(
    add: Callable[[StreamExecutionEnvironment], list[DataStream]], *, interval_ms: int | None = None
) -> StreamGraph:
    """Return the graph of the job that prints all these streams."""
    found: list[StreamGraph] = []

    def submit(stream_graph: StreamGraph, *_: object) -> Any:
        found.append(stream_graph)
        raise Seen

    environment = StreamExecutionEnvironment(submit=submit)
    if interval_ms is not None:
        environment.enable_checkpointing(interval_ms)
    first, *others = add(environment)
    first.union(*others).print()
    with contextlib.suppress(Seen):
        environment.execute("job")
    return found[0]


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
    found = dict(sources_without_position(graph_of(all_sources)))

    assert list(found) == ["Source: pushed", "Source: Gate gate"]  # without checkpoints no write waits for one
    assert "restore_position()" in found["Source: pushed"]
    assert "lost" in found["Source: Gate gate"]


def test_a_gate_whose_writes_wait_for_checkpoints_loses_nothing() -> None:
    found = dict(sources_without_position(graph_of(all_sources, interval_ms=1000)))

    assert list(found) == ["Source: pushed"]


def test_a_warning_is_logged_for_each_if_checkpoints_are_taken() -> None:
    with capture_logs() as logs:
        warn_of_sources_without_position(graph_of(all_sources))
        assert logs == []
        warn_of_sources_without_position(graph_of(all_sources, interval_ms=1000))

    seen = [(line["log_level"], line["source"], line["job"]) for line in logs]
    assert seen == [("warning", "Source: pushed", "job")]
