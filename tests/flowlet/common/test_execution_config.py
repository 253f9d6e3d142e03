"""Promises of ``ExecutionConfig``."""

import pytest

from flowlet.common import ExecutionConfig
from flowlet.errors import JobGraphError


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
