"""Promises of ``check_spread``: counts the probes of a dict, without making one."""

import random

import numpy as np
import pytest

from flowlet.errors import SerdeError
from flowlet.types.gate_forms import MAX_PROBES_EACH, MIN_CHECKED, check_spread, count_probes


def slow_count(keys: list[int], size: int) -> int:
    """Count the probes as CPython's dict inserts the keys, one after the other."""
    taken: set[int] = set()
    num_probes = 0
    for key in keys:
        perturb = hash(key) % 2**64
        place = perturb % size
        num_probes += 1
        while place in taken:
            perturb >>= 5
            place = (5 * place + perturb + 1) % size
            num_probes += 1
        taken.add(place)
    return num_probes


@pytest.mark.parametrize("step", [1, 3, 1024, 2**40, -7])
def test_probes_are_counted_as_a_dict_makes_them(step: int) -> None:
    """All keys are placed together, so the order differs, and with it the count a little."""
    keys = [step * number for number in range(300)]

    found = count_probes(np.array(list(map(hash, keys)), np.int64), 512)

    assert abs(found - slow_count(keys, 512)) <= 0.1 * found


@pytest.mark.parametrize("step", [1, 1000, 2**20, 2**55, 2**60])
def test_regular_keys_are_accepted(step: int) -> None:
    check_spread([step * number for number in range(5_000)])
    check_spread([random.Random(number).random() for number in range(500)])


def test_equal_hashes_are_refused_with_a_count() -> None:
    """Each of n big integers with one hash would be compared with all before it."""
    keys = [number * (2**61 - 1) for number in range(2_000)]

    assert count_probes(np.zeros(2_000, np.int64), 4096) > MAX_PROBES_EACH * 2_000
    with pytest.raises(SerdeError, match="a map of 2000 keys whose hashes collide: the first 170 need"):
        check_spread(keys)
    check_spread(keys[:MIN_CHECKED])
