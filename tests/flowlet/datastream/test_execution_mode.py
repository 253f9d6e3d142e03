"""Promises of ``RuntimeExecutionMode``."""

from flowlet.datastream import RuntimeExecutionMode
from flowlet.graph.stream_graph import RUNTIME_MODES


def test_the_graph_knows_every_mode() -> None:
    assert tuple(mode.value for mode in RuntimeExecutionMode) == RUNTIME_MODES
