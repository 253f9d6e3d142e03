"""The dates, times and numbers that are one key, by each function alone."""

import datetime
import pickle
import uuid
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import PurePath, PurePosixPath, PureWindowsPath
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from flowlet.keys.exact_keys import exact_key, exact_keys, key_hash
from tests.names import stable_repr

EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - as what it is compared with
MICROSECOND = datetime.timedelta(microseconds=1)
ZONES = st.sampled_from(
    [datetime.UTC, ZoneInfo("Europe/Vienna"), ZoneInfo("America/New_York"), ZoneInfo("Asia/Kathmandu")]
)
LOCAL = st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1))  # noqa: DTZ001 - zones are put in below
AWARE = st.builds(lambda local, zone, fold: local.replace(tzinfo=zone, fold=fold), LOCAL, ZONES, st.integers(0, 1))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "Decimal": st.decimals(allow_nan=False)
    | st.sampled_from([Decimal("1.0"), Decimal("1.00"), Decimal("10E-1"), Decimal("-0")]),
    "Fraction": st.fractions(max_denominator=3),
    "date": st.dates(datetime.date(2024, 1, 1), datetime.date(2024, 1, 4)) | st.dates(),
    "datetime": LOCAL | st.just(EPOCH),
    "time": st.times(max_value=datetime.time(0, 0, 0, 3)) | st.times(),
    "timedelta": st.timedeltas(),
    "UUID": st.uuids() | st.integers(0, 3).map(lambda number: uuid.UUID(int=number)),
    "path": st.sampled_from(["a", "A", "/a", "a/b", "a//b", "a\\b"]).map(PurePosixPath),
    "path of Windows": st.sampled_from(["a", "A", "/a", "a/b", "a//b", "a\\b"]).map(PureWindowsPath),
    "bytes": st.binary(max_size=1),
}


def expect_same(first: Any, second: Any) -> None:
    assert exact_key(first) == exact_key(second)
    assert hash(exact_key(first)) == hash(exact_key(second))
    assert key_hash(first) == key_hash(second)


