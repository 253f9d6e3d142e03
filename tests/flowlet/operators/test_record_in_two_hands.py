"""A chunking output keeps the very record that a chained operator behind it in the order of consumers is given, and may
change.
"""

from typing import Any

from flowlet.chain.operator_chain import ChainedOperator, OperatorChain
from flowlet.chain.stream_operator import OperatorContext, StreamOperator
from flowlet.operators.process_operator import MapOperator
from flowlet.records import Chunk
from tests.flowlet.operators.harness import RecordingOutput


class Collects(StreamOperator):
    """Takes chunks, as a declared reduction or ``sum`` behind a ``key_by`` does, or the sink of Parquet files."""

    name = "collects"
    takes_chunks = True

    def __init__(self) -> None:
        self.values: list[Any] = []

    def process_chunk(self, chunk: Chunk) -> None:
        self.values += chunk.values


def context(index: int, name: str) -> OperatorContext:
    return OperatorContext("task", 0, 1, 128, name, chain_index=index)


def change(record: dict[str, Any]) -> dict[str, Any]:
    record["value"] = -1
    return record


def test_a_record_that_waits_for_one_consumer_is_not_changed_by_another() -> None:
    """``stream.key_by(...).sum(...)`` first, then ``stream.map(change)``; the other order is right."""
    collects, output = Collects(), RecordingOutput()
    chained = [
        ChainedOperator(MapOperator(lambda number: {"value": number})),
        ChainedOperator(collects, 0),
        ChainedOperator(MapOperator(change), 0),
    ]
    chain = OperatorChain(chained, {(2, None): [output]}, context)
    chain.open()

    for start in (0, 40):
        chain.process_chunk(Chunk(list(range(start, start + 40))))

    assert collects.values == [{"value": number} for number in range(80)]
