"""Tests of ``flowlet.jm.job_manager_config``."""

import math
from typing import Any

import pytest

from flowlet.errors import ConfigError
from flowlet.jm.job_manager_config import JobManagerConfig

SECRET = b"s" * 32


def test_the_secret_is_never_shown() -> None:
    assert "ssss" not in repr(JobManagerConfig(SECRET))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_a_secret_has_32_bytes(length: int) -> None:
    with pytest.raises(ConfigError, match=f"secret has {length} bytes"):
        JobManagerConfig(b"s" * length)


@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 2_000_000_000])
@pytest.mark.parametrize("option", ["slot_request_timeout_s", "heartbeat_timeout_s", "max_active_jobs"])
def test_numbers_are_positive_and_finite(option: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=option):
        JobManagerConfig(SECRET, **{option: value})


def test_processes_are_given_as_long_as_in_flink() -> None:
    """A function may keep the interpreter's lock for so long; heartbeat.interval and heartbeat.timeout."""
    config = JobManagerConfig(SECRET)

    assert (config.heartbeat_interval_ms, config.heartbeat_timeout_s) == (10_000, 50.0)


def test_a_timeout_that_no_heartbeat_can_keep_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"heartbeat_interval_ms is 10000, it must be less than the heartbeat_timeout_s of 8"
    ):
        JobManagerConfig(SECRET, heartbeat_timeout_s=8.0)
