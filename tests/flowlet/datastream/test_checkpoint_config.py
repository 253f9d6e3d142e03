"""Promises of ``CheckpointConfig`` and the methods of an environment about checkpoints."""

import os
import tempfile
from collections.abc import Callable

import msgspec
import pytest

from flowlet.common import Configuration, Duration
from flowlet.common.job_settings import CheckpointSettings, JobSettings, RestartKind
from flowlet.datastream import (
    CheckpointConfig,
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flowlet.errors import ConfigError, JobGraphError
from tests.flowlet.datastream.captured_graphs import new_environment


def settings_of(prepare: Callable[[StreamExecutionEnvironment], object]) -> JobSettings:
    """Return the settings of a job of a prepared environment, as its tasks get them."""
    environment, graph = new_environment()
    prepare(environment)
    environment.from_collection([1]).print()
    return graph().settings.job


def checkpoints_of(prepare: Callable[[CheckpointConfig], object]) -> CheckpointSettings:
    found = settings_of(
        lambda environment: prepare(environment.enable_checkpointing(1000).get_checkpoint_config())
    ).checkpoints
    assert found is not None
    return found


def test_without_them_a_job_takes_no_checkpoints() -> None:
    environment = StreamExecutionEnvironment()

    assert settings_of(lambda _: None).checkpoints is None
    assert environment.get_checkpoint_interval() == -1
    assert not environment.get_checkpoint_config().is_checkpointing_enabled()
    assert environment.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE


def test_enabled_checkpoints_travel_with_the_job() -> None:
    """The cluster is on this machine, so checkpoints go into a directory of the user's."""
    settings = settings_of(lambda environment: environment.enable_checkpointing(1500, CheckpointingMode.AT_LEAST_ONCE))

    directory = f"{tempfile.gettempdir()}/flowlet-checkpoints-{os.getuid()}"
    assert settings.checkpoints == CheckpointSettings(1500, directory, is_exactly_once=False)
    assert settings.restart.kind is RestartKind.DEFAULT
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=JobSettings) == settings


def test_the_mode_stays_when_only_the_interval_is_given() -> None:
    environment = StreamExecutionEnvironment().enable_checkpointing(10, CheckpointingMode.AT_LEAST_ONCE)

    assert environment.enable_checkpointing(20).get_checkpointing_consistency_mode() is CheckpointingMode.AT_LEAST_ONCE
    assert (environment.get_checkpoint_interval(), environment.is_unaligned_checkpoints_enabled()) == (20, False)
    assert not environment.is_force_unaligned_checkpoints()


SETTERS: list[tuple[str, object, str, object]] = [
    ("checkpoint_interval", 20, "interval_ms", 20),
    ("checkpoint_timeout", 20, "timeout_ms", 20),
    ("min_pause_between_checkpoints", 20, "min_pause_ms", 20),
    ("max_concurrent_checkpoints", 2, "max_concurrent", 2),
    ("tolerable_checkpoint_failure_number", 2, "tolerable_failures", 2),
    ("checkpointing_mode", CheckpointingMode.AT_LEAST_ONCE, "is_exactly_once", False),
]


@pytest.mark.parametrize(("name", "value", "field", "expected"), SETTERS)
def test_a_setter_reaches_the_job_and_its_getter(name: str, value: object, field: str, expected: object) -> None:
    config = CheckpointConfig()

    assert getattr(config, f"set_{name}")(value) is config
    assert getattr(config, f"get_{name}")() == value
    assert getattr(checkpoints_of(lambda config: getattr(config, f"set_{name}")(value)), field) == expected


def test_errors_of_checkpoints_fail_the_job_or_never_do() -> None:
    config = CheckpointConfig()

    assert config.is_fail_on_checkpointing_errors()
    assert config.set_fail_on_checkpointing_errors(False).get_tolerable_checkpoint_failure_number() == 2**31 - 1
    assert not config.is_fail_on_checkpointing_errors()
    assert config.set_fail_on_checkpointing_errors(True).is_fail_on_checkpointing_errors()


@pytest.mark.parametrize(
    ("setter", "value", "message"),
    [
        ("set_checkpoint_interval", 9, "'execution.checkpointing.interval' is '9', .* 10 ms or more"),
        ("set_checkpoint_interval", "soon", "'execution.checkpointing.interval' is 'soon'"),
        ("set_checkpoint_timeout", 0, "'execution.checkpointing.timeout' is '0'"),
        ("set_max_concurrent_checkpoints", 0, "'execution.checkpointing.max-concurrent-checkpoints' is '0'"),
        (
            "set_tolerable_checkpoint_failure_number",
            -1,
            "'execution.checkpointing.tolerable-failed-checkpoints' is '-1'",
        ),
        ("set_checkpointing_mode", "EXACTLY_ONCE", "a CheckpointingMode is needed, got 'EXACTLY_ONCE'"),
        ("enable_unaligned_checkpoints", "often", "unaligned.enabled' is 'often', which is not true or false"),
        ("set_force_unaligned_checkpoints", "often", "needs True or False, got 'often'"),
        ("set_alignment_timeout", 1000, r"needs a Duration such as Duration.of_seconds\(5\), got 1000"),
        ("set_alignment_timeout", Duration.of_seconds(-1), "aligned-checkpoint-timeout' is '-1000'"),
    ],
)
def test_what_cannot_be_is_refused_at_once_and_changes_nothing(setter: str, value: object, message: str) -> None:
    options = Configuration()

    with pytest.raises(ConfigError, match=message):
        getattr(CheckpointConfig(options), setter)(value)

    assert options.to_dict() == {}


