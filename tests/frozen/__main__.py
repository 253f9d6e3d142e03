"""Compare the frozen lists with the product, or write them: ``python -m tests.frozen [--write [--break]] [NAME ...]``.

``--write`` adds what is new.  ``--write --break`` also takes away what is gone and changes what has changed, which
breaks programs, stored state or peers of the last version: name the lists.
"""

import argparse
import sys
from typing import Final

from tests.frozen.frozen_list import COMMAND, FrozenList
from tests.frozen.test_bytes import BYTES
from tests.frozen.test_command_lines import COMMAND_LINES
from tests.frozen.test_control_messages import CONTROL_MESSAGES
from tests.frozen.test_error_classes import ERROR_CLASSES
from tests.frozen.test_key_groups import KEY_GROUPS
from tests.frozen.test_metrics import METRICS
from tests.frozen.test_options import OPTIONS
from tests.frozen.test_public_names import PUBLIC_NAMES
from tests.frozen.test_rest_paths import REST_PATHS
from tests.frozen.test_state_names import STATE_NAMES

_ALL: Final = (
    BYTES,
    COMMAND_LINES,
    CONTROL_MESSAGES,
    ERROR_CLASSES,
    KEY_GROUPS,
    METRICS,
    OPTIONS,
    PUBLIC_NAMES,
    REST_PATHS,
    STATE_NAMES,
)
LISTS: Final[dict[str, FrozenList]] = {each.name: each for each in _ALL}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog=COMMAND, description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="add what is new to the lists")
    parser.add_argument(
        "--break", action="store_true", dest="accepts_breaks", help="with --write: also what is gone or has changed"
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", choices=[[], *LISTS], help=f"{', '.join(LISTS)}; default: all"
    )
    options = parser.parse_args(arguments)
    if options.accepts_breaks and not (options.write and options.names):
        parser.error("--break goes with --write and the names of the lists")
    differs = False
    for name in options.names or LISTS:
        each = LISTS[name]
        if options.write:
            difference = each.write(accepts_breaks=options.accepts_breaks)
            print(f"{name}: {len(each.read())} items, {len(difference.added)} of them new")
        told = each.complaint(each.difference())
        differs |= bool(told)
        print(*filter(None, [told]), sep="\n", end="\n" if told else "")
    return int(differs)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
