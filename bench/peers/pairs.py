"""The other systems that sum pairs: the contenders that are installed.

Side:  any.
"""

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.jobs.pairs import SOURCES, Job, make_table
from bench.jobs.pipeline import Run
from bench.peers import flink, plain
from bench.peers.flink_cluster import FlinkCluster, why_missing
from bench.peers.words import is_there
from bench.rounds import Contender

NAMES: Final = ("flink", "plain")


def contenders(stack: ExitStack, folder: Path, job: Job, names: Collection[str]) -> list[Contender]:
    """Start the contenders of ``names`` that are installed; ``stack`` ends them."""
    keys = folder / f"keys-{job.keys.kind}.txt"
    keys.write_text("\n".join(map(str, make_table(job.keys))) + "\n", encoding="ascii")
    found = []
    if "flink" in names and is_there("Flink", why_missing()):
        found.append(_flink(stack.enter_context(FlinkCluster()), keys, job))
    if "plain" in names:
        found.append(plain.sum_pairs(job))
        found += [plain.sum_arrays(job, source) for source in SOURCES] if job.keys.kind == "int" else []
    return found


def _flink(cluster: FlinkCluster, keys: Path, job: Job) -> Contender:
    is_long = job.keys.kind == "int"

    def run() -> Run:
        return flink.run_job(
            cluster,
            "shuffle-long" if is_long else "shuffle-string",
            {"count": job.num_pairs, "keys": keys},
            num_records=job.num_pairs,
            keep=job.keep(),
            key=int if is_long else str,
            check=job.check_last,
        )

    return flink.contender(run)