def test_unaligned_checkpoints_reach_the_job_and_their_getters() -> None:
    def prepare(config: CheckpointConfig) -> None:
        config.enable_unaligned_checkpoints().set_aligned_checkpoint_timeout(Duration.of_seconds(2))
        assert config.is_unaligned_checkpoints_enabled()
        assert config.get_aligned_checkpoint_timeout() == config.get_alignment_timeout() == Duration.of_millis(2000)

    settings = checkpoints_of(prepare)

    assert (settings.is_unaligned, settings.aligned_timeout_ms) == (True, 2000)
    assert not checkpoints_of(
        lambda config: config.enable_unaligned_checkpoints().disable_unaligned_checkpoints()
    ).is_unaligned


@pytest.mark.parametrize(
    ("setter", "value", "message"),
    [
        ("set_max_concurrent_checkpoints", 2, "one is under way at a time, not 2: set execution"),
        ("set_checkpointing_mode", CheckpointingMode.AT_LEAST_ONCE, "exactly once only: set execution"),
    ],
)
def test_unaligned_checkpoints_are_taken_exactly_once_and_one_at_a_time(
    setter: str, value: object, message: str
) -> None:
    with pytest.raises(JobGraphError, match=message):
        checkpoints_of(lambda config: getattr(config.enable_unaligned_checkpoints(), setter)(value))


def test_a_timeout_of_alignments_without_unaligned_checkpoints_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"'execution\.checkpointing\.aligned-checkpoint-timeout' is set and has no effect"
    ):
        checkpoints_of(lambda config: config.set_aligned_checkpoint_timeout(Duration.of_seconds(1)))


def test_what_happens_anyway_may_be_asked_for() -> None:
    config = CheckpointConfig()
    config.disable_unaligned_checkpoints().set_force_unaligned_checkpoints(False)
    config.set_aligned_checkpoint_timeout(Duration.of_millis(0))
    config.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION)

    assert not config.is_unaligned_checkpoints_enabled()
    assert not config.is_force_unaligned_checkpoints()
    assert config.get_alignment_timeout() == config.get_aligned_checkpoint_timeout() == Duration.of_millis(0)
    assert config.get_externalized_checkpoint_retention() is ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION
    assert config.is_externalized_checkpoints_enabled()


@pytest.mark.parametrize(
    ("option", "variable"),
    [("here:1", None), (None, "127.0.0.1:6123")],
    ids=["named by an option", "named by a variable"],
)
def test_a_job_on_a_remote_cluster_needs_a_directory(
    option: str | None, variable: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if variable is not None:
        monkeypatch.setenv("FLOWLET_JOBMANAGER", variable)

    def prepare(environment: StreamExecutionEnvironment) -> None:
        if option is not None:
            environment.configure(Configuration.from_dict({"flowlet.jobmanager": option}))
        environment.enable_checkpointing(1000).set_runtime_mode(RuntimeExecutionMode.STREAMING)

    with pytest.raises(
        JobGraphError,
        match=r"checkpoints of a job on a cluster need a directory.*set the option 'execution.checkpointing.dir'",
    ):
        settings_of(prepare)


@pytest.mark.parametrize("cluster", ["", "127.0.0.1:6123"], ids=["local", "on a cluster"])
@pytest.mark.parametrize("mode", [RuntimeExecutionMode.BATCH, RuntimeExecutionMode.AUTOMATIC])
def test_a_batch_job_takes_no_checkpoints_and_needs_no_directory(
    mode: RuntimeExecutionMode, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch job runs without checkpoints, as in Flink, and a warning says so."""
    monkeypatch.setenv("FLOWLET_JOBMANAGER", cluster)
    with pytest.warns(UserWarning, match="checkpoints and savepoints are not taken in BATCH mode"):
        settings = settings_of(lambda environment: environment.enable_checkpointing(1000).set_runtime_mode(mode))

    assert settings.checkpoints is None


def test_a_batch_job_starts_from_no_savepoint() -> None:
    def prepare(environment: StreamExecutionEnvironment) -> None:
        environment.configure(Configuration.from_dict({"execution.state-recovery.path": "/savepoints/one"}))
        environment.set_runtime_mode(RuntimeExecutionMode.BATCH)

    with pytest.raises(JobGraphError, match="starts from no checkpoint or savepoint"):
        settings_of(prepare)
