"""Every option of the table is read: a job, its cluster or an error shows it."""

from collections.abc import Callable
from typing import Any

import pytest

from flowlet.common import Configuration
from flowlet.common.options.client_options import ClientHeartbeat
from flowlet.common.options.known_options import BY_NAME, KNOWN
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.stream_execution_environment import job_manager_address
from flowlet.errors import ConfigError, JobGraphError
from flowlet.graph.stream_graph import StreamGraph

Seen = Callable[[dict[str, str]], object]
FIXED = [option for option in KNOWN if option.is_fixed]


def graph_of(options: dict[str, str], *, has_gate: bool = False) -> StreamGraph:
    """Return the graph of a job with these options."""
    found: list[StreamGraph] = []

    def submit(stream_graph: StreamGraph, *_: object) -> Any:
        found.append(stream_graph)
        raise JobGraphError("seen")

    environment = StreamExecutionEnvironment(Configuration.from_dict(options), submit)
    stream = environment.from_remote_gate("gate", allow_pickle=True) if has_gate else environment.from_collection([1])
    stream.map(str).print()
    with pytest.raises(JobGraphError, match="seen"):
        environment.execute()
    return found[0]


def nodes(options: dict[str, str]) -> object:
    return [
        (node.parallelism, node.max_parallelism, node.buffer_timeout_ms) for node in graph_of(options).nodes.values()
    ]


def whole_graph(options: dict[str, str]) -> object:
    graph = graph_of(options)
    return (graph.name, graph.is_batch, graph.settings)


def refusal(options: dict[str, str]) -> object:
    """Why a job without uids is refused."""
    environment = StreamExecutionEnvironment(Configuration.from_dict(options), lambda *_: None)  # type: ignore[arg-type]  # it gives no job
    environment.from_collection([1]).print()
    try:
        environment.get_execution_plan()
    except JobGraphError as error:
        return str(error)
    return None


def in_batch_mode(options: dict[str, str]) -> object:
    return graph_of({"execution.runtime-mode": "BATCH"} | options).settings.job.batch


def with_checkpoints(options: dict[str, str]) -> object:
    return graph_of({"execution.checkpointing.interval": "1 s"} | options).settings.job.checkpoints


def with_unaligned(options: dict[str, str]) -> object:
    return with_checkpoints({"execution.checkpointing.unaligned.enabled": "true"} | options)


def started_from(options: dict[str, str]) -> object:
    checkpoints = {"execution.checkpointing.interval": "1 s"}
    path = {} if "execution.savepoint.path" in options else {"execution.state-recovery.path": "/somewhere"}
    return graph_of(checkpoints | path | options).settings.job


def with_two_checkpoints(options: dict[str, str]) -> object:
    return with_checkpoints({"execution.checkpointing.num-retained": "2"} | options)


def graph_with_rocksdb(options: dict[str, str]) -> object:
    pytest.importorskip("rocksdict")
    return whole_graph(options)


def with_rocksdb(options: dict[str, str]) -> object:
    pytest.importorskip("rocksdict")
    return graph_of(
        {"state.backend.type": "rocksdb", "execution.checkpointing.interval": "1 s"} | options
    ).settings.job.state


def with_gate(options: dict[str, str]) -> object:
    return graph_of({"execution.checkpointing.interval": "1 s"} | options, has_gate=True).settings.job.gates


def with_strategy(kind: str) -> Seen:
    return lambda options: graph_of({"restart-strategy.type": kind} | options).settings.job.restart


def address(options: dict[str, str]) -> object:
    return job_manager_address(Configuration.from_dict({"rest.address": "here"} | options), {})


def heartbeat(options: dict[str, str]) -> object:
    configuration = Configuration.from_dict(
        {"execution.attached": "true", "execution.shutdown-on-attached-exit": "true"} | options
    )
    return ClientHeartbeat.of_options(configuration, is_collecting=False, is_attached=True)


