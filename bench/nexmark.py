"""NEXMark's queries, beside a plain loop, Bytewax, PyFlink and, for 0, 1 and 2, Flink's Java.

Side:     any.
Events:   ``bench/jobs/nexmark_events.py``: 1 person, 3 auctions and 46 bids per 50 events, as dataclasses.  They are
          made before the clock starts and looked up one by one; PyFlink looks them up by number in a first Python
          function, for it has no sources in Python.
Queries:  ``bench/jobs/nexmark_streams.py``.  0: pass through; 1: other currency; 2: bids on some auctions; 3: who sells
          in some states; 8: who is new and sells; 11: bids per session; 13: bids with the value of a table.  Joins by
          hand, with plain dicts; every function is called.  ``--all`` adds those that need keyed state, windows and
          joins.  ``bench/jobs/nexmark_auctions.py``: 4: average price by category; 6: by seller, of ten auctions; 9:
          winning bids; 18: last bids; 19: top ten bids; 20: bids with their auction.
          ``bench/jobs/nexmark_windows.py``: 5: hot items; 7: highest bid; 11 again; 12: bids by the clock; 15, 16, 17:
          days.  ``bench/jobs/nexmark_joins.py``: 8 again.  10, 14 and 21 to 23 are not there.
Forms:    ``friendly``: as one would write it; ``twin``: dicts in dicts, named functions, generators and classes with
          ``open``; only of the queries that are there without ``--all``.
Rate:     events / (last record at the last sink - first poll of the first source); for the loop, all of the loop.
Peers:    the plain loop (always), Bytewax with as many processes as there are TaskManagers, PyFlink in thread mode,
          Flink; not for twins.  Bytewax has the queries that are there without ``--all``; PyFlink has no co-groups.
          ``by-hand``: a loop that calls the query's functions and does nothing else, for queries without joins and
          timers.
Proof:    every run of every contender gives what the plain loop gives (``bench/jobs/checked_work.py``).
Profile:  ``--profile`` as of ``bench programs``.
"""

import argparse
from collections.abc import Sequence
from typing import Any, Final

from bench.jobs.work import Input, Outputs, Work
from bench.options import choices
from bench.peers import nexmark_flink, words
from bench.programs import FORMS, add_work_options, run_works
from bench.report import Result

QUERIES: Final = ("q0", "q1", "q2", "q3", "q8", "q11", "q13")
_AUCTIONS: Final = ("q4", "q6", "q9", "q18", "q19", "q20")
_WINDOWS: Final = ("q5", "q7", "q11_windowed", "q12", "q15", "q16", "q17")
_JOINS: Final = ("q8_windowed",)
ALL_QUERIES: Final = (*QUERIES, *_AUCTIONS, *_WINDOWS, *_JOINS)
_UPDATED: Final = ("q4", "q18")  # the last number of each text is the result
ONE_BY_ONE: Final = ("q0", "q1", "q2", "q13")  # their events may come again
NUM_EVENTS: Final = 500_000
QUICK_EVENTS: Final = 2_000
NUM_MADE: Final = 100_000
_CYCLES: Final = 8  # times as many events for queries that look at one event after the other, which are quick
NUM_PEER_RECORDS: Final = {"bytewax": _CYCLES * NUM_EVENTS, "pyflink": 200_000}  # enough for some seconds
PEERS: Final = (*words.NAMES, "by-hand")


def parse_options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of this case alone."""
    parser = argparse.ArgumentParser(
        prog="python -m bench nexmark", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--only", type=choices(ALL_QUERIES), default=QUERIES, help="which, separated by commas")
    which.add_argument("--all", dest="only", action="store_const", const=ALL_QUERIES, help="all of them")
    add_work_options(parser)
    parser.add_argument(
        "--events", type=int, default=NUM_EVENTS, help=f"{_CYCLES} times as many for queries 0, 1, 2 and 13"
    )
    return vars(parser.parse_args(arguments))


def run(
    num_runs: int,
    *,
    quick: bool = False,
    peers: frozenset[str] = frozenset(),
    only: Sequence[str] = QUERIES,
    forms: Sequence[str] = FORMS,
    taskmanagers: Sequence[int] = (1, 2),
    events: int = NUM_EVENTS,
    profile: bool = False,
) -> list[Result]:
    """Measure every query with all its contenders, in turns."""
    works = [
        work_of(query, form, QUICK_EVENTS if quick else events) for query in only for form in forms_of(query, forms)
    ]
    names = set(PEERS) if "all" in peers else peers
    java = nexmark_flink.contenders
    return run_works(
        works, num_runs, names, taskmanagers, has_profile=profile, peer_records=NUM_PEER_RECORDS, java=java
    )


def forms_of(query: str, forms: Sequence[str]) -> Sequence[str]:
    """Return the forms that a query has."""
    return forms if query in QUERIES else [form for form in forms if form != "twin"]


def work_of(query: str, form: str, num_events: int) -> Work:
    """Return one query in one form."""
    is_twin = form == "twin"
    make = f"bench.jobs.nexmark_events:{'nested_event' if is_twin else 'event'}"
    num_events -= num_events % 2
    one_by_one = Input(make, min(NUM_MADE, num_events), num_events * _CYCLES)
    streams, loops = _modules_of(query)
    return Work(
        f"nexmark {query}{', twin' if is_twin else ''}",
        f"{query}_twin" if is_twin else query,
        (one_by_one if query in ONE_BY_ONE else Input(make, num_events, num_events),),
        streams=f"bench.jobs.{streams}",
        loops=f"bench.peers.{loops}",
        flows="bench.peers.nexmark_flows" if query in QUERIES and not is_twin else "",
        outputs=Outputs.LAST if query in _UPDATED else Outputs.SUM,
        is_pyflinks=query not in _JOINS,
    )


def _modules_of(query: str) -> tuple[str, str]:
    """Return the modules that have the query in the DataStream API, and as a loop."""
    if query in _AUCTIONS:
        return "nexmark_auctions", "nexmark_auction_loops"
    if query in QUERIES:
        return "nexmark_streams", "nexmark_loops"
    return "nexmark_joins" if query in _JOINS else "nexmark_windows", "nexmark_window_loops"
