"""Promises of ``Configuration``."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.common import ConfigOptions, Configuration, Duration
from flowlet.errors import ConfigError


def test_unset_options_have_the_default() -> None:
    configuration = Configuration()

    assert configuration.get_string("k", "d") == "d"
    assert configuration.get_integer("k", 7) == 7
    assert configuration.get_boolean("k", True) is True
    assert configuration.get_float("k", 1) == 1.0
    assert configuration.get_bytearray("k", bytearray(b"x")) == bytearray(b"x")
    assert not configuration.contains_key("k")


@given(integer=st.integers(), number=st.floats(allow_nan=False), flag=st.booleans(), data=st.binary(), text=st.text())
def test_what_is_set_comes_back(integer: int, number: float, flag: bool, data: bytes, text: str) -> None:
    """Options are kept as text and lose nothing by it."""
    configuration = (
        Configuration().set_integer("i", integer).set_float("f", number).set_boolean("b", flag).set_string("s", text)
    )
    configuration.set_bytearray("y", bytearray(data))

    assert configuration.get_integer("i", 0) == integer
    assert configuration.get_float("f", 0.0) == number
    assert configuration.get_boolean("b", not flag) is flag
    assert configuration.get_string("s", "") == text
    assert configuration.get_bytearray("y", bytearray()) == bytearray(data)


@pytest.mark.parametrize(("text", "value"), [("true", True), (" TRUE ", True), ("False", False)])
def test_booleans_are_read_in_any_case(text: str, value: bool) -> None:
    assert Configuration().set_string("b", text).get_boolean("b", not value) is value


def test_a_value_of_another_type_is_refused_by_the_options_name() -> None:
    configuration = Configuration.from_dict({"k": "maybe"})

    with pytest.raises(ConfigError, match="option 'k' is 'maybe', which is not a whole number"):
        configuration.get_integer("k", 0)
    with pytest.raises(ConfigError, match="not true or false"):
        configuration.get_boolean("k", False)
    with pytest.raises(ConfigError, match="not a number"):
        configuration.get_float("k", 0.0)
    with pytest.raises(ConfigError, match="not base64"):
        configuration.get_bytearray("k", bytearray())


@pytest.mark.parametrize(("key", "value"), [("", "v"), (1, "v"), ("k", 1), ("k", None)])
def test_options_are_texts_with_names(key: str, value: str) -> None:
    reason = r"an option is a text.*use set_boolean\(\), set_integer\(\) or set_float\(\)"
    with pytest.raises(ConfigError, match=reason):
        Configuration().set_string(key, value)


def test_a_copy_does_not_follow_its_original() -> None:
    original = Configuration.from_dict({"a": "1"})
    copy = Configuration(original)

    original.set_string("a", "2")

    assert copy.to_dict() == {"a": "1"}


def test_options_of_another_configuration_are_taken_over_with_a_prefix() -> None:
    configuration = Configuration.from_dict({"a": "1", "b": "1"})

    configuration.add_all(Configuration.from_dict({"b": "2"})).add_all(Configuration.from_dict({"c": "3"}), "p.")

    assert configuration.to_dict() == {"a": "1", "b": "2", "p.c": "3"}
    assert configuration.key_set() == {"a", "b", "p.c"}


def test_removal_says_whether_the_option_was_set() -> None:
    configuration = Configuration.from_dict({"a": ""})

    assert configuration.remove_config("a") is True
    assert configuration.remove_config("a") is False


def test_options_are_written_into_a_dict() -> None:
    target = {"x": "0"}

    Configuration.from_dict({"a": "1"}).add_all_to_dict(target)

    assert target == {"x": "0", "a": "1"}


def test_values_keep_their_types_in_a_dict_and_have_flinks_text_elsewhere() -> None:
    seconds = ConfigOptions.key("d").duration_type().no_default_value()
    names = ConfigOptions.key("l").string_type().as_list().no_default_value()
    configuration = Configuration.from_dict({"s": "1"}).set_boolean("b", True).set_integer("i", 7).set_float("f", 1e10)
    configuration.set_bytearray("y", bytearray(b"x")).set(seconds, Duration.of_seconds(60)).set(names, ["a", "b"])
    typed: dict[str, Any] = {}

    configuration.add_all_to_dict(typed)

    values = {
        "s": "1",
        "b": True,
        "i": 7,
        "f": 1e10,
        "y": bytearray(b"x"),
        "d": Duration.of_seconds(60),
        "l": ["a", "b"],
    }
    assert typed == values
    assert {name: type(each) for name, each in typed.items()} == {name: type(each) for name, each in values.items()}
    assert configuration.to_dict() == {
        "s": "1",
        "b": "true",
        "i": "7",
        "f": "1.0E10",
        "y": "eA==",
        "d": "1 min",
        "l": "[a, b]",
    }
    assert configuration.get_string("b", "") == "true"
    assert configuration.get_string("d", "") == "1 min"


def test_copies_and_changes_keep_the_types_of_values() -> None:
    original = Configuration().set_integer("i", 7).set_boolean("b", True).set_float("gone", 1.5)
    copy = Configuration(original).add_all(original, "p.").set_string("b", "x")
    copy.remove_config("gone")
    found: dict[str, Any] = {}

    copy.add_all_to_dict(found)

    assert found == {"i": 7, "b": "x", "p.i": 7, "p.b": True, "p.gone": 1.5}
    assert not copy.contains_key("gone")


def test_configurations_are_equal_by_their_options() -> None:
    one, other = Configuration.from_dict({"a": "1", "b": "2"}), Configuration.from_dict({"b": "2", "a": "1"})

    assert one == other
    assert hash(one) == hash(other)
    assert one != Configuration()
    assert one != {"a": "1", "b": "2"}
    assert str(one) == "{'a': '1', 'b': '2'}"


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ('["a", "b"]', ["a", "b"]),
        ("['a', 'b']", ["a", "b"]),
        ("[a, b]", ["a", "b"]),
        ("a; b;", ["a", "b"]),
        ("a", ["a"]),
        ("", []),
        ("[]", []),
        ("[1]", ["1"]),
        ("[true]", ["true"]),
        (None, []),
    ],
)
def test_lists_are_read_in_every_notation(text: str | None, items: list[str]) -> None:
    assert Configuration.parse_list_value(text) == items


def test_half_a_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="not a list"):
        Configuration.parse_list_value("[a, b")


def test_a_dict_is_refused_with_what_takes_one() -> None:
    with pytest.raises(ConfigError, match=r"Configuration\.from_dict\(\) takes a dict"):
        Configuration({"rest.port": "1"})  # type: ignore[arg-type]  # what people try
