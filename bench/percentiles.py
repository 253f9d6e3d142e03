"""The percentiles that describe the latency of many records.

Side:  any.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

RECORDS_PER_S: Final = 1000
PERCENTILES: Final = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}

# Runs one case; gives what ``evaluated`` does, and more.
Measure = Callable[[], dict[str, Any]]


def evaluated(latencies_ns: Sequence[int]) -> dict[str, Any]:
    """Return the percentiles in us."""
    ordered = sorted(latencies_ns)
    return {f"{key}_us": percentile(ordered, share) / 1000 for key, share in PERCENTILES.items()} | {
        "num_records": len(ordered)
    }


def percentile(ordered: Sequence[int], share: float) -> int:
    """Return the smallest value that at least a ``share`` of all values do not exceed."""
    return ordered[max(0, -(-len(ordered) * round(share * 1000) // 1000) - 1)]
