"""``python -m bench CASE [--peers] [--runs N] [--json FILE] [--quick]``: JSON objects on standard output, one per line
and figure.

Side:  any.

``--peers`` runs the systems that users would pick instead on our work, in turns with ours, and prints ratios;
``--peers=flink,bytewax`` only these.  ``--quick`` makes the cases that know it as short as they can be: their figures
mean nothing, their checks hold.  Most cases have options of their own: ``python -m bench transport --help-case``.

``python -m bench all --peers --markdown bench/RESULTS.md`` runs every case and writes a page with all figures.
``python -m bench check --against REVISION`` measures this checkout and a clone of that revision in turns, and fails if
a figure became slower (``bench/check.py``).
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from bench import check
from bench.load import ForeignLoad, calibrate
from bench.peers import words as word_peers
from bench.report import Result
from bench.table import markdown
from flowlet.logs import configure_logging

ALL_PEERS: Final = "all"
PEERS: Final = (*word_peers.NAMES, "by-hand")  # of which other cases have some


@dataclass(frozen=True)
class Case:
    """How a case is called; its module has the name of the case, with an underscore for a hyphen.

    ``takes``: which of the options that several cases share (quick, peers) its ``run`` has; a module with
        ``parse_options`` has more.
    """

    runs: int
    takes: frozenset[str] = frozenset()


QUICK: Final = frozenset({"quick"})
QUICK_AND_PEERS: Final = frozenset({"quick", "peers"})
CASES: Final[dict[str, Case]] = {
    "wordcount": Case(3, QUICK_AND_PEERS),
    "shuffle": Case(3, QUICK_AND_PEERS),
    "shuffle-columnar": Case(3, QUICK_AND_PEERS),
    "windows": Case(3, QUICK_AND_PEERS),
    "window-columns": Case(3, QUICK),
    "scaling": Case(3, QUICK),
    "process-model": Case(3, QUICK),
    "channels": Case(5, QUICK),
    "startup": Case(5),
    "serde": Case(3),
    "isolation": Case(1),
    "idle": Case(1),
    "transport": Case(5, QUICK),
    "latency": Case(1, QUICK_AND_PEERS),
    "memory": Case(1, QUICK),
    "wakeup": Case(3, QUICK),
    "scale": Case(3, QUICK),
    "spark": Case(3, QUICK),
    "programs": Case(3, QUICK_AND_PEERS),
    "nexmark": Case(3, QUICK_AND_PEERS),
    "state": Case(3, QUICK_AND_PEERS),
    "checkpoint": Case(5, QUICK),
    "sinks": Case(3, QUICK),
    "database-sink": Case(3, QUICK),
    "kafka-ends": Case(3, QUICK),
    "batch": Case(1, QUICK),
    "slow": Case(1, QUICK),
}


def main() -> int:
    """Run the cases that were asked for."""
    options, rest = parse()
    configure_logging("error")
    if options.case == "check":
        return run_check(options, rest)
    results: list[Result] = []
    try:
        for case in CASES if options.case == "all" else [options.case]:
            results.extend(written(case, options, rest))
    finally:  # a case that fails does not lose the figures of the others
        if options.markdown is not None and results:
            options.markdown.write_text(
                markdown([json.loads(result.to_json()) for result in results]), encoding="utf-8"
            )
    return int(any(result.details.get("fails") for result in results))  # a case may say so


def parse() -> tuple[argparse.Namespace, list[str]]:
    """Return the shared options, and the rest of the arguments for the case."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=[*CASES, "all", "check"])
    parser.add_argument("--runs", type=int, help="how often (default: depends on the case)")
    names = f"beside other systems: {', '.join(PEERS)}, separated by commas (default: all that are installed)"
    parser.add_argument("--peers", nargs="?", const=ALL_PEERS, default="", metavar="NAMES", help=names)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also append the objects to FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write a page with all figures")
    parser.add_argument("--quick", action="store_true", help="short forms, only to see that they work")
    parser.add_argument("--help-case", action="store_true", help="show the options that the case itself has")
    options, rest = parser.parse_known_args()
    rest += ["--help"] * options.help_case
    if options.case == "all" and rest:
        parser.error(f"options of one case: {' '.join(rest)}")
    if unknown := set(filter(None, options.peers.split(","))) - {*PEERS, ALL_PEERS}:
        parser.error(f"--peers: no such thing: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return options, rest


def written(case: str, options: argparse.Namespace, rest: list[str]) -> Iterator[Result]:
    """Yield the figures of one case, printed."""
    for result in run_case(case, options, rest):
        write(result, options.json)
        yield result


def run_check(options: argparse.Namespace, rest: list[str]) -> int:
    """Compare with a revision; return the exit code."""
    results = []
    try:
        for result in check.run(check.parse_options(rest), quick=options.quick):
            write(result, options.json)
            results.append(result)
    except check.CheckError as error:
        sys.exit(str(error))
    print(check.verdict(results), file=sys.stderr)
    return int(any(check.is_slower(result.runs) for result in results))


def run_case(name: str, options: argparse.Namespace, rest: list[str]) -> Iterator[Result]:
    """Yield the figures of one case, each with the state of the machine."""
    case, module = CASES[name], importlib.import_module(f"bench.{name.replace('-', '_')}")
    own = own_options(module, rest) | {
        key: value for key, value in shared_options(options).items() if key in case.takes
    }
    num_runs = options.runs or (1 if options.quick else case.runs)
    before = calibrate()
    with ForeignLoad() as load:
        results = module.run(num_runs, **own)
    calibration = (before, calibrate())
    for result in results:
        yield replace(result, case=name, foreign_cores=result.foreign_cores or (load.cores,), calibration=calibration)


def own_options(module: ModuleType, rest: list[str]) -> dict[str, Any]:
    """Return the values of the options that only this case has."""
    if hasattr(module, "parse_options"):
        parsed: dict[str, Any] = module.parse_options(rest)
        return parsed
    if rest:
        sys.exit(f"{module.__name__} has no options of its own: {' '.join(rest)}")
    return {}


def shared_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the values of the options that several cases have."""
    return {"quick": options.quick, "peers": frozenset(options.peers.split(",")) if options.peers else frozenset()}


def write(result: Result, file: Path | None) -> None:
    """Write the results to standard output and to the file."""
    line = result.to_json()
    print(line, flush=True)
    if file is not None:
        with file.open("a", encoding="utf-8") as out:
            out.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
