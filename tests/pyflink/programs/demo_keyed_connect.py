"""Two keyed streams that meet in keyed state, and what is left at the end by a timer."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import KeyedCoProcessFunction, RuntimeContext, StreamExecutionEnvironment
from pyflink.datastream.state import ListStateDescriptor, ValueStateDescriptor


class LastField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[2]


class Enrich(KeyedCoProcessFunction):
    """Orders wait for the name of their customer; without one they are told of at the end."""

    def open(self, runtime_context: RuntimeContext):
        self.name = runtime_context.get_state(ValueStateDescriptor("name", Types.STRING()))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.INT()))

    def process_element1(self, value, ctx: "KeyedCoProcessFunction.Context"):
        if self.name.value() is not None:
            yield f"{self.name.value()} ordered {value[1]}"
        else:
            self.waiting.add(value[1])
            ctx.timer_service().register_event_time_timer(1000)

    def process_element2(self, value, ctx: "KeyedCoProcessFunction.Context"):
        self.name.update(value[1])
        for order in self.waiting:
            yield f"{value[1]} ordered {order}"
        self.waiting.clear()

    def on_timer(self, timestamp, ctx: "KeyedCoProcessFunction.OnTimerContext"):
        for order in self.waiting:
            yield f"customer {ctx.get_current_key()} without a name ordered {order}"


def keyed_connect():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(LastField())
    orders = env.from_collection(
        [(1, 100, 1), (2, 200, 2), (1, 101, 3), (3, 300, 4), (3, 301, 5)],
        type_info=Types.TUPLE([Types.INT(), Types.INT(), Types.LONG()]),
    ).assign_timestamps_and_watermarks(strategy)
    names = env.from_collection(
        [(2, "Bob", 1), (1, "Alice", 2)], type_info=Types.TUPLE([Types.INT(), Types.STRING(), Types.LONG()])
    ).assign_timestamps_and_watermarks(strategy)
    orders.connect(names).key_by(lambda order: order[0], lambda name: name[0], key_type=Types.INT()).process(
        Enrich(), output_type=Types.STRING()
    ).print()
    env.execute("keyed connect")


if __name__ == "__main__":
    keyed_connect()
