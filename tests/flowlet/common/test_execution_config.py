"""The parallelism in an ``ExecutionConfig``, and its switches: with an effect, with a warning, or refused."""

import pytest

from flowlet.common import ExecutionConfig
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError, JobGraphError


def test_nothing_is_set_at_first() -> None:
    config = ExecutionConfig()

    assert config.get_parallelism() == config.get_max_parallelism() == ExecutionConfig.PARALLELISM_DEFAULT == -1


def test_values_are_kept_and_compared() -> None:
    config = ExecutionConfig().set_parallelism(3).set_max_parallelism(32768)

    assert (config.get_parallelism(), config.get_max_parallelism()) == (3, 32768)
    assert config == ExecutionConfig().set_parallelism(3).set_max_parallelism(32768)
    assert hash(config) == hash(ExecutionConfig().set_parallelism(3).set_max_parallelism(32768))
    assert config != ExecutionConfig().set_parallelism(3)


def test_the_parallelism_can_be_left_to_the_environment_again() -> None:
    assert ExecutionConfig().set_parallelism(3).set_parallelism(-1) == ExecutionConfig()


@pytest.mark.parametrize("value", [0, -2, 1.0, "2", True, None])
def test_a_parallelism_is_a_positive_whole_number(value: int) -> None:
    with pytest.raises(JobGraphError, match=r"the environment's parallelism must be a whole number of 1 or more, got"):
        ExecutionConfig().set_parallelism(value)


@pytest.mark.parametrize("value", [0, -1, 32769, True, "1"])
def test_a_max_parallelism_is_within_flinks_limits(value: int) -> None:
    with pytest.raises(JobGraphError, match=r"max parallelism must be a whole number from 1 to 32768, got"):
        ExecutionConfig().set_max_parallelism(value)


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

    reason = r"operator 'Map.*' has no uid, and automatic ones are disabled: call uid\(\) on it"
    with pytest.raises(JobGraphError, match=reason):
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
