"""Every option of the table is read: a job, its cluster or an error shows it."""

from collections.abc import Callable

import pytest

from flowlet.common import Configuration
from flowlet.common.flinks_options import EXACT, IGNORED, PREFIXES, IgnoredOptionWarning
from flowlet.common.option import Option
from flowlet.common.options.client_options import ClientHeartbeat
from flowlet.common.options.known_options import BY_NAME, KNOWN, check_options
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.datastream.stream_execution_environment import job_manager_address
from flowlet.errors import ConfigError, JobGraphError
from flowlet.graph.stream_graph import StreamGraph
from tests import options_page
from tests.flowlet import stream_graphs
from tests.flowlet.stream_graphs import unstarted

Seen = Callable[[dict[str, str]], object]
FIXED = [option for option in KNOWN if option.is_fixed]


def graph_of(options: dict[str, str], *, has_gate: bool = False) -> StreamGraph:
    """Return the graph of a job with these options."""
    environment = unstarted(options)
    stream = environment.from_remote_gate("gate", allow_pickle=True) if has_gate else environment.from_collection([1])
    stream.map(str).print()
    return stream_graphs.graph_of(environment.execute)


def nodes(options: dict[str, str]) -> object:
    found = graph_of(options).nodes.values()
    return [(node.parallelism, node.max_parallelism, node.buffer_timeout_ms) for node in found]


def whole_graph(options: dict[str, str]) -> object:
    graph = graph_of(options)
    return (graph.name, graph.is_batch, graph.settings)


def refusal(options: dict[str, str]) -> object:
    """Why a job without uids is refused."""
    environment = unstarted(options)
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
    backend = {"state.backend.type": "rocksdb", "execution.checkpointing.interval": "1 s"}
    return graph_of(backend | options).settings.job.state


def with_gate(options: dict[str, str]) -> object:
    return graph_of({"execution.checkpointing.interval": "1 s"} | options, has_gate=True).settings.job.gates


def with_strategy(kind: str) -> Seen:
    return lambda options: graph_of({"restart-strategy.type": kind} | options).settings.job.restart


def address(options: dict[str, str]) -> object:
    return job_manager_address(Configuration.from_dict({"rest.address": "here"} | options), {})


def heartbeat(options: dict[str, str]) -> object:
    attached = {"execution.attached": "true", "execution.shutdown-on-attached-exit": "true"}
    configuration = Configuration.from_dict(attached | options)
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
    options, useless = {"flowlet.gate.retries": "any-rows"}, "'flowlet.gate.retries' is set and has no effect, because "

    with pytest.raises(ConfigError, match=useless + "the job has no remote gate"):
        graph_of({"execution.checkpointing.interval": "1 s"} | options)
    with pytest.raises(ConfigError, match=useless + "no checkpoints are taken"):
        graph_of(options, has_gate=True)


@pytest.mark.parametrize("name", [name for option in FIXED for name in option.names])
def test_an_option_with_one_value_takes_this_value_and_refuses_all_others(name: str) -> None:
    accepted = str(BY_NAME[name].default)

    StreamExecutionEnvironment(Configuration.from_dict({name: accepted}))
    reason = f"option '{name}' is 'other', which is not possible here: .*; use '{accepted}' or leave it out"
    with pytest.raises(ConfigError, match=reason):
        StreamExecutionEnvironment(Configuration.from_dict({name: "other"}))


# -------------------------------------------------------------------- options that nothing reads, or that are wrong


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("execution.checkpointing.intervall", "is not known; did you mean 'execution.checkpointing.interval'?"),
        ("jobmanager.rpc.adress", "is not known; did you mean 'jobmanager.rpc.address'?"),
        ("parallelism", "is not known; did you mean 'parallelism.default'?"),
        ("jobmanager.scheduler", "exists in Flink, but not here: all tasks of a job are deployed at once"),
        ("execution.savepoint.claim", "is not read here: a job can start from a savepoint"),
        ("state.backend.rocksdb.memory.managed", "is not read here: RocksDB has its own settings of memory"),
        ("state.backend.hashmap.anything", "is not read here: this detail of state backends"),
        ("taskmanager.memory.process.size", "is not read here: it belongs to the cluster"),
        ("wholly.unheard-of", "is not known; leave it out"),
    ],
)
def test_an_option_that_nothing_reads_is_refused_by_its_name(name: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({name: "1"}))

    assert str(raised.value).startswith(f"option {name!r} {message}")
    assert "\n" not in str(raised.value)


