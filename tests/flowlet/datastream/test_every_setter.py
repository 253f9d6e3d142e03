"""Every setter of the API with PyFlink's names has an effect, or warns that it has none and keeps its value, or is
refused.

The table has each of them; what a setter changes is seen in the graph of a job.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Configuration, Duration, ExecutionConfig
from flowlet.common.flinks_options import IGNORED, IGNORED_PREFIXES, IgnoredOptionWarning
from flowlet.common.restart_strategy import RestartStrategies
from flowlet.datastream import (
    CheckpointConfig,
    CheckpointingMode,
    EmbeddedRocksDBStateBackend,
    ExternalizedCheckpointRetention,
    FileSystemCheckpointStorage,
    HashMapStateBackend,
    JobManagerCheckpointStorage,
    PredefinedOptions,
    RuntimeExecutionMode,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from flowlet.errors import FlowletError, JobGraphError
from flowlet.graph.stream_graph import StreamGraph

Call = Callable[[Any], object]
PREFIXES = ("add_", "configure", "disable_", "enable_", "register_", "set_")


def seen_in(environment: StreamExecutionEnvironment) -> object:
    """Return the content of the graph of the environment's job, or the error if there is no graph."""
    found: list[StreamGraph] = []

    def submit(stream_graph: StreamGraph, *_: object) -> Any:
        found.append(stream_graph)
        raise JobGraphError("seen")

    environment._submit_graph = submit
    environment.from_collection([1]).key_by(abs).map(str).print()
    try:
        environment.execute()
    except FlowletError as error:
        if not found:
            return str(error)
    graph = found[0]
    nodes = [(node.parallelism, node.max_parallelism, node.buffer_timeout_ms) for node in graph.nodes.values()]
    return (graph.name, graph.is_batch, graph.settings, nodes)


def plain() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment().set_parallelism(3)


def with_checkpoints() -> StreamExecutionEnvironment:
    return plain().enable_checkpointing(1000)


def with_unaligned() -> StreamExecutionEnvironment:
    environment = with_checkpoints()
    environment.get_checkpoint_config().enable_unaligned_checkpoints()
    return environment


@dataclass(frozen=True)
class Effective:
    """A job is another one after the call."""

    call: Call
    made: Callable[[], StreamExecutionEnvironment] = plain


@dataclass(frozen=True)
class Kept:
    """The call warns, the getter returns the value, and the job is unchanged."""

    call: Call
    getter: Call
    value: object


@dataclass(frozen=True)
class Refused:
    """The call is refused, and the error says how to do it."""

    call: Call
    words: str


@dataclass(frozen=True)
class Default:
    """The call takes another one back: the job is unchanged, and no warning is due."""

    call: Call


Row = Effective | Kept | Refused | Default


def on_config(call: Call) -> Call:
    return lambda environment: call(environment.get_config())


def on_checkpoints(call: Call) -> Call:
    return lambda environment: call(environment.get_checkpoint_config())


def on_rocksdb(call: Call, *, sets: bool = True) -> Call:
    """Return the call on a back end, which the environment then uses."""

    def prepared(environment: StreamExecutionEnvironment) -> None:
        backend = EmbeddedRocksDBStateBackend()
        call(backend)
        if sets:
            environment.set_state_backend(backend)

    return prepared


def with_rocksdb() -> StreamExecutionEnvironment:
    return plain().set_state_backend(EmbeddedRocksDBStateBackend())


def backend_of(environment: Any) -> Any:
    return environment.get_state_backend()


