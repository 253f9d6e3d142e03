"""The headline figure: words per second through source -> flat_map -> key_by(word) -> running count per word -> sink.

Side:    any.
Job:     ``bench/jobs/words.py``; two TaskManager processes with one slot each, parallelism 2, data over TCP.
Peers:   have our topology, lines and proof; where one has another shape, its figure says so.
Reuse:   operators hand on the very objects that they get, in Flink's program (object reuse is on) and in ours (always).
Rate:    words / (last record at the last sink - first poll of the first source), read inside the job.
"""

import argparse
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.jobs.pipeline import TWO_TASK_MANAGERS
from bench.jobs.words import FORMS, MADE_WORDS, NUM_WORDS, QUICK_WORDS, SOURCES, TOPOLOGIES, Job
from bench.options import choices
from bench.peers.words import NAMES, contenders
from bench.report import Result
from bench.rounds import Contender, compare

_CHECKED_WORDS: Final = 400_000


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench wordcount", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--forms", type=choices(FORMS), default=tuple(FORMS), help="which, separated by commas")
    parser.add_argument("--sources", type=choices(SOURCES), default=SOURCES, help="which, separated by commas")
    parser.add_argument("--topology", choices=TOPOLOGIES, default=TOPOLOGIES[0])
    parser.add_argument("--words", type=int, default=NUM_WORDS)
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    peers: frozenset[str] = frozenset(),
    forms: Sequence[str] = tuple(FORMS),
    sources: Sequence[str] = SOURCES,
    topology: str = TOPOLOGIES[0],
    words: int = NUM_WORDS,
) -> list[Result]:
    """Measure every form with every source, and the peers, in turns."""
    num_words, made_words = (QUICK_WORDS, QUICK_WORDS // 4) if quick else (words, MADE_WORDS)
    jobs = [Job(form, source, topology, num_words, made_words) for form in forms for source in sources]
    for job in {job.form: job for job in jobs}.values():
        check_everything(job)
    details = {"topology": topology}
    ours = [
        Contender(job.name, partial(job.run, TWO_TASK_MANAGERS), details={"num_words": job.num_words} | details)
        for job in jobs
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="flowlet-bench-")))
        return compare(
            [*ours, *contenders(stack, folder, jobs[0], NAMES if "all" in peers else peers)], num_runs, "words/s"
        )


def check_everything(job: Job) -> None:
    """Run the program for a short while and check every output."""
    words = min(job.num_words, _CHECKED_WORDS)
    replace(job, num_words=words, made_words=min(job.made_words, MADE_WORDS // 10), inspects_all=True).run()
