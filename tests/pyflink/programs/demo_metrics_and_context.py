"""A function that reads its context and keeps metrics."""

from pyflink.common import Types
from pyflink.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment


class Measured(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.where = (
            runtime_context.get_task_name_with_subtasks().count("("),
            runtime_context.get_number_of_parallel_subtasks(),
            runtime_context.get_max_number_of_parallel_subtasks(),
            runtime_context.get_index_of_this_subtask(),
            runtime_context.get_attempt_number(),
        )
        self.limit = int(runtime_context.get_job_parameter("limit", "10"))
        group = runtime_context.get_metrics_group()
        self.counter = group.counter("records")
        self.sizes = group.add_group("sizes").distribution("size")
        self.meter = group.meter("rate")
        self.total = 0
        group.gauge("total", lambda: self.total)

    def map(self, value):
        self.counter.inc()
        self.counter.inc(2)
        self.counter.dec()
        self.sizes.update(value)
        self.meter.mark_event()
        self.total += value
        return f"{value} count {self.counter.get_count()} limit {self.limit} where {self.where}"


def metrics_and_context():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    env.set_max_parallelism(32)
    env.get_config().set_global_job_parameters({"limit": "3"})
    numbers = env.from_collection([5, 6, 7], type_info=Types.INT())
    # Behind key_by(): the source alone has a max parallelism of 1, which an operator in its chain would share in
    # PyFlink.
    numbers.key_by(lambda number: 0).map(Measured(), output_type=Types.STRING()).print()
    env.execute("metrics and context")


if __name__ == "__main__":
    metrics_and_context()
