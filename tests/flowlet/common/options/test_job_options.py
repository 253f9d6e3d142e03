"""The checkpoints and restarts of a job, as options set them."""

import pytest

from flowlet.common import Configuration
from flowlet.common.job_settings import CheckpointSettings, RestartKind, RestartSettings
from flowlet.common.options.known_options import checkpoint_settings, restart_settings
from flowlet.errors import ConfigError, JobGraphError


def settings_of(**options: str) -> CheckpointSettings | None:
    return checkpoint_settings(
        Configuration.from_dict({f"execution.checkpointing.{name}": text for name, text in options.items()}), "/d"
    )


def restart_of(options: dict[str, str], *, has_checkpoints: bool = False) -> RestartSettings:
    found = {f"restart-strategy.{name}": text for name, text in options.items()}
    return restart_settings(Configuration.from_dict(found), has_checkpoints=has_checkpoints)


def test_flinks_defaults() -> None:
    assert settings_of() is None
    assert settings_of(interval="1 min") == CheckpointSettings(60_000, "/d", True, 600_000, 0, 1, 0, 1, True)
    assert restart_of({}) == RestartSettings()


def test_the_directory_of_an_option_counts_before_the_default() -> None:
    found = settings_of(interval="1 min", dir="s3://bucket/here")

    assert found is not None
    assert found.directory == "s3://bucket/here"


def test_a_url_that_cannot_hold_checkpoints_is_refused_when_the_job_is_built() -> None:
    with pytest.raises(
        JobGraphError, match=r"checkpoints cannot be kept in 'memory://here': it is the memory of one process"
    ):
        settings_of(interval="1 min", dir="memory://here")


def test_to_fall_back_needs_a_second_checkpoint() -> None:
    options = {"execution.checkpointing.interval": "1 min", "flowlet.checkpointing.restore-fallback": "true"}
    with pytest.raises(
        ConfigError,
        match=r"'flowlet.checkpointing.restore-fallback' is set and has no effect, because only one checkpoint",
    ):
        checkpoint_settings(Configuration.from_dict(options), "/d")

    found = checkpoint_settings(Configuration.from_dict({**options, "execution.checkpointing.num-retained": "2"}), "/d")

    assert found is not None
    assert found.restore_fallback


def test_a_remote_cluster_needs_a_directory() -> None:
    with pytest.raises(JobGraphError, match=r"set the option 'execution.checkpointing.dir'"):
        checkpoint_settings(Configuration.from_dict({"execution.checkpointing.interval": "1 s"}), None)


def test_an_option_of_checkpoints_without_an_interval_is_refused() -> None:
    """The author of such options believes that checkpoints are taken."""
    with pytest.raises(
        ConfigError,
        match=r"'execution.checkpointing.mode' is set and has no effect, because no checkpoints are taken: set 'exec",
    ):
        settings_of(mode="EXACTLY_ONCE")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"type": "off"}, RestartSettings(RestartKind.NONE)),
        ({"type": "fixed-delay", "fixed-delay.delay": "2 s"}, RestartSettings(RestartKind.FIXED_DELAY, delay_ms=2000)),
        (
            {"type": "failurerate", "failure-rate.delay": "2 s"},
            RestartSettings(RestartKind.FAILURE_RATE, delay_ms=2000),
        ),
        (
            {"type": "Exponential-Delay", "exponential-delay.attempts-before-reset-backoff": "8"},
            RestartSettings(RestartKind.EXPONENTIAL_DELAY, max_attempts=8),
        ),
    ],
)
def test_each_strategy_reads_its_options(options: dict[str, str], expected: RestartSettings) -> None:
    assert restart_of(options) == expected


@pytest.mark.parametrize(
    ("options", "has_checkpoints", "used"),
    [
        ({"type": "none", "fixed-delay.attempts": "3"}, True, "none"),
        ({"fixed-delay.attempts": "3"}, True, "exponential-delay"),
        ({"exponential-delay.max-backoff": "3 s"}, False, "none"),
        ({"type": "failure-rate", "exponential-delay.max-backoff": "3 s"}, True, "failure-rate"),
    ],
)
# A parameter.
def test_an_option_of_another_strategy_is_refused(options: dict[str, str], has_checkpoints: bool, used: str) -> None:
    *_, name = options

    with pytest.raises(
        ConfigError,
        match=f"option 'restart-strategy.{name}' is set and has no effect, because the restart strategy is '{used}'",
    ):
        restart_of(options, has_checkpoints=has_checkpoints)


def test_the_default_strategy_with_checkpoints_can_be_tuned() -> None:
    found = restart_of({"exponential-delay.initial-backoff": "10 ms"}, has_checkpoints=True)

    assert found == RestartSettings(initial_backoff_ms=10)


def test_a_backoff_that_begins_above_its_end_is_refused() -> None:
    with pytest.raises(
        JobGraphError, match=r"60000 ms: change restart-strategy\.exponential-delay\.initial-backoff or \.max-backoff"
    ):
        restart_of({"type": "exponential-delay", "exponential-delay.initial-backoff": "2 min"})


@pytest.mark.parametrize(
    "wrong", [{"attempts": -1}, {"max_failures": 0}, {"reset_ms": 0}, {"multiplier": 1.0}, {"jitter": 1.1}]
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong

    with pytest.raises(JobGraphError, match=f"{name} of the restart strategy"):
        RestartSettings(**wrong)  # type: ignore[arg-type]  # numbers
