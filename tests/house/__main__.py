"""Show how much breaks the rules of the house: ``python -m tests.house [--write [--moved RULE ...]]``.

``--write`` takes off the lists what is mended.  ``--moved`` also adds what is new under these rules, for what has only
got another name by a move.
"""

import argparse
import sys

from tests.house.known import complaint, key_of, known, write
from tests.house.rules import rules
from tests.test_layering import ROOT, Checker, sources_of


def main(arguments: list[str]) -> int:
    """Print one line per rule; return 1 if a list differs from the found places."""
    parser = argparse.ArgumentParser(prog="python -m tests.house", description=__doc__)
    parser.add_argument("--write", action="store_true", help="take off the lists what is mended")
    parser.add_argument("--moved", nargs="*", default=[], metavar="RULE", help="also add what is new under these rules")
    options = parser.parse_args(arguments)
    sources, packages = sources_of(ROOT)
    told: list[str] = []
    for rule, find in rules(sources, Checker(sources, packages).edges(), packages).items():
        found = set(find())
        keys = set(map(key_of, found))
        if options.write:
            write(rule, keys if rule in options.moved else keys & known(rule))
        print(f"{rule:20} {len(keys):4}")
        told += filter(None, [complaint(rule, found)])
    print(*told, sep="\n")
    return bool(told)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
