import operator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.chain.chunking_output import MIN_COLUMN_ROWS, KeyExtractor, create_key_extractor, field_selected_by
from flowlet.chain.loop_code import LoopCode, failure_of
from flowlet.chain.record_shape import apart
from flowlet.columns import ArrayColumn, ArrowColumn, Columns, ConstantColumn, ListColumn, Shape, columns_of
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Broadcast, Custom, Forward, Global, KeyGroups, Rebalance, Rescale, Shuffle
from flowlet.keys.column_key import ColumnKey
from flowlet.records import Chunk, PickledRecord
from flowlet.serde.pickles.record_pickle import dumps_record
from tests.names import stable_repr


class Position(int):
    pass


class Fields:
    """Looks like an item getter, and is none."""

    def __reduce__(self) -> Any:
        return operator.itemgetter, (0,)

    def __call__(self, record: Any) -> Any:
        return record[1]


def taker(select: Any, *, makes_keys: bool = True) -> KeyExtractor:
    return KeyExtractor(select, "key_by", 3, selector=select, makes_keys=makes_keys)


def never(_: Any) -> Any:
    raise AssertionError("asked")


@pytest.mark.parametrize(
    ("selector", "field"),
    [
        (operator.itemgetter(0), 0),
        (operator.itemgetter(7), 7),
        (operator.itemgetter("name"), "name"),
        (ColumnKey("name"), "name"),
        (operator.itemgetter(-1), None),
        (operator.itemgetter(0, 1), None),
        (operator.itemgetter(True), None),
        (operator.itemgetter(Position(1)), None),
        (operator.itemgetter(slice(1)), None),
        (operator.itemgetter(None), None),
        (operator.attrgetter("name"), None),
        (lambda record: record[0], None),
        (Fields(), None),
        (None, None),
    ],
    ids=stable_repr,
)
def test_only_an_item_getter_of_one_field_says_which(selector: Any, field: int | str | None) -> None:
    """Functions are called, and not read."""
    assert field_selected_by(selector) == field
    assert type(field_selected_by(selector)) is type(field)


def test_the_key_is_taken_where_its_statement_stands() -> None:
    code = LoopCode("test", lambda: None)
    keys: list[Any] = []
    with code.block("for v in records:"):
        key = taker(lambda record: record["id"]).write(code, "v")
        code.line(f"{code.bind(keys.append, 'note')}({key})")
    run = code.define("records")

    run([{"id": 1}, {"id": "a"}])
    with pytest.raises(KeyError) as caught:
        run([{"id": 2}, {"name": 3}])
    found = failure_of(caught.value)

    assert keys == [1, "a", 2]
    assert isinstance(found, UserFunctionError)
    assert (found.operator, found.subtask, found.record_preview) == ("key_by", 3, "{'name': 3}")


@pytest.mark.parametrize("key", ["a", 1, ("a", (1, 2)), None, frozenset({1})], ids=stable_repr)
def test_a_key_that_cannot_change_is_itself(key: Any) -> None:
    assert apart(key) is key


def test_a_key_that_can_change_is_as_it_was() -> None:
    key = ["a", [1]]

    copied = apart(key)
    key.append("b")
    key[1].append(2)  # type: ignore[attr-defined]  # it is a list

    assert copied == ["a", [1]]


# ---------------------------------------------------------------- chunks

RECORDS = [(f"key {number % 7}", number, number * 0.5) for number in range(50)]
TABLE = columns_of(RECORDS)
assert TABLE is not None


def chunk_of(form: str, num_records: int = 50) -> Chunk:
    timestamps = list(range(num_records))
    if form == "columns":
        assert TABLE is not None
        return Chunk.of_columns(TABLE.slice(0, num_records), timestamps)
    return Chunk(RECORDS[:num_records], timestamps)


@pytest.mark.parametrize("form", ["list", "columns"])
@pytest.mark.parametrize("num_records", [1, MIN_COLUMN_ROWS - 1, MIN_COLUMN_ROWS, 50])
@pytest.mark.parametrize(
    ("select", "position"),
    [
        (operator.itemgetter(0), 0),
        (operator.itemgetter(1), 1),
        (lambda record: record[0], 0),
        (lambda record: record[2], 2),
        (lambda record: record[-1], 2),
        (lambda record: f"<{record[0]}>", None),
        (lambda record: record[:2], None),
        (lambda record: record, None),
    ],
)
def test_a_chunk_gets_the_keys_that_it_lacks(form: str, num_records: int, select: Any, position: int | None) -> None:
    """A chunk gets its keys as the place of a field that is the key of every record, or else one by one; its records
    and timestamps stay.
    """
    found = taker(select).keyed(chunk_of(form, num_records))

    assert (found.values, found.timestamps) == (RECORDS[:num_records], list(range(num_records)))
    if found.columns is not None and found.columns.key_position is not None:
        assert found.columns.key_position == position
        assert found.keys is None
    else:
        assert found.keys == [select(record) for record in RECORDS[:num_records]]
    if num_records >= MIN_COLUMN_ROWS and position is not None:
        assert found.keys is None


