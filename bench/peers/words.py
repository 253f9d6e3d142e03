"""The other systems that count words: the contenders that are installed.

Side:  any.
"""

from collections.abc import Collection
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from bench.jobs.pipeline import Run
from bench.jobs.words import Job, make_lines
from bench.peers import bytewax, flink, plain, pyflink
from bench.peers.flink_cluster import FlinkCluster, why_missing
from bench.rounds import Contender, tell

NAMES: Final = ("flink", "pyflink", "bytewax", "plain")


def contenders(stack: ExitStack, folder: Path, job: Job, names: Collection[str]) -> list[Contender]:
    """Start the contenders of ``names`` that are installed; ``stack`` ends them."""
    lines = folder / "lines.txt"
    lines.write_text("\n".join(make_lines(job.made_words)) + "\n", encoding="ascii")
    found = []
    if {"flink", "pyflink"} & set(names) and is_there("Flink", why_missing()):
        cluster = stack.enter_context(FlinkCluster())
        found += [_flink(cluster, lines, job)] if "flink" in names else []
        found += [pyflink.contender(cluster, mode, job) for mode in pyflink.MODES] if "pyflink" in names else []
    if "bytewax" in names and is_there("Bytewax", bytewax.why_missing()):
        found.append(bytewax.contender(job))
    if "plain" in names:
        found.append(plain.count_words(job))
    return found


def is_there(name: str, missing: str | None) -> bool:
    """Whether the peer is there; otherwise print what is missing."""
    if missing is not None:
        tell(f"{name} is left out: {missing}")
    return missing is None


def _flink(cluster: FlinkCluster, lines: Path, job: Job) -> Contender:
    def run() -> Run:
        return flink.run_job(
            cluster,
            "wordcount",
            {"count": job.num_words // 10, "lines": lines, "topology": job.topology},
            num_records=job.num_words,
            keep=job.keep(),
            key=str,
            check=job.check_last,
        )

    return flink.contender(run)
