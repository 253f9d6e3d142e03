"""Results, timestamps, errors and snapshots are equal for records in lists and in columns, whatever is between them."""

import operator
from collections.abc import Callable
from typing import Any

import cloudpickle
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flowlet.columns import CodedColumn, Columns, ListColumn, NameTable, column_of, columns_of
from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.errors import UserFunctionError
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.key_index import KeyIndex
from flowlet.operators import keyed_aggregation_operator
from flowlet.operators.keyed_aggregation_operator import KeyedCountOperator, KeyedReduceOperator, KeyedSumOperator
from flowlet.records import MAX_TIMESTAMP, Chunk
from flowlet.state.state_snapshots import AGGREGATES, ColumnRows, KeyedStateSnapshot
from flowlet.state.state_table import AggregationSnapshot, StateForm
from tests.flowlet.operators.harness import Harness
from tests.flowlet.serde.exact import exact

KEY = operator.itemgetter(0)  # says which field it takes, so that the keys of columns are a column


def extreme(method: str) -> Aggregation:
    return Aggregation(method, 1)


def concatenate(first: Any, second: Any) -> Any:
    return (*first[:1], repr(first[1])[-3:] + repr(second[1])[-3:], *first[2:])


MAKE: dict[str, Callable[..., KeyedReduceOperator]] = {
    "sum": lambda **options: KeyedSumOperator(KEY, 1, **options),
    "sum of the last": lambda **options: KeyedSumOperator(KEY, -1, **options),
    "function": lambda **options: KeyedReduceOperator(KEY, lambda a, b: (a[0], a[1] + b[1]), **options),
    "another function": lambda **options: KeyedReduceOperator(KEY, concatenate, **options),
    **{
        method: lambda method=method, **options: KeyedReduceOperator(KEY, extreme(method), **options)
        for method in ("min", "max", "min_by", "max_by")
    },
}
OPTIONS: dict[str, dict[str, bool]] = {
    "each row": {},
    "each key and chunk": {"emits_batches": True},
    "at the end": {"emit_on_finish": True},
}

