from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common.types import Row
from flowlet.errors import FlowletError, UserFunctionError
from flowlet.operators import record_batches
from flowlet.operators.record_batches import ArrowSource, MapBatchesOperator, ToColumnsOperator, ToRecordsOperator
from flowlet.records import Chunk
from tests.flowlet.operators.harness import Harness

SCHEMA = pa.schema([("n", pa.int64())])
NOT_NULL = pa.schema([pa.field("n", pa.int64(), nullable=False)])


def batch(*numbers: int | None) -> Any:
    return pa.record_batch({"n": pa.array(numbers, pa.int64())})


def chunk(*numbers: int | None, timestamps: list[int] | None = None) -> Chunk:
    return Chunk.of_columns(columns_of_batch(batch(*numbers)), timestamps)


def rows(harness: Harness) -> list[Any]:
    return [row["n"] for row in harness.output.values]


def test_a_function_of_batches_is_called_once_per_chunk() -> None:
    sizes = []

    def double(given: Any) -> Any:
        sizes.append(given.num_rows)
        return pa.record_batch({"n": pa.compute.multiply(given.column("n"), 2)})

    harness = Harness(MapBatchesOperator(double, SCHEMA, SCHEMA), pickled=False)
    harness.operator.process_chunk(chunk(1, 2, None))
    harness.process(Row(n=4), (5,))

    assert rows(harness) == [2, 4, None, 8, 10]
    assert sizes == [3, 2]
    assert all(each.columns is not None for each in harness.output.chunks)


def several(given: Any) -> Iterator[Any]:
    yield given
    yield given.slice(0, 0)
    yield pa.Table.from_batches([given.slice(1)])


@pytest.mark.parametrize(
    ("function", "expected"), [(several, [1, 2, 2]), (lambda given: None, []), (lambda given: [], [])]
)
def test_a_function_may_give_several_batches_or_none(function: Any, expected: list[int]) -> None:
    harness = Harness(MapBatchesOperator(function, SCHEMA, SCHEMA))

    harness.operator.process_chunk(chunk(1, 2))

    assert rows(harness) == expected


def test_rows_keep_their_timestamps_or_get_the_largest() -> None:
    harness = Harness(MapBatchesOperator(lambda given: given, SCHEMA, SCHEMA))
    harness.operator.process_chunk(chunk(1, 2, 3, timestamps=[5, 9, 7]))
    assert harness.output.timestamps == [5, 9, 7]

    harness = Harness(MapBatchesOperator(lambda given: given.slice(1), SCHEMA, SCHEMA))
    harness.operator.process_chunk(chunk(1, 2, 3, timestamps=[5, 9, 7]))
    assert harness.output.timestamps == [9, 9]


def fail(given: Any) -> Any:
    raise ZeroDivisionError("nothing to divide")


@pytest.mark.parametrize(
    ("function", "cause", "message"),
    [
        (fail, ZeroDivisionError, "nothing to divide"),
        (lambda given: 1, TypeError, "it returned a int$"),
        (
            lambda given: [1],
            TypeError,
            r"map_batches\(\) needs a function that returns record batches, it returned a int",
        ),
        (lambda given: {"n": given}, TypeError, "it returned a str in a dict"),
        (lambda given: given.column("n"), TypeError, "it returned a Int64Scalar in a Int64Array"),
        (lambda given: given.cast(NOT_NULL), TypeError, r"declares batches of \(n: int64\), got \(n: int64 not null\)"),
        (lambda given: given.rename_columns(["m"]), TypeError, r"declares batches of \(n: int64\), got \(m: int64\)"),
    ],
)
def test_a_function_that_fails_is_named(function: Any, cause: type[Exception], message: str) -> None:
    harness = Harness(MapBatchesOperator(function, SCHEMA, SCHEMA, name="double"), subtask=2)

    with pytest.raises(UserFunctionError) as caught:
        harness.operator.process_chunk(chunk(1, 2))

    assert (caught.value.operator, caught.value.subtask) == ("double", 2)
    assert caught.value.record_preview == "a batch of 2 rows"
    with pytest.raises(cause, match=message):
        raise caught.value.__cause__  # type: ignore[misc]  # it has one


