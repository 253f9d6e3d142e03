"""The checks that calls of columnar streams make, and the operators that they add."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from flowlet.client.translate import translate
from flowlet.common import Types
from flowlet.common.typeinfo import TypeInformation
from flowlet.datastream import MapFunction, StreamExecutionEnvironment
from flowlet.datastream.column_stream import ColumnStream, KeyedColumnStream
from flowlet.datastream.data_stream import DataStream, KeyedStream
from flowlet.errors import JobGraphError
from flowlet.graph.transformation import OperatorTransformation

TABLE = pa.table(
    {
        "word": pa.array(["a", None]),
        "n": pa.array([1, 2], pa.int32()),
        "x": pa.array([0.5, 1], pa.float32()),
        "when": pa.array([1, 2], pa.timestamp("ns")),
        "tags": pa.array([["a"], []]),
    }
)


class Same(MapFunction):
    def map(self, value: Any) -> Any:
        return value


class SameBatch:
    def map_batch(self, batch: Any) -> Any:
        return batch


def same_batches(batch: Any) -> Iterator[Any]:
    yield batch


@pytest.mark.parametrize(
    "function", [lambda batch: batch, same_batches, SameBatch()], ids=["function", "generator function", "object"]
)
def test_functions_of_batches_are_of_several_kinds(env: StreamExecutionEnvironment, function: Any) -> None:
    step = env.from_arrow(TABLE).map_batches(function)._transformation

    assert isinstance(step, OperatorTransformation)
    assert step.factory.arguments["function"] is function


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)


def operators(env: StreamExecutionEnvironment) -> list[str]:
    return [name for vertex in translate(env._stream_graph(None, None)).vertices for name in vertex.operator_names]


class OnlyAStream:
    """Another library's table as everybody sees it: with Arrow's protocol, and without a class that pyarrow knows."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


class CalledStream(OnlyAStream):
    """A stream that can be called, but is no function of batches."""

    def __call__(self) -> None:
        raise AssertionError("it is read by its protocol")


@pytest.mark.parametrize(
    "source",
    [
        TABLE,
        OnlyAStream(TABLE),
        OnlyAStream(TABLE.to_batches()[0]),
        CalledStream(TABLE),
        TABLE.to_batches()[0],
        TABLE.to_batches(),
        pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches()),
        iter(TABLE.to_batches()),
    ],
    ids=["table", "stream", "stream of a batch", "callable stream", "batch", "batches", "reader", "iterator"],
)
def test_arrow_data_of_every_kind_is_a_stream(env: StreamExecutionEnvironment, source: Any) -> None:
    stream = env.from_arrow(source)

    assert isinstance(stream, ColumnStream)
    assert stream.schema.equals(TABLE.schema)
    assert stream._transformation.source.equals(TABLE)  # type: ignore[attr-defined]  # an Arrow source
    assert stream._transformation.parallelism == 2


@pytest.mark.parametrize(
    ("view", "plain"),
    [(pa.string_view(), pa.string()), (pa.binary_view(), pa.binary())],
    ids=["texts of polars", "bytes of polars"],
)
def test_views_of_another_library_become_plain_columns(env: StreamExecutionEnvironment, view: Any, plain: Any) -> None:
    """Views, the form of texts in polars and DuckDB, are converted, because rows of views cannot be selected."""
    rows = pa.table({"v": pa.array(["a", None, "long enough for a buffer of its own"]), "n": [1, 2, 3]}).cast(
        pa.schema([("v", plain), ("n", pa.int64())])
    )
    views = pa.table({"v": rows["v"].cast(view), "n": rows["n"]})

    assert env.from_arrow(OnlyAStream(views))._transformation.source.equals(rows)  # type: ignore[attr-defined]  # an Arrow source


