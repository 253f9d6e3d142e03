"""A ``Work`` without any engine; prints what came out, and when the work began and ended.

Usage: ``loop_work_job.py FORM WORK``, FORM being the name of one of ``loop_work.Form``, WORK a JSON object.
"""

import json
import sys
import time
from typing import Any

from bench.jobs.work import Work, imported
from bench.peers import by_hand, loop_of_calls


def main(form: str, options: dict[str, Any]) -> None:
    """Make the records, then run the work."""
    work = Work.from_options(options)
    if form == "BY_HAND":
        start_ns, end_ns, found = by_hand.run(work)
    else:
        inputs = [each.records() for each in work.inputs]
        loop = loop_of_calls.loop_of(work) if form == "CALLS" else imported(f"{work.loops}:{work.program}")
        start_ns = time.monotonic_ns()
        found = loop(*inputs)
        end_ns = time.monotonic_ns()
    json.dump({"start_ns": start_ns, "end_ns": end_ns, **found._asdict()}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
