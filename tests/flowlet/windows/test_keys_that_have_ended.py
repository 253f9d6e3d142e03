"""Keys that have ended leave no trace: 1,600 of them, for each kind of window, timer and state, on the heap and in
RocksDB.

All containers that an operator, its states and its timers refer to are counted, whatever they are for.
"""

import dataclasses
import gc
import types
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from flowlet.columns.arrow_batches import columns_of_batch
from flowlet.common import Time, Types
from flowlet.datastream import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
)
from flowlet.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flowlet.datastream.window import (
    ContinuousEventTimeTrigger,
    CountEvictor,
    CountTrigger,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flowlet.datastream.window.window_spec import WindowSpec
from flowlet.joins.interval_join_operator import IntervalJoinOperator
from flowlet.kernels.windows.columnar_join import LEFT, RIGHT, ColumnJoin, JoinedColumn
from flowlet.kernels.windows.columnar_windows import WindowedAggregation
from flowlet.kernels.windows.window_partials import WindowAggregate
from flowlet.kernels.windows.window_shapes import AlignedWindows, SessionWindows
from flowlet.records import Chunk
from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace
from flowlet.state.state_snapshots import WINDOW_COLUMNS, ColumnBlock, KeyedStateSnapshot
from flowlet.testing import OperatorHarness
from flowlet.windows.window_columns_operator import JoinColumnsOperator, WindowColumnsOperator
from flowlet.windows.window_operator import WindowOperator

pytestmark = pytest.mark.slow
NUM_KEYS = 1_600
CHUNK = 400
BOUND = 500  # caches and buffers of a fixed size; an entry for each third key, those of one type, would be more
# Of RocksDB's caches: 81 rows of 200 bytes at least, each in at most four containers, which is less than BOUND.  A row
# that was deleted stays as one that does not exist, until the caches are full.
CACHE_BYTES = 1 << 14
END = 1_000_000
_PLAIN = frozenset((str, bytes, int, float, bool, type(None), type))  # most of what objects refer to
_PASSED = (types.ModuleType, type, types.CodeType, types.FrameType, str, bytes, int, float)


def num_entries(*roots: object) -> dict[str, int]:
    """Return the number of elements in all containers behind the objects, by the type of their owner."""
    seen: set[int] = set()
    waiting: deque[tuple[object, str]] = deque((root, type(root).__name__) for root in roots)
    found: dict[str, int] = {}
    while waiting:
        each, owner = waiting.popleft()
        if id(each) in seen or isinstance(each, _PASSED):
            continue
        seen.add(id(each))
        if isinstance(each, dict | list | set | frozenset | deque | np.ndarray | bytearray):
            found[owner] = found.get(owner, 0) + len(each)
            parts: list[object] = gc.get_referents(each)
        elif isinstance(each, types.FunctionType):
            parts = [*(each.__closure__ or ()), *(each.__defaults__ or ())]  # not the names of its module
        else:
            module = type(each).__module__
            owner = type(each).__name__ if module.startswith("flowlet") else owner
            parts = gc.get_referents(each)
        waiting.extend((part, owner) for part in parts if type(part) not in _PLAIN)
    return found


def key_of(record: Any) -> Any:
    return record[0]


def summed(one: Any, other: Any) -> Any:
    return one[0], one[1] + other[1]


class Lists(AggregateFunction):
    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> int:
        return len(accumulator)

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        return acc_a + acc_b


class UsesWindowState(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> list[Any]:
        context.window_state().get_state(ValueStateDescriptor("seen")).update(len(list(elements)))
        return [key]

    def clear(self, context: ProcessWindowFunction.Context[Any]) -> None:
        context.window_state().get_state(ValueStateDescriptor("seen")).clear()


class Counts(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: ProcessWindowFunction.Context[Any], elements: Iterable[Any]) -> list[Any]:
        return [len(list(elements))]

    def clear(self, context: ProcessWindowFunction.Context[Any]) -> None:
        """Clear nothing: no state was kept."""


def ms(number: int) -> Time:
    return Time.milliseconds(number)


def windows(assigner: Any, trigger: Any = None, **more: Any) -> WindowOperator:
    more.setdefault("combine", None if "function" in more else summed)
    return WindowOperator(WindowSpec(assigner, trigger or assigner.get_default_trigger(None), **more), key_of)


SESSIONS = EventTimeSessionWindows.with_gap(ms(50))
TUMBLING = TumblingEventTimeWindows.of(ms(100))
OPERATORS: dict[str, Callable[[], Any]] = {
    "tumbling": lambda: windows(TUMBLING),
    "tumbling, with late records": lambda: windows(TUMBLING, allowed_lateness_ms=30, late_tag_id="late"),
    "tumbling, of lists": lambda: windows(TUMBLING, function=Counts()),
    "sliding": lambda: windows(SlidingEventTimeWindows.of(ms(100), ms(25)), combine=Lists()),
    "sliding, of lists": lambda: windows(SlidingEventTimeWindows.of(ms(100), ms(50)), function=Counts()),
    "sessions": lambda: windows(SESSIONS),
    "sessions of lists": lambda: windows(SESSIONS, function=Counts()),
    "sessions that are counted": lambda: windows(SESSIONS, CountTrigger(2)),
    "with a state of each window": lambda: windows(TUMBLING, function=UsesWindowState()),
    "evaluated continuously": lambda: windows(TUMBLING, ContinuousEventTimeTrigger.of(ms(10))),
    "counted and purged": lambda: windows(TUMBLING, PurgingTrigger(CountTrigger(2))),
    "with an evictor": lambda: windows(TUMBLING, evictor=CountEvictor.of(1)),
    "tumbling by the clock": lambda: windows(TumblingProcessingTimeWindows.of(ms(100))),
    "sliding by the clock": lambda: windows(SlidingProcessingTimeWindows.of(ms(100), ms(50)), function=Counts()),
    "sessions by the clock": lambda: windows(ProcessingTimeSessionWindows.with_gap(ms(50))),
    "global, purged": lambda: windows(GlobalWindows.create(), PurgingTrigger(CountTrigger(2))),
}


class Clears(KeyedProcessFunction):
    """Has states of all kinds, which its timer clears."""

    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.LONG()))
        self.list = runtime_context.get_list_state(ListStateDescriptor("list", Types.LONG()))
        self.map = runtime_context.get_map_state(MapStateDescriptor("map", Types.LONG(), Types.LONG()))
        self.reducing = runtime_context.get_reducing_state(ReducingStateDescriptor("reducing", max, Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> None:
        self.value.update(value[1])
        self.list.add(value[1])
        self.map.put(value[1], 1)
        self.reducing.add(value[1])
        ctx.timer_service().register_event_time_timer(500)
        ctx.timer_service().register_processing_time_timer(500)
        ctx.timer_service().register_event_time_timer(5 * END)
        ctx.timer_service().delete_event_time_timer(5 * END)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        for state in (self.value, self.list, self.reducing):
            state.clear()
        for key in list(self.map.keys()):
            self.map.remove(key)


class ClearsBoth(KeyedCoProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.value = runtime_context.get_state(ValueStateDescriptor("value", Types.LONG()))

    def process_element1(self, value: Any, ctx: Any) -> None:
        self.value.update(value[1])
        ctx.timer_service().register_event_time_timer(500)

    process_element2 = process_element1

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.value.clear()


class Seen(KeyedProcessFunction):
    """Lets each key through once, and remembers it for a time to live."""

    def open(self, runtime_context: Any) -> None:
        descriptor = ValueStateDescriptor("seen", Types.BOOLEAN())
        ttl = (
            StateTtlConfig.new_builder(Time.milliseconds(100))
            .cleanup_incrementally(10, run_cleanup_for_every_record=True)
            .build()
        )
        descriptor.enable_time_to_live(ttl)
        self.seen = runtime_context.get_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> Any:
        if not self.seen.value():
            self.seen.update(True)
            yield value


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        yield left, right


def interval_join() -> IntervalJoinOperator:
    return IntervalJoinOperator(Pairs(), (key_of, key_of), (-5, 5))


def use_rocksdb(harness: OperatorHarness, folder: Path) -> None:
    pytest.importorskip("rocksdict")
    environment, place = harness.environment, harness.place
    at = RocksDBPlace(str(folder), None, writes_shared_files=False, cache_bytes=CACHE_BYTES)
    context, now_ms = environment.ctx.key_context, environment.clock.current_time_ms
    backend = RocksDBKeyedStateBackend(context, now_ms, place.key_groups, place.max_parallelism, at)
    environment.keyed_state = backend
    environment.ctx = dataclasses.replace(environment.ctx, keyed_state=backend)


def run_keys(harness: OperatorHarness, first: int, last: int, chunk_of: Callable[[range], list[Chunk]]) -> None:
    for start in range(first, last, CHUNK):
        numbers = range(start, min(start + CHUNK, last))
        for each in chunk_of(numbers):
            for operator_input in harness.operator.inputs():
                operator_input.process_chunk(each.copy())
    harness.take_output()
    harness.recorded.clear()


def end_keys(harness: OperatorHarness, time: int) -> None:
    for number in range(1, len(harness.operator.inputs()) + 1):
        harness.process_input_watermark(number, time)
    harness.set_processing_time(time)
    harness.run_mails()
    harness.take_output()
    harness.recorded.clear()


def num_kept(harness: OperatorHarness) -> int:
    """Return the number of values of keys in a snapshot, in RocksDB, too, to which no object refers."""
    harness.operator.prepare_snapshot_pre_barrier(1)
    harness.operator.snapshot_functions(1, harness.processing_time)
    snapshot = harness.environment.keyed_state.snapshot()
    if snapshot is None:  # no state was declared
        return 0
    taken = snapshot()
    assert isinstance(taken, KeyedStateSnapshot)
    keys = [(name, key) for by_name in taken.groups.values() for name, rows in by_name.items() for key in rows.keys]
    # Of the columns of windows, not what is known of each key group.
    return sum(name != WINDOW_COLUMNS or bool(ColumnBlock.with_key(0, key, b"").table) for name, key in keys)


def records(base: int) -> Callable[[range], list[Chunk]]:
    """Two records of each key; keys are of several types."""

    def chunks(numbers: range) -> list[Chunk]:
        keys = [(f"key {number}", number, (number, "tuple"))[number % 3] for number in numbers]
        return [Chunk([(key, value) for key in keys], [base + 10 * value] * len(keys)) for value in (1, 2)]

    return chunks


def check(
    harness: OperatorHarness,
    make_records: Callable[[int], Callable[[range], list[Chunk]]],
    num_keys: int = NUM_KEYS,
    bound: int = BOUND,
    *,
    ends_at_once: bool = False,
) -> int:
    """The number of entries after a few keys have ended, and after so many more have; ``ends_at_once``: none of them
    waits for a timer.

    Returns how many values a snapshot had of the keys that had not ended.
    """
    with harness:
        run_keys(harness, 0, 20, make_records(0))
        end_keys(harness, END)
        roots = harness.operator, harness.environment.keyed_state, harness.environment.timers
        before = num_entries(*roots)

        run_keys(harness, 20, 20 + num_keys, make_records(END))
        during = num_entries(*roots)
        kept = num_kept(harness)
        end_keys(harness, 2 * END)
        after = num_entries(*roots)

        left = {
            owner: count - before.get(owner, 0)
            for owner, count in after.items()
            if count - before.get(owner, 0) > bound
        }
        assert not left, f"entries are left: {left}"
        assert ends_at_once or sum(during.values()) > sum(before.values()) + num_keys / 2, "there was nothing to count"
        assert not num_kept(harness)
        assert not harness.event_time_timers
        assert not harness.processing_time_timers
        return kept


BACKENDS = pytest.mark.parametrize("backend", ["hashmap", pytest.param("rocksdb", marks=pytest.mark.long)])


@BACKENDS
@pytest.mark.parametrize("kind", OPERATORS)
def test_nothing_is_left_of_windows(kind: str, backend: str, tmp_path: Path) -> None:
    harness = OperatorHarness(OPERATORS[kind](), checks_leaks=False)
    if backend == "rocksdb":
        use_rocksdb(harness, tmp_path)

    num_kept_before = check(harness, records, ends_at_once=kind == "global, purged")

    assert num_kept_before == 0 if kind.endswith("purged") else num_kept_before >= NUM_KEYS


def test_the_numbers_of_count_windows_go_with_a_time_to_live() -> None:
    """The numbers stay for ever without one, as in PyFlink; all else goes with the last full window."""
    ttl = (
        StateTtlConfig.new_builder(Time.milliseconds(100))
        .cleanup_incrementally(10, run_cleanup_for_every_record=True)
        .build()
    )
    assigner = CountTumblingWindowAssigner.of(2).enable_time_to_live(ttl)
    harness = OperatorHarness(windows(assigner), checks_leaks=False)
    backend: Any = harness.environment.keyed_state

    with harness:
        run_keys(harness, 0, NUM_KEYS, records(0))
        assert len(backend.keys_of("tumble-count-assigner")) == NUM_KEYS
        assert not backend.keys_of("window-contents")
        assert not backend.keys_of("count")

        harness.set_processing_time(END)
        for _ in range(20):
            run_keys(harness, 0, 100, records(0))

        assert len(backend.keys_of("tumble-count-assigner")) == 100


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("function", [Clears, ClearsBoth])
def test_nothing_is_left_of_functions_that_clear_their_state(function: type, backend: str, tmp_path: Path) -> None:
    """The timers of the functions leave nothing, either, those that were deleted included."""
    selectors = (key_of, key_of) if function is ClearsBoth else (key_of,)
    harness = OperatorHarness(function(), *selectors, checks_leaks=False)
    if backend == "rocksdb":
        use_rocksdb(harness, tmp_path)

    with harness:
        run_keys(harness, 0, NUM_KEYS, records(0))
        assert num_kept(harness) >= NUM_KEYS
        end_keys(harness, END)
        roots = harness.operator, harness.environment.keyed_state, harness.environment.timers
        left = {owner: count for owner, count in num_entries(*roots).items() if count > BOUND}
        assert not left, f"entries are left: {left}"
        assert not num_kept(harness)
        assert not harness.event_time_timers
        assert not harness.processing_time_timers


def test_nothing_is_left_of_what_has_expired() -> None:
    """A function that lets each record through once has such keys; later records clean up the expired ones."""
    harness = OperatorHarness(Seen(), key_of, checks_leaks=False)

    with harness:
        run_keys(harness, 0, NUM_KEYS, records(0))
        harness.set_processing_time(END)
        for _ in range(20):
            run_keys(harness, 0, 100, records(0))
        backend: Any = harness.environment.keyed_state

        assert len(backend.keys_of("seen")) == 100


@BACKENDS
def test_nothing_is_left_of_an_interval_join(backend: str, tmp_path: Path) -> None:
    harness = OperatorHarness(interval_join(), checks_leaks=False)
    if backend == "rocksdb":
        use_rocksdb(harness, tmp_path)

    assert check(harness, records) >= NUM_KEYS


SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
TOTAL = WindowAggregate("total", "sum", "n", pa.int64())


def rows(base: int) -> Callable[[range], list[Chunk]]:
    def chunks(numbers: range) -> list[Chunk]:
        keys = pa.array([f"a long key number {number}" for number in numbers])
        batch = pa.RecordBatch.from_arrays([keys, pa.array(list(numbers), pa.int64())], schema=SCHEMA)
        return [Chunk.of_columns(columns_of_batch(batch), np.full(len(numbers), base + at)) for at in (10, 20)]

    return chunks


def join_of_columns() -> JoinColumnsOperator:
    columns = (JoinedColumn("x", LEFT, "n", pa.int64()), JoinedColumn("y", RIGHT, "n", pa.int64()))
    return JoinColumnsOperator(
        ColumnJoin(AlignedWindows(100, 100), ("k", "k"), pa.string(), "left", columns, (SCHEMA, SCHEMA))
    )


COLUMN_OPERATORS: dict[str, Callable[[], Any]] = {
    "tumbling": lambda: WindowColumnsOperator(
        WindowedAggregation(AlignedWindows(100, 100), (TOTAL,), "k", pa.string(), 0), SCHEMA, None
    ),
    "sliding": lambda: WindowColumnsOperator(
        WindowedAggregation(AlignedWindows(100, 50), (TOTAL,), "k", pa.string(), 0), SCHEMA, None
    ),
    "join": join_of_columns,
    "sessions": lambda: WindowColumnsOperator(
        WindowedAggregation(SessionWindows(50), (TOTAL,), "k", pa.string(), 0), SCHEMA, None
    ),
}


@pytest.mark.parametrize("kind", COLUMN_OPERATORS)
def test_nothing_is_left_of_windows_of_columns(kind: str) -> None:
    """The tables of keys go, too, but for as many keys as are not worth numbering again: 16,384."""
    check(OperatorHarness(COLUMN_OPERATORS[kind](), checks_leaks=False), rows, 20_000, 2**14 + BOUND)