def test_a_key_that_is_the_whole_value_is_its_column() -> None:
    found = taker(lambda value: value).keyed(Chunk([f"k{number}" for number in range(50)]))

    assert found.columns is not None
    assert (found.columns.shape, found.columns.key_position) == (Shape.SCALAR, 0)


def test_keys_that_are_not_the_same_field_in_all_records_are_no_field() -> None:
    selectors: list[Any] = [
        lambda record: record[0] if record[1] < 49 else record[1],
        lambda record: record[0] if record[1] else "key",
    ]
    for select in selectors:
        found = taker(select).keyed(chunk_of("list"))

        assert found.keys == [select(record) for record in RECORDS]


def test_each_record_is_asked_for_once() -> None:
    asked: list[Any] = []

    def select(record: Any) -> Any:
        asked.append(record)
        return record[0]

    for form in ("list", "columns"):
        asked.clear()
        taker(select).keyed(chunk_of(form))
        assert asked == RECORDS


def test_an_item_getter_is_not_called_for_columns() -> None:
    """The column is the key."""
    selector = operator.itemgetter(0)
    keys = KeyExtractor(never, "key_by", 3, selector=selector)

    for form in ("list", "columns"):
        found = keys.keyed(chunk_of(form))
        assert found.columns is not None
        assert found.columns.key_position == 0


@pytest.mark.parametrize("records", [[{0: "a"}] * 50, [["a", 1]] * 50, ["abc"] * 50, [("a",), ("b", 1)] * 25])
def test_an_item_getter_is_called_for_anything_else(records: list[Any]) -> None:
    found = taker(operator.itemgetter(0)).keyed(Chunk(list(records)))

    assert found.keys == [record[0] for record in records]
    assert found.values == records


def test_a_field_that_tuples_do_not_have_is_an_error_of_the_record() -> None:
    for form in ("list", "columns"):
        with pytest.raises(UserFunctionError) as caught:
            taker(operator.itemgetter(3)).keyed(chunk_of(form))

        assert caught.value.record_preview == "('key 0', 0, 0.0)"
        assert isinstance(caught.value.__cause__, IndexError)


def test_keys_that_are_there_stay() -> None:
    chunk = chunk_of("list")
    chunk.keys = list(range(50))
    columns = Columns(2, (ConstantColumn("a", 2), ArrayColumn(np.array([1, 2]))), Shape.TUPLE, key_position=1)
    table = Chunk.of_columns(columns)

    assert taker(never).keyed(chunk) is chunk
    assert taker(never).keyed(table) is table
    assert chunk.keys == list(range(50))


def test_a_column_key_is_left_to_the_writer() -> None:
    """A chunk whose key is an Arrow column passes unchanged: the record writer takes the keys from the column, nulls
    included.
    """
    columns = Columns(2, (ArrowColumn(pa.array(["a", None])),), Shape.ROW, ("name",))
    chunk = Chunk.of_columns(columns)

    assert KeyExtractor(never, "key_by", 3, selector=ColumnKey("name")).keyed(chunk) is chunk


