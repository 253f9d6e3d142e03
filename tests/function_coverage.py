"""``python -m tests.function_coverage REPORT``: per file, how many functions ran, from a report of ``coverage json``.

Rules: a line of a file says little, since a module that is imported has run its first lines; a function that never ran
        says more.  Methods of protocols have no statements, and do not count.
"""

import json
import sys
from pathlib import Path


def main(report: Path) -> None:
    """Print one line per file, the functions that never ran, and the sum."""
    ran = total = 0
    for name, file in sorted(json.loads(report.read_text())["files"].items()):
        functions = {
            each: found for each, found in file["functions"].items() if each and found["summary"]["num_statements"]
        }
        missing = [each for each, found in functions.items() if not found["executed_lines"]]
        ran, total = ran + len(functions) - len(missing), total + len(functions)
        print(
            f"{name}: {len(functions) - len(missing)} of {len(functions)} functions; never: {', '.join(missing) or '-'}"
        )
    print(f"in all: {ran} of {total} functions")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
