"""Records and rules as pure functions of (seed, source, sequence number), and the results that a job must make of them.

Side:       pure.
Invariants: no code here knows the engine.  The oracle computes the sink's results from the generator alone.
Units:      event time in milliseconds: that of a record is its sequence number.
"""

import hashlib
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Final

NUM_SOURCES: Final = 2
NUM_KEYS: Final = 19
WINDOW_MS: Final = 500
_MASK: Final = (1 << 62) - 1  # stays a positive 64-bit integer

Record = tuple[int, int, int, int, str]  # source, key, sequence number, check, filler
Result = tuple[str, int, int, int, int, int, int]


def digest(*numbers: int) -> int:
    """Return a hash of numbers that is equal in every process."""
    text = ",".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") & _MASK


def record(seed: int, source: int, number: int) -> Record:
    """Return one record; some are longer than a small network buffer."""
    value = digest(seed, source, number)
    filler = "x" * (value % 40) if value % 97 else "y" * 700
    return source, value % NUM_KEYS, number, value, filler


def rule(seed: int, number: int) -> tuple[int, int]:
    """Return one record of the broadcast stream: a key of the broadcast state and its value."""
    return number, digest(seed, NUM_SOURCES, number)


@dataclass
class Tally:
    """The totals of the records of one key."""

    count: int = 0
    total: int = 0
    squares: int = 0
    hashes: int = 0

    def add(self, value: int) -> None:
        self.count += 1
        self.total = (self.total + value) & _MASK
        self.squares = (self.squares + value * value) & _MASK
        self.hashes ^= digest(value)


@dataclass(frozen=True, slots=True)
class Scale:
    """How much a run generates: records of each source, and rules."""

    seed: int
    num_records: int
    num_rules: int

    @property
    def end_ms(self) -> int:
        """The event time behind the last record, at which each key gives its counts."""
        return (self.num_records // WINDOW_MS + 1) * WINDOW_MS


@dataclass(frozen=True)
class Expected:
    """The results that the sink must get.  ``sequences``: per (source, key) the sequence numbers in their order."""

    sequences: dict[tuple[int, int], list[int]]
    windows: "Counter[Result]"
    totals: dict[int, Result]


@cache
def expected(scale: Scale) -> Expected:
    """Compute the expected results from the generator alone."""
    sequences: dict[tuple[int, int], list[int]] = {}
    windows: dict[tuple[int, int], Tally] = {}
    tallies: dict[int, Tally] = {}
    for source in range(NUM_SOURCES):
        for number in range(scale.num_records):
            _, key, _, value, _ = record(scale.seed, source, number)
            sequences.setdefault((source, key), []).append(number)
            windows.setdefault((key, (number // WINDOW_MS + 1) * WINDOW_MS), Tally()).add(value)
            tallies.setdefault(key, Tally()).add(value)
    rules = 0
    for number in range(scale.num_rules):
        rules ^= digest(*rule(scale.seed, number))
    return Expected(
        sequences,
        Counter(("window", key, end, tally.count, tally.total, 0, 0) for (key, end), tally in windows.items()),
        {
            key: ("total", key, each.count, each.total, each.squares, each.hashes, rules)
            for key, each in tallies.items()
        },
    )