def expect_apart(*keys: Any) -> None:
    assert len({exact_key(key) for key in keys}) == len(keys)


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
@given(data=st.data())
def test_values_of_one_type_are_one_key_exactly_if_they_are_equal(
    values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    first, second = data.draw(values), data.draw(values)

    assert (exact_key(first) == exact_key(second)) == (first == second)
    if first == second:
        expect_same(first, second)


@given(AWARE, ZONES)
def test_an_instant_is_one_key_in_every_zone(instant: datetime.datetime, zone: datetime.tzinfo) -> None:
    expect_same(instant, instant.astimezone(zone))


@given(AWARE, AWARE)
def test_two_instants_are_one_key_exactly_if_they_are_one_in_utc(
    first: datetime.datetime, second: datetime.datetime
) -> None:
    is_same = first.astimezone(datetime.UTC) == second.astimezone(datetime.UTC)

    assert (exact_key(first) == exact_key(second)) == is_same


def test_an_hour_that_comes_twice_is_two_instants() -> None:
    """Python's == compares the clock's hands alone if both have one zone object; the instants are an hour apart."""
    first = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Vienna"))
    second = first.replace(fold=1)

    assert first == second
    expect_apart(first, second)
    assert key_hash(second) != key_hash(first)


def test_without_a_zone_an_hour_that_comes_twice_is_one_key() -> None:
    key = EPOCH.replace(hour=2)

    expect_same(key, key.replace(fold=1))
    expect_same(key.time(), key.time().replace(fold=1))


class NoOffset(datetime.tzinfo):
    """A zone that knows nothing: Python treats its times as if they had none."""

    def utcoffset(self, moment: datetime.datetime | None, /) -> None:
        return None

    def dst(self, moment: datetime.datetime | None, /) -> None:
        return None

    def tzname(self, moment: datetime.datetime | None, /) -> str:
        return "nowhere"


def test_a_zone_without_an_offset_is_none() -> None:
    expect_same(EPOCH, EPOCH.replace(tzinfo=NoOffset()))
    expect_same(datetime.time(3), datetime.time(3, tzinfo=NoOffset()))
    expect_same(datetime.time(3), datetime.time(3, tzinfo=ZoneInfo("Europe/Vienna")))


def test_times_with_an_offset_are_those_of_utc() -> None:
    hour = datetime.timezone(datetime.timedelta(hours=1))

    expect_same(datetime.time(12, tzinfo=hour), datetime.time(11, tzinfo=datetime.UTC))
    expect_apart(datetime.time(12), datetime.time(12, tzinfo=hour), datetime.time(12, tzinfo=datetime.UTC))


def test_instants_with_and_without_a_zone_dates_and_numbers_stay_apart() -> None:
    expect_apart(EPOCH, EPOCH.replace(tzinfo=datetime.UTC), EPOCH.date(), EPOCH.time(), EPOCH - EPOCH, 0, None)


@given(LOCAL)
def test_hashes_are_those_of_columns_of_numbers(local: datetime.datetime) -> None:
    """The numbers are microseconds and days since 1970."""
    microseconds = (local - EPOCH) // MICROSECOND

    assert key_hash(local) == key_hash(local.replace(tzinfo=datetime.UTC)) == key_hash(microseconds)
    assert key_hash(local - EPOCH) == key_hash(microseconds)
    assert key_hash(local.date()) == key_hash((local.date() - EPOCH.date()).days)


@pytest.mark.parametrize("extreme", [datetime.datetime.min, datetime.datetime.max])  # noqa: DTZ901 - zones come below
@pytest.mark.parametrize("hours", [-12, 12])
def test_the_first_and_the_last_instant_are_keys_in_every_zone(extreme: datetime.datetime, hours: int) -> None:
    """Some of these instants lie in a year that Python does not know, in UTC."""
    zone = datetime.timezone(datetime.timedelta(hours=hours))

    expect_same(extreme.replace(tzinfo=zone), pickle.loads(pickle.dumps(extreme.replace(tzinfo=zone))))
    expect_apart(extreme, *[extreme.replace(tzinfo=zone) for zone in (zone, datetime.UTC)])


class Birthday(datetime.date):
    pass


class Moment(datetime.datetime):
    pass


class Hour(datetime.time):
    pass


class Span(datetime.timedelta):
    pass


class Euro(Decimal):
    pass


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (Birthday(2024, 2, 29), datetime.date(2024, 2, 29)),
        (Moment(2024, 2, 29, 1, 2, 3, 4), datetime.datetime(2024, 2, 29, 1, 2, 3, 4)),  # noqa: DTZ001 - both ways
        (Moment(2024, 2, 29, tzinfo=datetime.UTC), datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)),
        (Hour(1, 2, 3, 4), datetime.time(1, 2, 3, 4)),
        (Span(1, 2, 3), datetime.timedelta(1, 2, 3)),
        (Euro("1.50"), Decimal("1.5")),
    ],
    ids=stable_repr,
)
def test_subclasses_are_the_key_that_they_hold(key: Any, plain: Any) -> None:
    expect_same(key, plain)
    assert type(exact_key(key)) is type(exact_key(plain))


def test_decimals_are_compared_by_value_whatever_the_context() -> None:
    digits = Decimal("1." + "0" * 60 + "1")
    with localcontext() as context:
        context.prec = 3
        context.capitals = 0
        in_context = key_hash(digits), key_hash(Decimal("1E+30"))

    assert in_context == (key_hash(digits), key_hash(Decimal("1E+30")))
    expect_apart(digits, Decimal(1), 1, 1.0, Fraction(1))
    expect_same(Decimal("1E+999999"), Decimal("10E+999998"))
    expect_same(Decimal("0E-10"), Decimal("-0"))


def test_all_nans_of_decimals_are_one_key() -> None:
    for nan in ("NaN", "-NaN", "sNaN", "NaN123"):
        expect_same(Decimal(nan), Decimal("NaN"))
    expect_apart(Decimal("NaN"), "NaN", float("nan"), Decimal("Infinity"))


def test_the_hash_of_a_uuid_is_that_of_java() -> None:
    """The hash is the exclusive or of the four words."""
    key = uuid.UUID("00000001-0002-0003-8004-000500060007")
    words = np.frombuffer(key.bytes, ">i4")

    assert key_hash(key) == int(np.bitwise_xor.reduce(words))


