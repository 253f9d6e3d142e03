"""Results as tables: of streams of columns, and of records with a declared type."""

import datetime
import sys
from typing import Any

import pyarrow as pa
import pytest

from flowlet.common import Row, Types
from flowlet.datastream import CloseableIterator, StreamExecutionEnvironment
from flowlet.errors import FlowletError, JobExecutionError, JobGraphError

ROWS = pa.table({"word": ["a", "b", "a"], "n": [1, None, 3]})
INSTANT = datetime.datetime.fromisoformat("2024-02-29T12:30:00.123456")


def results_of(stream: Any) -> CloseableIterator:
    results = stream.execute_and_collect()
    assert isinstance(results, CloseableIterator)
    return results


def sorted_rows(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=repr)


def test_columns_leave_as_a_table_of_their_schema(environment: StreamExecutionEnvironment) -> None:
    table = results_of(environment.from_arrow(ROWS)).to_arrow()

    assert table.schema.equals(ROWS.schema)
    assert sorted_rows(table) == sorted_rows(ROWS)


def test_keyed_columns_leave_as_columns(environment: StreamExecutionEnvironment) -> None:
    table = results_of(environment.from_arrow(ROWS).key_by("word")).to_arrow()

    assert sorted_rows(table) == sorted_rows(ROWS)


def test_rows_that_were_taken_one_by_one_are_not_in_the_table(environment: StreamExecutionEnvironment) -> None:
    """The rest is: nothing is lost between the two ways to read, whatever part of a batch was taken."""
    numbers = pa.table({"n": list(range(1000))})

    with results_of(environment.from_arrow(numbers).set_parallelism(1)) as results:
        taken = [next(results)["n"] for _ in range(10)]
        table = results.to_arrow()

    assert sorted(taken + table["n"].to_pylist()) == list(range(1000))
    assert table.num_rows == 990


@pytest.mark.parametrize(
    ("declared", "records", "expected"),
    [
        pytest.param(Types.LONG(), [1, 2], {"f0": [1, 2]}, id="single values"),
        pytest.param(
            Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.BOOLEAN()]),
            [("a", 0.5, True)],
            {"f0": ["a"], "f1": [0.5], "f2": [True]},
            id="tuples",
        ),
        pytest.param(
            Types.ROW_NAMED(["id", "at"], [Types.INT(), Types.SQL_TIMESTAMP()]),
            [Row(id=1, at=INSTANT), Row(id=2, at=None)],
            {"id": [1, 2], "at": [INSTANT, None]},
            id="rows",
        ),
        pytest.param(Types.ROW_NAMED(["id"], [Types.INT()]), [], {"id": []}, id="no record"),
    ],
)
def test_records_of_a_declared_type_leave_as_a_table(
    environment: StreamExecutionEnvironment, declared: Any, records: list[Any], expected: dict[str, list[Any]]
) -> None:
    table = results_of(environment.set_parallelism(1).from_collection(records, declared)).to_arrow()

    assert table.to_pydict() == expected


def test_a_schema_can_be_given_where_no_type_was_declared(environment: StreamExecutionEnvironment) -> None:
    schema = pa.schema([("word", pa.string()), ("n", pa.int8())])

    table = results_of(environment.from_collection([("a", 1)])).to_arrow(schema)

    assert table.equals(pa.table({"word": ["a"], "n": [1]}, schema))


@pytest.mark.parametrize(
    "declared", [None, Types.LIST(Types.INT()), Types.BIG_DEC()], ids=["none", "lists", "decimals"]
)
def test_a_type_without_a_schema_is_said_and_the_records_can_still_be_read(
    environment: StreamExecutionEnvironment, declared: Any
) -> None:
    stream = environment.from_collection([], declared)

    with results_of(stream) as results:
        reason = r"to_arrow\(\) finds no schema in the declared type .*; give it one, as in to_arrow"
        with pytest.raises(JobGraphError, match=reason):
            results.to_arrow()
        assert list(results) == []


def test_a_record_that_is_not_of_the_schema_is_an_error(environment: StreamExecutionEnvironment) -> None:
    results = results_of(environment.from_collection([1, "two"]))

    with pytest.raises(TypeError, match="field 'n' is declared as int64: got a str"):
        results.to_arrow(pa.schema([("n", pa.int64())]))


def test_a_job_that_fails_gives_no_table(environment: StreamExecutionEnvironment) -> None:
    """Whether it fails while its results are read, or before anything could be."""
    with pytest.raises(JobExecutionError, match="ZeroDivisionError"):
        results_of(environment.from_collection([0]).map(lambda value: 1 // value, Types.LONG())).to_arrow()


def test_results_leave_as_a_data_frame(environment: StreamExecutionEnvironment) -> None:
    pandas = pytest.importorskip("pandas")

    frame = results_of(environment.from_arrow(pandas.DataFrame({"n": [1, 2]})).set_parallelism(1)).to_pandas()

    pandas.testing.assert_frame_equal(frame, pandas.DataFrame({"n": [1, 2]}))


def test_without_pandas_the_error_says_what_to_do(
    environment: StreamExecutionEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``to_pandas`` fails before it reads any result, so that the results can still be had as a table."""
    monkeypatch.setitem(sys.modules, "pandas", None)

    with results_of(environment.from_arrow(ROWS)) as results:
        with pytest.raises(FlowletError, match=r"to_pandas\(\) needs pandas: install it .*, or use to_arrow\(\)"):
            results.to_pandas()
        assert results.to_arrow().num_rows == 3
