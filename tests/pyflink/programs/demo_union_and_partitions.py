"""Union, and every way to spread records over two subtasks."""

from pyflink.common import Types
from pyflink.datastream import DataStream, Partitioner, StreamExecutionEnvironment


class ByRemainder(Partitioner):
    def partition(self, key: int, num_partitions: int) -> int:
        return key % num_partitions


def union_and_partitions():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    first = env.from_collection([1, 2, 3], type_info=Types.INT())
    second = env.from_collection([10, 20, 30], type_info=Types.INT())
    third = env.from_collection([100, 200], type_info=Types.INT())
    merged: DataStream = first.union(second, third)
    merged.map(lambda number: number + 1, output_type=Types.INT()).print("union")
    merged.rebalance().map(lambda number: f"rebalanced {number}", output_type=Types.STRING()).print()
    merged.shuffle().map(lambda number: f"shuffled {number}", output_type=Types.STRING()).print()
    merged.rescale().map(lambda number: f"rescaled {number}", output_type=Types.STRING()).print()
    merged.broadcast().map(lambda number: f"broadcast {number}", output_type=Types.STRING()).print()
    merged.partition_custom(ByRemainder(), lambda number: number).map(
        lambda number: f"partitioned {number}", output_type=Types.STRING()
    ).print()
    merged.map(lambda number: number, output_type=Types.INT()).forward().map(
        lambda number: f"forwarded {number}", output_type=Types.STRING()
    ).print()
    env.execute("union and partitions")


if __name__ == "__main__":
    union_and_partitions()
