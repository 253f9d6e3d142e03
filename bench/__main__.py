"""``python -m bench CASE [--runs N] [--json FILE]``: one JSON object per case on standard output.

Side:  any.
"""

import argparse
import importlib
import sys
from pathlib import Path

DEFAULT_RUNS = {"wordcount": 3, "isolation": 1, "idle": 1}


def main() -> int:
    """Run the cases that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("case", choices=[*DEFAULT_RUNS, "all"])
    parser.add_argument("--runs", type=int, help="how often (default: depends on the case)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also append the objects to FILE")
    options = parser.parse_args()
    for case in DEFAULT_RUNS if options.case == "all" else [options.case]:
        for result in importlib.import_module(f"bench.{case}").run(options.runs or DEFAULT_RUNS[case]):
            line = result.to_json()
            print(line, flush=True)
            if options.json is not None:
                with options.json.open("a", encoding="utf-8") as out:
                    out.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
