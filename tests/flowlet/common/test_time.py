"""Promises of ``Duration`` and ``Time``."""

import pickle

import pytest

from flowlet.common import Duration, Instant, Time


def test_durations_of_all_units_agree() -> None:
    assert Duration.of_days(1) == Duration.of_hours(24) == Duration.of_minutes(24 * 60) == Duration.of_seconds(86_400)
    assert Duration.of_seconds(2) == Duration.of_millis(2000) == Duration.of_nanos(2_000_000_000)
    assert Duration.of_millis(1) != Duration.of_millis(2)


def test_a_duration_in_milliseconds_is_rounded_down() -> None:
    assert Duration.of_nanos(1_999_999).to_millis() == 1
    assert Duration.of_minutes(1).to_millis() == 60_000
    assert repr(Duration.of_millis(1)) == "Duration.of_nanos(1000000)"


def test_times_of_all_units_agree() -> None:
    assert (
        Time.days(1) == Time.hours(24) == Time.minutes(24 * 60) == Time.seconds(86_400) == Time.milliseconds(86_400_000)
    )
    assert Time.seconds(1).to_milliseconds() == 1000
    assert Time(1) != Time(2)
    assert hash(Time(1)) == hash(Time.milliseconds(1))
    assert str(Time.seconds(2)) == "2000 ms"


def test_an_instant_is_a_number_of_milliseconds_or_of_seconds_and_nanoseconds() -> None:
    assert Instant.of_epoch_milli(1500) == Instant(1, 500_000_000)
    assert Instant.of_epoch_milli(-1) == Instant(-1, 999_000_000)
    assert Instant(-1, 999_999_999).to_epoch_milli() == -1
    assert Instant(1, 2) != Instant(1, 3)
    assert len({Instant(1, 2), Instant(1, 2)}) == 1
    assert repr(Instant(1, 2)) == "Instant<1, 2>"


def test_an_instant_does_not_change_and_can_be_pickled() -> None:
    instant = Instant(1, 2)

    with pytest.raises(AttributeError, match="does not change"):
        instant.nanos = 3

    assert pickle.loads(pickle.dumps(instant)) == Instant(1, 2)


@pytest.mark.parametrize("nanos", [-1, 1_000_000_000])
def test_the_nanoseconds_of_an_instant_are_less_than_a_second(nanos: int) -> None:
    with pytest.raises(ValueError, match=f"got {nanos}"):
        Instant(0, nanos)
