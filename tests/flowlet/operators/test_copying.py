"""Source: Flink ``StreamOperatorChainingTest`` with and without object reuse, ``CopyingChainingOutput``."""

import threading
from typing import Any

import pytest

from flowlet.columns import Columns, ConstantColumn, ListColumn, Shape
from flowlet.common.types import Row
from flowlet.errors import FlowletError
from flowlet.operators.base import OperatorContext, StreamOperator
from flowlet.operators.chain import ChainedOperator, OperatorChain
from flowlet.operators.copying import copy_chunk, copy_values
from flowlet.operators.outputs import BroadcastingOutput, ChainingOutput, CopyingBroadcastingOutput, CopyingChainingOutput, OperatorOutput
from flowlet.operators.sinks import DiscardSink
from flowlet.operators.transform import MapOperator
from flowlet.records import Chunk, LatencyMarker, Watermark
from tests.flowlet.operators.harness import RecordingOutput


@pytest.mark.parametrize("values", [["a", "b"], [1, 2.5, None], [("a", 1), ("b", 2)], [b"x"]])
def test_records_that_cannot_change_are_shared(values: list[Any]) -> None:
    copied = copy_values(values)

    assert copied == values
    assert copied is not values
    assert all(copy is value for copy, value in zip(copied, values, strict=True))


@pytest.mark.parametrize("value", [[1], {"a": [1]}, (1, [2]), {1}])
def test_other_records_are_copied_to_the_bottom(value: Any) -> None:
    copied = copy_values(["first", value])[1]

    assert copied == value
    assert copied is not value


def test_a_list_inside_a_tuple_is_copied_too() -> None:
    inner = [1]

    copied = copy_chunk(Chunk([("a", inner)], [7]))
    inner.append(2)

    assert copied == Chunk([("a", [1])], [7])


def test_rows_made_of_columns_are_made_again_instead_of_copied() -> None:
    """Whoever changes one, changes nobody else's."""
    columns = Columns(2, (ListColumn(["a", "b"], str), ListColumn([1, None])), Shape.ROW, ("name", "number"))
    chunk = Chunk.of_columns(columns, [7, 8])

    copied = copy_chunk(chunk)
    copied.values[0]["name"] = "changed"

    assert chunk.values == [Row(name="a", number=1), Row(name="b", number=None)]
    assert copied.values[1] == Row(name="b", number=None)
    assert copied.timestamps == [7, 8]
    assert copied.columns is columns


def test_rows_of_columns_that_can_change_are_copied_to_the_bottom() -> None:
    inner = [1]

    copied = copy_chunk(Chunk.of_columns(Columns(1, (ListColumn([inner]),), Shape.ROW, ("list",))))
    inner.append(2)

    assert copied.values == [Row(list=[1])]


def test_a_record_that_cannot_be_copied_is_shown_with_a_way_out() -> None:
    with pytest.raises(FlowletError, match=r"cannot be copied .* or call .*enable_object_reuse"):
        copy_values([threading.Lock()])


def test_columns_that_cannot_change_are_shared() -> None:
    """Nobody changes the records of a chunk with columns, unless these can be changed themselves."""
    shared = Chunk.of_columns(Columns(2, (ListColumn(["a", "b"], str), ConstantColumn(1, 2)), Shape.TUPLE))
    copied = Chunk.of_columns(Columns(1, (ListColumn([[1]]),), Shape.SCALAR))

    assert copy_chunk(shared) is shared
    assert copy_chunk(copied).values[0] is not copied.values[0]


class Keeping(StreamOperator):
    """Passes records on, and keeps them."""

    def __init__(self) -> None:
        self.name = "keeping"
        self.kept: list[Any] = []

    def process_chunk(self, chunk: Chunk) -> None:
        self.kept += chunk.values
        self.output.collect(chunk)


def spoil(record: list[int]) -> list[int]:
    record.append(0)
    return record


def chain(*, copies: bool) -> tuple[OperatorChain, Keeping, RecordingOutput]:
    """A head that keeps its records before two branches that spoil them."""
    head, output = Keeping(), RecordingOutput()
    items = [ChainedOperator(head), *(ChainedOperator(MapOperator(spoil), 0, copies=copies) for _ in range(2))]
    made = OperatorChain(items, {(1, None): [output]}, lambda index, name: OperatorContext("task", 0, 1, 128, name, chain_index=index))
    made.open()
    return made, head, output


@pytest.mark.parametrize(("copies", "kept", "out"), [(True, [[1]], [[1, 0]]), (False, [[1, 0, 0]], [[1, 0, 0]])])
def test_what_a_function_does_to_a_record_stays_with_it_unless_objects_are_reused(
    copies: bool,
    kept: list[Any],
    out: list[Any],
) -> None:
    made, head, output = chain(copies=copies)

    made.process_chunk(Chunk([[1]]))

    assert head.kept == kept
    assert output.values == out


def test_engine_operators_that_leave_records_alone_get_no_copies() -> None:
    items = [ChainedOperator(MapOperator(list)), ChainedOperator(DiscardSink(), 0, copies=True), ChainedOperator(Keeping(), 0, copies=True)]

    made = OperatorChain(items, {}, lambda index, name: OperatorContext("task", 0, 1, 128, name))

    assert [type(made._way_into(child)) for child in (1, 2)] == [ChainingOutput, CopyingChainingOutput]


def test_a_side_output_sees_only_its_own_records() -> None:
    main, side, output = RecordingOutput(), RecordingOutput(), OperatorContext("task", 0, 1, 128, "x")
    made = OperatorOutput([main], {"late": [side]}, output.counters)

    made.collect(Chunk([1]))
    made.collect_side("late", Chunk([2]))
    made.collect_side("nobody reads it", Chunk([3]))
    made.emit_watermark(Watermark(5))

    assert main.elements == [Chunk([1]), Watermark(5)]
    assert side.elements == [Chunk([2]), Watermark(5)]
    assert output.counters.num_records_out == 2
    assert made.current_watermark == 5


def test_a_latency_marker_goes_to_one_consumer() -> None:
    consumers = [RecordingOutput() for _ in range(3)]
    made = OperatorOutput(consumers[:2], {"late": consumers[2:]}, OperatorContext("task", 0, 1, 128, "x").counters)
    marker = LatencyMarker(1, bytes(16), 0)

    made.emit_latency_marker(marker)

    assert [element for consumer in consumers for element in consumer.elements] == [marker]


def test_the_copying_twin_gives_each_output_a_chunk_of_its_own_and_the_last_one_the_original() -> None:
    chunk, outputs = Chunk([[1]], [5]), [RecordingOutput() for _ in range(3)]

    CopyingBroadcastingOutput(outputs).collect(chunk)

    received = [output.chunks[0] for output in outputs]
    assert received == [chunk, chunk, chunk]
    assert received[2] is chunk
    assert received[0].values is not chunk.values
    assert received[0].values[0] is chunk.values[0]


def test_the_plain_one_gives_the_same_chunk_to_all_and_may_have_no_output() -> None:
    chunk, outputs = Chunk([1]), [RecordingOutput() for _ in range(2)]

    BroadcastingOutput(outputs).collect(chunk)
    BroadcastingOutput([]).collect(chunk)
    BroadcastingOutput([]).emit_latency_marker(LatencyMarker(1, bytes(16), 0))

    assert all(output.chunks[0] is chunk for output in outputs)