READ: dict[str, tuple[str, Seen]] = {
    "parallelism.default": ("97", nodes),
    "pipeline.max-parallelism": ("98", nodes),
    "pipeline.name": ("another", whole_graph),
    "pipeline.global-job-parameters": ("limit:3", whole_graph),
    "pipeline.operator-chaining.enabled": ("false", whole_graph),
    "pipeline.operator-chaining": ("false", whole_graph),
    "pipeline.auto-generate-uids": ("false", refusal),
    "pipeline.auto-watermark-interval": ("1 min", whole_graph),
    "metrics.latency.interval": ("1 min", whole_graph),
    "execution.runtime-mode": ("Batch", whole_graph),
    "execution.buffer-timeout.interval": ("1 min", nodes),
    "execution.buffer-timeout": ("-1", nodes),
    "execution.buffer-timeout.enabled": ("false", nodes),
    "execution.batch-shuffle-mode": ("ALL_EXCHANGES_PIPELINED", in_batch_mode),
    "execution.sorted-inputs.enabled": ("false", in_batch_mode),
    "execution.sorted-inputs.memory": ("1 gb", in_batch_mode),
    "execution.batch-state-backend.enabled": ("false", in_batch_mode),
    "task.cancellation.interval": ("9", whole_graph),
    "task.cancellation.timeout": ("9", whole_graph),
    "flowlet.max-record-bytes": ("9", whole_graph),
    "flowlet.jobmanager": ("there:1", address),
    "rest.address": ("there", address),
    "jobmanager.rpc.address": ("there", lambda options: job_manager_address(Configuration.from_dict(options), {})),
    "rest.port": ("1", address),
    "execution.attached": ("false", heartbeat),
    "execution.shutdown-on-attached-exit": ("false", heartbeat),
    "client.heartbeat.interval": ("9", heartbeat),
    "client.heartbeat.timeout": ("90000", heartbeat),
    "rest.retry.max-attempts": ("9", whole_graph),
    "rest.retry.delay": ("9 s", whole_graph),
    "execution.checkpointing.interval": ("9 s", with_checkpoints),
    "execution.checkpointing.mode": ("AT_LEAST_ONCE", with_checkpoints),
    "execution.checkpointing.timeout": ("9 s", with_checkpoints),
    "execution.checkpointing.min-pause": ("9 s", with_checkpoints),
    "execution.checkpointing.max-concurrent-checkpoints": ("9", with_checkpoints),
    "execution.checkpointing.tolerable-failed-checkpoints": ("9", with_checkpoints),
    "execution.checkpointing.unaligned.enabled": ("true", with_checkpoints),
    "execution.checkpointing.unaligned": ("true", with_checkpoints),
    "execution.checkpointing.aligned-checkpoint-timeout": ("9 s", with_unaligned),
    "execution.checkpointing.alignment-timeout": ("9 s", with_unaligned),
    "execution.checkpointing.dir": ("/elsewhere", with_checkpoints),
    "state.checkpoints.dir": ("/elsewhere", with_checkpoints),
    "execution.checkpointing.num-retained": ("9", with_checkpoints),
    "state.checkpoints.num-retained": ("9", with_checkpoints),
    "execution.checkpointing.externalized-checkpoint-retention": ("retain_on_cancellation", with_checkpoints),
    "execution.checkpointing.savepoint-dir": ("/there", whole_graph),
    "state.savepoints.dir": ("/there", whole_graph),
    "execution.state-recovery.path": ("/there", started_from),
    "execution.savepoint.path": ("/there", started_from),
    "execution.state-recovery.ignore-unclaimed-state": ("true", started_from),
    "execution.savepoint.ignore-unclaimed-state": ("true", started_from),
    "execution.checkpointing.checkpoints-after-tasks-finish": ("false", with_checkpoints),
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled": ("false", with_checkpoints),
    "flowlet.checkpointing.restore-fallback": ("true", with_two_checkpoints),
    "flowlet.gate.acknowledge": ("processed", with_gate),
    "flowlet.gate.retries": ("any-rows", with_gate),
    "restart-strategy.type": ("fixed-delay", whole_graph),
    "restart-strategy": ("fixeddelay", whole_graph),
    "jobmanager.execution.failover-strategy": ("full", with_strategy("fixed-delay")),
    "restart-strategy.fixed-delay.attempts": ("9", with_strategy("fixed-delay")),
    "restart-strategy.fixed-delay.delay": ("9 s", with_strategy("fixed-delay")),
    "restart-strategy.failure-rate.max-failures-per-interval": ("9", with_strategy("failure-rate")),
    "restart-strategy.failure-rate.failure-rate-interval": ("9 s", with_strategy("failure-rate")),
    "restart-strategy.failure-rate.delay": ("9 s", with_strategy("failure-rate")),
    "restart-strategy.exponential-delay.initial-backoff": ("9 s", with_strategy("exponential-delay")),
    "restart-strategy.exponential-delay.max-backoff": ("9 s", with_strategy("exponential-delay")),
    "restart-strategy.exponential-delay.backoff-multiplier": ("9", with_strategy("exponential-delay")),
    "restart-strategy.exponential-delay.reset-backoff-threshold": ("9 s", with_strategy("exponential-delay")),
    "restart-strategy.exponential-delay.jitter-factor": ("0.9", with_strategy("exponential-delay")),
    "restart-strategy.exponential-delay.attempts-before-reset-backoff": ("9", with_strategy("exponential-delay")),
    "state.backend.type": ("rocksdb", graph_with_rocksdb),
    "state.backend": ("RocksDB", graph_with_rocksdb),
    "execution.checkpointing.incremental": ("true", with_rocksdb),
    "state.backend.incremental": ("true", with_rocksdb),
    "state.backend.rocksdb.localdir": ("/elsewhere,/there", with_rocksdb),
    "python.files": ("a.py,b", whole_graph),
    "python.requirements": ("a.txt#packages", whole_graph),
    "python.archives": ("a.zip#data", whole_graph),
    "python.executable": ("python3", whole_graph),
    "pipeline.cached-files": ("name:a,path:b", whole_graph),
    "flowlet.ship-modules": ("false", whole_graph),
}
"""By name: a value that is not the default, and what shows that it was read."""


