"""Six programs as users write them, each beside the plain loop that does its work on one core, and beside the systems
that users would pick instead.

Side:     any.
Programs: ``bench/jobs/program_streams.py``: JSON lines to dicts, web server lines to dataclasses, CSV lines to
          NamedTuples, rows with declared types, text to tuples with a reduce function, two streams connected.  All
          functions are called; state is a dict per key.
Forms:    ``friendly``: as one would write it; ``twin``: its unfriendly twin, with other spelling and other types.
Input:    lines that are made before the clock starts and looked up one by one.
Rate:     input records / (last record at the last sink - first poll of the first source); for the loop, all of the
          loop.  Slow peers get fewer records.
Peers:    the plain loop (always), Bytewax with as many processes as there are TaskManagers, PyFlink in thread mode (not
          for twins).  ``by-hand``: the cost of Python itself: a loop that calls the program's functions and does no
          more (``loop_of_calls``), and two processes that exchange records by key, written by hand (``by_hand``; not
          for twins).
Proof:    every run of every contender gives the results of the plain loop (``bench/jobs/checked_work.py``).
Profile:  ``--profile`` runs each program once more on one TaskManager, under py-spy, and tells where its CPU goes, in
          ns per record.
"""

import argparse
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from bench import profile_parts
from bench.jobs import checked_work
from bench.jobs.pipeline import Deployment
from bench.jobs.work import Input, Work
from bench.options import choices
from bench.peers import bytewax, bytewax_work, flink_cluster, loop_work, pyflink_work
from bench.peers.flink_cluster import FlinkCluster
from bench.peers.words import is_there
from bench.report import Result
from bench.rounds import Contender, compare, tell

FORMS: Final = ("friendly", "twin")
NUM_RECORDS: Final = 1_000_000
QUICK_RECORDS: Final = 4_000
NUM_MADE: Final = 100_000
NUM_PEER_RECORDS: Final = {"bytewax": 300_000, "pyflink": 40_000}
# A line of text counts as this many lines of the other programs: each of its ten words is a record.
_NUM_WORDS_LIKE: Final = 5
_CUSTOMERS: Final = Input("bench.jobs.made_lines:customer_line", 10_000, 10_000)
_LINES: Final = {  # of both forms
    "json_dicts": ("event_line", "nested_event_line"),
    "log_dataclasses": ("log_line", "log_line"),
    "csv_namedtuples": ("reading_line", "reading_line"),
    "typed_rows": ("order_line", "order_line"),
    "text_tuples": ("text_line", "text_line"),
    "two_streams": ("order_line", "order_line"),
}
PROGRAMS: Final = tuple(_LINES)
PEERS: Final = ("pyflink", "bytewax", "plain", "by-hand")


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench programs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", type=choices(PROGRAMS), default=PROGRAMS, help="which, separated by commas")
    add_work_options(parser)
    parser.add_argument("--events", type=int, default=NUM_RECORDS, help="records of an input")
    return vars(parser.parse_args(arguments))


