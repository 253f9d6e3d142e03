"""Connected streams: map, flat_map and process of both sides."""

from pyflink.common import Types
from pyflink.datastream import CoFlatMapFunction, CoMapFunction, CoProcessFunction, StreamExecutionEnvironment


class BothMapped(CoMapFunction):
    def map1(self, value):
        return str(value[0] * 10)

    def map2(self, value):
        return f"{value[0]}!"


class BothFlat(CoFlatMapFunction):
    def flat_map1(self, value):
        for number in range(value[0]):
            yield f"number {number}"

    def flat_map2(self, value):
        if value[1] == "keep":
            yield f"word {value[0]}"


class BothProcessed(CoProcessFunction):
    def process_element1(self, value, ctx: "CoProcessFunction.Context"):
        yield f"left {value[1]}"

    def process_element2(self, value, ctx: "CoProcessFunction.Context"):
        yield f"right {value[1]}"


def connected_streams():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    left = env.from_collection([(1, "a"), (2, "b"), (3, "c")], type_info=Types.TUPLE([Types.INT(), Types.STRING()]))
    right = env.from_collection(
        [("x", "keep"), ("y", "drop"), ("z", "keep")], type_info=Types.TUPLE([Types.STRING(), Types.STRING()])
    )
    connected = left.connect(right)
    connected.map(BothMapped(), output_type=Types.STRING()).print("map")
    connected.flat_map(BothFlat(), output_type=Types.STRING()).print("flat_map")
    connected.process(BothProcessed(), output_type=Types.STRING()).print("process")
    env.execute("connected streams")


if __name__ == "__main__":
    connected_streams()
