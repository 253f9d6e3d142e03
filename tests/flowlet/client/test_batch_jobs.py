"""Jobs in BATCH mode: stages, sorted inputs, one key after the other."""

import datetime
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from operator import add, itemgetter, methodcaller
from typing import Any

import pyarrow as pa
import pytest

from flowlet.common import Configuration, Duration, Time, Types, WatermarkStrategy
from flowlet.datastream import (
    BroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    RuntimeExecutionMode,
    StreamExecutionEnvironment,
)
from flowlet.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from flowlet.datastream.window import EventTimeSessionWindows, TumblingEventTimeWindows, TumblingProcessingTimeWindows
from flowlet.errors import ConfigError
from tests.flowlet.client.jobs import TimeIs, ran

Pair = tuple[str, int]
PAIRS: list[Pair] = [("b", 1), ("a", 2), ("b", 3), ("ccc", 1), ("a", 5)]


def batch(options: dict[str, str] | None = None, parallelism: int = 1) -> StreamExecutionEnvironment:
    environment = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options or {}))
    return environment.set_parallelism(parallelism).set_runtime_mode(RuntimeExecutionMode.BATCH)


def first(pair: Any) -> Any:
    return pair[0]


def added(one: Pair, other: Pair) -> Pair:
    return one[0], one[1] + other[1]


class Counting(KeyedProcessFunction):
    """Numbers the records of each key, and has timers of both kinds."""

    def open(self, ctx: Any) -> None:
        self.count = ctx.get_state(ValueStateDescriptor("count", Types.INT()))

    def process_element(self, value: Pair, ctx: Any) -> Iterator[Any]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        ctx.timer_service().register_processing_time_timer(10**15)
        ctx.timer_service().register_event_time_timer(20)
        ctx.timer_service().register_event_time_timer(10)
        yield value[0], value[1], count

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield ctx.get_current_key(), timestamp, self.count.value()


def test_one_key_at_a_time_with_its_timers_and_its_state() -> None:
    """A key's records come first, then its timers of event time and those of the clock; then the next key."""
    found = ran(batch().from_collection(PAIRS).key_by(first).process(Counting()))

    expected: list[Any] = []
    for key, values in (("a", [2, 5]), ("b", [1, 3]), ("ccc", [1])):
        expected += [(key, value, place + 1) for place, value in enumerate(values)]
        expected += [(key, timestamp, len(values)) for timestamp in (10, 20, 10**15)]
    assert found == expected


class Noting(KeyedProcessFunction):
    def process_element(self, value: Pair, ctx: Any) -> Iterator[Any]:
        yield value[0], ctx.timestamp(), ctx.timer_service().current_watermark()


