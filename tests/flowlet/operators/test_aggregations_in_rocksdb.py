"""Running results per key in RocksDB: as on the heap record by record, however often the rows leave the memory."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowlet.chain.stream_operator import StreamOperator
from flowlet.columns import columns_of
from flowlet.datastream import ReduceFunction
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.datastream.user_functions.aggregations import Aggregation
from flowlet.operators import keyed_aggregation_operator
from flowlet.operators.keyed_aggregation_operator import KeyedCountOperator, KeyedReduceOperator, KeyedSumOperator
from flowlet.records import Chunk
from flowlet.state.heap_keyed_state_backend import HeapKeyedStateBackend
from flowlet.state.state_snapshots import AGGREGATES, KeyedStateSnapshot
from flowlet.timers.keyed_timer_service import KeyContext
from tests.flowlet.operators.harness import Harness, MakeBackend

pytest.importorskip("rocksdict")

from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace

pytestmark = pytest.mark.slow

KEY = itemgetter(0)
NUM_KEYS = 40


def added(so_far: Any, record: Any) -> Any:
    return so_far[0], so_far[1] + record[1]


def added_in_place(so_far: Any, record: Any) -> Any:
    so_far[1] += record[1]
    return so_far


class AddAndCount(ReduceFunction):
    """Counts in keyed state of its own, in the operator's store."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("aggregate"))

    def reduce(self, value1: Any, value2: Any) -> Any:
        self.count.update((self.count.value() or 1) + 1)
        return value1[0], value1[1] + value2[1] + 1000 * self.count.value()


MAKE: dict[str, Callable[[], StreamOperator]] = {
    "sum": lambda: KeyedSumOperator(KEY, 1),
    "sum of the last": lambda: KeyedSumOperator(KEY, -1),
    "count": lambda: KeyedCountOperator(KEY),
    "reduce": lambda: KeyedReduceOperator(KEY, added),
    "reduce with state": lambda: KeyedReduceOperator(KEY, AddAndCount()),
    **{
        name: lambda name=name: KeyedReduceOperator(KEY, Aggregation(name, 1))  # type: ignore[misc]
        for name in ("min", "max", "min_by", "max_by")
    },
}
FORMS = ("list", "columns", "in turns")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed_aggregation_operator, "MIN_COLUMN_ROWS", 3)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[Callable[[int], MakeBackend]]:
    """Makes back ends with a cache of so many bytes."""
    opened: list[RocksDBKeyedStateBackend] = []

    def make(cache_bytes: int) -> MakeBackend:
        def made(
            context: KeyContext, now_ms: Callable[[], int], groups: range, max_parallelism: int
        ) -> RocksDBKeyedStateBackend:
            place = RocksDBPlace(str(tmp_path), cache_bytes=cache_bytes)
            opened.append(RocksDBKeyedStateBackend(context, now_ms, groups, max_parallelism, place))
            return opened[-1]

        return made

    yield make
    for each in opened:
        each.check_invariants()
        each.close()


KEY_OF: dict[str, Callable[[int], Any]] = {"text": "key {}".format, "int": int, "float": float}


def chunks_of(seed: int, form: str, first: Any = 0, kind: str = "text", turn: int = 12) -> list[Chunk]:
    """``kind``: of the keys; the values are floats from the chunk ``turn`` on, which ends columns of integers."""
    chunks = []
    for number in range(12):
        size = 1 + (seed * (number + 3)) % 50
        offset = first + 0.25 if number >= turn else first
        records = [
            (KEY_OF[kind]((seed * each * 7 + number * each) % NUM_KEYS), offset + (each * 13 + number) % 17)
            for each in range(size)
        ]
        columns = columns_of(records) if form == "columns" or (form == "in turns" and number % 3) else None
        chunks.append(Chunk(records) if columns is None else Chunk.of_columns(columns))
    return chunks


