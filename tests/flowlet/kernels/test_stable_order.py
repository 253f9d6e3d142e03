"""The order of integers, against ``sorted``."""

import random
from typing import Any

import numpy as np
import pytest

from flowlet.kernels.grouping import order_by_digits, stable_order


def expected_order(values: list[int]) -> list[int]:
    return sorted(range(len(values)), key=values.__getitem__)


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64, np.int64])
@pytest.mark.parametrize("span_bits", [3, 15, 16, 17, 40, 63])
def test_integers_of_every_width_and_span(dtype: Any, span_bits: int) -> None:
    """Equal ones keep their order."""
    rng, limits = random.Random(span_bits), np.iinfo(dtype)
    low = 0 if dtype != np.int64 else -(1 << span_bits - 1)
    values = [low + rng.randrange(min(1 << span_bits, int(limits.max) - low + 1)) for _ in range(500)] * 2

    order = stable_order(np.array(values, dtype))

    assert order is not None
    assert order.tolist() == expected_order(values)


def test_the_ends_of_64_bits() -> None:
    """The difference of signed integers may need a bit more than they have."""
    values = [2**63 - 1, -(2**63), 0, -1, 1]
    order = stable_order(np.array(values, np.int64))
    assert order is not None
    assert order.tolist() == expected_order(values)


@pytest.mark.parametrize("values", [[], [7], [1, 1, 2, 9]])
def test_what_is_in_order_is_left(values: list[int]) -> None:
    """Values that are in order need no new order."""
    assert stable_order(np.array(values, np.int64)) is None


def test_one_digit_is_enough_for_small_ones() -> None:
    """The upper digits are not looked at."""
    assert order_by_digits(np.array([3, 1 << 16, 2], np.uint32), 1).tolist() == [1, 2, 0]