def test_records_of_a_key_come_in_the_order_of_their_timestamps() -> None:
    """No watermark is seen among the records."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(TimeIs(itemgetter(1)))
    records = batch().from_collection([("a", 3), ("b", 1), ("a", 1), ("a", 2)])
    stream = records.assign_timestamps_and_watermarks(strategy)

    found = ran(stream.key_by(first).process(Noting()))

    assert found == [(key, time, -(2**63)) for key, time in (("a", 1), ("a", 2), ("a", 3), ("b", 1))]


class Joining(KeyedCoProcessFunction):
    def open(self, ctx: Any) -> None:
        self.left = ctx.get_list_state(ListStateDescriptor("left", Types.INT()))

    def process_element1(self, value: Pair, ctx: Any) -> Iterator[Any]:
        self.left.add(value[1])
        yield from ()

    def process_element2(self, value: Pair, ctx: Any) -> Iterator[Any]:
        yield from ((value[0], left, value[1]) for left in self.left.get())


def test_two_keyed_inputs_meet_key_by_key() -> None:
    """The first input of each key comes first if there are no timestamps, so that nothing is missed."""
    environment = batch()
    left = environment.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(first)
    right = environment.from_collection([("b", 10), ("a", 20), ("c", 30)]).key_by(first)

    assert ran(left.connect(right).process(Joining())) == [("a", 1, 20), ("a", 3, 20), ("b", 2, 10)]


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()], ids=str)
def test_a_key_of_instants_or_dates_meets_the_same_key_of_a_function(kind: Any) -> None:
    """Both inputs are sorted by the value that the functions see, though the key of a column travels as a number."""
    table = pa.table({"k": pa.array([datetime.date(2024, 1, 1 + row % 3) for row in range(48)]).cast(kind)})
    environment = batch()
    left, right = environment.from_arrow(table).key_by("k"), environment.from_arrow(table).key_by(itemgetter("k"))

    found = ran(left.connect(right).process(Meeting()))

    assert sorted(found) == [(str(value), (16, 16)) for value in table["k"].to_pylist()[:3]]


class Meeting(KeyedCoProcessFunction):
    """Counts the rows of each key on both sides."""

    def open(self, ctx: Any) -> None:
        self.counts = ctx.get_state(ValueStateDescriptor("counts", Types.PICKLED_BYTE_ARRAY()))

    def process_element1(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._added(ctx, 1, 0)

    def process_element2(self, value: Any, ctx: Any) -> Iterator[Any]:
        return self._added(ctx, 0, 1)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield str(ctx.get_current_key()), self.counts.value()

    def _added(self, ctx: Any, left: int, right: int) -> Iterator[Any]:
        counts = self.counts.value() or (0, 0)
        self.counts.update((counts[0] + left, counts[1] + right))
        ctx.timer_service().register_event_time_timer(1)
        return iter(())


class Rules(BroadcastProcessFunction):
    """Adds the numbers of all rules to each number."""

    def process_broadcast_element(self, value: int, ctx: Any) -> Iterator[Any]:
        ctx.get_broadcast_state(RULES).put(value, value)
        yield from ()

    def process_element(self, value: int, ctx: Any) -> Iterator[Any]:
        yield value + sum(rule for rule, _ in ctx.get_broadcast_state(RULES).items())


RULES = MapStateDescriptor("rules", Types.INT(), Types.INT())


def test_a_broadcast_stream_is_read_first() -> None:
    """Every record meets all rules."""
    environment = batch()
    rules = environment.from_collection([100, 200]).broadcast(RULES)

    assert ran(environment.from_collection([1, 2]).connect(rules).process(Rules())) == [301, 302]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"execution.batch-shuffle-mode": "ALL_EXCHANGES_PIPELINED"},
        {"execution.sorted-inputs.enabled": "false"},
        {"execution.batch-state-backend.enabled": "false"},
        {"execution.sorted-inputs.memory": "64 kb"},
    ],
)
def test_results_do_not_depend_on_how_the_job_runs(options: dict[str, str]) -> None:
    """A reduce and a sum of many records give equal results, with a tiny memory, too."""
    rng = random.Random(4)
    pairs = [(f"key {rng.randrange(300)}", rng.randrange(100)) for _ in range(4_000)]
    expected: dict[str, int] = {}
    for key, value in pairs:
        expected[key] = expected.get(key, 0) + value

    for step in (methodcaller("reduce", added), methodcaller("sum", 1)):
        found = ran(step(batch(options).from_collection(pairs).key_by(first)))
        assert len(found) == len(expected)
        assert dict(found) == expected


def test_automatic_is_batch_if_all_sources_end() -> None:
    """A key has one result then."""
    environment = batch().set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)

    assert ran(environment.from_collection(PAIRS).key_by(first).reduce(added)) == [("a", 7), ("b", 4), ("ccc", 1)]


def test_options_of_batch_mode_are_refused_where_they_do_nothing() -> None:
    """A STREAMING job has no sorted inputs."""
    environment = batch({"execution.sorted-inputs.memory": "1 mb"}).set_runtime_mode(RuntimeExecutionMode.STREAMING)
    environment.from_collection([1]).print()

    reason = r"'execution\.sorted-inputs.memory' is set and has no effect, because the job runs in STREAMING"
    with pytest.raises(ConfigError, match=reason):
        environment.execute()


def test_stages_follow_one_another_and_files_are_gone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three stages run in a cluster of one process, and nothing is left in the folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    counted = batch().from_collection(PAIRS).key_by(first).reduce(added).map(lambda pair: (pair[1], pair[0]))

    assert ran(counted.key_by(first).reduce(added)) == [(1, "ccc"), (4, "b"), (7, "a")]
    assert [path for path in tmp_path.iterdir() if path.name.startswith(("netstack-", "flowlet-sort-"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_batch_job_gives_the_last_results_of_a_streaming_job(seed: int) -> None:
    """The results are equal for random keys of one kind, random aggregations and a random memory."""
    rng = random.Random(seed)
    kinds: list[Callable[[int], Any]] = [int, str, lambda number: (number % 3, str(number)), float]
    make_key = rng.choice(kinds)
    pairs = [(make_key(rng.randrange(40)), rng.randrange(-50, 50)) for _ in range(500)]
    steps = methodcaller("sum", 1), methodcaller("max", 1), methodcaller("min_by", 1), methodcaller("reduce", added)
    step: Callable[[Any], Any] = rng.choice(steps)
    options = {"execution.sorted-inputs.memory": rng.choice(["64 kb", "1 mb"])}
    streaming = batch().set_runtime_mode(RuntimeExecutionMode.STREAMING)

    final = ran(step(batch(options).from_collection(pairs).key_by(first)))

    assert len(final) == len({key for key, _ in final})
    assert dict(final) == dict(ran(step(streaming.from_collection(pairs).key_by(first))))


NUM_ROWS = 1_500
TABLE = pa.table(
    {
        "k": pa.array([f"key {row * row % 97}" for row in range(NUM_ROWS)]),
        "n": pa.array([row % 101 for row in range(NUM_ROWS)]),
        "ts": pa.array([row * 7919 % NUM_ROWS for row in range(NUM_ROWS)], pa.timestamp("ms")),
    }
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"execution.sorted-inputs.memory": "64 kb"}, {"execution.sorted-inputs.enabled": "false"}],
    ids=["sorted", "not sorted"],
)
def test_windows_and_joins_of_columns_are_those_of_a_loop(options: dict[str, str]) -> None:
    """Rows that come in no order of time; none is late."""
    rows = [(row["k"], row["n"], round(row["ts"].timestamp() * 1_000)) for row in TABLE.to_pylist()]
    stream = batch(options, parallelism=2).from_arrow(TABLE).with_event_time("ts", Duration.of_millis(1))
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(100))
    session, clock = EventTimeSessionWindows.with_gap(Time.days(1)), TumblingProcessingTimeWindows.of(Time.days(1))
    by_key = [stream.key_by("k").window(each) for each in (tumbling, session, clock)]
    steps = [
        *(windowed.agg(total=("n", "sum"), count="count") for windowed in by_key),
        stream.window_all(tumbling).agg(count="count"),
        stream.join(stream).where("k").equal_to("k").window(tumbling).select(n=("left", "n"), m=("right", "n")),
    ]

    def counted(number: int, row: Any) -> tuple[Any, ...]:
        return number, *(value for name, value in row.as_dict().items() if not name.startswith("window_"))

    named = [step.map(partial(counted, number)) for number, step in enumerate(steps)]
    found: list[list[Any]] = [[] for _ in steps]
    for number, *values in ran(named[0].union(*named[1:])):
        found[number].append(tuple(values))

    cells, keys, windows = defaultdict[Any, list[int]](list), defaultdict[str, list[int]](list), Counter[int]()
    for key, value, stamp in rows:
        cells[key, stamp // 100].append(value)
        keys[key].append(value)
        windows[stamp // 100] += 1
    assert Counter(found[0]) == Counter((key, sum(values), len(values)) for (key, _), values in cells.items())
    assert Counter(found[1]) == Counter((key, sum(values), len(values)) for key, values in keys.items())
    # The day may change meanwhile.
    totals = {key: (sum(total for name, total, _ in found[2] if name == key)) for key in keys}
    assert totals == {key: sum(values) for key, values in keys.items()}
    assert Counter(found[3]) == Counter((count,) for count in windows.values())
    assert Counter(found[4]) == Counter(
        (key, one, other) for (key, _), values in cells.items() for one in values for other in values
    )


@pytest.mark.parametrize("is_sorted", ["true", "false"])
@pytest.mark.parametrize("in_columns", [True, False], ids=["columns", "records"])
def test_windows_by_the_clock_are_not_late_for_windows_of_event_time(is_sorted: str, in_columns: bool) -> None:
    """The windows' results, which come at the end of the input, are ahead of the last watermark."""
    stream: Any = batch({"execution.sorted-inputs.enabled": is_sorted}).from_arrow(TABLE.slice(0, 10))
    clock, event_time = (
        TumblingProcessingTimeWindows.of(Time.days(9_000)),
        TumblingEventTimeWindows.of(Time.days(9_000)),
    )
    if in_columns:
        counted = stream.window_all(clock).agg(n="count")
        found = ran(counted.window_all(event_time).agg(n=("n", "sum")).map(itemgetter("n")))
    else:
        found = ran(stream.to_records().map(len).window_all(clock).reduce(add).window_all(event_time).reduce(add))

    assert found == [10 if in_columns else 30]


@pytest.mark.parametrize("option", ["execution.sorted-inputs.enabled", "execution.batch-state-backend.enabled"])
@pytest.mark.parametrize("in_columns", [True, False], ids=["columns", "records"])
def test_results_of_keys_that_end_with_the_input_are_not_late_for_windows(option: str, in_columns: bool) -> None:
    """Results come at the end of the input without the default of either option, still before the last watermark."""
    largest = batch({option: "false"}).from_arrow(TABLE.slice(0, 300)).key_by("k").max("n")
    last = largest.with_event_time("ts", Duration.of_millis(1))
    event_time = TumblingEventTimeWindows.of(Time.days(9_000))
    if in_columns:
        found = ran(last.window_all(event_time).agg(n="count").map(itemgetter("n")))
    else:
        found = ran(last.to_records().map(lambda _: 1).window_all(event_time).reduce(add))

    assert found == [len({row * row % 97 for row in range(300)})]
