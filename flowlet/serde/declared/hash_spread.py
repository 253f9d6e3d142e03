"""Detects keys that would make building a dict quadratic.

Side:       pure.
Invariants: the search for places in CPython's dict is carried out in numpy, with its own sequence, for every size that
            the dict has while it grows.  So a few thousand integers that were chosen to collide are refused before the
            dict is built.
Source:     CPython ``Objects/dictobject.c``: ``lookdict``, ``PERTURB_SHIFT``, ``USABLE_FRACTION``.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from flowlet.errors import SerdeError

MAX_PROBES_EACH: Final = 32  # random keys need 3 in a full table, regular ones (multiples of 2**60) 13
MIN_CHECKED: Final = 128  # fewer keys are cheap whatever their hashes are
_MAX_ROUNDS: Final = 64
_PERTURB_SHIFT: Final = np.uint64(5)
_FIVE, _ONE = np.uint64(5), np.uint64(1)


def check_spread(keys: Sequence[Any]) -> None:
    """Check that the hashes of the keys of a dict differ enough.

    Raises SerdeError: they collide; TypeError: a key has no hash.
    """
    if len(keys) <= MIN_CHECKED:
        return
    hashes = np.array(list(map(hash, keys)), np.int64)
    size = MIN_CHECKED
    while True:
        size *= 2
        part = hashes[: 2 * size // 3]
        num_probes = count_probes(part, size)
        if num_probes > MAX_PROBES_EACH * len(part):
            raise SerdeError(
                f"a map of {len(keys)} keys whose hashes collide: the first {len(part)} need {num_probes} probes or "
                "more"
            )
        if len(part) == len(hashes):
            return


def count_probes(hashes: NDArray[np.int64], size: int) -> int:
    """How many places are looked at until all keys are in a table of ``size`` places; at least this many if it is a
    lot.

    ``size`` is a power of two, larger than the number of keys.
    """
    mask = np.uint64(size - 1)
    perturb = hashes.astype(np.uint64)
    place = perturb & mask
    is_taken = np.zeros(size, np.bool_)
    owner = np.zeros(size, np.intp)
    num_probes = 0
    for _ in range(_MAX_ROUNDS):
        num_probes += len(place)
        free = np.flatnonzero(~is_taken[place])
        owner[place[free]] = free  # of several keys at one place, one wins
        won = free[owner[place[free]] == free]
        is_taken[place[won]] = True
        waits = np.ones(len(place), np.bool_)
        waits[won] = False
        if len(won) == len(place):
            return num_probes
        perturb = perturb[waits] >> _PERTURB_SHIFT
        place = (place[waits] * _FIVE + perturb + _ONE) & mask
    return num_probes + len(place) * size