ENVIRONMENT: dict[str, Row] = {
    "add_python_archive": Effective(lambda env: env.add_python_archive("a.zip")),
    "add_python_file": Effective(lambda env: env.add_python_file("a.py")),
    "configure": Effective(lambda env: env.configure(Configuration.from_dict({"pipeline.name": "another"}))),
    "disable_operator_chaining": Effective(lambda env: env.disable_operator_chaining()),
    "enable_changelog_state_backend": Kept(
        lambda env: env.enable_changelog_state_backend(True), lambda env: env.is_changelog_state_backend_enabled(), True
    ),
    "enable_checkpointing": Effective(lambda env: env.enable_checkpointing(20)),
    "register_cached_file": Effective(lambda env: env.register_cached_file("a.txt", "a")),
    "register_slot_sharing_group": Default(lambda env: env.register_slot_sharing_group(SlotSharingGroup("a"))),
    "set_buffer_timeout": Effective(lambda env: env.set_buffer_timeout(7)),
    "set_default_local_parallelism": Effective(
        lambda env: env.set_default_local_parallelism(97), StreamExecutionEnvironment
    ),
    "set_default_savepoint_directory": Effective(lambda env: env.set_default_savepoint_directory("/there")),
    "set_max_parallelism": Effective(lambda env: env.set_max_parallelism(77)),
    "set_parallelism": Effective(lambda env: env.set_parallelism(5)),
    "set_python_executable": Effective(lambda env: env.set_python_executable("python3")),
    "set_python_requirements": Effective(lambda env: env.set_python_requirements("a.txt")),
    "set_restart_strategy": Effective(
        lambda env: env.set_restart_strategy(RestartStrategies.fixed_delay_restart(9, 1))
    ),
    "set_runtime_mode": Effective(lambda env: env.set_runtime_mode(RuntimeExecutionMode.BATCH)),
    "set_state_backend": Effective(lambda env: env.set_state_backend(EmbeddedRocksDBStateBackend())),
}
CONFIG: dict[str, Row] = {
    "disable_auto_generated_uids": Effective(on_config(lambda config: config.disable_auto_generated_uids())),
    "disable_closure_cleaner": Kept(
        on_config(lambda config: config.disable_closure_cleaner()),
        on_config(lambda config: config.is_closure_cleaner_enabled()),
        False,
    ),
    "disable_force_avro": Default(on_config(lambda config: config.disable_force_avro())),
    "disable_force_kryo": Default(on_config(lambda config: config.disable_force_kryo())),
    "disable_generic_types": Kept(
        on_config(lambda config: config.disable_generic_types()),
        on_config(lambda config: config.has_generic_types_disabled()),
        True,
    ),
    "disable_object_reuse": Default(on_config(lambda config: config.disable_object_reuse())),
    "enable_auto_generated_uids": Default(on_config(lambda config: config.enable_auto_generated_uids())),
    "enable_closure_cleaner": Default(on_config(lambda config: config.enable_closure_cleaner())),
    "enable_force_avro": Kept(
        on_config(lambda config: config.enable_force_avro()),
        on_config(lambda config: config.is_force_avro_enabled()),
        True,
    ),
    "enable_force_kryo": Kept(
        on_config(lambda config: config.enable_force_kryo()),
        on_config(lambda config: config.is_force_kryo_enabled()),
        True,
    ),
    "enable_generic_types": Default(on_config(lambda config: config.enable_generic_types())),
    "enable_object_reuse": Kept(
        on_config(lambda config: config.enable_object_reuse()),
        on_config(lambda config: config.is_object_reuse_enabled()),
        True,
    ),
    "set_auto_watermark_interval": Effective(on_config(lambda config: config.set_auto_watermark_interval(9))),
    "set_global_job_parameters": Effective(on_config(lambda config: config.set_global_job_parameters({"a": 1}))),
    "set_latency_tracking_interval": Effective(on_config(lambda config: config.set_latency_tracking_interval(9))),
    "set_max_parallelism": Effective(on_config(lambda config: config.set_max_parallelism(77))),
    "set_parallelism": Effective(on_config(lambda config: config.set_parallelism(5))),
    "set_task_cancellation_interval": Effective(on_config(lambda config: config.set_task_cancellation_interval(9))),
    "set_task_cancellation_timeout": Effective(on_config(lambda config: config.set_task_cancellation_timeout(9))),
    "set_use_snapshot_compression": Kept(
        on_config(lambda config: config.set_use_snapshot_compression(True)),
        on_config(lambda config: config.is_use_snapshot_compression()),
        True,
    ),
}
CHECKPOINTS: dict[str, Row] = {
    "disable_unaligned_checkpoints": Effective(
        on_checkpoints(lambda config: config.disable_unaligned_checkpoints()), with_unaligned
    ),
    "enable_unaligned_checkpoints": Effective(
        on_checkpoints(lambda config: config.enable_unaligned_checkpoints()), with_checkpoints
    ),
    "set_aligned_checkpoint_timeout": Effective(
        on_checkpoints(lambda config: config.set_aligned_checkpoint_timeout(Duration.of_seconds(9))), with_unaligned
    ),
    "set_alignment_timeout": Effective(
        on_checkpoints(lambda config: config.set_alignment_timeout(Duration.of_seconds(9))), with_unaligned
    ),
    "set_checkpoint_interval": Effective(on_checkpoints(lambda config: config.set_checkpoint_interval(20))),
    "set_checkpoint_storage": Effective(
        on_checkpoints(lambda config: config.set_checkpoint_storage(FileSystemCheckpointStorage("/there"))),
        with_checkpoints,
    ),
    "set_checkpoint_storage_dir": Effective(
        on_checkpoints(lambda config: config.set_checkpoint_storage_dir("/there")), with_checkpoints
    ),
    "set_checkpoint_timeout": Effective(
        on_checkpoints(lambda config: config.set_checkpoint_timeout(99)), with_checkpoints
    ),
    "set_checkpointing_mode": Effective(
        on_checkpoints(lambda config: config.set_checkpointing_mode(CheckpointingMode.AT_LEAST_ONCE)), with_checkpoints
    ),
    "set_externalized_checkpoint_retention": Effective(
        on_checkpoints(
            lambda config: config.set_externalized_checkpoint_retention(
                ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION
            )
        ),
        with_checkpoints,
    ),
    "set_fail_on_checkpointing_errors": Effective(
        on_checkpoints(lambda config: config.set_fail_on_checkpointing_errors(False)), with_checkpoints
    ),
    "set_force_unaligned_checkpoints": Kept(
        on_checkpoints(lambda config: config.set_force_unaligned_checkpoints()),
        on_checkpoints(lambda config: config.is_force_unaligned_checkpoints()),
        True,
    ),
    "set_max_concurrent_checkpoints": Effective(
        on_checkpoints(lambda config: config.set_max_concurrent_checkpoints(2)), with_checkpoints
    ),
    "set_min_pause_between_checkpoints": Effective(
        on_checkpoints(lambda config: config.set_min_pause_between_checkpoints(9)), with_checkpoints
    ),
    "set_tolerable_checkpoint_failure_number": Effective(
        on_checkpoints(lambda config: config.set_tolerable_checkpoint_failure_number(9)), with_checkpoints
    ),
}
ROCKSDB: dict[str, Row] = {
    "set_db_storage_paths": Effective(
        on_rocksdb(lambda backend: backend.set_db_storage_paths("/a", "/b")), with_rocksdb
    ),
    "set_number_of_transfer_threads": Kept(
        on_rocksdb(lambda backend: backend.set_number_of_transfer_threads(8)),
        lambda env: backend_of(env).get_number_of_transfer_threads(),
        8,
    ),
    "set_options": Refused(
        on_rocksdb(lambda backend: backend.set_options("org.example.Factory")), "names a Java class, .*; leave it out"
    ),
    "set_predefined_options": Kept(
        on_rocksdb(lambda backend: backend.set_predefined_options(PredefinedOptions.FLASH_SSD_OPTIMIZED)),
        lambda env: backend_of(env).get_predefined_options(),
        PredefinedOptions.FLASH_SSD_OPTIMIZED,
    ),
}
TABLES: list[tuple[type, dict[str, Row]]] = [
    (StreamExecutionEnvironment, ENVIRONMENT),
    (ExecutionConfig, CONFIG),
    (CheckpointConfig, CHECKPOINTS),
    (EmbeddedRocksDBStateBackend, ROCKSDB),
    (HashMapStateBackend, {}),
]
ROWS = [pytest.param(row, id=f"{owner.__name__}.{name}") for owner, table in TABLES for name, row in table.items()]