def test_a_wrong_value_is_found_whatever_reads_it() -> None:
    with pytest.raises(ConfigError, match=r"option 'client.heartbeat.timeout' is 'soon', which is not a whole number"):
        check_options(Configuration.from_dict({"client.heartbeat.timeout": "soon"}))


def test_a_refused_configuration_changes_nothing() -> None:
    environment = StreamExecutionEnvironment(Configuration.from_dict({"parallelism.default": "3"}))

    for wrong in (
        {"pipeline.nome": "x"},
        {"pipeline.max-parallelism": "40000"},
        {"flowlet.max-record-bytes": str(2**31)},
    ):
        with pytest.raises(Exception, match=r"pipeline\.nome|40000|2147483648"):
            environment.configure(Configuration.from_dict({"parallelism.default": "7"} | wrong))
    environment.configure(Configuration.from_dict({"pipeline.name": "job"}))

    assert environment.get_parallelism() == 3


def test_a_later_configuration_leaves_alone_what_it_does_not_name() -> None:
    environment = StreamExecutionEnvironment(Configuration.from_dict({"parallelism.default": "3"}))

    environment.set_parallelism(4).configure(Configuration.from_dict({"pipeline.name": "job"}))

    assert environment.get_parallelism() == 4


@pytest.mark.parametrize("name", ["pipeline.object-reuse", "python.fn-execution.bundle.time", "python.execution-mode"])
def test_an_option_that_only_tunes_flink_is_told_of_and_the_program_runs(name: str) -> None:
    configuration = Configuration.from_dict({name: "true", "parallelism.default": "3"})

    with pytest.warns(IgnoredOptionWarning, match=f"option '{name}' has no effect here: functions"):
        environment = StreamExecutionEnvironment.get_execution_environment(configuration)

    assert environment.get_parallelism() == 3


@pytest.mark.filterwarnings("ignore::flowlet.common.flinks_options.IgnoredOptionWarning")
def test_a_program_reads_back_whether_objects_are_reused() -> None:
    environment = StreamExecutionEnvironment(Configuration.from_dict({"pipeline.object-reuse": "true"}))

    assert environment.get_config().is_object_reuse_enabled()


def test_what_is_known_is_not_listed_as_missing() -> None:
    assert not IGNORED.keys() & (EXACT.keys() | BY_NAME.keys())
    assert not EXACT.keys() & BY_NAME.keys()
    assert all(reason.strip() and "\n" not in reason for reason in (*EXACT.values(), *PREFIXES.values()))


# -------------------------------------------------------------------- the page for users


def test_the_page_is_what_the_tables_print() -> None:
    """``python -m tests.options_page --write`` makes it so."""
    text = options_page.PAGE.read_text(encoding="utf-8")

    assert options_page.page(text) == text
    assert all(table in text for table in options_page.tables())


def test_every_option_says_what_it_decides() -> None:
    meanings = options_page.meanings()

    assert [option.name for option in KNOWN if not meanings.get(option.name) or not option.allowed] == []


def test_a_page_that_lacks_an_option_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test above is able to fail."""
    added = Option("flowlet.new", str, "a text")
    monkeypatch.setattr(options_page, "KNOWN", (*KNOWN, added))
    monkeypatch.setattr(options_page, "meanings", lambda: {"flowlet.new": "what it decides"})

    assert options_page.main([]) == 1
    assert "is not what the tables print" in capsys.readouterr().out
    assert "| `flowlet.new` | a text |  | what it decides |\n" in options_page.page("a | b\n---|---\nc | d\n")