def test_the_schema_of_a_stream_can_be_given(env: StreamExecutionEnvironment) -> None:
    wider = pa.schema([("n", pa.int64())])

    assert env.from_arrow(OnlyAStream(pa.table({"n": pa.array([1], pa.int8())})), wider).schema.equals(wider)


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
def test_tables_of_other_libraries_are_streams(env: StreamExecutionEnvironment, library: str) -> None:
    module = pytest.importorskip(library)
    if library == "duckdb":
        table = module.sql("select * from (values (1::bigint, 'a'), (2::bigint, 'b')) as t(n, word)")
    else:
        table = module.DataFrame({"n": [1, 2], "word": ["a", "b"]})

    source = env.from_arrow(table)._transformation.source  # type: ignore[attr-defined]  # an Arrow source
    assert source.to_pydict() == {"n": [1, 2], "word": ["a", "b"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1,), "from_arrow.. needs a pyarrow.Table, record batches, a reader"),
        (([1],), "got list"),
        (([],), "got list"),
        ((lambda subtask, parallelism: [],), "needs the schema of the batches"),
        ((lambda subtask, parallelism: [], {"a": 1}), "needs a pyarrow.Schema, got"),
        ((TABLE, None, ""), "needs a name"),
        ((pa.table({}),), "there is none"),
        ((pa.Table.from_arrays([[1], [2]], names=["a", "a"]),), "each with a name of its own: a"),
        ((TABLE, pa.schema([("other", pa.int64())])), "got Table"),
        (
            (pa.table({"v": pa.array(["a"], pa.string_view())}),),
            "Arrow cannot select rows of 'v', a string_view; cast it",
        ),
        ((pa.table({"v": pa.array([["a"]], pa.list_(pa.string_view()))}),), "cannot select rows of 'v', a list<"),
        (
            (pa.table({"v": pa.RunEndEncodedArray.from_arrays([1], [1])}),),
            "cannot select rows of 'v', a run_end_encoded",
        ),
        ((pa.table({"v": [pa.MonthDayNano([1, 2, 3])]}),), "cannot select rows of 'v', a month_day_nano_interval"),
    ],
)
def test_what_is_no_arrow_data_is_refused(
    env: StreamExecutionEnvironment, arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(JobGraphError, match=message):
        env.from_arrow(*arguments)


def test_schemas_are_known_while_the_program_is_built(env: StreamExecutionEnvironment) -> None:
    keyed = env.from_arrow(TABLE).key_by("word")

    assert isinstance(keyed, KeyedColumnStream)
    assert keyed.sum("n").schema.types[1] == pa.int64()
    assert keyed.sum(2).schema.types[2] == pa.float64()
    assert keyed.max_by("when", emit="batch").schema.equals(TABLE.schema)
    assert keyed.count().schema.equals(pa.schema([("word", pa.string()), ("count", pa.int64())]))
    partitioned: Any = env.from_arrow(TABLE).rebalance()
    assert partitioned.map_batches(lambda batch: batch).schema.equals(TABLE.schema)
    assert type(env.from_arrow(TABLE).to_records()) is DataStream
    assert type(env.from_arrow(TABLE).key_by(lambda row: row["n"])) is KeyedStream
    assert isinstance(keyed.key_by("n"), KeyedColumnStream)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda stream: stream.key_by("words"),
            "key_by.'words'.: there is no such column, there are 'word', 'n', 'x', 'when', 'tags'",
        ),
        (lambda stream: stream.key_by("tags"), "key_by.'tags'.: a list<.*> cannot be a key; keys are integers"),
        (lambda stream: stream.key_by("when"), "cast it to timestamp"),
        (
            lambda stream: stream.key_by("word").sum("word"),
            "sum.'word'. adds integers or floats, the column is a string",
        ),
        (lambda stream: stream.key_by("word").sum("m"), "sum.'m'.: there is no such column"),
        (lambda stream: stream.key_by("word").sum(7), "sum.7.: there is no such column"),
        (
            lambda stream: stream.key_by("word").min("tags"),
            "min.'tags'. needs values that have an order; those of a list<.*> have none",
        ),
        (lambda stream: stream.key_by("word").sum("n", emit="rows"), "emits 'row' or 'batch', got emit='rows'"),
        (lambda stream: stream.map_batches(lambda: None), "map_batches.. calls its function with one record"),
        (
            lambda stream: stream.map_batches(7),
            "map_batches.. needs a callable or an object with map_batch.batch., got 7 of type int",
        ),
        (lambda stream: stream.map_batches(Same()), "needs a callable or an object with map_batch"),
        (
            lambda stream: stream.map_batches(len, pa.schema([("v", pa.string_view())])),
            "cannot select rows of 'v', a string_view",
        ),
        (lambda stream: stream.map_batches(len, 7), "map_batches.. needs a pyarrow.Schema, got 7"),
        (lambda stream: stream.key_by(lambda row: 1).count(emit=None), "got emit=None"),
        (
            lambda stream: stream.map_batches(len, pa.schema([("count", pa.int64())])).key_by("count").count(),
            "rename the key with map_batches",
        ),
    ],
)
def test_mistakes_are_found_while_the_program_is_built(
    env: StreamExecutionEnvironment, call: Any, message: str
) -> None:
    with pytest.raises(JobGraphError, match=message):
        call(env.from_arrow(TABLE))


@pytest.mark.parametrize(
    ("declared", "names", "types"),
    [
        (Types.ROW_NAMED(["a", "b"], [Types.STRING(), Types.LONG()]), ["a", "b"], [pa.string(), pa.int64()]),
        (Types.TUPLE([Types.DOUBLE(), Types.BOOLEAN()]), ["f0", "f1"], [pa.float64(), pa.bool_()]),
        (Types.INT(), ["f0"], [pa.int32()]),
        (Types.ROW([Types.SQL_TIMESTAMP(), Types.SQL_DATE()]), ["f0", "f1"], [pa.timestamp("us"), pa.date32()]),
    ],
)
def test_a_declared_type_has_a_schema(
    env: StreamExecutionEnvironment, declared: TypeInformation, names: list[str], types: list[Any]
) -> None:
    stream = env.from_collection([], declared).to_arrow()

    assert (stream.schema.names, stream.schema.types) == (names, types)


def test_a_type_that_says_too_little_needs_a_schema(env: StreamExecutionEnvironment) -> None:
    for stream in (env.from_collection([1]), env.from_collection([], Types.LIST(Types.INT()))):
        with pytest.raises(JobGraphError, match=r"to_arrow.. finds no schema in the declared type .*; give it one"):
            stream.to_arrow()
    assert env.from_collection([1]).to_arrow(pa.schema([("n", pa.int8())])).schema.names == ["n"]
    assert env.from_arrow(TABLE).to_arrow().schema.equals(TABLE.schema)


def test_the_operators_of_a_program(env: StreamExecutionEnvironment) -> None:
    env.from_arrow(TABLE).map_batches(lambda batch: batch).key_by("word").sum("n").to_records().print()
    env.from_collection([("a", 1)]).key_by(lambda pair: pair[0]).count(emit="batch").print()

    expected = ["Source: Arrow Source", "Map Batches", "Sum", "To Records", "Sink: Print to Std. Out"]
    assert operators(env) == [*expected, "Source: Collection Source", "Count", "Sink: Print to Std. Out"]
