"""execute_and_collect(): an iterator, a list of some records, and values of declared types."""

from pyflink.common import Row, Types
from pyflink.datastream import StreamExecutionEnvironment


def environment():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    return env


def collected_results():
    env = environment()
    stream = env.from_collection([1, 2, 3], type_info=Types.INT()).map(
        lambda number: number * 2, output_type=Types.INT()
    )
    with stream.execute_and_collect("doubled") as results:
        for number in results:
            print(number, type(number).__name__)

    env = environment()
    print(env.from_collection(list(range(10)), type_info=Types.LONG()).execute_and_collect(limit=4))

    env = environment()
    named = Types.ROW_NAMED(["word", "count"], [Types.STRING(), Types.INT()])
    rows = env.from_collection([Row("a", 1), Row("b", 2)], type_info=named)
    with rows.execute_and_collect() as results:
        for row in results:
            print(row, type(row).__name__, row[0])

    env = environment()
    pairs = env.from_collection([("a", 1), ("b", 2), ("a", 3)], type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
    with pairs.key_by(lambda pair: pair[0]).sum(1).execute_and_collect() as results:
        print(sorted(results))

    env = environment()
    with env.from_collection([("a", None), ("b", {"x": [1]})]).execute_and_collect() as results:
        print(list(results))


if __name__ == "__main__":
    collected_results()
