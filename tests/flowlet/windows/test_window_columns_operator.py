"""Windows and joins of columns in an operator: late rows, the clock, errors, snapshots."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common.types import Row
from flowlet.errors import StateRestoreError, UserFunctionError
from flowlet.kernels.windows.columnar_join import LEFT, RIGHT, ColumnJoin, JoinedColumn
from flowlet.kernels.windows.columnar_windows import WindowedAggregation
from flowlet.kernels.windows.window_partials import WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows, SessionWindows, WindowShape
from flowlet.records import MAX_TIMESTAMP, Chunk, Watermark
from flowlet.windows.window_columns_operator import JoinColumnsOperator, WindowColumnsOperator
from tests.flowlet.operators.harness import Harness

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
TOTAL = WindowAggregate("total", "sum", "n", pa.int64())
TUMBLING = AlignedWindows(10, 10)
Given = tuple[str, int, int | None]  # key, number, timestamp


def chunk(*rows: Given) -> Chunk:
    arrays = [
        pa.array([key for key, _, _ in rows], pa.string()),
        pa.array([number for _, number, _ in rows], pa.int64()),
    ]
    stamps = [stamp for _, _, stamp in rows if stamp is not None]
    batch = pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
    return Chunk.of_columns(columns_of_batch(batch), np.array(stamps) if stamps else None)


def operator(
    shape: WindowShape = TUMBLING,
    *aggregates: WindowAggregate,
    lateness_ms: int = 0,
    late_tag: str | None = None,
    key: str | None = "k",
    is_batch: bool = False,
) -> WindowColumnsOperator:
    key_type = None if key is None else pa.string()
    aggregation = WindowedAggregation(shape, aggregates or (TOTAL,), key, key_type, lateness_ms)
    return WindowColumnsOperator(aggregation, SCHEMA, late_tag, is_batch=is_batch)


def totals(harness: Harness) -> list[tuple[Any, ...]]:
    return [(row["k"], row["total"]) for row in harness.output.values]


def test_results_come_before_the_watermark_that_ends_their_window() -> None:
    harness = Harness(operator())

    harness.operator.process_chunk(chunk(("a", 1, 3), ("b", 2, 4), ("a", 5, 12), ("a", 10, 9)))
    harness.operator.process_watermark(Watermark(9))

    assert totals(harness) == [("a", 11), ("b", 2)]
    assert harness.output.timestamps == [9, 9]
    assert harness.output.elements[-1] == Watermark(9)
    assert all(each.columns is not None for each in harness.output.chunks)
    harness.operator.close()


def test_rows_that_are_records_are_taken_too() -> None:
    harness = Harness(operator())

    harness.process(Row(k="a", n=1), Row(k="a", n=2), timestamps=[3, 4])
    harness.operator.process_watermark(Watermark(100))

    assert totals(harness) == [("a", 3)]


def test_late_rows_are_counted_and_dropped() -> None:
    harness = Harness(operator())
    harness.operator.process_watermark(Watermark(9))

    harness.operator.process_chunk(chunk(("a", 1, 3), ("a", 2, 13), ("b", 4, 9)))
    harness.operator.process_watermark(Watermark(100))

    assert totals(harness) == [("a", 2)]
    assert harness.operator.ctx.counters.num_late_records_dropped == 2


def test_late_rows_go_to_a_side_output() -> None:
    harness = Harness(operator(late_tag="late"))
    harness.operator.process_watermark(Watermark(9))

    harness.operator.process_chunk(chunk(("a", 1, 3), ("a", 2, 13)))

    assert [row["n"] for row in harness.output.sides["late"]] == [1]
    assert harness.operator.ctx.counters.num_late_records_dropped == 0


def test_allowed_late_rows_change_the_result_at_once() -> None:
    harness = Harness(operator(lateness_ms=5))
    harness.operator.process_chunk(chunk(("a", 1, 3), ("b", 1, 3)))
    harness.operator.process_watermark(Watermark(9))

    harness.operator.process_chunk(chunk(("a", 2, 4), ("a", 4, 5)))
    harness.operator.process_watermark(Watermark(14))
    harness.operator.process_chunk(chunk(("a", 8, 4)))

    assert totals(harness) == [("a", 1), ("b", 1), ("a", 7)]
    assert harness.operator.ctx.counters.num_late_records_dropped == 1


def test_windows_of_all_rows_have_no_key() -> None:
    harness = Harness(operator(key=None))

    harness.operator.process_chunk(chunk(("a", 1, 3), ("b", 2, 4)))
    harness.operator.process_watermark(Watermark(9))

    (row,) = harness.output.values
    assert row.as_dict().keys() == {"window_start", "window_end", "total"}
    assert row["total"] == 3


@pytest.mark.parametrize(
    ("shape", "end"), [(AlignedWindows(10, 10, is_event_time=False), 19), (SessionWindows(7, is_event_time=False), 17)]
)
def test_windows_by_the_clock_end_with_a_timer(shape: WindowShape, end: int) -> None:
    harness = Harness(operator(shape))
    harness.clock.set_time(11)

    harness.operator.process_chunk(chunk(("a", 1, None), ("a", 2, None)))
    harness.operator.process_watermark(Watermark(1_000))
    assert (harness.clock.active_timers(), harness.output.values) == ([end], [])
    harness.clock.set_time(end)

    assert totals(harness) == [("a", 3)]
    assert harness.clock.num_timers == 0


def test_a_session_by_the_clock_that_goes_on_is_asked_for_again() -> None:
    harness = Harness(operator(SessionWindows(7, is_event_time=False)))
    harness.operator.process_chunk(chunk(("a", 1, None)))
    harness.clock.set_time(5)
    harness.operator.process_chunk(chunk(("a", 2, None)))

    harness.clock.set_time(6)
    assert (harness.clock.active_timers(), totals(harness)) == ([11], [])
    harness.clock.set_time(11)

    assert totals(harness) == [("a", 3)]
    assert harness.clock.num_timers == 0


@pytest.mark.parametrize("shape", [AlignedWindows(10, 10, is_event_time=False), SessionWindows(1, is_event_time=False)])
def test_a_row_is_not_late_if_the_clock_was_set_back(shape: WindowShape) -> None:
    """The row goes into the first window that was not emitted yet."""
    harness = Harness(operator(shape))
    harness.clock.set_time(19)
    harness.operator.process_chunk(chunk(("a", 1, None)))
    harness.clock.set_time(harness.clock.active_timers()[-1])

    harness.clock.set_time(3)
    harness.operator.process_chunk(chunk(("a", 2, None)))
    harness.clock.set_time(harness.clock.active_timers()[-1])

    assert totals(harness) == [("a", 1), ("a", 2)]
    assert harness.operator.ctx.counters.num_late_records_dropped == 0


@pytest.mark.parametrize(
    ("rows", "cause"),
    [
        ([("a", 1, None)], r"need rows with timestamps: call with_event_time"),
        ([("a", 1, -(2**63))], r"need rows with timestamps: call with_event_time"),
        ([("a", 1, 2**62)], r"cannot hold a row with the timestamp 4611686018427387904"),
        ([("a", 2**62, 1), ("a", 2**62, 2)], r"a sum of column 'n' is 9223372036854775808, which no int64 holds"),
    ],
)
def test_rows_that_cannot_be_aggregated_fail_with_the_reason(rows: list[Given], cause: str) -> None:
    harness = Harness(operator())

    with pytest.raises(UserFunctionError, match=f"a batch of {len(rows)} rows") as caught:
        harness.operator.process_chunk(chunk(*rows))

    assert caught.value.__cause__ is not None
    caught.match("Window")
    with pytest.raises(type(caught.value.__cause__), match=cause):
        raise caught.value.__cause__


def test_a_sum_of_several_batches_is_exact_or_fails() -> None:
    harness = Harness(operator())
    harness.operator.process_chunk(chunk(("a", 2**62, 1), ("b", 2**62, 1), ("b", -(2**62), 1)))
    harness.operator.process_chunk(chunk(("a", 2**62 - 1, 1), ("b", 2**62, 1), ("b", 2**62 - 1, 1)))

    harness.operator.process_watermark(Watermark(9))

    assert totals(harness) == [("a", 2**63 - 1), ("b", 2**63 - 1)]


@pytest.mark.parametrize("shape", [TUMBLING, AlignedWindows(10, 5), SessionWindows(7)])
def test_windows_of_sorted_rows_end_with_their_keys(shape: WindowShape) -> None:
    """The state of ended keys is removed, so no row of a later key is late, however old it is."""
    harness = Harness(operator(shape, is_batch=True))

    harness.operator.process_chunk(chunk(("a", 1, 100), ("a", 2, 103), ("b", 5, 200)))
    harness.operator.end_keys()
    found = set(totals(harness))
    harness.operator.process_chunk(chunk(("c", 7, 1)))
    harness.operator.end_keys()
    harness.operator.end_keys()
    harness.operator.process_watermark(Watermark(MAX_TIMESTAMP))

    assert found == {("a", 3), ("b", 5)}
    assert totals(harness)[-1] == ("c", 7)
    assert {key for key, _ in totals(harness)} == {"a", "b", "c"}
    assert harness.operator.ctx.counters.num_late_records_dropped == 0


@pytest.mark.parametrize("is_sorted", [False, True])
def test_windows_by_the_clock_end_with_their_keys_or_the_input_in_batch_mode(is_sorted: bool) -> None:
    """Windows end whatever the clock shows, like the timers of functions; without ``is_batch`` the end of the input
    drops them, as in Flink.
    """
    harness = Harness(operator(AlignedWindows(10, 10, is_event_time=False), is_batch=True))

    harness.operator.process_chunk(chunk(("a", 1, None), ("a", 2, None)))
    if is_sorted:
        harness.operator.end_keys()
    harness.operator.process_watermark(Watermark(MAX_TIMESTAMP))
    harness.operator.finish()

    assert (totals(harness), harness.clock.num_timers) == ([("a", 3)], 0)


@pytest.mark.parametrize("key", ["k", None])
def test_windows_by_the_clock_that_end_with_the_input_come_before_the_last_watermark(key: str | None) -> None:
    """They would be late for windows of event time behind it; rows that come behind it are not lost."""
    harness = Harness(operator(AlignedWindows(10, 10, is_event_time=False), key=key, is_batch=True))

    harness.operator.process_chunk(chunk(("a", 1, None), ("a", 2, None)))
    harness.operator.process_watermark(Watermark(MAX_TIMESTAMP))
    first = [row["total"] for row in harness.output.values], harness.output.elements[-1]
    harness.operator.process_chunk(chunk(("a", 4, None)))
    harness.operator.finish()

    assert first == ([3], Watermark(MAX_TIMESTAMP))
    assert [row["total"] for row in harness.output.values] == [3, 4]


def test_state_of_other_windows_is_refused() -> None:
    before = Harness(operator())
    before.operator.process_chunk(chunk(("a", 1, 3)))

    with pytest.raises(
        StateRestoreError, match=r"is of sum\(n\) of AlignedWindows\(size=10.*has sum\(n\) of AlignedWindows\(size=20"
    ):
        Harness(operator(AlignedWindows(20, 20)), restored=before.snapshot())


def test_an_operator_goes_on_from_its_snapshot() -> None:
    before = Harness(operator())
    before.operator.process_chunk(chunk(("a", 1, 3), ("b", 1, 3)))
    after = Harness(operator(), restored=before.snapshot())

    after.operator.process_chunk(chunk(("a", 2, 5)))
    after.operator.process_watermark(Watermark(9))

    assert sorted(totals(after)) == [("a", 3), ("b", 1)]


def join_operator() -> JoinColumnsOperator:
    columns = (JoinedColumn("x", LEFT, "n", pa.int64()), JoinedColumn("y", RIGHT, "n", pa.int64()))
    return JoinColumnsOperator(ColumnJoin(TUMBLING, ("k", "k"), pa.string(), "left", columns, (SCHEMA, SCHEMA)))


def joined(harness: Harness) -> list[tuple[Any, ...]]:
    return [(row["k"], row["x"], row["y"]) for row in harness.output.values]


def test_a_join_waits_for_the_watermarks_of_both_sides() -> None:
    harness = Harness(join_operator())
    left, right = harness.operator.inputs()

    left.process_chunk(chunk(("a", 1, 3), ("b", 2, 4)))
    right.process_chunk(chunk(("a", 10, 5), ("a", 11, 5), ("c", 12, 5)))
    left.process_control(Watermark(9))
    assert harness.output.values == []
    right.process_control(Watermark(12))
    right.process_chunk(chunk(("a", 1, 3)))

    assert joined(harness) == [("a", 1, 10), ("a", 1, 11), ("b", 2, None)]
    assert harness.output.elements[-1] == Watermark(9)
    assert harness.operator.ctx.counters.num_late_records_dropped == 1
    harness.operator.close()


def test_a_join_of_sorted_rows_ends_with_their_keys() -> None:
    """The rows of the keys before are forgotten."""
    harness = Harness(join_operator())
    left, right = harness.operator.inputs()

    left.process_chunk(chunk(("a", 1, 103), ("b", 2, 104)))
    right.process_chunk(chunk(("a", 10, 105)))
    harness.operator.end_keys()
    left.process_chunk(chunk(("c", 3, 1)))
    right.process_chunk(chunk(("c", 30, 1)))
    harness.operator.end_keys()

    assert joined(harness) == [("a", 1, 10), ("b", 2, None), ("c", 3, 30)]
    assert harness.operator.ctx.counters.num_late_records_dropped == 0


def test_a_join_goes_on_from_its_snapshot() -> None:
    before = Harness(join_operator())
    before.operator.inputs()[0].process_chunk(chunk(("a", 1, 3)))
    after = Harness(join_operator(), restored=before.snapshot())

    after.operator.inputs()[1].process_chunk(chunk(("a", 2, 3)))
    after.operator.process_watermark(Watermark(9))

    assert joined(after) == [("a", 1, 2)]


def test_a_join_names_rows_without_timestamps() -> None:
    harness = Harness(join_operator())

    with pytest.raises(UserFunctionError, match=r"'Join'.*a batch of 1 rows"):
        harness.operator.inputs()[0].process_chunk(chunk(("a", 1, None)))
