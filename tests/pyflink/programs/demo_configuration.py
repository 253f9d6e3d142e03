"""Settings of the environment, read back, and a job that runs with them."""

from pyflink.common import Configuration, Duration, Types
from pyflink.datastream import (
    CheckpointingMode,
    ExternalizedCheckpointRetention,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from pyflink.datastream.slot_sharing_group import MemorySize


def configuration():
    config = Configuration()
    config.set_string("execution.checkpointing.interval", "1 min").set_integer("parallelism.default", 1)
    config.set_boolean("pipeline.object-reuse", True)
    config.set_float("some.ratio", 0.5)
    print(config.get_string("execution.checkpointing.interval", "none"), config.get_integer("parallelism.default", 4))
    print(
        config.get_boolean("pipeline.object-reuse", False),
        config.get_float("some.ratio", 0.1),
        config.get_string("missing", "default"),
    )
    print(
        sorted(config.key_set()),
        config.contains_key("missing"),
        config.remove_config("some.ratio"),
        config.contains_key("some.ratio"),
    )
    other = Configuration()
    other.add_all(config, "prefix.")
    print(sorted(other.to_dict().items()))
    print(config == Configuration(config), config == other)

    env = StreamExecutionEnvironment.get_execution_environment(config)
    print(env.get_parallelism(), env.get_checkpoint_interval(), env.get_config().is_object_reuse_enabled())
    env.enable_checkpointing(200, CheckpointingMode.AT_LEAST_ONCE)
    checkpoints = env.get_checkpoint_config()
    checkpoints.set_min_pause_between_checkpoints(50)
    checkpoints.set_checkpoint_timeout(60000)
    checkpoints.set_tolerable_checkpoint_failure_number(2)
    checkpoints.set_max_concurrent_checkpoints(1)
    checkpoints.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION)
    checkpoints.set_checkpointing_mode(CheckpointingMode.EXACTLY_ONCE)
    checkpoints.enable_unaligned_checkpoints()
    checkpoints.set_alignment_timeout(Duration.of_seconds(3))
    print(checkpoints.get_checkpoint_interval(), checkpoints.get_checkpointing_mode() == CheckpointingMode.EXACTLY_ONCE)
    print(
        checkpoints.get_min_pause_between_checkpoints(),
        checkpoints.get_checkpoint_timeout(),
        checkpoints.get_max_concurrent_checkpoints(),
    )
    print(checkpoints.get_tolerable_checkpoint_failure_number(), checkpoints.is_unaligned_checkpoints_enabled())
    print(checkpoints.get_externalized_checkpoint_retention() == ExternalizedCheckpointRetention.DELETE_ON_CANCELLATION)
    print(checkpoints.get_alignment_timeout() == Duration.of_seconds(3))

    settings = env.get_config()
    settings.set_auto_watermark_interval(50).set_max_parallelism(64).enable_object_reuse()
    settings.set_global_job_parameters({"name": "value", "limit": "3"})
    print(settings.get_auto_watermark_interval(), settings.get_max_parallelism(), env.get_max_parallelism())
    print(sorted(settings.get_global_job_parameters().items()))
    env.set_buffer_timeout(20)
    print(env.get_buffer_timeout(), env.is_chaining_enabled())
    env.disable_operator_chaining()
    print(env.is_chaining_enabled())

    print(
        MemorySize.of_mebi_bytes(64),
        MemorySize.of_mebi_bytes(1) == MemorySize.of_mebi_bytes(1),
        MemorySize.of_mebi_bytes(1).get_kibi_bytes(),
    )
    group = SlotSharingGroup.builder("heavy").set_cpu_cores(1.0).set_task_heap_memory_mb(64).build()
    print(group.get_name(), group.get_cpu_cores(), group.get_task_heap_memory())
    stream = env.from_collection([1, 2, 3], type_info=Types.INT())
    stream.map(lambda number: number + 1, output_type=Types.INT()).name("plus one").uid("plus-one").set_buffer_timeout(
        5
    ).print("result").name("printed")
    env.execute("configured")


if __name__ == "__main__":
    configuration()
