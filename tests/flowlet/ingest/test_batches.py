"""Record batches as records of a gate: in columns, in the gate's shape, exactly the values of the batch."""

import datetime
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from flowlet.columns import ArrayColumn, ArrowColumn, Columns
from flowlet.columns.arrow_batches import column_of_array
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row
from flowlet.ingest import GateClient, GateTypeError, PartitionOffer
from flowlet.serde.pickles import program_pickle
from flowlet.types.gate_forms import shaped
from tests.flowlet.ingest.conftest import GateCluster, collecting, running_gate
from tests.waiting import PATIENCE_S

NOON = datetime.datetime(2024, 7, 1, 12)  # noqa: DTZ001 - a time on the wall
PAIRS = pa.record_batch([pa.array([1, 2]), pa.array(["a", None])], names=["number", "text"])
PAIR = [Types.LONG(), Types.STRING()]


def columns_of_batch(batch: pa.RecordBatch, type_info: TypeInformation) -> Columns:
    return shaped(list(map(column_of_array, batch.columns)), type_info)


@pytest.mark.parametrize(
    ("type_info", "records"),
    [
        (Types.ROW_NAMED(["n", "t"], PAIR), [Row(n=1, t="a"), Row(n=2, t=None)]),
        (Types.TUPLE(PAIR), [(1, "a"), (2, None)]),
        (Types.PICKLED_BYTE_ARRAY(), [(1, "a"), (2, None)]),
    ],
    ids=["row", "tuple", "anything"],
)
def test_rows_of_a_batch_have_the_shape_of_the_type(type_info: TypeInformation, records: list[Any]) -> None:
    values = columns_of_batch(PAIRS, type_info).to_list()

    assert values == records
    assert [type(value) for value in values] == [type(record) for record in records]


def test_the_only_column_of_a_gate_of_single_values_is_its_records() -> None:
    texts = pa.record_batch({"value": ["a", "b"]})

    assert columns_of_batch(texts, Types.STRING()).to_list() == ["a", "b"]


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, 2**62], pa.int64()),
        pa.array([-128, 127], pa.int8()),
        pa.array([-0.0, float("inf")], pa.float64()),
        pa.array([NOON, NOON], pa.timestamp("us")),
        pa.array([1, None], pa.int64()),
        pa.array([None, None], pa.float64()),
        pa.array([NOON, None], pa.timestamp("us")),
        pa.array([True, False]),
        pa.array([b"a\0", None]),
        pa.array([NOON.date(), None]),
        pa.array([], pa.int64()),
        pa.array([0, 1, 2, 3], pa.int64()).slice(1, 2),
    ],
    ids=lambda array: f"{array.type} {array.to_pylist()}",
)
def test_columns_stand_for_exactly_the_values_of_the_batch(values: pa.Array) -> None:
    columns = columns_of_batch(pa.record_batch([values], names=["value"]), Types.LONG())

    assert repr(columns.to_list()) == repr(values.to_pylist())


def test_numbers_without_a_null_are_not_copied() -> None:
    numbers = pa.array([1, 2, 3], pa.int64())

    batch = pa.record_batch({"n": numbers, "t": ["a", "b", "c"]})
    number, text = columns_of_batch(batch, Types.TUPLE(PAIR)).fields

    assert isinstance(number, ArrayColumn)
    assert number.array.ctypes.data == numbers.buffers()[1].address
    assert isinstance(text, ArrowColumn)


@pytest.mark.slow
def test_batches_and_records_come_out_of_a_keyed_gate_alike(cluster: GateCluster) -> None:
    """Rows with names, in the order in which they were pushed; an empty batch is nothing."""
    declared = Types.ROW_NAMED(["number", "text"], PAIR)
    gate = cluster.environment().from_remote_gate("clicks", type_info=declared, producers=1)
    newest = gate.key_by(lambda row: row["number"]).reduce(lambda _, row: row)
    with collecting(newest) as results, cluster.open().open_partition(PartitionOffer("a job", 0)) as writer:
        writer.write_batch(PAIRS)
        writer.write_batch(PAIRS.slice(0, 0))
        writer.write_records([Row(number=3, text="c")])
        writer.finish(PATIENCE_S)

        assert list(results) == [Row(number=1, text="a"), Row(number=2, text=None), Row(number=3, text="c")]


