"""Switches of ``ExecutionConfig``: with an effect, with a warning, or refused."""

import pytest

from flowlet.common import ExecutionConfig
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError, JobGraphError


@pytest.mark.parametrize(
    ("turn", "turn_back", "ask", "default"),
    [
        ("disable_closure_cleaner", "enable_closure_cleaner", "is_closure_cleaner_enabled", True),
        ("enable_force_kryo", "disable_force_kryo", "is_force_kryo_enabled", False),
        ("enable_force_avro", "disable_force_avro", "is_force_avro_enabled", False),
        ("enable_object_reuse", "disable_object_reuse", "is_object_reuse_enabled", False),
        ("disable_generic_types", "enable_generic_types", "has_generic_types_disabled", False),
    ],
)
def test_what_concerns_java_is_remembered_and_warned_of(turn: str, turn_back: str, ask: str, default: bool) -> None:
    config = ExecutionConfig()
    assert getattr(config, ask)() is default

    with pytest.warns(UserWarning, match=rf"{turn}\(\) has no effect here: .*; it can be left out"):
        assert getattr(config, turn)() is config
    assert getattr(config, ask)() is not default
    assert config != ExecutionConfig()
    assert getattr(config, turn_back)() is config
    assert getattr(config, ask)() is default
    assert config == ExecutionConfig()


def test_without_automatic_uids_each_operator_needs_one() -> None:
    environment = StreamExecutionEnvironment()
    assert environment.get_config().has_auto_generated_uids_enabled()
    environment.get_config().disable_auto_generated_uids()
    stream = environment.from_collection([1]).uid("numbers").map(abs)
    stream.print().uid("print")

    with pytest.raises(
        JobGraphError, match=r"operator 'Map.*' has no uid, and automatic ones are disabled: call uid\(\) on it"
    ):
        environment.get_execution_plan()

    stream.uid("map")
    assert environment.get_execution_plan()


def test_compressed_snapshots_are_remembered_and_warned_of() -> None:
    config = ExecutionConfig().set_use_snapshot_compression(False)

    with pytest.warns(
        UserWarning, match=r"set_use_snapshot_compression\(\) has no effect here: snapshots are not compressed"
    ):
        config.set_use_snapshot_compression(True)
    assert config.is_use_snapshot_compression()
    assert not config.set_use_snapshot_compression(False).is_use_snapshot_compression()
    with pytest.raises(ConfigError, match="needs True or False, got 'yes'"):
        config.set_use_snapshot_compression("yes")  # type: ignore[arg-type]  # the mistake


def test_there_are_no_serializers_of_java() -> None:
    config = ExecutionConfig()

    assert config.get_default_kryo_serializer_classes() == {}
    assert config.get_registered_kryo_types() == config.get_registered_pojo_types() == []
