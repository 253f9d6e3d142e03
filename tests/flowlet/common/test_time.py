"""Promises of ``Duration`` and ``Time``."""

from flowlet.common import Duration, Time


def test_durations_of_all_units_agree() -> None:
    assert Duration.of_days(1) == Duration.of_hours(24) == Duration.of_minutes(24 * 60) == Duration.of_seconds(86_400)
    assert Duration.of_seconds(2) == Duration.of_millis(2000) == Duration.of_nanos(2_000_000_000)
    assert Duration.of_millis(1) != Duration.of_millis(2)


def test_a_duration_in_milliseconds_is_rounded_down() -> None:
    assert Duration.of_nanos(1_999_999).to_millis() == 1
    assert Duration.of_minutes(1).to_millis() == 60_000
    assert repr(Duration.of_millis(1)) == "Duration.of_nanos(1000000)"


def test_times_of_all_units_agree() -> None:
    assert Time.days(1) == Time.hours(24) == Time.minutes(24 * 60) == Time.seconds(86_400) == Time.milliseconds(86_400_000)
    assert Time.seconds(1).to_milliseconds() == 1000
    assert Time(1) != Time(2)
    assert hash(Time(1)) == hash(Time.milliseconds(1))
    assert str(Time.seconds(2)) == "2000 ms"
