"""Parts of windows that are made before rows travel: fewer rows, equal results."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common.types import Row
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.kernels.windows import columnar_windows
from flowlet.kernels.windows.columnar_windows import PartsLayout, WindowedAggregation
from flowlet.kernels.windows.window_partials import WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows
from flowlet.records import Chunk, Watermark
from flowlet.windows.window_columns_operator import LocalWindowColumnsOperator, WindowColumnsOperator
from tests.flowlet.operators.harness import Harness

SCHEMA = pa.schema(
    [("other", pa.bool_()), ("k", pa.string()), ("n", pa.int64()), ("text", pa.dictionary(pa.int32(), pa.string()))]
)
AGGREGATES = (
    WindowAggregate("total", "sum", "n", pa.int64()),
    WindowAggregate("mean", "mean", "n", pa.int64()),
    WindowAggregate("first", "first", "text", SCHEMA.field("text").type),
    WindowAggregate("top", "max", "text", SCHEMA.field("text").type),
)
Given = tuple[str | None, int, int]  # key, number, timestamp


def aggregation_of(key: str | None = "k", lateness_ms: int = 0) -> WindowedAggregation:
    return WindowedAggregation(
        AlignedWindows(10, 5), AGGREGATES, key, None if key is None else pa.string(), lateness_ms
    )


def pair_of(aggregation: WindowedAggregation) -> tuple[Harness, Harness]:
    """Return the harnesses of both steps."""
    layout = PartsLayout(aggregation, SCHEMA)
    return Harness(LocalWindowColumnsOperator(aggregation, SCHEMA, layout)), Harness(
        WindowColumnsOperator(aggregation, layout.schema, layout=layout)
    )


def chunk(*rows: Given) -> Chunk:
    keys, numbers, stamps = zip(*rows, strict=True)
    texts = pa.array([f"text {number}" for number in numbers]).dictionary_encode()
    arrays = [pa.nulls(len(rows), pa.bool_()), pa.array(keys, pa.string()), pa.array(numbers, pa.int64()), texts]
    return Chunk.of_columns(columns_of_batch(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)), np.array(stamps))


def passed_on(local: Harness, window: Harness) -> int:
    """Give the chunks of the first step to the second one; returns how many rows they have."""
    chunks, num_rows = list(local.output.chunks), 0
    for each in chunks:
        num_rows += len(each)
        window.operator.process_chunk(each)
    return num_rows


def results(window: Harness) -> list[tuple[Any, ...]]:
    window.operator.process_watermark(Watermark(1_000))
    return sorted(
        [
            (row["window_end"].timestamp(), row["total"], row["mean"], row["first"], row["top"])
            for row in window.output.values
        ],
        key=repr,
    )


def in_one_step(aggregation: WindowedAggregation, *chunks: Chunk) -> list[tuple[Any, ...]]:
    window = Harness(WindowColumnsOperator(aggregation, SCHEMA))
    for each in chunks:
        window.operator.process_chunk(each)
    return results(window)


@pytest.mark.parametrize("key", ["k", None])
def test_a_chunk_goes_on_at_once_as_one_row_per_key_and_pane(key: str | None) -> None:
    rows = chunk(*[(f"key {number % 3}" if number % 3 else None, number, number % 10) for number in range(300)])
    local, window = pair_of(aggregation_of(key))

    local.operator.process_chunk(rows)

    assert passed_on(local, window) == (2 if key is None else 6)
    assert results(window) == in_one_step(aggregation_of(key), rows)


def test_rows_with_keys_of_their_own_go_on_as_they_are() -> None:
    rows = chunk(*[(f"key {number}", number, number % 10) for number in range(5_000)])
    local, window = pair_of(aggregation_of())

    local.operator.process_chunk(rows)  # its parts are as many as its rows
    local.operator.process_chunk(rows)

    assert passed_on(local, window) == 10_000
    assert local.output.chunks[1].timestamps == rows.timestamps
    assert results(window) == in_one_step(aggregation_of(), rows, rows)


def test_rows_that_are_spread_over_time_go_on_as_they_are() -> None:
    rows = chunk(*[("a", number, number * 1_000) for number in range(-250, 250)])
    local, window = pair_of(aggregation_of())

    local.operator.process_chunk(chunk(*[(f"key {number}", number, 0) for number in range(100)]))
    local.operator.process_chunk(rows)

    assert len(local.output.chunks[1]) == 500
    passed_on(local, window)
    assert len(results(window)) == len(
        in_one_step(aggregation_of(), chunk(*[(f"key {n}", n, 0) for n in range(100)]), rows)
    )


@pytest.mark.parametrize(("num_keys", "length"), [(1_250, 10), (10, 300_000)])
def test_keys_of_long_ago_are_forgotten(num_keys: int, length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are forgotten if they are many, or long."""
    monkeypatch.setattr(columnar_windows, "MAX_SLOTS", 1 << 11)
    chunks = [
        chunk(*[(f"{number % num_keys + first:0{length}}", 1, 1) for number in range(max(64, 4 * num_keys))])
        for first in (0, num_keys, 5)
    ]
    local, window = pair_of(aggregation_of())

    for each in chunks:
        local.operator.process_chunk(each)

    assert (
        repr(local.operator)
        == f"<LocalWindowColumnsOperator 'Local Window' of <LocalWindows of <WindowKeys 'k', {num_keys} slots>>>"
    )
    assert passed_on(local, window) == 3 * num_keys
    assert results(window) == in_one_step(aggregation_of(), *chunks)