def test_what_fails_behind_a_function_is_not_its_fault() -> None:
    harness = Harness(MapBatchesOperator(lambda given: given, SCHEMA, SCHEMA), pickled=False)

    def refuse(_: Chunk) -> None:
        raise OSError("the connection is gone")

    harness.operator.output.collect = refuse  # the next operator
    with pytest.raises(OSError, match="gone"):
        harness.operator.process_chunk(chunk(1))


def test_large_results_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batches, "MAX_CHUNK_ROWS", 2)
    harness = Harness(MapBatchesOperator(lambda given: given, SCHEMA, SCHEMA), pickled=False)

    harness.operator.process_chunk(chunk(1, 2, 3, timestamps=[5, 6, 7]))

    assert [len(each) for each in harness.output.chunks] == [2, 1]
    assert harness.output.timestamps == [5, 6, 7]


def test_a_record_that_does_not_fit_its_schema_is_named() -> None:
    harness = Harness(ToColumnsOperator(SCHEMA, name="typed"))

    with pytest.raises(UserFunctionError) as caught:
        harness.process((1,), ("two",), (3,))

    assert (caught.value.operator, caught.value.record_preview) == ("typed", "('two',)")
    assert isinstance(caught.value.__cause__, TypeError)


def test_records_become_columns_and_records_again() -> None:
    to_columns, to_records = Harness(ToColumnsOperator(SCHEMA)), Harness(ToRecordsOperator())

    to_columns.process((1,), (None,), timestamps=[3, 4])
    for each in to_columns.output.chunks:
        assert each.columns is not None
        to_records.operator.process_chunk(each)

    assert to_records.output.values == [Row(n=1), Row(n=None)]
    assert to_records.output.timestamps == [3, 4]
    assert [each.columns for each in to_records.output.chunks] == [None]


def read(source: ArrowSource, subtask: int, parallelism: int) -> list[list[int]]:
    reader = source.create_reader(subtask, parallelism)
    chunks = []
    while (found := reader.poll_chunk()) is not None:
        chunks.append([row["n"] for row in found.values])
    reader.close()
    return chunks


def test_a_function_is_asked_for_each_subtask() -> None:
    source = ArrowSource(lambda subtask, parallelism: iter([batch(subtask), batch(parallelism)]), SCHEMA)

    assert read(source, 1, 3) == [[1], [3]]


@pytest.mark.parametrize(
    ("given", "expected"), [(batch(1, 2), [[1, 2]]), (pa.Table.from_batches([batch(3)]), [[3]]), (None, [])]
)
def test_a_function_may_have_one_batch_for_a_subtask_or_nothing(given: Any, expected: list[list[int]]) -> None:
    assert read(ArrowSource(lambda subtask, parallelism: given, SCHEMA), 0, 1) == expected


def test_what_a_function_gives_must_be_batches_of_the_schema() -> None:
    for given, message in [(1, "gave a int"), (batch(1).rename_columns(["m"]), r"declares batches of \(n: int64\)")]:
        source = ArrowSource(lambda subtask, parallelism, given=given: [given], SCHEMA)
        with pytest.raises(TypeError, match=message):
            read(source, 0, 1)


def test_a_restored_reader_drops_rows_however_the_batches_are_cut_then() -> None:
    before = ArrowSource(lambda subtask, parallelism: [batch(0, 1), batch(2, 3)], SCHEMA).create_reader(0, 1)
    before.poll_chunk()
    after = ArrowSource(lambda subtask, parallelism: [batch(0), batch(1, 2), batch(3)], SCHEMA).create_reader(0, 1)

    after.restore_position(before.snapshot_position())

    assert [[row["n"] for row in found.values] for found in iter(after.poll_chunk, None)] == [[2], [3]]
    assert after.snapshot_position() == 4


def test_a_function_that_gives_fewer_rows_than_before_the_restart_fails() -> None:
    reader = ArrowSource(lambda subtask, parallelism: [batch(0)], SCHEMA).create_reader(0, 1)
    reader.restore_position(3)

    with pytest.raises(FlowletError, match="its function gave 2 rows less than before"):
        reader.poll_chunk()
