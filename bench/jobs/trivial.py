"""A small program as a user writes it: ``python -m bench.jobs.trivial PARALLELISM`` prints the result of a local job,
and when it had it.

Side:  any.
"""

import json
import sys
import time

from flowlet.common import Types
from flowlet.datastream import StreamExecutionEnvironment


def main(parallelism: int) -> None:
    """Square ten numbers."""
    environment = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    numbers = environment.from_collection(range(10), Types.LONG())
    squares = numbers.map(lambda number: number * number, Types.LONG()).execute_and_collect("trivial", limit=10)
    found = sorted(squares)
    print(json.dumps({"squares": found, "monotonic_ns": time.monotonic_ns()}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