@pytest.mark.parametrize(("owner", "table"), TABLES, ids=lambda each: getattr(each, "__name__", ""))
def test_the_table_has_every_setter(owner: type, table: dict[str, Row]) -> None:
    no_settings = {"add_source"}

    assert {name for name in dir(owner) if name.startswith(PREFIXES)} - no_settings == set(table)


@pytest.mark.parametrize("row", ROWS)
def test_a_setter_is_effective_or_told_of_or_refused(row: Row, recwarn: pytest.WarningsRecorder) -> None:
    match row:
        case Effective(call, made):
            if made is with_rocksdb:
                pytest.importorskip("rocksdict")
            environment = made()
            call(environment)
            assert seen_in(environment) != seen_in(made())
            assert not recwarn.list
        case Kept(call, getter, value):
            environment = with_rocksdb() if call in [each.call for each in ROCKSDB.values()] else plain()
            before = seen_in(environment)
            call(environment)
            assert [type(each.message) for each in recwarn.list] == [IgnoredOptionWarning]
            assert Path(recwarn.list[0].filename).name == Path(__file__).name, (
                "the warning names the line of the program"
            )
            assert getter(environment) == value
            assert seen_in(environment) == before
        case Refused(call, words):
            with pytest.raises(FlowletError, match=words):
                call(plain())
        case Default(call):
            environment = plain()
            call(environment)
            assert seen_in(environment) == seen_in(plain())
            assert not recwarn.list


# -- options


