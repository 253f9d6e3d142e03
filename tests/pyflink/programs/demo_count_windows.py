"""Count windows per key, tumbling and sliding."""

from collections.abc import Iterable

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment, WindowFunction
from pyflink.datastream.window import CountWindow


class SumWindow(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs: Iterable[tuple]):
        numbers = [element[0] for element in inputs]
        return [(key, sum(numbers), len(numbers))]


def count_windows():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [
        (1, "hi"),
        (2, "hello"),
        (3, "hi"),
        (4, "hello"),
        (5, "hi"),
        (6, "hello"),
        (6, "hello"),
        (7, "hi"),
        (8, "hi"),
        (9, "hi"),
    ]
    stream = env.from_collection(records, type_info=Types.TUPLE([Types.INT(), Types.STRING()]))
    keyed = stream.key_by(lambda record: record[1], key_type=Types.STRING())
    summed = Types.TUPLE([Types.STRING(), Types.INT(), Types.INT()])
    keyed.count_window(2).apply(SumWindow(), summed).print()
    keyed.count_window(4, 2).apply(SumWindow(), summed).print("sliding")
    keyed.count_window(3).reduce(lambda left, right: (left[0] + right[0], left[1])).print("reduced")
    env.execute("count windows")


if __name__ == "__main__":
    count_windows()
