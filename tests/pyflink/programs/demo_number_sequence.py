"""A sequence of numbers as a source, a process function, and a broadcast of settings by closure."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.datastream import ProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource


class Collatz(ProcessFunction):
    def __init__(self, most: int):
        self.most = most
        self.seen = None

    def open(self, runtime_context: RuntimeContext):
        self.seen = set()

    def process_element(self, value, ctx: "ProcessFunction.Context"):
        steps, number = 0, value
        while number != 1 and steps < self.most:
            number = number // 2 if number % 2 == 0 else 3 * number + 1
            steps += 1
        self.seen.add(value)
        yield value, steps


def number_sequence():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    numbers = env.from_source(
        NumberSequenceSource(1, 20), WatermarkStrategy.for_monotonous_timestamps(), "numbers", type_info=Types.LONG()
    )
    numbers.process(Collatz(100), output_type=Types.TUPLE([Types.LONG(), Types.INT()])).print()
    env.execute("number sequence")


if __name__ == "__main__":
    number_sequence()
