"""An option that nothing reads, or that is wrong, is an error at once that names it."""

import pytest

from flowlet.common import Configuration
from flowlet.common.flinks_options import EXACT, IGNORED, PREFIXES, IgnoredOptionWarning
from flowlet.common.options.known_options import BY_NAME, check_options
from flowlet.datastream import StreamExecutionEnvironment
from flowlet.errors import ConfigError


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
