"""Promises about options: their types, their names, their settings, and the errors of wrong values."""

from dataclasses import dataclass

import pytest

from flowlet.common import Configuration
from flowlet.common.option import (
    boolean,
    choice,
    duration,
    duration_ms,
    number,
    settings_of,
    text,
    view_of,
    whole_number,
)
from flowlet.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("10 s", 10_000),
        ("10s", 10_000),
        (" 1 min ", 60_000),
        ("2 MINUTES", 120_000),
        ("1 h", 3_600_000),
        ("1 day", 86_400_000),
        ("250", 250),
        ("3 millis", 3),
        ("1999 µs", 1),
        ("1000000 ns", 1),
        ("0", 0),
    ],
)
def test_a_duration_is_written_as_in_flink(written: str, found: int) -> None:
    assert duration_ms(written) == found


@pytest.mark.parametrize("written", ["", "s", "-1 s", "1.5 s", "1 parsec", "1 s 2 ms", "PT10S", "²"])
def test_anything_else_is_no_duration(written: str) -> None:
    with pytest.raises(ValueError, match=r"\A"):
        duration_ms(written)


@pytest.mark.parametrize(
    ("option", "wrong", "allowed"),
    [
        (text("a"), " ", "a text that is not empty"),
        (boolean("a"), "maybe", "true or false"),
        (whole_number("a", least=2), "1", "a whole number of 2 or more"),
        (whole_number("a", least=2), "2.0", "a whole number of 2 or more"),
        (number("a", least=0, most=1, default=0), "1.5", "a number from 0 to 1"),
        (number("a", least=0, most=1, default=0), "nan", "a number from 0 to 1"),
        (duration("a", least=10), "9 ms", "a duration such as '10 s' or '1 min' of 10 ms or more"),
        (choice("a", {"yes": 1, "no": 2}), "maybe", "one of yes, no"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(option: object, wrong: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as raised:
        option.find(Configuration.from_dict({"a": wrong}))  # type: ignore[attr-defined]  # an Option of any type
    with pytest.raises(ConfigError) as refused:
        option.set(Configuration(), wrong)  # type: ignore[attr-defined]  # as above

    assert str(raised.value) == str(refused.value) == f"option 'a' is {wrong!r}, which is not {allowed}"
    assert raised.value.__cause__ is None


def test_an_older_name_counts_if_the_newer_one_is_not_set() -> None:
    option = whole_number("new", "old", least=0, default=7)
    options = Configuration.from_dict({"old": "1"})

    assert (option.get(Configuration()), option.find(Configuration()), option.is_set(Configuration())) == (
        7,
        None,
        None,
    )
    assert (option.get(options), option.is_set(options)) == (1, "old")
    with pytest.raises(ConfigError, match="option 'old' is 'x'"):
        option.get(Configuration.from_dict({"old": "x"}))
    assert option.get(options.set_string("new", "2")) == 2


def test_setting_an_option_replaces_its_older_name() -> None:
    option = boolean("new", "old", default=False)
    options = Configuration.from_dict({"old": "false"})

    option.set(options, value=True)

    assert options.to_dict() == {"new": "true"}
    assert option.get(options) is True


@dataclass(frozen=True)
class Soup:
    """Settings of which two fields are rows."""

    minutes: int = whole_number("soup.minutes", "soup.time", least=1, default=20).field()
    salt: str = text("soup.salt").field(default="a pinch")
    guests: int = 2


def test_settings_have_what_is_set_and_else_their_defaults() -> None:
    options = Configuration.from_dict({"soup.time": "30"})

    assert settings_of(Soup, Configuration()) == Soup()
    assert settings_of(Soup, options) == Soup(30)
    assert settings_of(Soup, options, guests=5, minutes=1) == Soup(1, guests=5)
    with pytest.raises(ConfigError, match=r"option 'soup\.minutes' is '0', which is not a whole number of 1 or more"):
        settings_of(Soup, Configuration.from_dict({"soup.minutes": "0"}))


def test_a_view_reads_one_option_at_a_time() -> None:
    options = Configuration.from_dict({"soup.minutes": "none"})
    view = view_of(Soup, options)

    assert view.salt == "a pinch"
    assert view_of(Soup, options.set_string("soup.salt", "much")).salt == view.salt == "much"
    with pytest.raises(ConfigError, match=r"option 'soup\.minutes' is 'none'"):
        view.minutes  # noqa: B018  # reading it raises
