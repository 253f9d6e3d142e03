"""Timestamps from columns of every type."""

import datetime
from typing import Any

import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common.types import Row
from flowlet.kernels.time_column import TimeColumn

MOMENT = datetime.datetime(2024, 5, 1, 12, 0, 0, 123_999)  # noqa: DTZ001 - a column without a time zone
MS = 1_714_564_800_123


def times(array: Any) -> list[int]:
    found: list[int] = TimeColumn("ts").timestamps_of(columns_of_batch(pa.record_batch({"ts": array}))).tolist()
    return found


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (pa.array([5, -7], pa.int64()), [5, -7]),
        (pa.array([5, 7], pa.int16()), [5, 7]),
        (pa.array([MOMENT], pa.timestamp("us")), [MS]),
        (pa.array([MOMENT], pa.timestamp("ns")), [MS]),
        (pa.array([MS], pa.timestamp("ms")), [MS]),
        (pa.array([MS // 1000], pa.timestamp("s", "Europe/Vienna")), [MS // 1000 * 1000]),
        (pa.array([-1], pa.timestamp("us")), [-1]),
        (pa.array([datetime.date(1970, 1, 3)], pa.date32()), [2 * 86_400_000]),
    ],
    ids=str,
)
def test_times_are_milliseconds_rounded_down(array: Any, expected: list[int]) -> None:
    assert times(array) == expected


@pytest.mark.parametrize("value", [MOMENT, MS])
def test_a_single_row_has_the_same_time(value: Any) -> None:
    assert TimeColumn("ts").extract_timestamp(Row(ts=value), 0) == MS


@pytest.mark.parametrize("array", [pa.array([1, None], pa.int64()), pa.array([MOMENT, None], pa.timestamp("us"))])
def test_a_row_without_a_time_is_refused(array: Any) -> None:
    with pytest.raises(
        ValueError, match=r"with_event_time\('ts'\): 1 of 2 rows have no time there \(null\); filter them out"
    ):
        times(array)


@pytest.mark.parametrize(
    ("array", "message"),
    [(pa.array([0.5]), "the column holds floats"), (pa.array(["now"]), "the column is a string; use milliseconds")],
)
def test_other_values_are_refused(array: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        times(array)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(TypeError, match=r"the rows have the columns \['ts'\]"):
        TimeColumn("when").timestamps_of(columns_of_batch(pa.record_batch({"ts": [1]})))
