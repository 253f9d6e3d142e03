"""The smallest program that a user writes: ``python -m bench.jobs.hello PARALLELISM [EXECUTIONS]`` prints two words per
execution.

Side:  any.
"""

import sys

from flowlet.datastream import StreamExecutionEnvironment


def main(parallelism: int, num_executions: int = 1) -> None:
    """Print two words in upper case."""
    environment = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    for _ in range(num_executions):
        environment.from_collection(["hello", "world"]).map(str.upper).print()
        environment.execute("hello")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
