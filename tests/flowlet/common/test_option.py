"""Promises about options: their types, their names, their settings, and the errors of wrong values."""

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest

from flowlet.common import ConfigOption, ConfigOptions, Configuration, Duration
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
from flowlet.common.written_values import MemorySize
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


# -------------------------------------------------------------------- options of users


class Color(Enum):
    """An enum of a user."""

    DARK_RED = 1
    BLUE = 2


def key() -> ConfigOptions.OptionBuilder:
    return ConfigOptions.key("a.key")


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        (key().boolean_type().no_default_value(), True, "true"),
        (key().int_type().no_default_value(), -3, "-3"),
        (key().long_type().no_default_value(), 1 << 40, "1099511627776"),
        (key().float_type().no_default_value(), 1.5, "1.5"),
        (key().double_type().no_default_value(), 2, "2.0"),
        (key().string_type().no_default_value(), "text", "text"),
        (key().duration_type().no_default_value(), Duration.of_minutes(1), "1 min"),
        (key().duration_type().no_default_value(), Duration.of_nanos(1500), "1500 ns"),
        (key().memory_type().no_default_value(), MemorySize.of_mebi_bytes(64), "64 mb"),
        (key().enum_type(Color).no_default_value(), Color.DARK_RED, "DARK_RED"),
        (key().map_type().no_default_value(), {"a": "1", "b": "x y"}, '{"a": "1", "b": "x y"}'),
        (key().int_type().as_list().no_default_value(), [1, 2], "[1, 2]"),
        (key().string_type().as_list().no_default_value(), ["a", "b;c", ""], '["a", "b;c", ""]'),
        (key().duration_type().as_list().no_default_value(), [Duration.of_seconds(1)], "[1 s]"),
        (key().float_type().no_default_value(), 1e10, "1.0E10"),
        (key().duration_type().no_default_value(), Duration.of_millis(90_500), "90500 ms"),
        (key().duration_type().no_default_value(), Duration.of_hours(48), "2 d"),
        (key().duration_type().no_default_value(), Duration.of_millis(0), "0 ms"),
    ],
)
def test_a_value_becomes_the_text_of_a_configuration_and_back(option: ConfigOption[Any], value: Any, text: str) -> None:
    configuration = Configuration()
    assert configuration.get(option) is None
    assert not configuration.contains(option)

    configuration.set(option, value)

    assert configuration.to_dict() == {"a.key": text}
    assert configuration.get(option) == value
    assert configuration.contains(option)


def test_defaults_in_their_order() -> None:
    option = key().int_type().default_value(3)

    assert Configuration().get(option) == 3
    assert Configuration().get(option, 4) == 4
    assert Configuration.from_dict({"a.key": "5"}).get(option, 4) == 5


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        (key().duration_type().no_default_value(), "1 min", Duration.of_minutes(1)),
        (key().duration_type().no_default_value(), "250", Duration.of_millis(250)),
        (key().memory_type().no_default_value(), "2gb", MemorySize(2 << 30)),
        (key().enum_type(Color).no_default_value(), "dark-red", Color.DARK_RED),
        (key().map_type().no_default_value(), "a:1, b:2:3", {"a": "1", "b": "2:3"}),
        (key().map_type().no_default_value(), '{"a": 1, "b": [2]}', {"a": "1", "b": "[2]"}),
        (key().int_type().as_list().no_default_value(), "['1', '2']", [1, 2]),
        (key().boolean_type().no_default_value(), " TRUE ", True),
    ],
)
def test_texts_of_files(option: ConfigOption[Any], text: str, value: Any) -> None:
    assert Configuration.from_dict({"a.key": text}).get(option) == value


@pytest.mark.parametrize(
    ("option", "text", "kind"),
    [
        (key().boolean_type().no_default_value(), "yes", "true or false"),
        (key().int_type().no_default_value(), "1.5", "a whole number"),
        (key().float_type().no_default_value(), "x", "a number"),
        (key().duration_type().no_default_value(), "1 parsec", "a duration such as '10 s' or '1 min'"),
        (key().memory_type().no_default_value(), "many", "a size such as '64 mb'"),
        (key().enum_type(Color).no_default_value(), "green", "one of DARK_RED, BLUE"),
        (key().map_type().no_default_value(), "a", "of the form name:value,name:value"),
        (key().map_type().no_default_value(), "{a", "of the form name:value,name:value"),
        (key().int_type().as_list().no_default_value(), "1;x", "a list, of which each item is a whole number"),
    ],
)
def test_a_text_of_another_type_is_an_error_that_names_the_option(
    option: ConfigOption[Any], text: str, kind: str
) -> None:
    with pytest.raises(ConfigError, match=rf"option 'a.key' is '{text}', which is not {kind}"):
        Configuration.from_dict({"a.key": text}).get(option)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        (key().boolean_type().no_default_value(), 1),
        (key().int_type().no_default_value(), True),
        (key().int_type().no_default_value(), "1"),
        (key().float_type().no_default_value(), "1"),
        (key().string_type().no_default_value(), 1),
        (key().duration_type().no_default_value(), 1),
        (key().memory_type().no_default_value(), 1),
        (key().enum_type(Color).no_default_value(), "BLUE"),
        (key().map_type().no_default_value(), {"a": 1}),
        (key().int_type().as_list().no_default_value(), [1, "2"]),
    ],
)
def test_a_value_of_another_type_is_refused(option: ConfigOption[Any], value: Any) -> None:
    with pytest.raises(ConfigError, match=r"option 'a.key' must be"):
        Configuration().set(option, value)


def test_a_timedelta_is_a_duration() -> None:
    option: ConfigOption[Any] = key().duration_type().no_default_value()

    assert Configuration().set(option, timedelta(milliseconds=1.5)).to_dict() == {"a.key": "1500 µs"}


def test_an_empty_name_and_a_default_of_another_type_are_refused() -> None:
    with pytest.raises(ConfigError, match="the name of an option is a text that is not empty, got ''"):
        ConfigOptions.key("")
    with pytest.raises(ConfigError, match=r"option 'a.key' must be a whole number, got 'x'"):
        key().int_type().default_value("x")  # type: ignore[arg-type]
