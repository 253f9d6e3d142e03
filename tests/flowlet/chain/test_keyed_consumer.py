"""A ``key_by`` inside a chain: as if records were exchanged, in all that the user's functions can see."""

import copy
import dataclasses
import operator
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain.loop_code import MAX_BLOCKS
from flowlet.chain.operator_chain import ChainedOperator
from flowlet.chain.stream_operator import StreamOperator
from flowlet.common.types import Row
from flowlet.datastream import KeyedProcessFunction, OutputTag, ProcessFunction
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.operators.keyed_aggregation_operator import KeyedReduceOperator, KeyedSumOperator
from flowlet.operators.process_operator import FilterOperator, FlatMapOperator, MapOperator, ProcessOperator
from flowlet.records import Chunk, Watermark
from tests.flowlet.chain.test_chunking_output import MAKERS, Event, shown
from tests.flowlet.chain.test_record_copies import OneSlot, Struct, WeakSlots
from tests.flowlet.operators.chains import ChainHarness

SIDE = OutputTag("side")


def behind(operator_: StreamOperator, parent: int, key: Any = None, tag: str | None = None) -> ChainedOperator:
    return ChainedOperator(operator_, parent, tag, key)


def alone(operator_: StreamOperator, key: Any, **options: Any) -> ChainHarness:
    """Return the operator behind a ``key_by`` of the chain's input."""
    return ChainHarness(MapOperator(lambda record: record), behind(operator_, 0, key), subtask=3, **options)


def noting(seen: list[Any]) -> Callable[[Any], bool]:
    """Return a filter that keeps each record that it is shown, and lets it pass."""

    def note(record: Any) -> bool:
        seen.append(record)
        return True

    return note


# ---------------------------------------------------------------- records


def first_field(record: Any) -> str:
    return repr(record)[:9]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("has_timestamps", [False, True])
def test_records_of_one_kind_arrive_as_they_were(name: str, has_timestamps: bool) -> None:
    """Each record arrives through loops made before its form was known, and after; with its timestamp."""
    chained = ChainHarness(MapOperator(MAKERS[name]), behind(MapOperator(lambda record: record), 0, first_field))

    for start in (0, 40, 80):
        stamps = list(range(start, start + 40))
        chained.process(*stamps, timestamps=stamps if has_timestamps else None)

    assert shown(chained.values) == shown([MAKERS[name](number) for number in range(120)])
    assert chained.outputs[1].timestamps == (list(range(120)) if has_timestamps else [None] * 120)


@given(kinds=st.lists(st.lists(st.sampled_from(sorted(MAKERS)), min_size=1, max_size=40), min_size=1, max_size=5))
def test_records_of_any_kinds_arrive_as_they_were(kinds: list[list[str]]) -> None:
    chained = ChainHarness(
        MapOperator(lambda pair: MAKERS[pair[0]](pair[1])), behind(MapOperator(lambda record: record), 0, first_field)
    )

    for run in kinds:
        chained.process(*zip(run, range(len(run)), strict=True))

    assert shown(chained.values) == shown([MAKERS[kind](number) for run in kinds for number, kind in enumerate(run)])


# ---------------------------------------------------------------- isolation


