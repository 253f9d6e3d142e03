"""State back ends are options, and an environment reads them back."""

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from flowlet.common import Configuration, Types
from flowlet.datastream import (
    EmbeddedRocksDBStateBackend,
    HashMapStateBackend,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.errors import ConfigError, JobGraphError


class CountWithState(MapFunction):
    """Counts the records of a key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def map(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return value


def environment(**options: str) -> StreamExecutionEnvironment:
    configuration = Configuration.from_dict({name.replace("__", "."): text for name, text in options.items()})
    return StreamExecutionEnvironment.get_execution_environment(configuration)


def test_the_heap_is_the_default() -> None:
    assert isinstance(environment().get_state_backend(), HashMapStateBackend)


def test_what_is_set_is_read_back() -> None:
    env = environment(state__backend="hashmap")
    backend = EmbeddedRocksDBStateBackend(enable_incremental_checkpointing=True)
    backend.set_db_storage_paths("/disk", "/other")

    found = env.enable_checkpointing(1000).set_state_backend(backend).get_state_backend()

    assert isinstance(found, EmbeddedRocksDBStateBackend)
    assert found.is_incremental_checkpoints_enabled()
    assert found.get_db_storage_paths() == ["/disk", "/other"]
    assert EmbeddedRocksDBStateBackend().get_db_storage_paths() == []


def test_the_heap_can_be_chosen_again() -> None:
    env = environment()
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths("/disk")

    env.set_state_backend(backend).set_state_backend(HashMapStateBackend())

    assert str(env.get_state_backend()) == "HashMapStateBackend"


def test_databases_lie_in_the_directories_that_were_set(tmp_path: Path) -> None:
    """The operators of a TaskManager use them one after the other."""
    pytest.importorskip("rocksdict")
    directories = [tmp_path / "first", tmp_path / "second"]
    for each in directories:
        each.mkdir()
    backend = EmbeddedRocksDBStateBackend()
    backend.set_db_storage_paths(*map(str, directories))
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1).set_state_backend(backend)
    pairs = env.from_collection([("a", 1), ("a", 2)])
    once = pairs.key_by(lambda pair: pair[0]).map(CountWithState())
    once.key_by(lambda pair: pair[0]).map(CountWithState()).print()

    env.execute()

    assert all(list(each.glob("flowlet-rocksdb-*")) for each in directories)


def test_what_has_no_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="no effect, because keyed state is kept on the heap"):
        environment(execution__checkpointing__incremental="true").get_state_backend()
    with pytest.raises(ConfigError, match="no effect, because keyed state is kept on the heap"):
        environment(state__backend__rocksdb__localdir="/disk").get_state_backend()
    with pytest.raises(ConfigError, match="no effect, because no checkpoints are taken"):
        environment(state__backend="rocksdb", execution__checkpointing__incremental="true").get_state_backend()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(JobGraphError, match="needs absolute paths without , and :, got 'here'"):
        EmbeddedRocksDBStateBackend().set_db_storage_paths("here")
    with pytest.raises(JobGraphError, match="got '/a', '/b,/c'"):
        EmbeddedRocksDBStateBackend().set_db_storage_paths("/a", "/b,/c")
    with pytest.raises(JobGraphError, match="needs PredefinedOptions, got 'FLASH'"):
        EmbeddedRocksDBStateBackend().set_predefined_options("FLASH")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(JobGraphError, match="a number of 1 or more, got 0"):
        EmbeddedRocksDBStateBackend().set_number_of_transfer_threads(0)
    with pytest.raises(JobGraphError, match="needs HashMapStateBackend"):
        environment().set_state_backend("rocksdb")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(JobGraphError, match="needs True, False or None"):
        EmbeddedRocksDBStateBackend("true")  # type: ignore[arg-type]  # the mistake
    with pytest.raises(ConfigError, match="which is not an absolute path, or several parted by commas"):
        environment(state__backend__rocksdb__localdir="/a,b")


def test_a_job_without_the_package_is_refused_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec

    def without(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if name == "rocksdict" else find_spec(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    env = environment(state__backend="rocksdb")
    env.from_collection([1]).print()

    with pytest.raises(JobGraphError, match=r"pip install 'flowlet\[rocksdb\]', here and where the TaskManagers run"):
        env.execute()