SCHEMA = pa.schema([("user", pa.int64()), pa.field("name", pa.string(), nullable=False)])
BATCH = pa.record_batch({"user": pa.array([1, None]), "name": ["ann", "bob"]}, schema=SCHEMA)


def test_a_gate_of_an_arrow_schema_gives_out_whole_batches(cluster: GateCluster) -> None:
    """The very batches that went in, by either call; several subtasks, whose producers share nothing but the schema."""
    stream = cluster.environment().from_remote_gate("clicks", type_info=Types.ARROW(SCHEMA), producers=1)
    with collecting(stream) as results, cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_batch(BATCH)
        writer.write_records([BATCH.slice(0, 0), BATCH.slice(1)])
        writer.finish(PATIENCE_S)
        found = list(results)

    pushed = [BATCH, BATCH.slice(0, 0), BATCH.slice(1)]
    assert [each.equals(wanted) for each, wanted in zip(found, pushed, strict=True)] == [True] * 3


def test_behind_a_gate_of_batches_the_job_routes_by_key(make_cluster: Callable[..., GateCluster]) -> None:
    """Selectors want batches, and producers have messages."""
    cluster = make_cluster(2)
    stream = cluster.environment().from_remote_gate("clicks", type_info=Types.ARROW(SCHEMA), producers=1)
    counted = stream.key_by(lambda batch: batch.num_rows).map(lambda batch: batch.num_rows)
    with collecting(counted) as results, cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([BATCH, BATCH.slice(1)] * 10)
        writer.finish(PATIENCE_S)

        assert sorted(results) == [1] * 10 + [2] * 10


def test_a_batch_of_another_schema_is_refused_with_its_column(cluster: GateCluster) -> None:
    job = running_gate(cluster, type_info=Types.ARROW(SCHEMA), producers=1)
    nullable = pa.record_batch({"user": [1], "name": ["a"]})  # and holds no null
    wide = pa.record_batch({"user": pa.array([1], pa.int32()), "name": ["a"]})
    null = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([None], pa.string())], schema=SCHEMA)
    with cluster.open().open_partition(PartitionOffer("job", 0)) as writer:
        for batch, reason in (
            (wide, r"column 'user': \[1\] of type .*int32.*, declared is .*int64.*; gate 'clicks'"),
            (null, r"column 'name': holds null, declared is .*; gate 'clicks'"),
            (BATCH.rename_columns(["user", "nobody"]), "column 'name' is missing: gate 'clicks'"),
        ):
            with pytest.raises(GateTypeError, match=reason):
                writer.write_batch(batch)
        with pytest.raises(GateTypeError, match=r"of type int, not a pyarrow.RecordBatch; gate 'clicks'"):
            writer.write_records([1])
        writer.write_batch(nullable)
        writer.finish(PATIENCE_S)
    job.get_job_execution_result().result()


def test_bytes_that_are_no_batch_abort_their_attempt(cluster: GateCluster) -> None:
    """A gate of batches reads no pickles and follows no offsets: its token lets no producer run code."""
    job = running_gate(cluster, type_info=Types.ARROW(SCHEMA), producers=1)
    gate = cluster.open()
    lying = GateClient(replace(gate.description, type_blob=program_pickle.dumps(Types.PICKLED_BYTE_ARRAY())))
    for attempt, wrong in enumerate([b"no message", b"", "text", [BATCH]]):
        with lying.open_partition(PartitionOffer("job", 0, attempt)) as writer:
            writer.write_records([wrong])
            with pytest.raises(GateTypeError, match="gate 'clicks'"):
                writer.finish(PATIENCE_S)
    with gate.open_partition(PartitionOffer("job", 0, 9)) as writer:
        writer.write_batch(BATCH)
        writer.finish(PATIENCE_S)
    job.get_job_execution_result().result()
