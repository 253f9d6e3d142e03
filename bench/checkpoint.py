"""The cost of checkpoints for a job with much keyed state: throughput and latency with one per second beside those
without.

Side:   any.
Job:    ``bench/jobs/counted_keys.py``: two TaskManager processes with one slot each, parallelism 2; every key changes
        all the time.
Rate:   records / (last record at the last sink - first poll of the first source); with checkpoints and without in
        turns, ratios within one round.
Latency: ``bench/jobs/latency_with_state.py``: 1,000 records/s into a task that keeps all keys; p50 and p99, the others
         in the details.
Figures: also in the details: how many checkpoints were complete, how long they took, the longest synchronous part.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from bench.jobs.counted_keys import CountedKeys
from bench.jobs.latency_with_state import LatencyWithState
from bench.options import choices
from bench.percentiles import RECORDS_PER_S
from bench.report import Result
from bench.rounds import Contender, compare, tell
from bench.transport import orders

PARTS: Final = ("throughput", "latency")
NUM_KEYS: Final = (100_000, 1_000_000)
NUM_RECORDS: Final = 10_000_000
INTERVAL_MS: Final = 1000
QUICK_KEYS: Final = (1_000,)
QUICK_RECORDS: Final = 200_000
QUICK_INTERVAL_MS: Final = 20
SECONDS: Final = 8.0
WARM_UP_S: Final = 2.0
QUICK_SECONDS: Final = 0.5


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench checkpoint", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--parts", type=choices(PARTS), default=PARTS, help="which, separated by commas")
    parser.add_argument("--keys", type=numbers, default=NUM_KEYS, help="of the state, separated by commas")
    parser.add_argument("--records", type=int, default=NUM_RECORDS, help="a multiple of the keys")
    parser.add_argument("--interval-ms", type=int, default=INTERVAL_MS)
    return vars(parser.parse_args(arguments))


def numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of a text that separates them by commas."""
    return tuple(map(int, text.split(",")))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    parts: Sequence[str] = PARTS,
    keys: Sequence[int] = NUM_KEYS,
    records: int = NUM_RECORDS,
    interval_ms: int = INTERVAL_MS,
) -> list[Result]:
    """Measure both parts for each number of keys, with checkpoints and without, in turns."""
    if quick:
        keys, records, interval_ms = QUICK_KEYS, QUICK_RECORDS, QUICK_INTERVAL_MS
    results: list[Result] = []
    for num_keys in keys:
        if "throughput" in parts:
            results += throughput(num_runs, num_keys, max(1, records // num_keys) * num_keys, interval_ms)
        if "latency" in parts:
            results += latency(num_runs, num_keys, interval_ms, QUICK_SECONDS if quick else SECONDS)
    return results


def throughput(num_runs: int, num_keys: int, num_records: int, interval_ms: int) -> list[Result]:
    """Measure the rate with checkpoints and without, and their ratio."""
    with_them, without = CountedKeys(num_keys, num_records, interval_ms), CountedKeys(num_keys, num_records, None)
    details = {"num_keys": num_keys, "num_records": num_records}
    contenders = [
        Contender(f"checkpoint {num_keys} keys, every {interval_ms} ms", partial(with_them.run), details=details),
        Contender(f"checkpoint {num_keys} keys, none", partial(without.run), is_peer=True, details=details),
    ]
    return compare(contenders, num_runs, "records/s")


def latency(num_runs: int, num_keys: int, interval_ms: int, seconds: float) -> list[Result]:
    """Measure the latency with checkpoints and without."""
    intervals = {f"every {interval_ms} ms": interval_ms, "none": None}
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in intervals}
    for order in orders(list(intervals), num_runs):
        for name in order:
            sample = LatencyWithState(num_keys, intervals[name], min(WARM_UP_S, seconds), seconds).measure()
            samples[name].append(sample)
            text = (
                f"p50 {sample['p50_us']:.0f} us, p99 {sample['p99_us']:.0f} us, {sample['num_checkpoints']} checkpoints"
            )
            tell(f"latency with {num_keys} keys, checkpoints {name}: {text}")
    return [
        Result(
            f"checkpoint {num_keys} keys, {name}: latency {key}",
            "us",
            [each[f"{key}_us"] for each in of_name],
            {"num_keys": num_keys, "records_per_s": RECORDS_PER_S, "samples": of_name},
            is_peer=name == "none",
        )
        for name, of_name in samples.items()
        for key in ("p50", "p99")
    ]