class Plain:
    """Attributes, of which the class knows nothing."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.more = None

    def __repr__(self) -> str:
        return f"Plain {self.value} {self.more}"


# Makes a record around a number, and changes it.
CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "dict": (lambda number: {"value": number}, lambda record: record.update(value=-1, more=1)),
    "list": (lambda number: [number], lambda record: record.append(-1)),
    "set": (lambda number: {number}, lambda record: record.add(-1)),
    "bytearray": (lambda number: bytearray([number]), lambda record: record.append(1)),
    "row": (lambda number: Row(value=number), lambda record: record.__setitem__("value", -1)),
    "row without names": (lambda number: Row(number, 1), lambda record: record.__setitem__(0, -1)),
    "dataclass": (lambda number: Event(number), lambda record: setattr(record, "value", -1)),
    "attributes": (lambda number: Event(number), lambda record: vars(record).update(more=-1)),
    "plain": (lambda number: Plain(number), lambda record: setattr(record, "value", -1)),
    "plain attributes": (lambda number: Plain(number), lambda record: vars(record).update(value=-1)),
    "weak slots": (lambda number: WeakSlots(number), lambda record: setattr(record, "value", -1)),
    "slots": (lambda number: OneSlot(number), lambda record: setattr(record, "value", -1)),
    "struct": (lambda number: Struct(number), lambda record: setattr(record, "value", -1)),
    "nested list": (lambda number: {"value": [number]}, lambda record: record["value"].append(-1)),
    "list in a tuple": (lambda number: ("a", [number]), lambda record: record[1].append(-1)),
    "list in a dataclass": (lambda number: Event([number]), lambda record: record.value.append(-1)),
    "list in a row": (lambda number: Row(value=[number]), lambda record: record["value"].append(-1)),
}


class KeepsAndChanges:
    """Changes each record that it made when the next one is asked for, and again much later."""

    def __init__(self, make: Callable[[Any], Any], change: Callable[[Any], Any]) -> None:
        self.make, self.change = make, change
        self.kept: list[Any] = []

    def __call__(self, number: int) -> Iterator[Any]:
        if self.kept:
            self.change(self.kept[-1])
        record = self.make(number)
        self.kept.append(record)
        yield record
        self.change(record)


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_emitted_may_be_changed_afterwards(name: str) -> None:
    """The function before the ``key_by`` may change its record; the one behind keeps what it got."""
    make, change = CHANGES[name]
    seen: list[Any] = []
    emits = KeepsAndChanges(make, change)
    chained = ChainHarness(FlatMapOperator(emits), behind(FilterOperator(noting(seen)), 0, first_field))

    chained.process_numbers(120)
    for record in emits.kept:
        change(record)

    expected = shown([make(number) for number in range(120)])
    assert shown(seen) == expected
    assert shown(chained.values) == expected


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("is_kept", [False, True])
def test_what_was_got_may_be_changed(name: str, is_kept: bool) -> None:
    """The function behind the ``key_by`` may change its record, whether or not the one before it has kept its own."""
    make, change = CHANGES[name]
    kept: list[Any] = []

    def emit(number: int) -> Any:
        record = make(number)
        if is_kept:
            kept.append(record)
        return record

    def changed(record: Any) -> Any:
        change(record)
        return record

    chained = ChainHarness(MapOperator(emit), behind(MapOperator(changed), 0, first_field))
    chained.process_numbers(120)

    numbers = range(120)
    assert shown(kept) == (shown(list(map(make, numbers))) if is_kept else [])
    assert shown(chained.values) == shown([changed(make(number)) for number in numbers])


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("is_first", [False, True])
def test_two_readers_of_a_stream_have_no_record_in_common(name: str, is_first: bool) -> None:
    """One reader is behind a ``key_by`` and one is not, in either order; the one behind it changes its records."""
    make, change = CHANGES[name]
    seen: list[Any] = []

    def changed(record: Any) -> Any:
        change(record)
        return record

    def look(record: Any) -> str:
        seen.append(record)
        return shown([record])[0]

    readers = [behind(MapOperator(changed), 0, first_field), behind(MapOperator(look), 0)]
    chained = ChainHarness(MapOperator(make), *(readers if is_first else readers[::-1]), outputs=(1, 2))
    chained.process_numbers(120)

    expected = shown([make(number) for number in range(120)])
    assert chained.outputs[2 if is_first else 1].values == expected
    assert shown(seen) == expected
    assert shown(chained.outputs[1 if is_first else 2].values) == shown(
        [changed(make(number)) for number in range(120)]
    )


def test_two_readers_by_key_have_no_record_in_common() -> None:
    def changed(record: dict[str, int]) -> dict[str, int]:
        record["value"] *= -1
        return record

    by_key = [behind(MapOperator(changed), 0, first_field), behind(MapOperator(changed), 0, first_field)]
    chained = ChainHarness(MapOperator(lambda number: {"value": number}), *by_key, outputs=(1, 2))
    chained.process_numbers(80)

    assert [output.values for output in chained.outputs.values()] == [[{"value": -number} for number in range(80)]] * 2


@pytest.mark.parametrize("kind", [Event, Plain, WeakSlots])
@pytest.mark.parametrize("has_values", [False, True])
def test_a_record_behind_a_weak_reference_is_not_the_one_behind_the_key_by(kind: Any, has_values: bool) -> None:
    references: list[Any] = []
    seen: list[Any] = []

    def emit(number: int) -> Any:
        record = kind([number] if has_values else number)
        references.append(weakref.ref(record))
        return record

    def look(record: Any) -> bool:
        last = references[-1]()
        if last is not None:
            last.value = -1
        seen.append(copy.deepcopy(record))
        return True

    chained = ChainHarness(MapOperator(emit), behind(FilterOperator(look), 0, first_field))
    chained.process_numbers(80)

    assert shown(seen) == shown([kind([number] if has_values else number) for number in range(80)])


@pytest.mark.parametrize("kind", [Event, Plain])
def test_the_attributes_that_a_function_holds_are_not_those_behind_the_key_by(kind: Any) -> None:
    held: list[dict[str, Any]] = []
    seen: list[Any] = []

    def emit(number: int) -> Any:
        record = kind(number)
        held.append(vars(record))
        return record

    def look(record: Any) -> bool:
        held[-1]["value"] = -1
        seen.append(record.value)
        return True

    chained = ChainHarness(MapOperator(emit), behind(FilterOperator(look), 0, first_field))
    chained.process_numbers(80)

    assert seen == list(range(80))


@pytest.mark.parametrize(
    "make", [lambda number: {"value": number}, Plain, WeakSlots, Struct, lambda number: Row(value=number)]
)
def test_a_record_that_nobody_holds_is_not_copied(make: Any) -> None:
    made: list[int] = []
    seen: list[int] = []

    def emit(number: int) -> Any:
        record = make(number)
        made.append(id(record))
        return record

    keeps: list[Any] = []

    def look(record: Any) -> bool:
        keeps.append(record)
        seen.append(id(record))
        return True

    chained = ChainHarness(MapOperator(emit), behind(FilterOperator(look), 0, first_field))
    chained.process_numbers(80)

    assert seen[40:] == made[40:]


# ---------------------------------------------------------------- keys


def test_the_selector_is_called_once_per_record_when_it_is_emitted() -> None:
    """The selector is called before the function behind it, and before the next record."""
    log: list[Any] = []

    def select(record: int) -> int:
        log.append(("key", record))
        return record % 2

    class Keys(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
            log.append(("process", value, ctx.get_current_key()))
            return [value]

    chained = alone(ProcessOperator(Keys(), select), select)
    chained.process_numbers(80)

    assert log == [entry for number in range(80) for entry in (("key", number), ("process", number, number % 2))]


@pytest.mark.parametrize("num_before", [0, 40])
def test_something_that_cannot_be_a_key_is_refused_at_the_first_record(num_before: int) -> None:
    """The error names the record; records that were emitted before arrive."""
    chained = alone(MapOperator(lambda record: record), operator.itemgetter("key"))
    chained.process(*({"key": number} for number in range(num_before)))
    stranger = object()

    with pytest.raises(UserFunctionError) as caught:
        chained.process({"key": 1}, {"key": type(stranger), "name": "bad"}, {"key": 2})

    assert (caught.value.operator, caught.value.subtask) == ("key_by", 3)
    assert caught.value.record_preview == "{'key': <class 'object'>, 'name': 'bad'}"
    assert isinstance(caught.value.__cause__, KeyTypeError)
    assert chained.values[num_before:] == [{"key": 1}]


def test_a_selector_that_fails_names_step_subtask_and_record() -> None:
    chained = alone(MapOperator(lambda record: record), operator.itemgetter("key"))

    with pytest.raises(UserFunctionError) as caught:
        chained.process({"key": 1}, {"name": 2})

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("key_by", 3, "{'name': 2}")
    assert isinstance(caught.value.__cause__, KeyError)
    assert chained.values == [{"key": 1}]


def keys_seen(select: Callable[[Any], Any], records: Any) -> list[Any]:
    """Return the current key of each record."""
    seen: list[Any] = []

    class Keys(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> None:
            seen.append(ctx.get_current_key())

    alone(ProcessOperator(Keys(), select), select).process(*records)
    return seen


def test_a_key_that_changes_is_kept_as_it_was() -> None:
    """A key may be a list, as PyFlink's pickled keys."""
    key: list[int] = []

    def select(record: int) -> list[int]:
        key[:] = [record]
        return key

    assert keys_seen(select, range(40)) == [[number] for number in range(40)]


