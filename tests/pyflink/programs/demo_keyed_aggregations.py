"""sum, min, max, min_by and max_by of tuples and rows, and a KeySelector."""

from pyflink.common import Row, Types
from pyflink.datastream import KeySelector, ReduceFunction, StreamExecutionEnvironment


class FirstLetter(KeySelector):
    def get_key(self, value):
        return value[0][0]


class Longer(ReduceFunction):
    def reduce(self, value1, value2):
        return value1 if len(value1[0]) >= len(value2[0]) else value2


def keyed_aggregations():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    triples = [
        ("apple", 3, 1.5),
        ("avocado", 1, 2.5),
        ("banana", 5, 0.5),
        ("almond", 3, 0.25),
        ("blueberry", 2, 4.0),
        ("apricot", 1, 9.0),
    ]
    stream = env.from_collection(triples, type_info=Types.TUPLE([Types.STRING(), Types.INT(), Types.DOUBLE()]))
    keyed = stream.key_by(FirstLetter(), key_type=Types.STRING())
    keyed.sum(1).print("sum")
    keyed.min(1).print("min")
    keyed.max(2).print("max")
    keyed.min_by(1).print("min_by")
    keyed.max_by(1).print("max_by")
    keyed.reduce(Longer()).print("longest")
    named = Types.ROW_NAMED(["letter", "count"], [Types.STRING(), Types.INT()])
    rows = stream.map(lambda triple: Row(letter=triple[0][0], count=triple[1]), output_type=named)
    rows.key_by(lambda row: row.letter).sum("count").print("named sum")
    rows.key_by(lambda row: row.letter).max_by("count").print("named max_by")
    numbers = env.from_collection([3, 1, 4, 1, 5, 9, 2, 6], type_info=Types.INT())
    numbers.key_by(lambda number: number % 2).sum().print("numbers")
    numbers.key_by(lambda number: number % 2).max().print("maximum")
    env.execute("keyed aggregations")


if __name__ == "__main__":
    keyed_aggregations()
