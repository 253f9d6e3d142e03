"""``python -m bench CASE [--runs N] [--json FILE] [--quick]``: JSON objects on standard output, one per line.

Side:  any.

``--quick`` makes the cases that know it as short as they can be: their figures mean nothing, what they check holds.  Some cases have
options of their own: ``python -m bench transport --help-case``.
"""

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

from flowlet.logs import configure_logging

DEFAULT_RUNS = {"wordcount": 3, "isolation": 1, "idle": 1, "transport": 5, "latency": 1, "memory": 1, "wakeup": 3}
QUICK_CASES = ("transport", "latency", "memory", "wakeup")


def main() -> int:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=[*DEFAULT_RUNS, "all"])
    parser.add_argument("--runs", type=int, help="how often (default: depends on the case)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also append the objects to FILE")
    parser.add_argument("--quick", action="store_true", help=f"short forms, only to see that they work: {', '.join(QUICK_CASES)}")
    parser.add_argument("--help-case", action="store_true", help="show the options that the case itself has")
    options, rest = parser.parse_known_args()
    configure_logging("error")
    rest += ["--help"] * options.help_case
    if options.case == "all" and rest:
        parser.error(f"options of one case: {' '.join(rest)}")
    for case in DEFAULT_RUNS if options.case == "all" else [options.case]:
        run_case(case, options, rest)
    return 0


def run_case(case: str, options: argparse.Namespace, rest: list[str]) -> None:
    """One case, its results printed."""
    module = importlib.import_module(f"bench.{case}")
    own: dict[str, Any] = {"quick": options.quick} if case in QUICK_CASES else {}
    if case in QUICK_CASES:
        own |= module.parse_options(rest)
    elif rest:
        sys.exit(f"{case} has no options of its own: {' '.join(rest)}")
    for result in module.run(options.runs or (1 if options.quick else DEFAULT_RUNS[case]), **own):
        line = result.to_json()
        print(line, flush=True)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