def test_the_table_has_each_name_once_and_this_test_knows_how_each_is_read() -> None:
    names = [name for option in KNOWN for name in option.names]

    assert len(names) == len(set(names)) == len(BY_NAME)
    assert {name for option in KNOWN if option not in FIXED for name in option.names} == set(READ)


@pytest.mark.parametrize("name", READ)
def test_an_option_that_is_set_makes_a_difference(name: str) -> None:
    value, seen = READ[name]

    assert seen({name: value}) != seen({})


def test_an_option_about_gates_is_refused_without_a_gate_and_without_checkpoints() -> None:
    options = {"flowlet.gate.retries": "any-rows"}

    with pytest.raises(
        ConfigError, match=r"'flowlet.gate.retries' is set and has no effect, because the job has no remote gate"
    ):
        graph_of({"execution.checkpointing.interval": "1 s"} | options)
    with pytest.raises(
        ConfigError, match=r"'flowlet.gate.retries' is set and has no effect, because no checkpoints are taken"
    ):
        graph_of(options, has_gate=True)


@pytest.mark.parametrize("name", [name for option in FIXED for name in option.names])
def test_an_option_with_one_value_takes_this_value_and_refuses_all_others(name: str) -> None:
    accepted = str(BY_NAME[name].default)

    StreamExecutionEnvironment(Configuration.from_dict({name: accepted}))
    with pytest.raises(
        ConfigError,
        match=f"option '{name}' is 'other', which is not possible here: .*; use '{accepted}' or leave it out",
    ):
        StreamExecutionEnvironment(Configuration.from_dict({name: "other"}))
