"""Every setter of the API with PyFlink's names has an effect, or warns that it has none and keeps its value, or is
refused.

The table has each of them; what a setter changes is seen in the graph of a job.
"""

from collections.abc import Callable
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
    PredefinedOptions,
    RuntimeExecutionMode,
    SlotSharingGroup,
    StreamExecutionEnvironment,
)
from flowlet.errors import FlowletError
from tests.flowlet.datastream.captured_graphs import Captured

PREFIXES = ("add_", "configure", "disable_", "enable_", "register_", "set_")


def seen_in(environment: StreamExecutionEnvironment) -> object:
    """Return the content of the graph of the environment's job, or the error if there is no graph."""
    captured = environment._submit_graph = Captured()
    environment.from_collection([1]).key_by(abs).map(str).print()
    try:
        environment.execute()
    except FlowletError as error:
        if not captured.graphs:
            return str(error)
    graph = captured.graphs[0]
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


def with_rocksdb() -> StreamExecutionEnvironment:
    return plain().set_state_backend(EmbeddedRocksDBStateBackend())


class Row:
    """The arguments of a setter, and what makes the environment in which it is called."""

    def __init__(self, *arguments: Any, made: Callable[[], StreamExecutionEnvironment] = plain) -> None:
        self.arguments = arguments
        self.made = made


class Effective(Row):
    """A job is another one after the call."""


class Default(Row):
    """The call takes another one back: the job is unchanged, and no warning is due."""


class Kept(Row):
    """The call warns, the getter returns the value, and the job is unchanged."""

    def __init__(self, getter: str, value: object, *arguments: Any, made: Any = plain) -> None:
        super().__init__(*arguments, made=made)
        self.getter = getter
        self.value = value