@pytest.mark.parametrize("name", [*IGNORED, *(f"{prefix}anything" for prefix in IGNORED_PREFIXES)])
def test_an_option_without_an_effect_is_told_of_and_the_job_is_the_same(
    name: str, recwarn: pytest.WarningsRecorder
) -> None:
    environment = StreamExecutionEnvironment.get_execution_environment(
        Configuration.from_dict({name: "true"})
    ).set_parallelism(3)

    assert [str(each.message).split(":")[0] for each in recwarn.list] == [f"option {name!r} has no effect here"]
    assert Path(recwarn.list[0].filename).name == Path(__file__).name
    assert seen_in(environment) == seen_in(plain())


@pytest.mark.parametrize(
    "name",
    [
        "python.logging.level",
        "pekko.ask.timeout",
        "akka.framesize",
        "env.java.opts.all",
        "env.java.home",
        "classloader.resolve-order",
        "kubernetes.cluster-id",
        "yarn.application.name",
        "taskmanager.memory.jvm-overhead.fraction",
        "jobmanager.memory.jvm-metaspace.size",
        "state.backend.rocksdb.compaction.style",
        "execution.checkpointing.file-merging.enabled",
    ],
)
def test_options_of_java_and_of_its_speed_do_not_stop_a_program(name: str) -> None:
    with pytest.warns(IgnoredOptionWarning, match=f"option '{name}' has no effect here: "):
        StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({name: "1"}))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("state.backend.rocksdb.memory.managed", "size the TaskManagers"),
        ("state.backend.rocksdb.writebuffer.size", "size the TaskManagers"),
        ("taskmanager.memory.process.size", "see 'python -m flowlet.tm --help'"),
        ("python.pythonpath", r"use add_python_file\(\) or python.files"),
        ("state.backend.rocksdb.options-factory", "is a Java class; leave it out"),
        ("execution.sort-partition.memory", "leave it out"),
    ],
)
def test_an_option_of_memory_or_results_that_nothing_reads_is_refused(name: str, words: str) -> None:
    with pytest.raises(FlowletError, match=words):
        StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({name: "1"}))


@pytest.mark.filterwarnings("ignore::flowlet.common.flinks_options.IgnoredOptionWarning")
def test_getters_follow_the_options() -> None:
    environment = StreamExecutionEnvironment.get_execution_environment(
        Configuration.from_dict(
            {
                "execution.checkpointing.snapshot-compression": "true",
                "execution.checkpointing.unaligned.forced": "true",
                "pipeline.closure-cleaner-level": "NONE",
                "pipeline.force-avro": "true",
                "pipeline.generic-types": "false",
                "pipeline.global-job-parameters": "limit:3,name:value",
                "state.backend.rocksdb.checkpoint.transfer.thread.num": "9",
                "state.backend.rocksdb.localdir": "/a,/b:/c",
                "state.backend.rocksdb.predefined-options": "FLASH_SSD_OPTIMIZED",
                "state.backend.type": "rocksdb",
                "state.changelog.enabled": "true",
            }
        )
    )
    config, backend = environment.get_config(), environment.get_state_backend()

    assert isinstance(backend, EmbeddedRocksDBStateBackend)
    assert config.is_use_snapshot_compression()
    assert environment.is_force_unaligned_checkpoints()
    assert environment.is_changelog_state_backend_enabled()
    assert not config.is_closure_cleaner_enabled()
    assert config.is_force_avro_enabled()
    assert config.has_generic_types_disabled()
    assert config.get_global_job_parameters() == {"limit": "3", "name": "value"}
    assert backend.get_number_of_transfer_threads() == 9
    assert backend.get_predefined_options() is PredefinedOptions.FLASH_SSD_OPTIMIZED
    assert backend.get_db_storage_paths() == ["/a", "/b", "/c"]


def test_a_storage_keeps_the_sizes_of_its_files_and_warns() -> None:
    environment = with_checkpoints()
    with pytest.warns(IgnoredOptionWarning, match="file_state_size_threshold or write_buffer_size"):
        storage = FileSystemCheckpointStorage("/there", 100, 200)

    found = environment.get_checkpoint_config().set_checkpoint_storage(storage).get_checkpoint_storage()

    assert isinstance(found, FileSystemCheckpointStorage)
    assert (found.get_min_file_size_threshold(), found.get_write_buffer_size()) == (100, 200)


def test_a_storage_that_would_lose_checkpoints_is_refused() -> None:
    with pytest.raises(
        FlowletError, match=r"not kept in the memory of the JobManager, whose end would lose them: use FileSystem"
    ):
        CheckpointConfig().set_checkpoint_storage(JobManagerCheckpointStorage())
