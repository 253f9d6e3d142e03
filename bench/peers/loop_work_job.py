"""A ``Work`` as a plain Python loop; prints what came out, and when the loop began and ended.

Usage: ``loop_work_job.py WORK``, WORK being a JSON object.
"""

import json
import sys
import time
from typing import Any

from bench.jobs.work import Found, Work, imported


def main(options: dict[str, Any]) -> None:
    """Make the records, then run the loop."""
    work = Work.from_options(options)
    inputs = [each.records() for each in work.inputs]
    loop = imported(f"{work.loops}:{work.program}")
    start_ns = time.monotonic_ns()
    found: Found = loop(*inputs)
    end_ns = time.monotonic_ns()
    json.dump({"start_ns": start_ns, "end_ns": end_ns, **found._asdict()}, sys.stdout)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
