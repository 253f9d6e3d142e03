"""Source: Flink ``AbstractStreamOperatorV2``'s handling of watermarks, ``IndexedCombinedWatermarkStatusTest``."""

from typing import Any

import pytest

from flowlet.chain.stream_operator import MultipleInputStreamOperator
from flowlet.records import ACTIVE, IDLE, MAX_TIMESTAMP, Chunk, LatencyMarker, Watermark
from tests.flowlet.operators.harness import Harness


class Tagging(MultipleInputStreamOperator):
    num_inputs = 2

    def __init__(self) -> None:
        self.name = "tagging"

    def process_input_chunk(self, input_id: int, chunk: Chunk) -> None:
        self.output.collect(Chunk([(input_id, value) for value in chunk.values], chunk.timestamps))


def run(*steps: tuple[int, Any]) -> list[object]:
    """Return the elements that come out when watermarks (ints) and statuses go into the inputs named."""
    harness = Harness(Tagging())
    inputs = harness.operator.inputs()
    for number, step in steps:
        inputs[number - 1].process_control(Watermark(step) if isinstance(step, int) else step)
    return [element.timestamp if isinstance(element, Watermark) else element for element in harness.output.elements]


def test_each_input_has_its_own_way_in() -> None:
    harness = Harness(Tagging())
    first, second = harness.operator.inputs()

    first.process_chunk(Chunk(["a"]))
    second.process_chunk(Chunk(["b"], [7]))

    assert harness.output.values == [(1, "a"), (2, "b")]
    assert harness.output.timestamps == [None, 7]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        pytest.param([(1, 5)], [], id="one of two"),
        pytest.param([(1, 5), (2, 3)], [3], id="the smaller one"),
        pytest.param([(1, 5), (2, 3), (2, 9)], [3, 5], id="the other one holds back"),
        pytest.param([(1, 5), (2, 5), (1, 4), (2, 4)], [5], id="never back"),
        pytest.param([(1, 5), (2, IDLE)], [5], id="an idle input does not hold back"),
        pytest.param([(1, IDLE), (2, IDLE)], [IDLE], id="idle when both are"),
        pytest.param([(1, IDLE), (2, IDLE), (1, ACTIVE), (1, IDLE)], [IDLE, ACTIVE, IDLE], id="said once each"),
        pytest.param([(1, IDLE), (2, IDLE), (2, ACTIVE), (2, 4)], [IDLE, ACTIVE, 4], id="active again"),
        pytest.param(
            [(1, 5), (2, 3), (2, IDLE), (2, ACTIVE), (2, 4), (2, 6), (1, 7)], [3, 5, 6], id="behind after idleness"
        ),
        pytest.param(
            [(1, 5), (1, MAX_TIMESTAMP), (2, 3), (2, IDLE)], [3, IDLE], id="finished beside idle: not to infinity"
        ),
        pytest.param(
            [(2, 3), (2, IDLE), (1, 5), (1, MAX_TIMESTAMP)], [5, IDLE], id="finished after idle: not to infinity"
        ),
        pytest.param(
            [(1, MAX_TIMESTAMP), (2, IDLE), (2, ACTIVE), (2, 4)], [IDLE, ACTIVE, 4], id="the other one goes on alone"
        ),
        pytest.param([(1, MAX_TIMESTAMP), (2, MAX_TIMESTAMP)], [MAX_TIMESTAMP], id="the end of both"),
    ],
)
def test_watermarks_and_statuses_of_both_inputs_become_one(
    steps: list[tuple[int, Any]], expected: list[object]
) -> None:
    assert run(*steps) == expected


def test_markers_pass_through() -> None:
    harness = Harness(Tagging())
    marker = LatencyMarker(1, bytes(16), 0)

    harness.operator.inputs()[1].process_control(marker)

    assert harness.output.elements == [marker]
