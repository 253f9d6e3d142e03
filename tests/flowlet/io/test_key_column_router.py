"""Promises of the router for texts in Arrow arrays: those that repeat are sent as codes, and all go where they would go one by one."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, ArrowColumn, CodedColumn, Column, Columns, ListColumn, Shape
from flowlet.graph.partitioner import KeyGroups
from flowlet.io import dictionary_bypass, key_dictionary
from flowlet.io.key_column_router import KeyColumnRouter
from flowlet.io.key_dictionary import KeyDictionary
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.key_columns import ChannelTable
from flowlet.records import Chunk
from tests.flowlet.serde.exact import exact
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.writer_rig import Make, Rig, by_channel, channel_of

NUM_CHANNELS = 3
KEY = ColumnKey("key")


def texts(num_rows: int, num_distinct: int, prefix: str = "key") -> list[str]:
    return [f"{prefix} {number % num_distinct}" for number in range(num_rows)]


def rows(keys: Column) -> Columns:
    return Columns(len(keys), (ArrayColumn(np.arange(len(keys))), keys), Shape.ROW, ("id", "key"))


def chunks_of(rig: Rig) -> list[list[Chunk]]:
    return [[element for element in rig.elements(channel) if isinstance(element, Chunk)] for channel in range(NUM_CHANNELS)]


def key_columns_of(rig: Rig) -> list[Column]:
    return [chunk.columns.fields[1] for chunks in chunks_of(rig) for chunk in chunks if chunk.columns is not None]


@pytest.fixture
def dictionary() -> KeyDictionary:
    return KeyDictionary(ChannelTable(128, NUM_CHANNELS), NUM_CHANNELS)


@pytest.fixture
def router(dictionary: KeyDictionary) -> KeyColumnRouter:
    channel = lambda key: channel_of(key, NUM_CHANNELS)  # noqa: E731
    return KeyColumnRouter(ChannelTable(128, NUM_CHANNELS), dictionary, channel, is_column_key=True)


def routed(router: KeyColumnRouter, array: Any) -> Column:
    """As what the keys are sent; checks that each goes to its channel."""
    found = router.try_route(ArrowColumn(array), 0)
    assert found is not None
    column, lanes = found
    assert isinstance(lanes, np.ndarray)
    assert lanes.tolist() == [channel_of(key, NUM_CHANNELS) for key in array.to_pylist()]
    assert exact(column.to_list()) == exact(array.to_pylist())
    return column


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()], ids=str)
@pytest.mark.parametrize("start", [0, 7], ids=["whole", "slice"])
def test_texts_that_repeat_become_codes(router: KeyColumnRouter, dictionary: KeyDictionary, kind: Any, start: int) -> None:
    """Of one dictionary, which sees each text once; also empty ones and those beyond ASCII."""
    keys = ["", "a", "é", "水位线", "😀", "a\0b"] * 20
    array = pa.array([*["before"] * start, *keys], kind)[start:]

    for _ in range(2):
        column = routed(router, array)
        assert isinstance(column, CodedColumn)
        assert column.names is dictionary.table

    assert sorted(dictionary.table.names) == sorted(set(keys))


@pytest.mark.parametrize(("num_distinct", "is_coded"), [(1, True), (20, True), (21, False), (160, False)])
def test_texts_that_are_rare_stay_in_arrow(router: KeyColumnRouter, num_distinct: int, is_coded: bool) -> None:
    """Eight of each, on average, are enough."""
    assert isinstance(routed(router, pa.array(texts(160, num_distinct))), CodedColumn) is is_coded


@pytest.mark.parametrize(
    "array",
    [
        pa.array([None, "a", "b", "c"] * 50),
        pa.array([b"a", b"b"] * 100),
        pa.array([1, 2] * 100, pa.int16()),
        pa.array(["a", "b"] * 100).dictionary_encode(),
        pa.array([], pa.string()),
    ],
    ids=["nulls", "bytes", "numbers", "dictionary", "empty"],
)
def test_anything_else_stays_in_arrow(router: KeyColumnRouter, dictionary: KeyDictionary, array: Any) -> None:
    assert isinstance(routed(router, array), ArrowColumn)
    assert not len(dictionary)


def test_after_a_chunk_of_rare_texts_the_next_ones_are_not_looked_at(router: KeyColumnRouter) -> None:
    """For a while; then texts that repeat become codes again."""
    rare, repeated = pa.array(texts(400, 400)), pa.array(texts(400, 4))

    kinds = [isinstance(routed(router, array), CodedColumn) for array in [repeated, rare, *[repeated] * 6]]

    num_bypassed = dictionary_bypass._MIN_BYPASS
    assert kinds == [True, False, *[False] * num_bypassed, *[True] * (6 - num_bypassed)]


def test_nulls_between_texts_that_repeat_end_no_bypass(router: KeyColumnRouter) -> None:
    """A chunk that could not become codes anyway is not counted."""
    rare, repeated, nulls = pa.array(texts(400, 400)), pa.array(texts(400, 4)), pa.array(["a", None] * 200)

    for array in [rare, *[nulls] * 9]:
        assert isinstance(routed(router, array), ArrowColumn)

    assert isinstance(routed(router, repeated), ArrowColumn)


def test_long_texts_go_as_they_are(router: KeyColumnRouter, dictionary: KeyDictionary, monkeypatch: pytest.MonkeyPatch) -> None:
    """And do not stay in the dictionary; those after them become codes of its next generation."""
    monkeypatch.setattr(key_dictionary, "MAX_CHARACTERS", 1_000)

    long = routed(router, pa.array(texts(100, 2, "long" * 200)))
    after = routed(router, pa.array(texts(100, 2)))

    assert isinstance(long, ArrowColumn)
    assert isinstance(after, CodedColumn)
    assert (dictionary.generation, len(dictionary)) == (1, 2)


def test_a_full_dictionary_is_emptied(router: KeyColumnRouter, dictionary: KeyDictionary, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes from before keep their meaning."""
    monkeypatch.setattr(key_dictionary, "MAX_KEYS", 30)
    before = texts(400, 20, "before")
    kept = routed(router, pa.array(before))

    for round_number in range(3):
        assert isinstance(routed(router, pa.array(texts(400, 20, f"round {round_number}"))), CodedColumn)

    assert dictionary.generation == 1
    assert kept.to_list() == before