class Refused(Row):
    """The call is refused, and the error says how to do it."""

    def __init__(self, words: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.words = words


ENVIRONMENT: dict[str, Row] = {
    "add_python_archive": Effective("a.zip"),
    "add_python_file": Effective("a.py"),
    "configure": Effective(Configuration.from_dict({"pipeline.name": "another"})),
    "disable_operator_chaining": Effective(),
    "enable_changelog_state_backend": Kept("is_changelog_state_backend_enabled", True, True),
    "enable_checkpointing": Effective(20),
    "register_cached_file": Effective("a.txt", "a"),
    "register_slot_sharing_group": Default(SlotSharingGroup("a")),
    "set_buffer_timeout": Effective(7),
    "set_default_local_parallelism": Effective(97, made=StreamExecutionEnvironment),
    "set_default_savepoint_directory": Effective("/there"),
    "set_max_parallelism": Effective(77),
    "set_parallelism": Effective(5),
    "set_python_executable": Effective("python3"),
    "set_python_requirements": Effective("a.txt"),
    "set_restart_strategy": Effective(RestartStrategies.fixed_delay_restart(9, 1)),
    "set_runtime_mode": Effective(RuntimeExecutionMode.BATCH),
    "set_state_backend": Effective(EmbeddedRocksDBStateBackend()),
}
CONFIG: dict[str, Row] = {
    "disable_auto_generated_uids": Effective(),
    "disable_closure_cleaner": Kept("is_closure_cleaner_enabled", False),
    "disable_force_avro": Default(),
    "disable_force_kryo": Default(),
    "disable_generic_types": Kept("has_generic_types_disabled", True),
    "disable_object_reuse": Default(),
    "enable_auto_generated_uids": Default(),
    "enable_closure_cleaner": Default(),
    "enable_force_avro": Kept("is_force_avro_enabled", True),
    "enable_force_kryo": Kept("is_force_kryo_enabled", True),
    "enable_generic_types": Default(),
    "enable_object_reuse": Kept("is_object_reuse_enabled", True),
    "set_auto_watermark_interval": Effective(9),
    "set_global_job_parameters": Effective({"a": 1}),
    "set_latency_tracking_interval": Effective(9),
    "set_max_parallelism": Effective(77),
    "set_parallelism": Effective(5),
    "set_task_cancellation_interval": Effective(9),
    "set_task_cancellation_timeout": Effective(9),
    "set_use_snapshot_compression": Kept("is_use_snapshot_compression", True, True),
}
CHECKPOINTS: dict[str, Row] = {
    "disable_unaligned_checkpoints": Effective(made=with_unaligned),
    "enable_unaligned_checkpoints": Effective(made=with_checkpoints),
    "set_aligned_checkpoint_timeout": Effective(Duration.of_seconds(9), made=with_unaligned),
    "set_alignment_timeout": Effective(Duration.of_seconds(9), made=with_unaligned),
    "set_checkpoint_interval": Effective(20),
    "set_checkpoint_storage": Effective(FileSystemCheckpointStorage("/there"), made=with_checkpoints),
    "set_checkpoint_storage_dir": Effective("/there", made=with_checkpoints),
    "set_checkpoint_timeout": Effective(99, made=with_checkpoints),
    "set_checkpointing_mode": Effective(CheckpointingMode.AT_LEAST_ONCE, made=with_checkpoints),
    "set_externalized_checkpoint_retention": Effective(
        ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION, made=with_checkpoints
    ),
    "set_fail_on_checkpointing_errors": Effective(False, made=with_checkpoints),
    "set_force_unaligned_checkpoints": Kept("is_force_unaligned_checkpoints", True),
    "set_max_concurrent_checkpoints": Effective(2, made=with_checkpoints),
    "set_min_pause_between_checkpoints": Effective(9, made=with_checkpoints),
    "set_tolerable_checkpoint_failure_number": Effective(9, made=with_checkpoints),
}
ROCKSDB: dict[str, Row] = {
    "set_db_storage_paths": Effective("/a", "/b", made=with_rocksdb),
    "set_number_of_transfer_threads": Kept("get_number_of_transfer_threads", 8, 8, made=with_rocksdb),
    "set_options": Refused("names a Java class, .*; leave it out", "org.example.Factory"),
    "set_predefined_options": Kept(
        "get_predefined_options",
        PredefinedOptions.FLASH_SSD_OPTIMIZED,
        PredefinedOptions.FLASH_SSD_OPTIMIZED,
        made=with_rocksdb,
    ),
}
TABLES: dict[type, dict[str, Row]] = {
    StreamExecutionEnvironment: ENVIRONMENT,
    ExecutionConfig: CONFIG,
    CheckpointConfig: CHECKPOINTS,
    EmbeddedRocksDBStateBackend: ROCKSDB,
    HashMapStateBackend: {},
}
ROWS = [
    pytest.param(owner, name, row, id=f"{owner.__name__}.{name}")
    for owner, table in TABLES.items()
    for name, row in table.items()
]


def found_in(environment: StreamExecutionEnvironment, owner: type) -> object:
    """Return what has the setters and getters of a class."""
    if owner is ExecutionConfig:
        return environment.get_config()
    if owner is CheckpointConfig:
        return environment.get_checkpoint_config()
    return environment if owner is StreamExecutionEnvironment else environment.get_state_backend()


def after_call(owner: type, name: str, row: Row) -> StreamExecutionEnvironment:
    environment = row.made()
    if owner is not EmbeddedRocksDBStateBackend:
        getattr(found_in(environment, owner), name)(*row.arguments)
        return environment
    backend = EmbeddedRocksDBStateBackend()
    getattr(backend, name)(*row.arguments)
    return environment.set_state_backend(backend)


@pytest.mark.parametrize(("owner", "table"), TABLES.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_the_table_has_every_setter(owner: type, table: dict[str, Row]) -> None:
    no_settings = {"add_source"}

    assert {name for name in dir(owner) if name.startswith(PREFIXES)} - no_settings == set(table)


@pytest.mark.parametrize(("owner", "name", "row"), ROWS)
def test_a_setter_is_effective_or_told_of_or_refused(
    owner: type, name: str, row: Row, recwarn: pytest.WarningsRecorder
) -> None:
    match row:
        case Effective():
            if row.made is with_rocksdb:
                pytest.importorskip("rocksdict")
            assert seen_in(after_call(owner, name, row)) != seen_in(row.made())
            assert not recwarn.list
        case Kept():
            environment = after_call(owner, name, row)
            assert [type(each.message) for each in recwarn.list] == [IgnoredOptionWarning]
            assert Path(recwarn.list[0].filename).name == Path(__file__).name, "it names the line of the program"
            assert getattr(found_in(environment, owner), row.getter)() == row.value
            assert seen_in(environment) == seen_in(row.made())
        case Refused():
            with pytest.raises(FlowletError, match=row.words):
                after_call(owner, name, row)
        case _:
            assert seen_in(after_call(owner, name, row)) == seen_in(row.made())
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
