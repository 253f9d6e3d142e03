"""What checkpoints cost a job with much keyed state: its throughput with one per second beside its throughput without.

Side:   any.
Job:    ``bench/jobs/counted_keys.py``: two TaskManager processes with one slot each, parallelism 2; every key changes all the time.
Rate:   records / (last record at the last sink - first poll of the first source); with checkpoints and without in turns, ratios within
        one round.
Figures: also in the details: how many checkpoints were complete, how long they took, the longest synchronous part.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from bench.jobs.counted_keys import CountedKeys
from bench.report import Result
from bench.rounds import Contender, compare

NUM_KEYS: Final = (100_000, 1_000_000)
NUM_RECORDS: Final = 10_000_000
INTERVAL_MS: Final = 1000
QUICK_KEYS: Final = (1_000,)
QUICK_RECORDS: Final = 200_000
QUICK_INTERVAL_MS: Final = 20


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """The options of this case alone."""
    parser = argparse.ArgumentParser(prog="python -m bench checkpoint", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keys", type=numbers, default=NUM_KEYS, help="of the state, separated by commas")
    parser.add_argument("--records", type=int, default=NUM_RECORDS, help="a multiple of the keys")
    parser.add_argument("--interval-ms", type=int, default=INTERVAL_MS)
    return vars(parser.parse_args(arguments))


def numbers(text: str) -> tuple[int, ...]:
    """Some numbers, separated by commas."""
    return tuple(map(int, text.split(",")))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    keys: Sequence[int] = NUM_KEYS,
    records: int = NUM_RECORDS,
    interval_ms: int = INTERVAL_MS,
) -> list[Result]:
    """Each number of keys with checkpoints and without, in turns."""
    if quick:
        keys, records, interval_ms = QUICK_KEYS, QUICK_RECORDS, QUICK_INTERVAL_MS
    results: list[Result] = []
    for num_keys in keys:
        num_records = max(1, records // num_keys) * num_keys
        with_them, without = CountedKeys(num_keys, num_records, interval_ms), CountedKeys(num_keys, num_records, None)
        details = {"num_keys": num_keys, "num_records": num_records}
        contenders = [
            Contender(f"checkpoint {num_keys} keys, every {interval_ms} ms", partial(with_them.run), details=details),
            Contender(f"checkpoint {num_keys} keys, none", partial(without.run), is_peer=True, details=details),
        ]
        results += compare(contenders, num_runs, "records/s")
    return results
