"""A sum per key in a ValueState with a time to live."""

from pyflink.common import Time
from pyflink.common.typeinfo import Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import StateTtlConfig, ValueStateDescriptor


class Sum(KeyedProcessFunction):
    def __init__(self):
        self.state = None

    def open(self, runtime_context: RuntimeContext):
        descriptor = ValueStateDescriptor("state", Types.FLOAT())
        time_to_live = (
            StateTtlConfig.new_builder(Time.minutes(10))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .disable_cleanup_in_background()
            .build()
        )
        descriptor.enable_time_to_live(time_to_live)
        self.state = runtime_context.get_state(descriptor)

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        current = self.state.value()
        if current is None:
            current = 0
        current += value[1]
        self.state.update(current)
        yield value[0], current


def keyed_state():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    payments = [
        ("Alice", 110.1),
        ("Bob", 30.2),
        ("Alice", 20.0),
        ("Bob", 53.1),
        ("Alice", 13.1),
        ("Bob", 3.1),
        ("Bob", 16.1),
        ("Alice", 20.1),
    ]
    stream = env.from_collection(payments, type_info=Types.TUPLE([Types.STRING(), Types.FLOAT()]))
    stream.key_by(lambda value: value[0]).process(Sum()).print()
    stream.key_by(lambda value: value[0]).process(
        Sum(), output_type=Types.TUPLE([Types.STRING(), Types.DOUBLE()])
    ).print("declared")
    env.execute("keyed state")


if __name__ == "__main__":
    keyed_state()