def test_the_key_has_the_type_that_the_selector_gave() -> None:
    keys = [1, True, 1.0, "1", b"1", None, (1, "a"), 2**70]

    assert shown(keys_seen(lambda record: record, keys)) == shown(keys)


# ---------------------------------------------------------------- operators behind a key_by


def added(one: tuple[Any, int], other: tuple[Any, int]) -> tuple[Any, int]:
    return one[0], one[1] + other[1]


KEYS: dict[str, Callable[[int], Any]] = {
    "str": lambda number: f"k{number % 3}",
    "int": lambda number: number % 3,
    "tuple": lambda number: (number % 3, "a"),
    "types": lambda number: [1, True, 1.0][number % 3],
    "any": lambda number: ["a", None, (1, 2)][number % 3],
}


def reduced(records: list[Any], state: dict[Any, Any]) -> list[Any]:
    """One at a time, keys by type and value."""
    results = []
    for record in records:
        name = (type(record[0]), record[0])
        state[name] = added(state[name], record) if name in state else record
        results.append(state[name])
    return results


@pytest.mark.parametrize("name", KEYS)
def test_a_reduce_goes_on_from_its_snapshot(name: str) -> None:
    """A snapshot serves in a chain and behind an exchange, whichever of the two took it."""
    make = KEYS[name]
    records = [(make(number), number) for number in range(30)]
    state: dict[Any, Any] = {}
    first, second = reduced(records, state), reduced(records, state)
    select = operator.itemgetter(0)

    def reduce() -> KeyedReduceOperator:
        return KeyedReduceOperator(select, added)

    for is_chained, is_chained_then in ((True, True), (True, False), (False, True)):
        found = []
        restored = None
        for chain_it in (is_chained, is_chained_then):
            chained = (
                alone(reduce(), select, restored=restored) if chain_it else ChainHarness(reduce(), restored=restored)
            )
            for start in (0, 15):
                chained.process(*records[start : start + 15])
            found.append(shown(chained.values))
            finish = chained.backend.snapshot()
            assert finish is not None
            restored = finish()

        assert found == [shown(first), shown(second)]


