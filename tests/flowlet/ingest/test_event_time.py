"""Records happened when their column says so, whatever form the column has."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, ConstantColumn, ListColumn, Shape
from flowlet.common.time import Duration, Instant
from flowlet.common.typeinfo import TypeInformation, Types
from flowlet.common.types import Row
from flowlet.common.watermark_strategy import WatermarkStrategy
from flowlet.connectors.gates.reader import EventTimeColumn
from flowlet.datastream.functions import ProcessFunction
from flowlet.errors import JobGraphError, SerdeError
from flowlet.ingest import GateTypeError, PartitionOffer
from flowlet.records import Chunk
from tests.flowlet.ingest.conftest import GateCluster, collecting, push, running_gate
from tests.waiting import PATIENCE_S

AT = EventTimeColumn("at", 1)
EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - in UTC
EVENT = Types.ROW_NAMED(["user", "at"], [Types.STRING(), Types.SQL_TIMESTAMP()])


def at(milliseconds: int) -> datetime.datetime:
    return EPOCH + datetime.timedelta(milliseconds=milliseconds)


def in_columns(column: Column) -> Chunk:
    return Chunk.of_columns(Columns(len(column), (ListColumn(["x"] * len(column)), column), Shape.ROW, ("user", "at")))


def in_rows(values: list[Any]) -> Chunk:
    return Chunk([Row(user="x", at=value) for value in values])


def forms_of(values: list[Any]) -> list[Chunk]:
    """Return every representation in which such a column may arrive."""
    forms = [in_rows(values), in_columns(ListColumn(values)), in_columns(ConstantColumn(values[0], len(values)))]
    if type(values[0]) is int:
        return [*forms, in_columns(ArrayColumn(np.array(values))), in_columns(ArrowColumn(pa.array(values)))]
    if type(values[0]) is datetime.datetime:
        arrays = ArrayColumn(np.array(values, "M8[us]")), ArrowColumn(pa.array(values, pa.timestamp("us")))
        return [*forms, *map(in_columns, arrays)]
    return forms


@given(
    st.integers(-(2**63), 2**63 - 1)
    | st.datetimes()
    | st.builds(Instant, st.integers(-(2**40), 2**40), st.integers(0, 999_999_999))
)
def test_every_form_of_a_column_says_the_same(value: Any) -> None:
    """Times are rounded down to the millisecond, also before 1970."""
    for chunk in forms_of([value, value]):
        stamped = AT.stamped(chunk)

        [first, second] = stamped.timestamps or []
        assert first == second
        match value:
            case int():
                assert first == value
            case Instant():
                assert first == value.to_epoch_milli()
            case _:
                assert at(first) <= value < at(first + 1)


@pytest.mark.parametrize(
    "chunk",
    [
        in_rows([1, None]),
        in_rows([True]),
        in_rows([2**63]),
        in_rows([datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)]),
        in_rows(["now"]),
        in_columns(ArrayColumn(np.array([1, "NaT"], "M8[us]"))),
        in_columns(ArrayColumn(np.array([True]))),
        in_columns(ArrayColumn(np.array([1.5]))),
        in_columns(ArrowColumn(pa.array([1, None]))),
    ],
    ids=repr,
)
def test_what_is_no_time_is_refused_with_its_column(chunk: Chunk) -> None:
    with pytest.raises(SerdeError, match=r"column 'at' holds .*, which is no time of a record"):
        AT.stamped(chunk)


@pytest.mark.parametrize(
    "chunk", [Chunk([("x",)]), Chunk([5]), Chunk.of_columns(Columns(1, (ListColumn(["x"]),), Shape.TUPLE))], ids=repr
)
def test_records_without_the_column_are_refused(chunk: Chunk) -> None:
    with pytest.raises(SerdeError, match="no column 'at'"):
        AT.stamped(chunk)


@pytest.mark.parametrize(
    ("type_info", "column", "text"),
    [
        (Types.LONG(), "at", "event_time names a column of rows"),
        (Types.ARROW(pa.schema([("at", pa.int64())])), "at", "event_time names a column of rows"),
        (EVENT, "when", "'when' is none of user, at"),
        (EVENT, "user", "'user' is String"),
    ],
    ids=["no rows", "batches", "unknown", "text"],
)
def test_a_column_that_is_no_time_is_refused_when_the_gate_is_declared(
    cluster: GateCluster, type_info: TypeInformation, column: str, text: str
) -> None:
    with pytest.raises(JobGraphError, match=f"gate 'clicks': .*{text}"):
        cluster.environment().from_remote_gate("clicks", type_info=type_info, event_time=column)


class Told(ProcessFunction):
    """Yields the record's user and timestamp, and how far the stream is."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value["user"], ctx.timestamp(), ctx.timer_service().current_watermark()


def test_producers_rows_and_batches_have_event_time_and_watermarks(cluster: GateCluster) -> None:
    """Records of one partition keep their order: the second one comes behind the watermark that the first one made, if
    that was on its way.
    """
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(100))
    stream = cluster.environment().from_remote_gate(
        "clicks", type_info=EVENT, producers=1, watermark_strategy=strategy, event_time="at"
    )
    with (
        collecting(stream.process(Told())) as results,
        cluster.open().open_partition(PartitionOffer("job", 0)) as writer,
    ):
        writer.write_records([Row(user="a", at=at(5_000)), Row(user="b", at=at(4_950))], [1, 2])
        writer.write_batch(pa.record_batch({"user": ["c"], "at": pa.array([at(-1)], pa.timestamp("us"))}))
        writer.finish(PATIENCE_S)
        found = list(results)

    assert [(user, timestamp) for user, timestamp, _ in found] == [("a", 5_000), ("b", 4_950), ("c", -1)]
    assert all(watermark in (-(2**63), 5_000 - 100 - 1) for _, _, watermark in found)


def test_a_record_without_a_time_ends_its_attempt_alone(cluster: GateCluster) -> None:
    job = running_gate(cluster, type_info=EVENT, producers=1, event_time="at")
    gate = cluster.open()
    with gate.open_partition(PartitionOffer("job", 0)) as writer:
        writer.write_records([Row(user="a", at=at(1)), Row(user="b", at=None)])
        with pytest.raises(GateTypeError, match=r"column 'at' holds None, which is no time of a record.*gate 'clicks'"):
            writer.finish(PATIENCE_S)
    push(gate, [Row(user="a", at=at(1))], attempt=1)
    job.get_job_execution_result().result()