KEYS = st.sampled_from(["a", "b", "c"])
PAIRS = st.tuples(KEYS, st.integers(-5, 5))
CHUNKS = st.lists(PAIRS, min_size=1, max_size=8)
ODD_CHUNKS = st.one_of(
    st.lists(st.tuples(KEYS, st.integers(2**61, 2**63)), min_size=1, max_size=8),
    st.lists(st.tuples(KEYS, st.sampled_from([True, 0.5, -0.0, 2**70])), min_size=1, max_size=8),
    st.lists(st.tuples(st.sampled_from([1, True, 1.0, "a"]), st.integers(0, 3)), min_size=1, max_size=8),
    st.lists(st.tuples(KEYS, st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=8),
    st.lists(PAIRS.map(list), min_size=1, max_size=8),
)
STREAMS = st.lists(CHUNKS, max_size=4) | st.lists(CHUNKS | ODD_CHUNKS, max_size=5)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make columns of few records already, so that tests need few."""
    monkeypatch.setattr(keyed_aggregation_operator, "MIN_COLUMN_ROWS", 3)


def coded(columns: Columns, table: NameTable) -> Columns:
    """Return the records with dictionary codes as keys, as they come from a channel."""
    names = columns.fields[0].to_list()
    if set(map(type, names)) != {str}:
        return columns
    known = {name: code for code, name in enumerate(table.names)}
    for name in names:
        if name not in known:
            known[name] = len(table.names)
            table.names.append(name)
    import numpy as np

    keys = CodedColumn(np.array([known[name] for name in names], np.uint16), table)
    return Columns(columns.num_rows, (keys, *columns.fields[1:]), columns.shape)


def chunk_of(records: list[Any], form: str, table: NameTable, first_timestamp: int | None) -> Chunk:
    timestamps = None if first_timestamp is None else list(range(first_timestamp, first_timestamp + len(records)))
    columns = columns_of(records) if form != "list" else None
    if columns is None:
        return Chunk(list(records), timestamps)
    return Chunk.of_columns(coded(columns, table) if form == "codes" else columns, timestamps)


def run(
    make: Callable[[], KeyedReduceOperator],
    stream: list[list[Any]],
    form: str,
    *,
    has_timestamps: bool,
    stops_at: int | None = None,
) -> Any:
    """Return the output, by chunk; with a failure and a restart behind chunk ``stops_at``."""
    harness, table = Harness(make()), NameTable()
    outcome: list[Any] = []
    try:
        for number, records in enumerate(stream):
            harness.operator.process_chunk(chunk_of(records, form, table, number * 100 if has_timestamps else None))
            if number == stops_at:
                count = len(harness.output.elements)  # a chunk of several shapes comes out as several elements
                state = cloudpickle.loads(cloudpickle.dumps(harness.snapshot()))
                harness.operator.process_chunk(chunk_of([("a", 77), ("z", 1), ("a", 5)], form, table, None))
                harness.operator.close()
                before = harness.output.elements[:count]
                harness = Harness(make(), restored=state)
                harness.output.elements.extend(before)
        harness.operator.finish()
    except UserFunctionError as error:
        outcome.append((error.record_preview, repr(error.__cause__)))
    harness.operator.close()
    return [*outcome, exact(harness.output.values), harness.output.timestamps]


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
@settings(max_examples=12)
@example(stream=[[("a", 0, 0)], [("a", 0)] * 8, [("a", 0), ("a", -1)]], has_timestamps=False, stops_at=2)
@given(stream=STREAMS, has_timestamps=st.booleans(), stops_at=st.none() | st.integers(0, 3))
def test_columns_are_only_another_way_to_say_records(
    make: Callable[..., KeyedReduceOperator],
    options: dict[str, bool],
    stream: list[list[Any]],
    has_timestamps: bool,
    stops_at: int | None,
) -> None:
    """Results are equal after a restart from a snapshot, too, in whatever form the state was."""
    wanted = run(lambda: make(**options), stream, "list", has_timestamps=has_timestamps)

    for form in ("columns", "codes"):
        assert run(lambda: make(**options), stream, form, has_timestamps=has_timestamps) == wanted
        if "emit_on_finish" not in options:  # BATCH has no checkpoints
            found = run(lambda: make(**options), stream, form, has_timestamps=has_timestamps, stops_at=stops_at)
            assert found == wanted


def rows_of(snapshot: KeyedStateSnapshot) -> list[Any]:
    """Return the rows of each key group."""
    return [states[AGGREGATES] for states in snapshot.groups.values()]


def columns(*records: Any) -> Chunk:
    found = columns_of(list(records))
    assert found is not None
    return Chunk.of_columns(found)


@pytest.mark.parametrize("first", [[("c", 1)], [("c", 1), ("a", 5)], [("c", 1)] * 4])
@pytest.mark.parametrize("form", ["list", "codes"])
def test_the_keys_of_few_records_at_first_do_not_make_those_of_all_later_ones_be_looked_up_one_by_one(
    first: list[tuple[str, int]], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job may begin with a few records; the keys of later ones are in a column, which is not taken apart."""
    harness, table = Harness(KeyedReduceOperator(KEY, lambda a, b: (a[0], a[1] + b[1]))), NameTable()
    harness.operator.process_chunk(chunk_of(first, form, table, None))
    harness.process(("b", 7))
    later = chunk_of([("a", 1), ("b", 2), ("a", 3), ("c", 4)], "codes", table, None)

    def looked_up(chunk: Chunk) -> list[Any]:
        raise AssertionError(f"the keys of {chunk!r} are looked up one by one")

    monkeypatch.setattr(harness.operator._key_input, "keys_and_exact", looked_up)
    harness.operator.process_chunk(later)
    harness.operator.process_chunk(chunk_of([("c", 1), ("b", 1)], "codes", table, None))

    sums: dict[str, int] = {}
    for key, number in [*first, ("b", 7), ("a", 1), ("b", 2), ("a", 3), ("c", 4), ("c", 1), ("b", 1)]:
        sums[key] = sums.get(key, 0) + number
    assert dict(harness.output.values) == sums


def test_an_index_is_made_again_only_after_as_many_records_as_there_are_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks with and without a column of keys may come in turns, from two inputs: each change costs as much as there
    are keys.
    """
    loaded: list[int] = []
    load = KeyIndex.load

    def counted(index: KeyIndex, keys: list[Any]) -> bool:
        loaded.append(len(keys))
        return load(index, keys)

    monkeypatch.setattr(KeyIndex, "load", counted)
    harness, table = Harness(KeyedReduceOperator(KEY, lambda a, b: (a[0], a[1] + b[1]))), NameTable()
    harness.operator.process_chunk(chunk_of([(f"k{number}", 0) for number in range(64)], "codes", table, None))
    records = [("k1", 1), ("k2", 2), ("k3", 3), ("k1", 4)]

    for _ in range(40):
        harness.process(*records)
        harness.operator.process_chunk(chunk_of(records, "codes", table, None))

    assert 0 < sum(loaded) <= 64 + 2 * 40 * len(records)
    assert {key: number for key, number in harness.output.values if number} == {"k1": 400, "k2": 160, "k3": 240}


def test_columns_come_out_where_columns_go_in() -> None:
    harness = Harness(KeyedSumOperator(KEY, 1))

    harness.operator.process_chunk(columns(("a", 1), ("b", 2), ("a", 3)))

    assert [chunk.columns is not None for chunk in harness.output.chunks] == [True]
    assert harness.output.values == [("a", 1), ("b", 2), ("a", 4)]


def test_small_chunks_are_done_record_by_record_until_a_large_one_comes() -> None:
    """The state goes over into columns with the large chunk; from there on small ones are done in columns, too."""
    harness = Harness(KeyedSumOperator(KEY, 1))

    for records in ([("a", 1)], [("a", 2), ("b", 1)], [("b", 1), ("c", 1), ("a", 4)], [("c", 1)]):
        harness.operator.process_chunk(columns(*records))

    assert [chunk.columns is not None for chunk in harness.output.chunks] == [False, False, True, True]
    assert harness.output.values == [("a", 1), ("a", 3), ("b", 1), ("b", 2), ("c", 1), ("a", 7), ("c", 2)]


ROW_OPERATORS: dict[str, Callable[..., KeyedReduceOperator]] = {
    "sum": lambda **options: KeyedSumOperator(ColumnKey("k"), "v", **options),
    "count": lambda **options: KeyedCountOperator(ColumnKey("k"), field_names=("k", "n"), **options),
    **{
        method: lambda method=method, **options: KeyedReduceOperator(
            ColumnKey("k"), Aggregation(method, "v"), **options
        )
        for method in ("min", "max", "min_by", "max_by")
    },
}


@pytest.mark.parametrize("options", [{}, {"emits_batches": True}], ids=["each row", "each key and chunk"])
@pytest.mark.parametrize("first", [1, 8])
@pytest.mark.parametrize("name", ROW_OPERATORS)
def test_rows_that_begin_with_a_few_stay_in_columns(name: str, first: int, options: dict[str, bool]) -> None:
    """A task begins with slices of 1, 8 and 64 records; rows that were records once cannot become columns again."""
    harness = Harness(ROW_OPERATORS[name](**options))

    for number in (first, 1_000):
        batch = pa.RecordBatch.from_pydict({"k": [row % 7 for row in range(number)], "v": list(range(number))})
        harness.operator.process_chunk(Chunk.of_columns(columns_of_batch(batch)))

    assert [chunk.columns is not None for chunk in harness.output.chunks] == [True, True]


@pytest.mark.parametrize(
    "old",
    [
        AggregationSnapshot(StateForm.SUMS, ("a", "b"), (3, 4)),
        AggregationSnapshot(StateForm.RECORDS, ("a",), (("a", 3),)),
    ],
)
def test_a_snapshot_of_records_goes_on_in_columns(old: AggregationSnapshot) -> None:
    harness = Harness(KeyedSumOperator(KEY, 1), restored=old)

    harness.operator.process_chunk(columns(("a", 1), ("c", 2), ("a", 1)))

    assert harness.output.chunks[0].columns is not None
    assert harness.output.values == [("a", 4), ("c", 2), ("a", 5)]


def test_a_snapshot_of_columns_goes_on_with_records() -> None:
    """The function after the restart may be another one, which has no columnar form."""
    before = Harness(KeyedSumOperator(KEY, 1))
    before.operator.process_chunk(columns(("a", 1), ("b", 2), ("a", 3)))
    state = before.snapshot()
    assert all(isinstance(rows.values, ColumnRows) for rows in rows_of(state))

    harness = Harness(KeyedReduceOperator(KEY, concatenate), restored=state)
    harness.process(("a", 7), ("b", 8))

    assert harness.output.values == [("a", "47"), ("b", "28")]


def test_what_is_in_a_snapshot_does_not_change_with_the_state() -> None:
    harness = Harness(KeyedSumOperator(KEY, 1))
    harness.operator.process_chunk(columns(("a", 1), ("b", 2), ("a", 3)))
    finish: Any = harness.keyed_state.snapshot()

    harness.operator.process_chunk(columns(("a", 1), ("c", 2), ("d", 3)))

    rows = rows_of(finish())
    assert sorted(pair for each in rows for pair in zip(each.keys, each.values, strict=True)) == [
        ("a", ("a", 4)),
        ("b", ("b", 2)),
    ]
    assert not any(isinstance(field, CodedColumn) for each in rows for field in each.values.columns.fields)


def test_final_results_in_columns_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_aggregation_operator, "FINAL_CHUNK_ROWS", 2)
    harness = Harness(KeyedSumOperator(KEY, 1, emit_on_finish=True))
    found = columns_of([("a", 1), ("b", 2), ("c", 3), ("a", 4), ("d", 5)])
    assert found is not None
    harness.operator.process_chunk(Chunk.of_columns(found, [1, 2, 3, 4, 5]))
    assert harness.output.elements == []

    harness.operator.finish()

    assert [len(chunk) for chunk in harness.output.chunks] == [2, 2]
    assert harness.output.values == [("a", 5), ("b", 2), ("c", 3), ("d", 5)]
    assert harness.output.timestamps == [MAX_TIMESTAMP] * 4


def test_a_batch_has_the_last_result_of_each_key_in_the_order_of_the_rows() -> None:
    for form in ("list", "columns"):
        harness = Harness(KeyedReduceOperator(KEY, lambda a, b: (a[0], a[1] + b[1]), emits_batches=True))
        harness.operator.process_chunk(
            chunk_of([("a", 1), ("b", 2), ("a", 3), ("c", 4), ("b", 5)], form, NameTable(), 10)
        )

        assert harness.output.values == [("a", 4), ("c", 4), ("b", 7)]
        assert harness.output.timestamps == [12, 13, 14]


def test_an_unhashable_key_is_named_as_among_records() -> None:
    harness = Harness(KeyedSumOperator(KEY, 1), subtask=2)
    fields = (ListColumn(["a", {"b"}, "c"]), column_of([1, 2, 3]))
    whole = columns(("x", 1))
    assert whole.columns is not None

    with pytest.raises(UserFunctionError) as caught:
        harness.operator.process_chunk(Chunk.of_columns(Columns(3, fields, whole.columns.shape)))

    assert caught.value.record_preview == "({'b'}, 2)"


NULLABLE_ROWS = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.none() | st.integers(-5, 5)), min_size=1, max_size=8),
    max_size=4,
)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("method", ["sum", "min", "max", "min_by", "max_by"])
@settings(max_examples=12)
@given(stream=NULLABLE_ROWS, in_columns=st.lists(st.booleans(), min_size=4, max_size=4))
def test_rows_with_nulls_have_the_same_results_in_columns(
    method: str, options: dict[str, Any], stream: list[list[Any]], in_columns: list[bool]
) -> None:
    """A null in the field changes nothing, a null as key is a key; whichever chunks come as columns."""
    function = Aggregation(method, "v", skips_nulls=True)
    outcomes = []
    for is_mixed in (False, True):
        harness = Harness(KeyedReduceOperator(ColumnKey("k"), function, **options))
        for number, rows in enumerate(stream):
            schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("row", pa.int64())])
            records = [{"k": key, "v": value, "row": row} for row, (key, value) in enumerate(rows)]
            batch = pa.Table.from_pylist(records, schema).to_batches()[0]
            columns = columns_of_batch(batch)
            chunk = Chunk.of_columns(columns) if is_mixed and in_columns[number] else Chunk(columns.to_list())
            harness.operator.process_chunk(chunk)
        harness.operator.finish()
        outcomes.append(exact(harness.output.values))

    assert outcomes[0] == outcomes[1]


def test_an_empty_chunk_is_nothing() -> None:
    harness = Harness(KeyedSumOperator(KEY, 1))

    harness.operator.process_chunk(Chunk([]))

    assert harness.output.elements == []
    assert harness.snapshot() is None
