"""Late records: some within the allowed lateness, some to the side output."""

import asyncio
from collections.abc import Iterable

from pyflink.common import Configuration, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import ListStateDescriptor
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows

LAST = 6


def record_type():
    return Types.TUPLE([Types.STRING(), Types.INT(), Types.INT()])


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class OneByOne(KeyedProcessFunction):
    """The records come with pauses, so that a watermark lies between them: each half a second after those with a lower
    last field.
    """

    def open(self, runtime_context: RuntimeContext):
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", record_type()))

    def process_element(self, value: tuple, ctx: KeyedProcessFunction.Context):
        if value[2] < LAST:
            self.waiting.add(value)
            service = ctx.timer_service()
            service.register_processing_time_timer(service.current_processing_time() + 500 * (value[2] + 1))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext):
        yield from self.waiting.get()
        self.waiting.clear()


class HeldBack(AsyncFunction[tuple, tuple]):
    """Keeps the input open until all have come."""

    async def async_invoke(self, value: tuple) -> list[tuple]:
        await asyncio.sleep(value[2] * 0.5 + 1)
        return [value]


class CountProcess(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(
        self, key: str, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[tuple]
    ) -> Iterable[tuple]:
        return [(key, context.window().start, context.window().end, len(list(elements)))]


def late_records():
    configuration = Configuration()
    configuration.set_string("python.fn-execution.bundle.time", "20")
    configuration.set_string("python.fn-execution.bundle.size", "1")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(1)
    env.get_config().set_auto_watermark_interval(10)
    # In the order of their last field: 3 is late but allowed, 4 is too late.
    records = [("hi", 1, 0), ("hi", 3, 0), ("hi", 8, 1), ("hi", 2, 2), ("hi", 30, 3), ("hi", 4, 4), ("hi", 31, 5)]
    late = OutputTag("late-data", record_type())
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(SecondField())
    end = env.from_collection([("end", 0, LAST)], type_info=record_type())
    held_back = AsyncDataStream.ordered_wait(end, HeldBack(), Time.seconds(60), 100, record_type())
    stream = env.from_collection(records, type_info=record_type()).union(held_back)
    main = (
        stream.key_by(lambda element: element[2], key_type=Types.INT())
        .process(OneByOne(), record_type())
        .assign_timestamps_and_watermarks(strategy)
        .key_by(lambda element: element[0], key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
        .allowed_lateness(10)
        .side_output_late_data(late)
        .process(CountProcess(), Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.INT()]))
    )
    main.print("main")
    main.get_side_output(late).print("late")
    env.execute("late records")


if __name__ == "__main__":
    late_records()