def test_late_parts_count_as_their_rows() -> None:
    local, window = pair_of(aggregation_of())
    window.operator.process_watermark(Watermark(19))

    local.operator.process_chunk(chunk(*[("a", 1, 3)] * 7, ("b", 1, 17), ("a", 1, 23)))
    passed_on(local, window)

    assert window.operator.ctx.counters.num_late_records_dropped == 7
    assert [result[1] for result in results(window)] == [1, 1, 1]


def test_a_watermark_passes_behind_the_parts() -> None:
    local, _ = pair_of(aggregation_of())

    local.operator.process_chunk(chunk(("a", 1, 3)))
    local.operator.process_watermark(Watermark(3))

    assert local.output.elements[-1] == Watermark(3)
    assert len(local.output.chunks) == 1
    local.operator.process_chunk(chunk(("a", 1, 3)).slice(0, 0))
    assert len(local.output.chunks) == 1


def test_rows_that_are_records_are_taken_too() -> None:
    local, window = pair_of(aggregation_of())

    records = [Row(other=None, k="a", n=1, text="x"), Row(other=True, k="a", n=2, text="y")] * 50
    local.process(*records, timestamps=[3, 4] * 50)

    assert passed_on(local, window) == 1
    assert [result[1:] for result in results(window)] == [(150, 1.5, "x", "y")] * 2


def test_a_small_batch_goes_on_row_by_row() -> None:
    local, window = pair_of(aggregation_of())
    rows = chunk(*[("a", 1, 3)] * 63)

    local.operator.process_chunk(rows)

    assert passed_on(local, window) == 63
    assert results(window) == in_one_step(aggregation_of(), rows)


def test_batches_of_many_keys_are_judged_together() -> None:
    """Each of them is too small to tell."""
    local, _ = pair_of(aggregation_of())

    for first in range(0, 3_000, 100):
        local.operator.process_chunk(chunk(*[(f"key {first + number}", number, 1) for number in range(100)]))

    assert (
        repr(local.operator)
        == "<LocalWindowColumnsOperator 'Local Window' of <LocalWindows of <WindowKeys 'k', 0 slots>>>"
    )


def test_many_keys_of_long_ago_do_not_hinder_for_ever() -> None:
    local, _ = pair_of(aggregation_of())
    local.operator.process_chunk(chunk(*[(f"old {number % 9_000}", number, 1) for number in range(45_000)]))
    few = chunk(*[(f"key {number % 10}", number, number % 10) for number in range(2_000)])

    for _ in range(10):
        local.operator.process_chunk(few)

    assert len(local.output.chunks[-1]) == 10


def test_a_sum_that_is_too_large_is_no_matter_if_its_rows_are_late() -> None:
    local, window = pair_of(aggregation_of())
    window.operator.process_watermark(Watermark(100))
    rows = chunk(*[("a", 2**62, 3)] * 100)

    local.operator.process_chunk(rows)
    passed_on(local, window)

    assert window.operator.ctx.counters.num_late_records_dropped == 100
    with pytest.raises(UserFunctionError, match="a batch of 100 rows"):
        pair_of(aggregation_of())[1].operator.process_chunk(local.output.chunks[0])


def test_the_earliest_time_that_windows_hold_is_taken() -> None:
    local, window = pair_of(aggregation_of())
    rows = chunk(*[("a", 1, -(2**61))] * 100)

    local.operator.process_chunk(rows)

    assert passed_on(local, window) == 1


def test_rows_without_timestamps_fail_with_the_reason() -> None:
    local, _ = pair_of(aggregation_of())
    rows = chunk(("a", 1, 3))
    assert rows.columns is not None

    with pytest.raises(UserFunctionError, match="a batch of 1 rows for total, mean, first, top by k") as caught:
        local.operator.process_chunk(Chunk.of_columns(rows.columns))

    assert isinstance(caught.value.__cause__, FlowletError)
    assert "with_event_time" in str(caught.value.__cause__)
