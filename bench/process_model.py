"""The gain of each option of a TaskManager's process: word count with one option changed, in turns with the defaults.

Side:    any.
Job:     ``bench/jobs/words.py``, chained, on two TaskManagers.
Figure:  words/s, and the ratio to the defaults within each round.  The options' effect on latency: ``python -m bench
         latency``.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from bench.jobs.pipeline import TWO_TASK_MANAGERS, Deployment
from bench.jobs.words import FORMS, MADE_WORDS, NUM_WORDS, QUICK_WORDS, Job
from bench.options import choices
from bench.report import Result
from bench.rounds import Contender, compare

VARIANTS: Final = {
    "not pinned": Deployment(pins=False),
    "switch interval 0.5 ms": Deployment(task_manager_options=("--switch-interval-ms", "0.5")),
    "switch interval 5 ms": Deployment(task_manager_options=("--switch-interval-ms", "5")),
    "gc threshold 700": Deployment(task_manager_options=("--gc-threshold", "700")),
    "gc never": Deployment(task_manager_options=("--gc-threshold", "0")),
    "task threads nice": Deployment(task_manager_options=("--task-scheduling", "nice")),
    "task threads idle": Deployment(task_manager_options=("--task-scheduling", "idle")),
}


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench process-model", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--forms", type=choices(FORMS), default=("called", "columns"), help="of the word count, separated by commas"
    )
    parser.add_argument(
        "--variants", type=choices(VARIANTS), default=tuple(VARIANTS), help="which, separated by commas"
    )
    parser.add_argument("--words", type=int, default=NUM_WORDS)
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    forms: Sequence[str] = ("called", "columns"),
    variants: Sequence[str] = tuple(VARIANTS),
    words: int = NUM_WORDS,
) -> list[Result]:
    """Measure every form by itself."""
    num_words, made_words = (QUICK_WORDS, QUICK_WORDS // 4) if quick else (words, MADE_WORDS)
    results = []
    for form in forms:
        job = Job(form, num_words=num_words, made_words=made_words)
        defaults = Contender(f"process-model {form}, defaults", partial(job.run, TWO_TASK_MANAGERS), is_peer=True)
        changed = [Contender(f"process-model {form}, {name}", partial(job.run, VARIANTS[name])) for name in variants]
        results += compare([defaults, *changed], num_runs, "words/s")
    return results