def fed(harness: Harness, chunks: list[Chunk]) -> list[str]:
    start = len(harness.output.values)
    for chunk in chunks:
        harness.operator.process_chunk(chunk)
    return list(map(repr, harness.output.values[start:]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", MAKE)
@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(1, 100),
    cache_bytes=st.sampled_from([1, 3_000, 10**6]),
    first=st.sampled_from([0, 0.5, 2**62]),
    crash=st.integers(0, 11),
    kind=st.sampled_from(list(KEY_OF)),
    turn=st.integers(2, 12),
)
def test_results_are_those_of_the_heap_record_by_record(
    name: str,
    form: str,
    seed: int,
    cache_bytes: int,
    first: Any,
    crash: int,
    kind: str,
    turn: int,
    backend: Callable[[int], MakeBackend],
) -> None:
    """Results are equal after a restart from a full snapshot, too, in either back end."""
    of_list = chunks_of(seed, "list", first, kind, turn)
    chunks = chunks_of(seed, form, first, kind, turn)
    heap = Harness(MAKE[name]())
    expected = fed(heap, of_list[:crash])
    rocksdb = Harness(MAKE[name](), make_backend=backend(cache_bytes))
    assert fed(rocksdb, chunks[:crash]) == expected
    stored = [cloudpickle.dumps(each.snapshot()) for each in (rocksdb, heap)]
    expected = fed(heap, of_list[crash:])
    assert fed(rocksdb, chunks[crash:]) == expected

    for state in stored:
        for make_backend in (HeapKeyedStateBackend, backend(cache_bytes)):
            again = Harness(MAKE[name](), restored=cloudpickle.loads(state), make_backend=make_backend)
            assert fed(again, chunks[crash:]) == expected


@pytest.mark.parametrize("cache_bytes", [1, 10**6])
@pytest.mark.parametrize(
    "keys", [[1, True, 1.0, "1", None, ("a", 1.5), 2**70], [0.5, float("nan"), -0.0], [b"x", frozenset({1.5})]]
)
def test_keys_of_all_types_are_told_apart(
    keys: list[Any], cache_bytes: int, backend: Callable[[int], MakeBackend]
) -> None:
    """Keys that are not plain are stored with the rows, because only stand-ins of them are known."""
    records = [(key, 1) for key in keys * 3]
    expected = [f"({key!r}, {count})" for count in (1, 2, 3) for key in keys]
    harness = Harness(KeyedSumOperator(KEY, 1), make_backend=backend(cache_bytes))
    assert fed(harness, [Chunk(records[: len(keys)])]) == expected[: len(keys)]

    state = cloudpickle.loads(cloudpickle.dumps(harness.snapshot()))
    for make_backend in (HeapKeyedStateBackend, backend(cache_bytes)):
        again = Harness(KeyedSumOperator(KEY, 1), restored=state, make_backend=make_backend)
        assert fed(again, [Chunk(records[len(keys) :])]) == expected[len(keys) :]


@pytest.mark.parametrize("record", [["a", 1], ("a", 1, 2), ("a", 1)])
def test_a_row_of_another_form_is_taken_as_it_is(record: Any, backend: Callable[[int], MakeBackend]) -> None:
    """The row's generation is over, in the middle of records of a simpler form."""
    harness = Harness(KeyedSumOperator(KEY, 1), make_backend=backend(1))
    harness.process(("b", 1), record)
    harness.process(("b", 2))
    harness.process(("b", 3), ("a", 5), ("b", 4), ("a", 1))

    wanted = record[:1] + type(record)([6]) + record[2:], record[:1] + type(record)([7]) + record[2:]
    assert harness.output.values[-4:] == [("b", 6), wanted[0], ("b", 10), wanted[1]]


def test_a_result_may_be_none_and_may_be_changed_in_place(backend: Callable[[int], MakeBackend]) -> None:
    seen: list[Any] = []

    def nothing(so_far: Any, record: Any) -> None:
        seen.append((so_far, record))

    harness = Harness(KeyedReduceOperator(KEY, nothing), make_backend=backend(1), pickled=False)
    for number in range(3):
        harness.process(("a", number), ("b", number))
    assert seen[-2:] == [(None, ("a", 2)), (None, ("b", 2))]

    harness = Harness(KeyedReduceOperator(KEY, added_in_place), make_backend=backend(1))
    for _ in range(3):
        harness.process(["a", 1], ["b", 2])
    assert [list(each) for each in harness.output.values[-2:]] == [["a", 3], ["b", 6]]


def test_rows_that_grow_leave_the_memory(backend: Callable[[int], MakeBackend]) -> None:
    """Rows that grow count towards the budget, although their keys are all held and no row is loaded."""
    harness = Harness(KeyedReduceOperator(KEY, added), make_backend=backend(50_000))
    sizes = []
    for _ in range(60):
        harness.process(*[(f"key {number}", "x" * 100) for number in range(20)])
        sizes.append(sum(len(each[1]) for each in harness.operator._results))

    assert 0 < min(sizes) <= max(sizes) < 100_000
    assert len(harness.output.values[-1][1]) == 6_000


def test_a_snapshot_ends_a_generation_and_one_without_records_writes_nothing(
    backend: Callable[[int], MakeBackend],
) -> None:
    harness = Harness(KeyedSumOperator(KEY, 1), make_backend=backend(10**6))
    harness.process(("a", 1), ("b", 2))

    first, second = harness.snapshot(), harness.snapshot()

    assert isinstance(first, KeyedStateSnapshot)
    assert first == second
    assert harness.operator._results == []
    rows = [states[AGGREGATES] for states in first.groups.values()]
    assert sorted((key, value) for each in rows for key, value in zip(each.keys, each.values, strict=True)) == [
        ("a", ("a", 1)),
        ("b", ("b", 2)),
    ]
