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