@pytest.mark.slow
@pytest.mark.parametrize("cache_bytes", [1, 10**6])
@pytest.mark.parametrize("name", KEYS)
def test_a_reduce_in_a_chain_keeps_its_rows_in_rocksdb(name: str, cache_bytes: int, tmp_path: Path) -> None:
    """Record by record, whether they stay in memory or not; a snapshot writes those that do."""
    pytest.importorskip("rocksdict")
    from flowlet.state.rocksdb.rocksdb_keyed_state_backend import RocksDBKeyedStateBackend, RocksDBPlace

    place = RocksDBPlace(str(tmp_path), cache_bytes=cache_bytes)
    records = [(KEYS[name](number), number) for number in range(30)]
    select = operator.itemgetter(0)
    make_backend = partial(RocksDBKeyedStateBackend, place=place)
    chained = alone(KeyedReduceOperator(select, added), select, make_backend=make_backend)
    for start in (0, 10, 20):
        chained.process(*records[start : start + 10])
        finish = chained.backend.snapshot()
        assert finish is not None
        finish()

    assert shown(chained.values) == shown(reduced(records, {}))
    chained.backend.check_invariants()
    chained.backend.close()


@pytest.mark.parametrize("num_records", [3, 40, 400])
def test_a_sum_is_given_chunks_of_records_that_nobody_changes(num_records: int) -> None:
    """The sum gets keys, too, and chunks that stay as they are although the upstream changes its record later."""
    record = Row("a", 0)

    def emit(number: int) -> Iterator[Row]:
        record[0], record[1] = f"k{number % 3}", number
        yield record

    chained = ChainHarness(
        FlatMapOperator(emit), behind(KeyedSumOperator(lambda row: row[0], 1), 0, lambda row: row[0])
    )
    sums = {"k0": 0, "k1": 0, "k2": 0}
    expected = []
    for number in range(num_records):
        sums[f"k{number % 3}"] += number
        expected.append(Row(f"k{number % 3}", sums[f"k{number % 3}"]))

    chained.process(*range(num_records))

    assert chained.values == expected


class Alarm(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Any]:
        ctx.timer_service().register_event_time_timer(value[1] + 100)
        yield "element", ctx.get_current_key(), ctx.timestamp()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterator[Any]:
        yield "timer", ctx.get_current_key(), timestamp


def test_timers_fire_with_the_key_of_their_record() -> None:
    """Timers fire between two chunks, in the order of their times, before the watermark goes on."""
    select = operator.itemgetter(0)
    chained = alone(ProcessOperator(Alarm(), select), select)
    chained.process(("a", 1), ("b", 3), ("c", 2), timestamps=[1, 3, 2])

    chained.chain.process_control(Watermark(102))
    chained.process(("d", 4), timestamps=[4])

    assert chained.values == [
        ("element", "a", 1),
        ("element", "b", 3),
        ("element", "c", 2),
        ("timer", "a", 101),
        ("timer", "c", 102),
        ("element", "d", 4),
    ]
    assert Watermark(102) in chained.outputs[1].elements