def test_lists_and_arrow_share_the_codes(router: KeyColumnRouter, dictionary: KeyDictionary) -> None:
    keys = texts(160, 5)
    first = routed(router, pa.array(keys))

    found = router.try_route(ListColumn(keys, str), 0)

    assert found is not None
    assert isinstance(first, CodedColumn)
    assert isinstance(found[0], CodedColumn)
    assert np.array_equal(found[0].codes, first.codes)
    assert len(dictionary) == 5


# ---------------------------------------------------------------- over the wire


def test_a_text_in_arrow_is_sent_once(make: Make) -> None:
    """Then it is two bytes; and each consumer has one table."""
    rig = make(KeyGroups(KEY), NUM_CHANNELS)
    table = rows(ArrowColumn(pa.array(texts(200, 10, "a rather long key" * 20))))
    columns: list[Column] = []

    for _ in range(20):
        rig.writer.collect(Chunk.of_columns(table))
        columns += key_columns_of(rig)

    assert all(isinstance(column, CodedColumn) for column in columns)
    assert len({id(column.names) for column in columns if isinstance(column, CodedColumn)}) == NUM_CHANNELS
    assert sum(len(reader.raw) for reader in rig.readers) < 10 * 17 * 20 + 20 * (200 * (2 + 2) + 3 * 100) + 1_000


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(
        st.tuples(
            st.integers(1, 400),
            st.integers(1, 60),
            st.sampled_from(["string", "large_string", "nulls", "list"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_keys_in_any_form_arrive_where_and_as_they_would_one_by_one(chunks: list[tuple[int, int, str, bool]]) -> None:
    """Codes, Arrow and lists one after the other, waiting together or not; the rows of a channel keep their order."""
    sent: list[Any] = []
    found: list[list[Any]] = [[] for _ in range(NUM_CHANNELS)]

    with LocalNetwork(num_segments=900) as network:
        rig = Rig(network, KeyGroups(KEY), NUM_CHANNELS, max_buffers=800)
        for num_rows, num_distinct, kind, is_flushed in chunks:
            keys: list[Any] = texts(num_rows, num_distinct)
            if kind == "nulls":
                keys[0] = None
            arrow_type = pa.large_string() if kind == "large_string" else pa.string()
            columns = rows(ListColumn(keys) if kind == "list" else ArrowColumn(pa.array(keys, arrow_type)))
            sent += columns.to_list()
            rig.writer.collect(Chunk.of_columns(columns))
            if is_flushed:
                for channel, values in enumerate(rig.values()):
                    found[channel] += values
        for channel, values in enumerate(rig.values()):
            found[channel] += values

    assert exact(found) == exact(by_channel(sent, NUM_CHANNELS, KEY.get_key))
