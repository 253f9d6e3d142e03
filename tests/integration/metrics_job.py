"""A user's program whose functions have metrics: ``python metrics_job.py --jobmanager HOST:PORT``;
prints the job's id.
"""

import argparse
import sys

from flowlet.common import Configuration
from flowlet.datastream import KeySelector, MapFunction, RuntimeContext, StreamExecutionEnvironment
from flowlet.datastream.connectors import DiscardingSink

NUM_RECORDS = 10_000


class Remainder(KeySelector):
    def open(self, runtime_context: RuntimeContext) -> None:
        self._divisor = int(runtime_context.get_job_parameter("divisor", "1"))

    def get_key(self, value: int) -> int:
        return value % self._divisor


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        group = runtime_context.get_metrics_group().add_group("values")
        self._all = group.counter("all")
        self._sizes = group.distribution("sizes")
        self._largest = 0
        group.gauge("largest", lambda: self._largest)

    def map(self, value: int) -> int:
        self._all.inc()
        self._sizes.update(value)
        self._largest = max(self._largest, value)
        return value


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobmanager", required=True)
    options = parser.parse_args()
    env = StreamExecutionEnvironment.get_execution_environment(
        Configuration().set_string("flowlet.jobmanager", options.jobmanager)
    )
    env.set_parallelism(2)
    env.get_config().set_global_job_parameters({"divisor": 100})
    env.from_sequence(0, NUM_RECORDS - 1).key_by(Remainder()).map(Measured()).name("measured").sink_to(DiscardingSink())
    result = env.execute("metrics")
    print(f"job {result.get_job_id()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
