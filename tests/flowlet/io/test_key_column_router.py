"""Promises of the router of key columns: keys in any form go where they would go one by one; those
in Arrow stay there.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.columns import ArrayColumn, ArrowColumn, Column, Columns, ListColumn, Shape
from flowlet.graph.partitioner import KeyGroups
from flowlet.io.create_record_writer import KeyColumnRouter
from flowlet.io.key_dictionary import KeyDictionary
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.key_columns import ChannelTable
from flowlet.records import Chunk
from tests.flowlet.serde.exact import exact
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.writer_rig import Rig, by_channel, channel_of

NUM_CHANNELS = 3
KEY = ColumnKey("key")


def texts(num_rows: int, num_distinct: int, prefix: str = "key") -> list[str]:
    return [f"{prefix} {number % num_distinct}" for number in range(num_rows)]


def rows(keys: Column) -> Columns:
    return Columns(len(keys), (ArrayColumn(np.arange(len(keys))), keys), Shape.ROW, ("id", "key"))


@pytest.fixture
def dictionary() -> KeyDictionary:
    return KeyDictionary(ChannelTable(128, NUM_CHANNELS), NUM_CHANNELS)


@pytest.fixture
def router(dictionary: KeyDictionary) -> KeyColumnRouter:
    return KeyColumnRouter(ChannelTable(128, NUM_CHANNELS), dictionary, is_column_key=True)


def routed(router: KeyColumnRouter, array: Any) -> Column:
    """Return the column as which the keys are sent; check that each key goes to its channel."""
    found = router.try_route(ArrowColumn(array), 0, Shape.ROW)
    assert found is not None
    column, lanes = found
    assert isinstance(lanes, np.ndarray)
    assert lanes.tolist() == [channel_of(key, NUM_CHANNELS) for key in array.to_pylist()]
    assert exact(column.to_list()) == exact(array.to_pylist())
    return column


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["", "a", "é", "水位线", "😀", "a\0b"] * 20),
        pa.array(texts(300, 3), pa.large_string())[7:],
        pa.array([None, "a", "b", "c"] * 50),
        pa.array([b"a", b"b"] * 100),
        pa.array([1, 2] * 100, pa.int16()),
        pa.array(["a", "b"] * 100).dictionary_encode(),
        pa.array([], pa.string()),
    ],
    ids=["texts", "slice", "nulls", "bytes", "numbers", "dictionary", "empty"],
)
def test_keys_in_arrow_stay_there(router: KeyColumnRouter, dictionary: KeyDictionary, array: Any) -> None:
    assert isinstance(routed(router, array), ArrowColumn)
    assert not len(dictionary)


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
    """Codes, Arrow columns and lists come one after the other, waiting together or not; the rows of a channel keep
    their order.
    """
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
