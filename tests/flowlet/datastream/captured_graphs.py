"""Programs whose graph is looked at, and whose job never runs."""

from collections.abc import Callable

import pytest

from flowlet.common.job_client import SubmittedJob
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import FlowletError
from flowlet.graph.stream_graph import StreamGraph


class NotStartedError(FlowletError):
    """Raised instead of running a job."""


class Captured:
    """Takes graphs and starts nothing."""

    def __init__(self) -> None:
        self.graphs: list[StreamGraph] = []

    def __call__(self, stream_graph: StreamGraph, *_: object) -> SubmittedJob:
        self.graphs.append(stream_graph)
        raise NotStartedError


def new_environment(parallelism: int = 2) -> tuple[StreamExecutionEnvironment, Callable[[], StreamGraph]]:
    """Return an environment, and what executes its program and returns the graph."""
    captured = Captured()
    environment = StreamExecutionEnvironment(submit=captured).set_parallelism(parallelism)

    def graph() -> StreamGraph:
        with pytest.raises(NotStartedError):
            environment.execute()
        return captured.graphs[-1]

    return environment, graph
