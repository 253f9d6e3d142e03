"""A savepoint of an earlier version, as it lies in the repository, is read, and a job goes on from it.

``savepoint.json`` has the files of a savepoint in base64, and the secret of the cluster that wrote it.  It is never
written again: further ones may come beside it (``python -m tests.frozen.test_stored_savepoint FILE`` writes one).
"""

import base64
import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast
from unittest import mock

import pytest

from flowlet.common import Configuration, JobClient, Row, Types
from flowlet.datastream import (
    AggregateFunction,
    CloseableIterator,
    DataStream,
    KeyedProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from flowlet.datastream import StreamExecutionEnvironment as Environment
from flowlet.datastream.connectors import DiscardingSink
from flowlet.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flowlet.state_reader import read_state
from tests.waiting import spin_until

STORED: Final = Path(__file__).parent / "savepoint.json"
_MANY: Final = 10**12
_KEYS: Final = 3


class Add(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class Average(AggregateFunction):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


class KeepAll(KeyedProcessFunction):
    """Counts in state of each kind; its results say whether all of them agree."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._row = runtime_context.get_state(ValueStateDescriptor("row"))
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self._map = runtime_context.get_map_state(MapStateDescriptor("map", Types.STRING(), Types.LONG()))
        self._reducing = runtime_context.get_reducing_state(ReducingStateDescriptor("reducing", Add(), Types.LONG()))
        self._average = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("aggregating", Average(), Types.PICKLED_BYTE_ARRAY())
        )

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        if len(list(self._list)) < 2:
            self._list.add(value)
        self._row.update(Row(name="key", number=count))
        self._map.put("count", count)
        self._reducing.add(1)
        self._average.add(1)
        ctx.timer_service().register_event_time_timer(_MANY)
        agree = (
            count == self._row.value().number == self._map.get("count") == self._reducing.get()
            and self._average.get() == 1
        )
        yield ctx.get_current_key(), value, count, agree


def results(environment: Environment) -> DataStream:
    numbers = environment.from_sequence(0, _MANY).uid("numbers")
    numbers.key_by(lambda number: number % _KEYS, Types.LONG()).sum(0).uid("sum").sink_to(DiscardingSink())
    return numbers.key_by(lambda number: number % _KEYS, Types.LONG()).process(KeepAll()).uid("keep")


def environment_of(folder: Path) -> Environment:
    options = {"execution.checkpointing.savepoint-dir": str(folder)}
    return Environment.get_execution_environment(Configuration.from_dict(options)).set_parallelism(1)


def variables(folder: Path) -> dict[str, str]:
    return {"FLOWLET_LOCAL": "inprocess", "FLOWLET_SECRET_FILE": str(folder / "secret")}


def take(path: Path) -> None:
    """Write a savepoint of the program into a file."""
    folder = Path(tempfile.mkdtemp())
    with mock.patch.dict(os.environ, variables(folder)), contextlib.closing(environment_of(folder)) as environment:
        results(environment).sink_to(DiscardingSink())
        job: JobClient = environment.execute_async("stored")
        spin_until(
            lambda: sum(each["metrics"]["write-records"] for each in job.metrics()["vertices"]) > 1000, "some records"
        )
        directory = Path(job.stop_with_savepoint(False).result())
    files = {file.name: base64.b64encode(file.read_bytes()).decode() for file in sorted(directory.iterdir())}
    secret = (folder / "secret").read_text(encoding="ascii").strip()
    path.write_text(json.dumps({"secret": secret, "files": files}, indent=1) + "\n", encoding="ascii")


@pytest.fixture
def savepoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    stored = json.loads(STORED.read_text(encoding="ascii"))
    for name, value in variables(tmp_path).items():
        monkeypatch.setenv(name, value)
    (tmp_path / "secret").touch(mode=0o600)
    (tmp_path / "secret").write_text(stored["secret"], encoding="ascii")
    directory = tmp_path / "savepoint"
    directory.mkdir()
    for name, content in stored["files"].items():
        (directory / name).write_bytes(base64.b64decode(content))
    return directory


@pytest.mark.slow
def test_a_savepoint_of_an_earlier_version_is_read(savepoint: Path) -> None:
    state = read_state(savepoint)

    found = {
        each.uid: [(one.name, one.kind, one.type_name, one.num_entries) for one in each.states]
        for each in state.operators()
        if each.uid
    }
    assert sorted(found["keep"]) == [
        ("aggregating", "AggregatingState", repr(Types.PICKLED_BYTE_ARRAY()), _KEYS),
        ("count", "ValueState", "Long", _KEYS),
        ("list", "ListState", "ListTypeInfo<Long>", _KEYS),
        ("map", "MapState", "MapTypeInfo<String, Long>", _KEYS),
        ("reducing", "ReducingState", "Long", _KEYS),
        ("row", "ValueState", repr(Types.PICKLED_BYTE_ARRAY()), _KEYS),
    ]
    counts = state.keyed_state("keep", "count").to_pydict()
    assert sorted(counts["key"]) == list(range(_KEYS))
    assert state.keyed_state("keep", "reducing").to_pydict() == counts
    assert sorted(state.keyed_state("sum", "aggregate").to_pydict()["key"]) == list(range(_KEYS))


@pytest.mark.slow
def test_a_job_goes_on_from_a_savepoint_of_an_earlier_version(savepoint: Path, tmp_path: Path) -> None:
    """No record is lost or counted twice, and every key is in its stored state."""
    counts = read_state(savepoint).keyed_state("keep", "count").to_pydict()
    stored = dict(zip(counts["key"], counts["value"], strict=True))
    environment = environment_of(tmp_path)
    environment.configure(Configuration.from_dict({"execution.state-recovery.path": str(savepoint)}))

    first: dict[int, Any] = {}
    with cast("CloseableIterator", results(environment).execute_and_collect()) as found:
        for key, value, count, agree in found:
            first.setdefault(key, (value, count, agree))
            if len(first) == _KEYS:
                break
    environment.close()

    assert first == {key: (key + _KEYS * count, count + 1, True) for key, count in stored.items()}


if __name__ == "__main__":
    take(Path(sys.argv[1]))
