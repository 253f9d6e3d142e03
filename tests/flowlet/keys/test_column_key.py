"""Keys of columns: one by one and by the column they are equal."""

import datetime
import zoneinfo
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.common.types import Row
from flowlet.errors import KeyTypeError
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import key_hash
from flowlet.keys.key_columns import column_hashes

INSTANTS = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))  # noqa: DTZ001 - some columns have no time zone
COLUMNS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "uint8": (pa.uint8(), st.integers(0, 255)),
    "float64": (pa.float64(), st.floats()),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=3)),
    "large string": (pa.large_string(), st.text(max_size=3)),
    "binary": (pa.binary(), st.binary(max_size=3)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "é", ""])),
    "timestamp": (pa.timestamp("us"), INSTANTS),
    "seconds": (pa.timestamp("s"), INSTANTS.map(lambda instant: instant.replace(microsecond=0))),
    "with a zone": (
        pa.timestamp("us", "Europe/Vienna"),
        INSTANTS.map(lambda instant: instant.replace(tzinfo=zoneinfo.ZoneInfo("UTC"))),
    ),
    "date": (pa.date32(), st.dates()),
}


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "values"), COLUMNS.values(), ids=COLUMNS)
@settings(max_examples=30)
@given(data=st.data())
def test_the_hash_of_a_column_is_that_of_each_row(
    kind: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    array = pa.array(data.draw(st.lists(values | st.none(), max_size=8)), kind)
    key = ColumnKey("k")

    expected = [key_hash(key.get_key(Row(k=value))) for value in array.to_pylist()]

    assert column_hashes(array).tolist() == expected
    assert column_hashes(array[1:]).tolist() == expected[1:]


def test_keys_are_what_users_see_except_for_what_cannot_be_one() -> None:
    key = ColumnKey("k")

    assert [key.get_key({"k": value}) for value in (1, "a", None)] == [1, "a", None]
    assert key.get_key({"k": datetime.datetime(1970, 1, 1, 0, 0, 1)}) == 1_000_000  # noqa: DTZ001 - as above
    assert (
        key.get_key({"k": datetime.datetime(1970, 1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))}) == 0
    )
    assert key.get_key({"k": datetime.date(1969, 12, 31)}) == -1
    assert repr(key) == "ColumnKey('k')"


def test_values_without_a_hash_are_refused() -> None:
    with pytest.raises(KeyTypeError, match="dict"):
        column_hashes(pa.array([{"a": 1}]))
