"""The settings that a job decides for its tasks, its checkpoints and its restarts, as options set them."""

import msgspec
import pytest

from flowlet.common import Configuration, ExecutionConfig
from flowlet.common.job_settings import BatchSettings, CheckpointSettings, JobSettings, RestartKind, RestartSettings
from flowlet.common.options.client_options import ClientHeartbeat
from flowlet.common.options.known_options import checkpoint_settings, job_settings, restart_settings
from flowlet.errors import ConfigError, JobGraphError
from tests.flowlet.stream_graphs import graph_of, unstarted


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
    reason = r"checkpoints cannot be kept in 'memory://here': it is the memory of one process"
    with pytest.raises(JobGraphError, match=reason):
        settings_of(interval="1 min", dir="memory://here")


def test_to_fall_back_needs_a_second_checkpoint() -> None:
    options = {"execution.checkpointing.interval": "1 min", "flowlet.checkpointing.restore-fallback": "true"}
    reason = "'flowlet.checkpointing.restore-fallback' is set and has no effect, because only one checkpoint"
    with pytest.raises(ConfigError, match=reason):
        checkpoint_settings(Configuration.from_dict(options), "/d")

    found = checkpoint_settings(Configuration.from_dict({**options, "execution.checkpointing.num-retained": "2"}), "/d")

    assert found is not None
    assert found.restore_fallback


def test_a_remote_cluster_needs_a_directory() -> None:
    with pytest.raises(JobGraphError, match=r"set the option 'execution.checkpointing.dir'"):
        checkpoint_settings(Configuration.from_dict({"execution.checkpointing.interval": "1 s"}), None)


def test_an_option_of_checkpoints_without_an_interval_is_refused() -> None:
    """The author of such options believes that checkpoints are taken."""
    reason = r"'execution.checkpointing.mode' is set and has no effect, because no checkpoints are taken: set 'exec"
    with pytest.raises(ConfigError, match=reason):
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
def test_an_option_of_another_strategy_is_refused(options: dict[str, str], has_checkpoints: bool, used: str) -> None:
    *_, name = options

    reason = f"option 'restart-strategy.{name}' is set and has no effect, because the restart strategy is '{used}'"
    with pytest.raises(ConfigError, match=reason):
        restart_of(options, has_checkpoints=has_checkpoints)


def test_the_default_strategy_with_checkpoints_can_be_tuned() -> None:
    found = restart_of({"exponential-delay.initial-backoff": "10 ms"}, has_checkpoints=True)

    assert found == RestartSettings(initial_backoff_ms=10)


def test_a_backoff_that_begins_above_its_end_is_refused() -> None:
    reason = r"60000 ms: change restart-strategy\.exponential-delay\.initial-backoff or \.max-backoff"
    with pytest.raises(JobGraphError, match=reason):
        restart_of({"type": "exponential-delay", "exponential-delay.initial-backoff": "2 min"})


@pytest.mark.parametrize(
    "wrong", [{"attempts": -1}, {"max_failures": 0}, {"reset_ms": 0}, {"multiplier": 1.0}, {"jitter": 1.1}]
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, float]) -> None:
    (name,) = wrong

    with pytest.raises(JobGraphError, match=f"{name} of the restart strategy"):
        RestartSettings(**wrong)  # type: ignore[arg-type]  # numbers


@pytest.mark.parametrize(
    "settings", [{"cancellation_interval_ms": 0}, {"cancellation_timeout_ms": -1}, {"max_record_bytes": 2**31}]
)
def test_numbers_out_of_range_are_refused_by_name(settings: dict[str, int]) -> None:
    (name,) = settings

    with pytest.raises(JobGraphError, match=name):
        JobSettings(**settings)  # type: ignore[arg-type]


def test_settings_travel_as_they_are() -> None:
    settings = JobSettings(500, 0, 2**31 - 1)

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(settings), type=JobSettings) == settings


def test_the_execution_config_has_flinks_defaults() -> None:
    config = ExecutionConfig()

    assert (config.get_task_cancellation_interval(), config.get_task_cancellation_timeout()) == (30_000, 180_000)
    assert job_settings(Configuration(), None, "AUTOMATIC") == JobSettings(batch=BatchSettings())


def test_options_of_the_environment_reach_the_job_graph() -> None:
    times = {"task.cancellation.interval": "500", "task.cancellation.timeout": "0"}
    environment = unstarted(times | {"flowlet.max-record-bytes": "1000"})
    environment.from_collection([1]).print()

    assert graph_of(environment.execute).settings.job == JobSettings(500, 0, 1000)
    assert environment.get_config().get_task_cancellation_interval() == 500
    assert environment.get_config().get_task_cancellation_timeout() == 0


# -------------------------------------------------------------------- which jobs need their client


ATTACHED, SHUTDOWN = "execution.attached", "execution.shutdown-on-attached-exit"
INTERVAL, TIMEOUT = "client.heartbeat.interval", "client.heartbeat.timeout"


def of(options: dict[str, str], *, is_collecting: bool = False, is_attached: bool = False) -> ClientHeartbeat | None:
    return ClientHeartbeat.of_options(
        Configuration.from_dict(options), is_collecting=is_collecting, is_attached=is_attached
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ClientHeartbeat(10_000, 60_000)),
        ({ATTACHED: "false"}, None),
        ({ATTACHED: "true"}, ClientHeartbeat(10_000, 60_000)),
        ({SHUTDOWN: "false"}, ClientHeartbeat(10_000, 60_000)),
        ({TIMEOUT: "600000"}, ClientHeartbeat(30_000, 600_000)),
        ({TIMEOUT: "9", INTERVAL: "2"}, ClientHeartbeat(2, 9)),
    ],
)
def test_a_job_whose_results_are_read_needs_its_reader(
    options: dict[str, str], expected: ClientHeartbeat | None
) -> None:
    assert of(options, is_collecting=True) == expected


@pytest.mark.parametrize(
    ("options", "is_attached", "expected"),
    [
        ({}, True, None),
        ({SHUTDOWN: "true"}, True, ClientHeartbeat(30_000, 180_000)),
        ({SHUTDOWN: "true", TIMEOUT: "3000"}, True, ClientHeartbeat(500, 3_000)),
        ({SHUTDOWN: "true", ATTACHED: "false"}, True, None),
        ({SHUTDOWN: "true"}, False, None),
        ({SHUTDOWN: "true", ATTACHED: "true"}, False, ClientHeartbeat(30_000, 180_000)),
        ({ATTACHED: "true"}, False, None),
    ],
)
def test_any_other_job_goes_on_without_it_unless_the_options_say_otherwise(
    options: dict[str, str], is_attached: bool, expected: ClientHeartbeat | None
) -> None:
    assert of(options, is_attached=is_attached) == expected


@pytest.mark.parametrize("options", [{INTERVAL: "60000"}, {TIMEOUT: "2"}, {TIMEOUT: str(2**40)}])
def test_times_that_do_not_fit_together_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"the interval is more than 0 and less than the timeout"):
        of(options, is_collecting=True)


def test_an_option_of_another_type_is_named() -> None:
    with pytest.raises(ConfigError, match=TIMEOUT):
        of({TIMEOUT: "30 s"}, is_collecting=True)
