"""The graph of a program, taken where its job would start."""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common import Configuration
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.graph.stream_graph import StreamGraph


class _NotStartedError(Exception):
    """Carries the graph out of ``execute``."""

    def __init__(self, graph: StreamGraph, *_: object) -> None:
        super().__init__()
        self.graph = graph


def _submit(*arguments: Any) -> Any:
    raise _NotStartedError(*arguments)


def unstarted(options: dict[str, str] | None = None) -> StreamExecutionEnvironment:
    """Return an environment that starts no job."""
    return StreamExecutionEnvironment(Configuration.from_dict(options or {}), submit=_submit)


def graph_of(run: Callable[[], object]) -> StreamGraph:
    """Return what ``run`` would start, such as ``execute`` of an environment that starts no job."""
    with pytest.raises(_NotStartedError) as caught:
        run()
    return caught.value.graph