@pytest.mark.parametrize("form", ["list", "columns"])
@pytest.mark.parametrize(
    ("select", "cause"),
    [
        (lambda record: 1 // (record[1] - 40), ZeroDivisionError),
        (lambda record: object() if record[1] == 40 else record[0], KeyTypeError),
    ],
    ids=["a selector that fails", "something that cannot be a key"],
)
def test_a_record_without_a_key_is_named(form: str, select: Any, cause: type[Exception]) -> None:
    with pytest.raises(UserFunctionError) as caught:
        taker(select).keyed(chunk_of(form))

    assert (caught.value.operator, caught.value.subtask) == ("key_by", 3)
    assert caught.value.record_preview == "('key 5', 40, 20.0)"
    assert isinstance(caught.value.__cause__, cause)


def test_the_record_of_a_bad_key_is_shown_even_if_it_is_pickled() -> None:
    chunk = Chunk(["a", PickledRecord(dumps_record({"list": [1]}))])
    chunk.keys = ["a", object()]

    with pytest.raises(UserFunctionError) as caught:
        taker(never).checked(chunk)

    assert caught.value.record_preview == "{'list': [1]}"


def test_what_are_no_keys_is_not_looked_at() -> None:
    """The channels that a custom partitioner chooses are no keys."""
    found = taker(lambda record: [record[1]], makes_keys=False).keyed(chunk_of("list"))

    assert found.keys == [[record[1]] for record in RECORDS]


def test_channels_are_never_a_field() -> None:
    found = taker(lambda record: record[1], makes_keys=False).keyed(chunk_of("columns"))

    assert found.keys == [record[1] for record in RECORDS]


def test_a_field_that_can_change_may_be_a_key() -> None:
    """A key that is made from a list is taken from the list's column, as from any other column."""
    fields = (ListColumn([[1], [2]]), ConstantColumn("a", 2))

    found = taker(lambda record: tuple(record[0])).keyed(Chunk.of_columns(Columns(2, fields, Shape.TUPLE)))

    assert (found.values, found.keys) == ([([1], "a"), ([2], "a")], [(1,), (2,)])


# ---------------------------------------------------------------- as partitioners want them

SUBTASK = 5


def taken(keys: KeyExtractor | None, *records: Any) -> list[Any] | None:
    assert keys is not None
    return keys.keyed(Chunk(list(records))).keys


class ById:
    def get_key(self, value: Any) -> Any:
        return value["id"]


class Ranges:
    def partition(self, key: int, num_partitions: int) -> int:
        return min(key // 10, num_partitions - 1)


@pytest.mark.parametrize("partitioner", [Forward(), Global(), Broadcast(), Rebalance(), Rescale(), Shuffle()], ids=repr)
def test_where_nothing_of_a_record_counts_nobody_is_asked(partitioner: Any) -> None:
    assert create_key_extractor(partitioner, SUBTASK, 3) is None


@pytest.mark.parametrize(
    "selector", [lambda record: record["id"], operator.itemgetter("id"), ById()], ids=["lambda", "getter", "object"]
)
def test_a_stream_by_key_is_asked_for_keys(selector: Any) -> None:
    """Selectors may be functions or objects, and channels any number."""
    for num_channels in (1, 3):
        keys = create_key_extractor(KeyGroups(selector), SUBTASK, num_channels)

        assert keys is not None
        assert keys.makes_keys
        assert taken(keys, {"id": 1}, {"id": "a"}) == [1, "a"]


def test_a_getter_of_a_field_says_so() -> None:
    getter = create_key_extractor(KeyGroups(operator.itemgetter(1)), SUBTASK, 2)
    function = create_key_extractor(KeyGroups(lambda record: record[1]), SUBTASK, 2)

    assert getter is not None
    assert function is not None
    assert (getter.field, function.field) == (1, None)


@pytest.mark.parametrize(
    "function", [Ranges(), Ranges().partition, lambda key, num_partitions: np.int64(min(key // 10, num_partitions - 1))]
)
def test_a_custom_partitioner_is_asked_for_channels(function: Any) -> None:
    keys = create_key_extractor(Custom(function, lambda record: record["at"]), SUBTASK, 3)

    assert keys is not None
    assert not keys.makes_keys
    channels = taken(keys, {"at": 5}, {"at": 15}, {"at": 99})
    assert channels == [0, 1, 2]
    assert set(map(type, channels)) == {int}


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        (3, "the partitioner returned 3; it must return a number from 0 to 2"),
        (-1, "the partitioner returned -1"),
        ("0", "'str' object cannot be interpreted as an integer"),
        (0.0, "'float'"),
        (None, "'NoneType'"),
    ],
)
def test_a_channel_that_there_is_not_is_refused_with_its_record(chosen: Any, message: str) -> None:
    keys = create_key_extractor(Custom(lambda key, _: chosen if key == "bad" else 0, lambda record: record), SUBTASK, 3)

    with pytest.raises(UserFunctionError) as caught:
        taken(keys, "good", "bad")

    assert (caught.value.operator, caught.value.subtask) == ("partition_custom", SUBTASK)
    assert caught.value.record_preview == "'bad'"
    assert message in str(caught.value.__cause__)


def test_a_key_selector_that_fails_is_named_by_its_step() -> None:
    with pytest.raises(UserFunctionError) as caught:
        taken(create_key_extractor(KeyGroups(lambda record: record["id"]), SUBTASK, 2), {"name": 1})

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("key_by", 5, "{'name': 1}")