def add_work_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that ``bench nexmark`` has as well."""
    parser.add_argument("--forms", type=choices(FORMS), default=FORMS, help="which, separated by commas")
    parser.add_argument(
        "--taskmanagers",
        type=numbers_of_task_managers,
        default=(1, 2),
        metavar="1,2",
        help="how many, separated by commas",
    )
    parser.add_argument("--profile", action="store_true", help="also tell where the CPU goes, in ns per record")


def numbers_of_task_managers(text: str) -> tuple[int, ...]:
    """Parse numbers of TaskManagers, which share the input evenly."""
    return tuple(map(int, choices(("1", "2"))(text)))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    peers: frozenset[str] = frozenset(),
    only: Sequence[str] = PROGRAMS,
    forms: Sequence[str] = FORMS,
    taskmanagers: Sequence[int] = (1, 2),
    events: int = NUM_RECORDS,
    profile: bool = False,
) -> list[Result]:
    """Measure every program with all its contenders, in turns."""
    num_records = QUICK_RECORDS if quick else events
    works = [work_of(program, form, num_records) for program in only for form in forms]
    return run_works(works, num_runs, set(PEERS) if "all" in peers else peers, taskmanagers, has_profile=profile)


def work_of(program: str, form: str, num_records: int) -> Work:
    """Return one program in one form."""
    make = _LINES[program][FORMS.index(form)]
    if program == "text_tuples":
        num_records //= _NUM_WORDS_LIKE
    first = Input(f"bench.jobs.made_lines:{make}", min(NUM_MADE, num_records // 2 * 2), num_records)
    return Work(
        f"programs {program}{', twin' if form == 'twin' else ''}",
        f"{program}_twin" if form == "twin" else program,
        (first, _CUSTOMERS) if program == "two_streams" else (first,),
        streams="bench.jobs.program_streams",
        loops="bench.peers.program_loops",
        flows="bench.peers.program_flows",
    )


def run_works(
    works: Sequence[Work],
    num_runs: int,
    peers: Collection[str],
    task_managers: Sequence[int],
    *,
    has_profile: bool,
    peer_records: Mapping[str, int] = NUM_PEER_RECORDS,
    java: Callable[[FlinkCluster, Work], Sequence[Contender]] | None = None,
) -> list[Result]:
    """Measure each work with its contenders in turns, and its profile.

    ``peer_records``: how many records slow peers get of a million.  ``java`` gives the contender in Java of a work that
        has one.
    """
    if has_profile and (missing := profile_parts.why_missing()):
        raise SystemExit(f"--profile: {missing}")
    of_flink = {"pyflink", "flink"} if java is not None else {"pyflink"}
    results: list[Result] = []
    with ExitStack() as stack:
        has_flink = bool(of_flink & set(peers)) and is_there("Flink", flink_cluster.why_missing())
        cluster = pyflink_work.start_cluster(stack) if has_flink else None
        has_bytewax = "bytewax" in peers and is_there("Bytewax", bytewax.why_missing())
        for work in works:
            contenders = [*ours(work, task_managers), loop_work.contender(work)]
            contenders += loop_work.by_hand(work) if "by-hand" in peers else []
            if has_bytewax and work.flows:
                contenders += [
                    bytewax_work.contender(smaller(work, peer_records["bytewax"]), number) for number in task_managers
                ]
            if cluster is not None and "pyflink" in peers and work.is_pyflinks and not work.is_twin:
                contenders.append(pyflink_work.contender(cluster, smaller(work, peer_records["pyflink"])))
            if cluster is not None and "flink" in peers and java is not None:
                contenders += java(cluster, work)
            results += compare(contenders, num_runs, "records/s")
            results += profiled(work) if has_profile else ()
    return results


def ours(work: Work, task_managers: Sequence[int]) -> Iterator[Contender]:
    """Yield the work on each number of TaskManagers."""
    for number in task_managers:
        name = f"{work.name}, {number} TaskManager{'s' if number > 1 else ''}"
        deployment = Deployment(number)
        yield Contender(name, partial(checked_work.run, work, deployment), details={"num_records": work.num_records})


def smaller(work: Work, records_of_a_million: int) -> Work:
    """Return the work with as many records as a slow peer can do in some seconds."""
    share = min(1.0, work.inputs[0].num_records / NUM_RECORDS)
    return work.with_at_most(max(2, int(records_of_a_million * share)))


def profiled(work: Work) -> list[Result]:
    """Run once more on one TaskManager; return a figure per part."""
    deployment = profile_parts.ProfiledDeployment(1)
    run = checked_work.run(work, deployment)
    parts = profile_parts.ns_per_record(deployment.stacks, run, work.num_records)
    for part, ns in parts.items():
        tell(f"{work.name}: {ns:8,.0f} ns per record in {part}")
    return [
        Result(f"{work.name}, profile: {part}", "ns", [ns], {"num_records": work.num_records})
        for part, ns in parts.items()
    ]