class Splits(ProcessFunction):
    def process_element(self, value: int, ctx: ProcessFunction.Context) -> Iterator[Any]:
        record = {"value": value}
        if value % 2:
            yield SIDE, record
        else:
            yield record
        record["value"] = -1


def test_a_side_output_has_a_key_by_of_its_own() -> None:
    seen: list[Any] = []

    def select(record: dict[str, int]) -> int:
        return record["value"]

    chained = ChainHarness(
        ProcessOperator(Splits()),
        behind(FilterOperator(noting(seen)), 0, select, "side"),
        behind(FilterOperator(noting(seen)), 0, select),
    )
    chained.process_numbers(80)

    assert seen == [{"value": number} for number in range(80)]
    assert chained.values == [{"value": number} for number in range(0, 80, 2)]


@pytest.mark.parametrize("has_filters", [False, True])
@pytest.mark.parametrize("length", [1, MAX_BLOCKS, 3 * MAX_BLOCKS])
def test_a_chain_too_deep_for_one_loop_has_its_keys(length: int, has_filters: bool) -> None:
    """Keys are right whichever operator begins the next loop; each operator changes the record that it gets."""
    asked: list[Any] = []

    def note(record: dict[str, Any]) -> Any:
        asked.append((record["key"], record["depth"]))
        return record["key"]

    class Deeper(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> list[Any]:
            assert ctx.get_current_key() == value["key"]
            value["depth"] += 1
            return [value]

    chained = [behind(MapOperator(lambda number: {"key": f"k{number}", "depth": 0}), -1)]
    for _ in range(length):
        if has_filters:
            chained.append(behind(FilterOperator(lambda _: True), len(chained) - 1))
        chained.append(behind(ProcessOperator(Deeper(), note), len(chained) - 1, note))

    found = ChainHarness(*chained)
    found.process_numbers(80)

    assert found.values == [{"key": f"k{number}", "depth": length} for number in range(80)]
    assert asked == [(f"k{number}", depth) for number in range(80) for depth in range(length)]


def test_it_counts_what_comes_in_and_goes_out() -> None:
    chained = ChainHarness(
        MapOperator(lambda number: {"value": number}),
        behind(FilterOperator(lambda record: record["value"] % 2), 0, first_field),
    )
    chained.process_numbers(80)

    assert chained.counts == [(80, 80), (80, 40)]


@dataclasses.dataclass
class Unset:
    """A class whose attributes come and go."""

    value: Any = 0
    more: Any = 1


def test_records_of_one_class_with_other_attributes_arrive_as_they_were() -> None:
    def emit(number: int) -> Unset:
        record = Unset(number)
        if number % 3 == 1:
            del record.more
            record.extra = number  # type: ignore[attr-defined]  # that is the point
        elif number % 3 == 2:
            vars(record)["value"] = vars(record).pop("value")
        return record

    chained = ChainHarness(MapOperator(emit), behind(MapOperator(lambda record: record), 0, first_field))
    chained.process_numbers(120)

    assert [list(vars(each).items()) for each in chained.values] == [
        list(vars(emit(number)).items()) for number in range(120)
    ]


class Collects(StreamOperator):
    """Takes chunks, as a declared reduction or ``sum`` behind a ``key_by`` does, or the sink of Parquet files."""

    name = "collects"
    takes_chunks = True

    def __init__(self) -> None:
        self.values: list[Any] = []

    def process_chunk(self, chunk: Chunk) -> None:
        self.values += chunk.values


def test_a_record_that_waits_for_one_consumer_is_not_changed_by_another() -> None:
    """A chunking output keeps the record that the operator behind it in the order of consumers is given, and may
    change: ``stream.key_by(...).sum(...)`` first, then ``stream.map(change)``.
    """

    def change(record: dict[str, Any]) -> dict[str, Any]:
        record["value"] = -1
        return record

    collects = Collects()
    made = MapOperator(lambda number: {"value": number})

    ChainHarness(made, behind(collects, 0), behind(MapOperator(change), 0)).process_numbers(80)

    assert collects.values == [{"value": number} for number in range(80)]
