import pytest

from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.records import ACTIVE, Chunk, Watermark
from tests.flowlet.operators.harness import Harness


class Minimal(StreamOperator):
    """A hand-written operator with no more than it needs: a name."""

    name = "minimal"


def test_an_operator_needs_a_name_only() -> None:
    harness = Harness(Minimal())

    harness.operator.process_watermark(Watermark(1))
    harness.operator.process_watermark_status(ACTIVE)
    harness.operator.finish()
    harness.operator.close()

    assert harness.output.elements == [Watermark(1), ACTIVE]
    assert repr(harness.operator) == "<Minimal 'minimal'>"


def test_an_operator_without_process_chunk_takes_no_input() -> None:
    with pytest.raises(TypeError, match="Minimal, takes no input"):
        Minimal().process_chunk(Chunk([1]))


def test_every_context_has_counters_of_its_own() -> None:
    first, second = (OperatorContext("task", 0, 1, 128, "map") for _ in range(2))

    first.counters.num_records_in += 1

    assert second.counters.num_records_in == 0
