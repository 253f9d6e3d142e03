"""Value, list, map, reducing and aggregating state of one key."""

from pyflink.common.typeinfo import Types
from pyflink.datastream import (
    AggregateFunction,
    KeyedProcessFunction,
    ReduceFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)


class Maximum(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2)


class Mean(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class AllKinds(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))
        self.values = runtime_context.get_list_state(ListStateDescriptor("values", Types.INT()))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", Types.INT(), Types.INT()))
        self.maximum = runtime_context.get_reducing_state(ReducingStateDescriptor("maximum", Maximum(), Types.INT()))
        self.mean = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("mean", Mean(), Types.PICKLED_BYTE_ARRAY())
        )

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        key, number = value
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        self.values.add(number)
        self.times.put(number, (self.times.get(number) or 0) + 1)
        self.maximum.add(number)
        self.mean.add(number)
        yield f"{key} {count} {list(self.values)} {sorted(self.times.items())} {self.maximum.get()} {self.mean.get()}"
        keys, values = sorted(self.times.keys()), sorted(self.times.values())
        yield f"{key} {number in self.times} {self.times.contains(99)} {self.times.is_empty()} {keys} {values}"
        if count == 3:
            self.values.update([number, -1])
            self.values.add_all([-2, -3])
            self.times.remove(number)
            self.maximum.clear()
            self.mean.clear()
            yield f"{key} cleared {list(self.values.get())} {sorted(self.times)} {self.maximum.get()}"
            self.count.clear()
            yield f"{key} count {self.count.value()}"


def states():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    pairs = [("a", 3), ("b", 7), ("a", 3), ("a", 5), ("b", 1), ("a", 8), ("b", 7), ("a", 2)]
    stream = env.from_collection(pairs, type_info=Types.TUPLE([Types.STRING(), Types.INT()]))
    stream.key_by(lambda value: value[0], key_type=Types.STRING()).process(
        AllKinds(), output_type=Types.STRING()
    ).print()
    env.execute("states of each kind")


if __name__ == "__main__":
    states()