@pytest.mark.parametrize(
    ("key", "plain"),
    [
        (np.int64(5), 5),
        (np.uint8(5), 5),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64("nan"), float("nan")),
        (np.float16(-0.0), -0.0),
        (np.complex64(1 + 2j), 1 + 2j),
        (np.str_("a"), "a"),
        (np.bytes_(b"a"), b"a"),
        (np.void(b"ab"), b"ab"),
        (np.array([(1, "a")], "i4,U1")[0], (1, "a")),
        (np.datetime64("2024-02-29"), datetime.date(2024, 2, 29)),
        (np.datetime64("2024-02-29T01:00", "us"), datetime.datetime(2024, 2, 29, 1)),  # noqa: DTZ001 - as numpy's
        (np.datetime64("2024-02-29T01:00", "ns"), datetime.datetime(2024, 2, 29, 1)),  # noqa: DTZ001 - as numpy's
        (np.timedelta64(3, "s"), datetime.timedelta(seconds=3)),
        (np.timedelta64(3_000, "ns"), datetime.timedelta(microseconds=3)),
        (np.datetime64("NaT", "us"), None),
        (np.timedelta64("NaT", "s"), None),
    ],
    ids=stable_repr,
)
def test_scalars_of_numpy_are_their_values(key: Any, plain: Any) -> None:
    """An instant in nanoseconds, too, where it is one in microseconds."""
    expect_same(key, plain)
    assert type(exact_key(key)) is type(exact_key(plain))


def test_what_only_numpy_can_say_is_a_key_of_its_own() -> None:
    """Python has no nanoseconds, and no years above 9999."""
    times: list[Any] = [np.datetime64(count, unit) for count in (1, 2) for unit in ("ns", "ps")]
    times += [np.datetime64(10**12, "s"), np.datetime64(10**15, "ms")]

    expect_apart(*times, *[np.timedelta64(1, unit) for unit in ("ns", "ps", "Y", "M")], 1, 10**12)
    for key in times:
        expect_same(key, pickle.loads(pickle.dumps(key)))


def test_timestamps_of_pandas_are_instants_with_nanoseconds() -> None:
    pandas = pytest.importorskip("pandas")
    moment = datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.UTC)

    expect_same(pandas.Timestamp(moment), moment)
    expect_same(pandas.Timestamp(moment.replace(tzinfo=None)), moment.replace(tzinfo=None))
    expect_same(pandas.Timedelta(days=1), datetime.timedelta(days=1))
    expect_same(pandas.NaT, None)
    expect_apart(*[pandas.Timestamp(nanoseconds) for nanoseconds in (0, 1, 2, 1000)])
    expect_apart(*[pandas.Timestamp(nanoseconds, tz="UTC") for nanoseconds in (0, 1, 2, 1000)])
    expect_apart(*[pandas.Timedelta(nanoseconds) for nanoseconds in (0, 1, 2, 1000)])


@given(st.sampled_from(list(VALUES.values())), st.data())
def test_a_list_of_one_type_has_the_stand_ins_of_its_keys(values: st.SearchStrategy[Any], data: st.DataObject) -> None:
    keys = data.draw(st.lists(values))

    assert exact_keys(keys) == [exact_key(key) for key in keys]


@given(st.lists(AWARE | LOCAL))
def test_a_list_of_instants_with_and_without_zones(keys: list[datetime.datetime]) -> None:
    assert exact_keys(keys) == [exact_key(key) for key in keys]


def test_paths_of_windows_know_no_capitals() -> None:
    expect_same(PureWindowsPath("C:/A"), PureWindowsPath("c:\\a"))
    expect_apart(PurePosixPath("c"), PureWindowsPath("c"), "c")
    expect_same(PurePath("a"), PurePosixPath("a"))


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 9))
def test_trailing_zeros_do_not_count(key: Decimal, zeros: int) -> None:
    sign, digits, exponent = key.as_tuple()
    assume(isinstance(exponent, int) and abs(exponent) < 1_000)
    assert isinstance(exponent, int)

    expect_same(key, Decimal((sign, (*digits, *[0] * zeros), exponent - zeros)))
