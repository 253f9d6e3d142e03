"""How long a record takes in Apache Flink from one TaskManager to the other; the job is that of ``bench/latency.py``.

Side:  any.
Rules: each case has a cluster of its own, which is warmed up once by a run as long as the counted ones.
"""

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.peers.flink_cluster import FlinkCluster, why_missing
from bench.peers.words import is_there
from bench.percentiles import RECORDS_PER_S, Measure, evaluated

_BUSY_LEAD_S: Final = 4  # until all tasks of a job run, and what is left to write its report at the end


def name_of(*, has_neighbours: bool) -> str:
    """Return the name of the figure."""
    return f"Flink (Java), timeout 0 ms{' beside CPU-bound tasks' if has_neighbours else ''}"


NAMES: Final = frozenset({name_of(has_neighbours=False), name_of(has_neighbours=True)})


def measures(stack: ExitStack, neighbours: Sequence[bool], warm_up_s: float, seconds: float) -> dict[str, Measure]:
    """Return the cases with and without neighbours, warmed up; ``stack`` ends their clusters."""
    if not is_there("Flink", why_missing()):
        return {}
    found: dict[str, Measure] = {}
    for has_neighbours in neighbours:
        measure = partial(
            _measure, stack.enter_context(FlinkCluster()), warm_up_s, seconds, has_neighbours=has_neighbours
        )
        measure()
        found[name_of(has_neighbours=has_neighbours)] = measure
    return found


def _measure(cluster: FlinkCluster, warm_up_s: float, seconds: float, *, has_neighbours: bool) -> dict[str, Any]:
    num_skipped, num_records = (int(length_s * RECORDS_PER_S) for length_s in (warm_up_s, warm_up_s + seconds))
    with tempfile.TemporaryDirectory(prefix="flowlet-bench-") as name:
        options: dict[str, object] = {"folder": name, "count": num_records, "keepFrom": 0, "keep": num_records}
        options |= {"parallelism": 1, "perSecond": RECORDS_PER_S, "bufferTimeout": 0}
        if has_neighbours:  # they never end
            options |= {"neighbours": 1, "cancelAfterSeconds": int(warm_up_s + seconds) + 1 + _BUSY_LEAD_S}
        cluster.run("latency", options)
        _, *lines = Path(name, "sink-0").read_text(encoding="ascii").splitlines()
    pairs = [tuple(map(int, line.split("\t"))) for line in lines]
    assert [number for number, _ in pairs] == list(range(num_records)), "records are lost or changed their order"
    return evaluated([latency_ns for _, latency_ns in pairs[num_skipped:]])
