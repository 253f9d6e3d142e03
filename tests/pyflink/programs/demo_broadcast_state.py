"""Rules that every subtask gets, applied to keyed records by a timer, when all rules are there."""

from pyflink.common import Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor

RULES = MapStateDescriptor("rules", Types.STRING(), Types.INT())


class Zero(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return 0


class ApplyRules(KeyedBroadcastProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.INT()))

    def process_element(self, value, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext):
        self.waiting.add(value[1])
        ctx.timer_service().register_event_time_timer(1)

    def process_broadcast_element(self, value, ctx: KeyedBroadcastProcessFunction.Context):
        rules = ctx.get_broadcast_state(RULES)
        if value[1] is None:
            rules.remove(value[0])
        else:
            rules.put(value[0], value[1])

    def on_timer(self, timestamp: int, ctx: KeyedBroadcastProcessFunction.OnTimerContext):
        rules = sorted(ctx.get_broadcast_state(RULES).items())
        for number in self.waiting:
            yield f"{ctx.get_current_key()} {number}: {[name for name, limit in rules if number > limit]}"


class LastRules(BroadcastProcessFunction):
    def process_element(self, value, ctx: BroadcastProcessFunction.ReadOnlyContext):
        ctx.get_broadcast_state(RULES)
        yield f"record {value[0]}"

    def process_broadcast_element(self, value, ctx: BroadcastProcessFunction.Context):
        state = ctx.get_broadcast_state(RULES)
        state[value[0]] = value[1] if value[1] is not None else -1
        yield f"rules {sorted(state.keys())} {value[0] in state} {state.contains('none')}"


def broadcast_state():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Zero())
    records = env.from_collection(
        [("a", 1), ("b", 5), ("a", 12), ("b", 30)], type_info=Types.TUPLE([Types.STRING(), Types.INT()])
    ).assign_timestamps_and_watermarks(strategy)
    rules = env.from_collection(
        [("small", 0), ("large", 10), ("huge", 20), ("small", None)]
    ).assign_timestamps_and_watermarks(strategy)
    broadcast = rules.broadcast(RULES)
    records.key_by(lambda record: record[0], key_type=Types.STRING()).connect(broadcast).process(
        ApplyRules(), output_type=Types.STRING()
    ).print("keyed")
    records.connect(broadcast).process(LastRules(), output_type=Types.STRING()).print("not keyed")
    env.execute("broadcast state")


if __name__ == "__main__":
    broadcast_state()
