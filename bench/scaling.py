"""How much quicker two TaskManagers are than one: word count, each TaskManager on a core of its own.

Side:   any.
Job:    ``bench/jobs/words.py``, chained, with as many sources, counters and sinks as TaskManagers; with one of them
        nothing goes over TCP.
Figure: words/s with one and with two TaskManagers, in turns, and the ratio within each round.
"""

import argparse
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from bench.jobs.pipeline import TWO_TASK_MANAGERS, Deployment
from bench.jobs.words import FORMS, MADE_WORDS, NUM_WORDS, QUICK_WORDS, SOURCES, Job
from bench.options import choices
from bench.report import Result
from bench.rounds import Contender, compare

_ONE: Final = "1 TaskManager"
_TWO: Final = "2 TaskManagers"


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench scaling", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--forms", type=choices(FORMS), default=tuple(FORMS), help="of the word count, separated by commas"
    )
    parser.add_argument("--source", choices=SOURCES, default=SOURCES[0])
    parser.add_argument("--words", type=int, default=NUM_WORDS)
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    forms: Sequence[str] = tuple(FORMS),
    source: str = SOURCES[0],
    words: int = NUM_WORDS,
) -> list[Result]:
    """Measure every form by itself."""
    num_words, made_words = (QUICK_WORDS, QUICK_WORDS // 4) if quick else (words, MADE_WORDS)
    return [
        result
        for form in forms
        for result in compare(
            contenders(Job(form, source, num_words=num_words, made_words=made_words)), num_runs, "words/s"
        )
    ]


def contenders(job: Job) -> list[Contender]:
    """Return the job on two TaskManagers and, to compare it with, on one; with two cores a cluster of two pins both by
    itself.
    """
    one = Deployment(1, ("--pin-cpu", str(min(os.sched_getaffinity(0)))))
    details = {"num_words": job.num_words}
    return [
        Contender(f"scaling {job.form}, {_TWO}", partial(job.run, TWO_TASK_MANAGERS), details=details),
        Contender(f"scaling {job.form}, {_ONE}", partial(job.run, one), is_peer=True, details=details),
    ]
