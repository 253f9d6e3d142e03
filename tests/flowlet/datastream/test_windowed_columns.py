"""The checks of windows and joins of columns while a program is built, and the columns that they give."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from flowlet.client.translate import translate
from flowlet.common import Duration, Time
from flowlet.datastream import OutputTag, StreamExecutionEnvironment
from flowlet.datastream.column_stream import ColumnStream
from flowlet.datastream.data_stream import DataStream
from flowlet.datastream.window import (
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flowlet.errors import JobGraphError

TABLE = pa.table(
    {
        "user": pa.array(["a", None]).dictionary_encode(),
        "n": pa.array([1, 2], pa.int32()),
        "x": pa.array([0.5, 1], pa.float32()),
        "price": pa.array([1, 2], pa.decimal128(10, 2)),
        "when": pa.array([1, 2], pa.timestamp("us")),
        "tags": pa.array([["a"], []]),
    }
)
MINUTES = TumblingEventTimeWindows.of(Time.minutes(1))


@pytest.fixture
def rows() -> ColumnStream:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    return env.from_arrow(TABLE).with_event_time("when", Duration.of_seconds(1))


def operators(stream: DataStream) -> list[str]:
    stream.print()
    graph = translate(stream.get_execution_environment()._stream_graph(None, None))
    return [name for vertex in graph.vertices for name in vertex.operator_names]


def test_results_have_the_key_the_window_and_the_aggregations(rows: ColumnStream) -> None:
    results = (
        rows.key_by("user")
        .window(MINUTES)
        .agg(total=("n", "sum"), mean=("n", "mean"), top=("price", "max"), n=("x", "count"), rows="count")
    )

    assert results.schema == pa.schema(
        [
            pa.field("user", pa.string()),
            pa.field("window_start", pa.timestamp("ms"), nullable=False),
            pa.field("window_end", pa.timestamp("ms"), nullable=False),
            pa.field("total", pa.int64()),
            pa.field("mean", pa.float64()),
            pa.field("top", pa.decimal128(10, 2)),
            pa.field("n", pa.int64(), nullable=False),
            pa.field("rows", pa.int64(), nullable=False),
        ]
    )
    assert [name for name in operators(results) if "Window" in name] == ["Local Window", "Window"]


def steps(stream: DataStream) -> list[str]:
    return [name for name in operators(stream) if name in ("Select", "Local Window", "Window")]


@pytest.mark.parametrize(
    "windows",
    [
        EventTimeSessionWindows.with_gap(Time.seconds(1)),
        ProcessingTimeSessionWindows.with_gap(Time.seconds(1)),
        TumblingProcessingTimeWindows.of(Time.minutes(1)),
    ],
)
def test_only_columns_that_are_needed_travel(rows: ColumnStream, windows: Any) -> None:
    """Rows of windows that form only at their key travel with the needed columns alone."""
    assert steps(rows.key_by("user").window(windows).sum("n")) == ["Select", "Window"]


@pytest.mark.parametrize("way", ["forward", "rebalance", "rescale", "shuffle", "global_", "broadcast"])
@pytest.mark.parametrize(
    "windows", [MINUTES, EventTimeSessionWindows.with_gap(Time.seconds(1))], ids=["two steps", "one step"]
)
def test_of_several_partitionings_the_last_counts(rows: ColumnStream, way: str, windows: Any) -> None:
    """The first step is where the rows are; it ran in one subtask."""
    results = getattr(rows, way)().key_by("user").window(windows).sum("n")
    results.print()

    graph = translate(rows.get_execution_environment()._stream_graph(None, None))

    assert [(vertex.parallelism, len(vertex.chain)) for vertex in graph.vertices] == [(2, 3), (2, 2)]


def test_steps_that_nobody_asked_for_need_no_uid(rows: ColumnStream) -> None:
    """Steps that flowlet adds need no uid, because no user can give them one."""
    env = rows.get_execution_environment()
    env.get_config().disable_auto_generated_uids()
    with pytest.raises(JobGraphError, match=r"has no uid, and automatic ones are disabled"):
        operators(rows)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.get_config().disable_auto_generated_uids()
    stream = env.from_arrow(TABLE).uid("rows").with_event_time("when").uid("times")
    for number, windows in enumerate((MINUTES, EventTimeSessionWindows.with_gap(Time.seconds(1)))):
        stream.key_by("user").window(windows).sum("n").uid(f"windows {number}").print().uid(f"print {number}")

    assert env.get_execution_plan()


def test_all_columns_travel_if_late_rows_are_wanted(rows: ColumnStream) -> None:
    results = rows.key_by("user").window(MINUTES).side_output_late_data(OutputTag("late")).sum("n")

    assert steps(results) == ["Window"]


@pytest.mark.parametrize(
    ("method", "kind"), [("sum", pa.float64()), ("mean", pa.float64()), ("min", pa.float32()), ("max", pa.float32())]
)
def test_one_aggregation_keeps_the_name_of_its_column(rows: ColumnStream, method: str, kind: Any) -> None:
    results = getattr(rows.key_by("user").window(MINUTES), method)("x")

    assert results.schema.field("x").type == kind
    assert rows.key_by("user").window(MINUTES).count().schema.names == ["user", "window_start", "window_end", "count"]


def test_windows_of_all_rows_run_in_one_subtask(rows: ColumnStream) -> None:
    results = rows.window_all(MINUTES).count()

    assert results.schema.names == ["window_start", "window_end", "count"]
    assert results._transformation.parallelism == 1


@pytest.mark.parametrize(
    ("aggregations", "message"),
    [
        ({}, "needs at least one aggregation"),
        ({"total": ("m", "sum")}, r"sum\('m'\): there is no such column, there are 'user', 'n'"),
        ({"total": ("n", "add")}, r"add is not one of sum, mean, min, max, count, first, last"),
        ({"total": "n"}, r'needs a column and an aggregation, such as \("amount", "sum"\), or "count", got \'n\''),
        ({"total": ("user", "sum")}, r"needs integers or floats, column 'user' is a dictionary"),
        ({"total": ("price", "mean")}, r"column 'price' is a decimal128\(10, 2\); cast it to float64"),
        ({"top": ("tags", "max")}, "needs values that have an order"),
        ({"user": "count"}, "have a column 'user' already"),
        ({"window_end": "count"}, "have a column 'window_end' already"),
    ],
)
def test_aggregations_that_cannot_be_are_refused(
    rows: ColumnStream, aggregations: dict[str, Any], message: str
) -> None:
    with pytest.raises(JobGraphError, match=message):
        rows.key_by("user").window(MINUTES).agg(**aggregations)


@pytest.mark.parametrize("assigner", [GlobalWindows.create(), CountTumblingWindowAssigner.of(3)])
def test_other_windows_are_for_records(rows: ColumnStream, assigner: Any) -> None:
    with pytest.raises(JobGraphError, match=r"columns have tumbling, sliding and session windows.*call to_records\(\)"):
        rows.key_by("user").window(assigner).count()


def test_windows_by_the_clock_have_no_late_rows(rows: ColumnStream) -> None:
    windows = rows.key_by("user").window(TumblingProcessingTimeWindows.of(Time.seconds(1)))

    with pytest.raises(JobGraphError, match="have no late rows"):
        windows.allowed_lateness(5).count()


def test_functions_of_records_work_on_windows_of_columns(rows: ColumnStream) -> None:
    windows = rows.key_by("user").window(MINUTES).allowed_lateness(5)

    reduced = windows.reduce(lambda first, second: second)

    assert not isinstance(reduced, ColumnStream)
    assert "To Records" in operators(reduced)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda windows: windows.allowed_lateness(-1), "allowed_lateness.. needs 0 ms or more, got -1"),
        (lambda windows: windows.side_output_late_data("late"), "needs an OutputTag"),
    ],
)
def test_settings_that_cannot_be_are_refused(rows: ColumnStream, use: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        use(rows.key_by("user").window(MINUTES))


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("who", r"with_event_time\('who'\): there is no such column"),
        ("x", r"with_event_time\('x'\): the column is a float; a time is a"),
    ],
)
def test_a_column_without_times_is_refused(rows: ColumnStream, column: str, message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        rows.with_event_time(column)


# -- joins


def test_a_join_has_the_key_the_window_and_the_columns(rows: ColumnStream) -> None:
    other = rows.map_batches(lambda batch: batch, pa.schema([("name", pa.string()), ("y", pa.int64())]))

    joined = (
        rows.join(other)
        .where("user")
        .equal_to("name")
        .window(SlidingEventTimeWindows.of(Time.seconds(2), Time.seconds(1)))
    )

    assert joined.select(n=("left", "n"), y=("right", "y")).schema == pa.schema(
        [
            pa.field("user", pa.string()),
            pa.field("window_start", pa.timestamp("ms"), nullable=False),
            pa.field("window_end", pa.timestamp("ms"), nullable=False),
            pa.field("n", pa.int32()),
            pa.field("y", pa.int64()),
        ]
    )
    assert " ".join(joined.select().schema.names) == "user window_start window_end n x price when tags y"
    assert "Join" in operators(joined.select())


def by_n(rows: Any, windows: Any = MINUTES) -> Any:
    return rows.join(rows).where("n").equal_to("n").window(windows)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda rows: rows.join(rows, how="cross"), "is not one of 'inner', 'left', 'right', 'outer'"),
        (lambda rows: rows.join(rows.to_records()), "needs another stream of columns"),
        (
            lambda rows: rows.join(rows).where("user").select(),
            r"comes after where\(column\), equal_to\(column\) and window",
        ),
        (lambda rows: rows.join(rows).where("nobody"), "there is no such column"),
        (lambda rows: rows.join(rows).where("user").equal_to("n").window(MINUTES).select(), "never are the same key"),
        (lambda rows: by_n(rows).select(), "would have several columns 'price', 'tags'"),
        (lambda rows: by_n(rows).select(a="x"), r"needs \(\"left\", column\)"),
        (lambda rows: by_n(rows).select(a=("left", "b")), r"select\('b'\): there is no such"),
        (
            lambda rows: by_n(rows, EventTimeSessionWindows.with_gap(Time.seconds(1))).select(),
            "tumbling or sliding windows of event time",
        ),
    ],
)
def test_joins_that_cannot_be_are_refused(rows: ColumnStream, make: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(JobGraphError, match=message):
        make(rows)
