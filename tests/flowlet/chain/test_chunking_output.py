import dataclasses
import itertools
import operator
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.chain.chunking_output import MAX_WAITING, MIN_COLUMN_ROWS, ChunkingOutput, KeyExtractor
from flowlet.chain.loop_code import LoopCode
from flowlet.chain.record_shape import unpickled
from flowlet.columns import ArrayColumn, ArrowColumn, Columns, ConstantColumn, ListColumn, Shape, columns_of
from flowlet.common.types import Row
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.records import IDLE, Chunk, LatencyMarker, PickledRecord, Watermark
from flowlet.serde.pickles.record_pickle import loads_record
from tests.flowlet.chain.test_record_copies import Color, Frozen, MyDict, OneSlot, Point, Struct
from tests.flowlet.operators.chains import Emission, KeyedRecordingOutput, emitting, loop_of
from tests.flowlet.operators.harness import RecordingOutput
from tests.flowlet.serde.exact import exact


@dataclasses.dataclass(eq=True)
class Event:
    value: Any
    more: Any = None


# Of each kind several, so that a loop made for one sees others, too.  Made anew for each use.
MAKERS: dict[str, Any] = {
    "text": lambda number: f"text {number}",
    "int": lambda number: number,
    "large int": lambda number: 2**64 + number,
    "bool": lambda number: number % 2 == 0,
    "float": lambda number: -0.0 if number % 3 else number / 2,
    "None": lambda _: None,
    "pair": lambda number: (f"key {number % 3}", number),
    "other pair": lambda number: (number, f"key {number % 3}"),
    "pair with None": lambda number: (f"key {number % 3}", None),
    "one": lambda number: (number,),
    "triple": lambda number: ("a", 1, number),
    "nothing": lambda _: (),
    "nested": lambda number: ("a", (number, (number, "b"))),
    "nested list": lambda number: ("a", [number]),
    "wide": lambda number: tuple(range(number, number + 20)),
    "enum": lambda _: Color.RED,
    "named tuple": lambda number: Point(number),
    "named tuple of a list": lambda number: Point(number, [number]),
    "frozen": lambda number: Frozen(number),
    "frozen of a list": lambda number: Frozen([number]),
    "dict": lambda number: {"a": number, "b": "text"},
    "dict of a list": lambda number: {"a": [number]},
    "list": lambda number: [number, "a"],
    "list of a list": lambda number: [[number]],
    "set": lambda number: {number},
    "bytearray": lambda number: bytearray([number % 256]),
    "row": lambda number: Row(a=number, b="text"),
    "row of a list": lambda number: Row([number]),
    "dataclass": lambda number: Event(number),
    "dataclass of a list": lambda number: Event([number]),
    "slots": lambda number: OneSlot(number),
    "struct": lambda number: Struct(number),
    "subclass": lambda number: MyDict(a=number),
}
KINDS = st.sampled_from(sorted(MAKERS))


def made(kinds: list[str]) -> list[Any]:
    return [MAKERS[kind](number) for number, kind in enumerate(kinds)]


def shown(values: list[Any]) -> list[str]:
    """Show the values with their types, so that 1 is not True."""
    return [f"{type(value).__name__} {value!r}" for value in values]


def runs(chunks: list[tuple[str, int]]) -> list[str]:
    return list(itertools.chain.from_iterable([kind] * length for kind, length in chunks))


# ---------------------------------------------------------------- values and order


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("has_timestamps", [False, True])
def test_records_of_one_kind_arrive_as_they_were(name: str, has_timestamps: bool) -> None:
    """Records arrive unchanged before the loop knows their form, and afterwards."""
    output, taking = RecordingOutput(), KeyedRecordingOutput()
    for target in (output, taking):
        emission = Emission(target)
        for start in (0, 40, 80):
            timestamps = list(range(start, start + 40)) if has_timestamps else None
            emission.run((MAKERS[name](number) for number in range(start, start + 40)), timestamps)

    expected = shown([MAKERS[name](number) for number in range(120)])
    assert shown(output.values) == expected
    assert shown(unpickled(taking.values)) == expected
    assert output.timestamps == taking.timestamps == (list(range(120)) if has_timestamps else [None] * 120)


@given(
    run_of=st.lists(
        st.lists(st.tuples(KINDS, st.sampled_from([1, 2, 17, 40])), min_size=1, max_size=6), min_size=1, max_size=5
    ),
    is_timed=st.lists(st.booleans(), min_size=5, max_size=5),
)
def test_records_of_any_kinds_keep_their_order(run_of: list[list[tuple[str, int]]], is_timed: list[bool]) -> None:
    """Records keep their order and timestamps, whatever the loop was made for, and no record waits behind a run."""
    emission, output = emitting()
    expected: list[tuple[str, int | None]] = []

    for number, run in enumerate(run_of):
        kinds = runs(run)
        timestamps = list(range(number, number + len(kinds))) if is_timed[number] else None
        emission.run(iter(made(kinds)), timestamps)
        expected += zip(shown(made(kinds)), timestamps or itertools.repeat(None, len(kinds)), strict=True)
        assert len(output.values) == len(expected)

    assert list(zip(shown(output.values), output.timestamps, strict=True)) == expected


def test_a_record_of_another_shape_in_the_middle_of_a_run_stays_in_the_middle() -> None:
    """Several such records keep their places, too, at the beginning, the end and in between, with their timestamps."""
    emission, output = emitting()
    emission.run([("a", number) for number in range(40)])  # so that the loop looks for pairs
    output.elements.clear()
    pairs = [("a", 1), ("b", 2), {"odd": [1]}, ("c", 3), 7, None, ("d", 4), ("e", 5, "longer"), ("f", "6"), ("g", 7)]
    records: list[Any] = ["first", *pairs]

    emission.run(iter(records), list(range(len(records))))

    assert output.values == records
    assert output.timestamps == list(range(len(records)))


def test_flat_records_become_columns() -> None:
    """Pairs, values, and fields with one value in all records become columns."""
    for records, kinds in (
        ([(f"k{number}", number) for number in range(100)], [ListColumn, ArrayColumn]),
        ([(1.5 * number, True, "x") for number in range(100)], [ArrayColumn, ConstantColumn, ConstantColumn]),
        (list(range(100)), [ArrayColumn]),
        ([2**70 + number for number in range(100)], [ListColumn]),
        ([number % 2 == 0 for number in range(100)], [ArrayColumn]),
    ):
        emission, output = emitting()

        for _ in range(3):
            emission.run(iter(records))

        last = output.chunks[-1].columns
        assert last is not None
        assert [type(field) for field in last.fields] == kinds
        assert exact(last.to_list()) == exact(records)


def test_a_few_records_go_as_a_list() -> None:
    """Columns would cost more than they save."""
    emission, output = emitting()
    emission.run(("a", number) for number in range(40))

    emission.run(("a", number) for number in range(MIN_COLUMN_ROWS - 1))
    emission.run(("a", number) for number in range(MIN_COLUMN_ROWS))

    assert [chunk.columns is None for chunk in output.chunks[-2:]] == [True, False]
    assert output.chunks[-2].values == [("a", number) for number in range(MIN_COLUMN_ROWS - 1)]


def test_more_shapes_than_loops_are_made_for_still_arrive() -> None:
    emission, output = emitting()
    expected = []

    for round_ in range(3):
        for name in MAKERS:
            records = [MAKERS[name](number) for number in range(round_, round_ + 20)]
            emission.run(iter(records))
            expected += shown(records)

    assert shown(output.values) == expected


# ---------------------------------------------------------------- what happens to a record later


@pytest.mark.parametrize("takes_pickled", [False, True])
def test_one_object_that_changes_arrives_as_it_was_each_time(takes_pickled: bool) -> None:
    """Flat, where it is copied, and deeper, where it is pickled; many times, so that the loop knows it."""
    flat: list[Any] = [[0], {"value": 0}, Row(value=0), Event(0), OneSlot(0), Struct(0)]
    deep: list[Any] = [[[0]], {"value": [0]}, Event([0]), ("a", [0])]

    def changing(record: Any) -> Iterator[Any]:
        for number in range(60):
            if isinstance(record, list | tuple):
                holder = (
                    record[0] if isinstance(record[0], list) else record[1] if isinstance(record, tuple) else record
                )
                holder[0] = number
            elif isinstance(record, dict | Row):
                record["value"] = [number] if isinstance(record["value"], list) else number
            else:
                record.value = [number] if isinstance(record.value, list) else number
            expected.append(repr(record))
            yield record

    for record in (*flat, *deep):
        output = KeyedRecordingOutput() if takes_pickled else RecordingOutput()
        expected: list[str] = []
        emission = Emission(output)
        emission.run(itertools.islice(source := changing(record), 20))
        emission.run(source)

        values = unpickled(output.values)
        assert list(map(repr, values)) == expected
        assert not any(value is record for value in values)


def test_a_record_that_is_kept_and_changed_later_arrives_as_it_was() -> None:
    kept: list[dict[str, int]] = []

    def keeping() -> Iterator[dict[str, int]]:
        for number in range(60):
            record = {"value": number}
            kept.append(record)
            if number:
                kept[number - 1]["value"] = -1
            yield record

    emission, output = emitting()
    emission.run(itertools.islice(source := keeping(), 30))
    emission.run(source)

    assert output.values == [{"value": number} for number in range(60)]


def test_a_record_behind_a_weak_reference_arrives_as_it_was() -> None:
    references: list[Any] = []

    def watched() -> Iterator[Event]:
        for number in range(60):
            if references and (last := references[-1]()) is not None:
                last.value = "changed"
            record = Event(number)
            references.append(weakref.ref(record))
            boxed, record = [record], None  # type: ignore[assignment]  # nobody but the loop holds it
            yield boxed.pop()

    emission, output = emitting()
    emission.run(itertools.islice(source := watched(), 30))
    emission.run(source)

    assert [record.value for record in output.values] == list(range(60))


def test_several_consumers_each_get_a_record_of_their_own() -> None:
    """A change that one consumer makes to its record is not seen by another consumer."""
    first, second = RecordingOutput(), RecordingOutput()
    emission = Emission(first, second)
    for _ in range(3):
        emission.run({"value": number} for number in range(20))

    for record in first.values:
        record["value"] = "changed"

    assert second.values == [{"value": number} for number in range(20)] * 3


def test_pickles_are_left_to_consumers_that_take_them() -> None:
    plain, taking = RecordingOutput(), KeyedRecordingOutput()
    emission = Emission(plain, taking)

    emission.run([{"a": [1]}, "text"])

    assert plain.values == [{"a": [1]}, "text"]
    assert [type(value) for value in taking.values] == [PickledRecord, str]
    assert loads_record(taking.values[0].data) == {"a": [1]}


# ---------------------------------------------------------------- when records go on


def test_records_go_on_when_there_are_enough_for_a_chunk() -> None:
    """Records of any kind go on in chunks of ``MAX_WAITING``, and the rest goes on at the end of the run."""
    for make in (lambda number: {"a": [number]}, lambda number: {"a": number}, lambda number: ("a", number)):
        emission, output = emitting()

        emission.run(make(number) for number in range(2 * MAX_WAITING + 1))

        assert [len(chunk) for chunk in output.chunks] == [MAX_WAITING, MAX_WAITING, 1]


def test_watermarks_statuses_and_markers_come_behind_what_was_emitted() -> None:
    marker = LatencyMarker(1, bytes(16), 0)
    emission, output = emitting()
    (chunking_output,) = emission.loop_ends

    def records() -> Iterator[Any]:
        yield "a"
        chunking_output.emit_control(Watermark(1))
        yield "b"
        chunking_output.emit_control(IDLE)
        yield {"c": [1]}
        chunking_output.emit_control(marker)

    for _ in range(2):
        emission.run(records())

    assert output.elements == [Chunk(["a"]), Watermark(1), Chunk(["b"]), IDLE, Chunk([{"c": [1]}]), marker] * 2


def test_a_watermark_in_the_middle_of_a_run_comes_behind_the_columns() -> None:
    emission, output = emitting()
    (chunking_output,) = emission.loop_ends

    def records() -> Iterator[Any]:
        for number in range(100):
            if number == 50:
                chunking_output.emit_control(Watermark(1))
            yield "a", number

    emission.run(("a", number) for number in range(20))
    output.elements.clear()
    emission.run(records(), list(range(100)))

    found = [len(element) if isinstance(element, Chunk) else element for element in output.elements]
    assert found == [50, Watermark(1), 50]
    assert output.timestamps == list(range(100))


def test_records_with_and_without_timestamps_never_share_a_chunk() -> None:
    emission, output = emitting()

    for timestamps in (None, [1, 2], [3, 4], None, [5, 6]):
        emission.run(["a", {"b": [1]}], timestamps)

    assert [chunk.timestamps for chunk in output.chunks] == [None, [1, 2], [3, 4], None, [5, 6]]


def test_what_waits_goes_on_when_the_run_fails() -> None:
    def failing() -> Iterator[int]:
        yield from range(3)
        raise OSError("gone")

    emission, output = emitting()
    with pytest.raises(OSError, match="gone"):
        emission.run(failing())

    assert output.values == [0, 1, 2]


def test_it_says_how_many_records_wait() -> None:
    emission = Emission(RecordingOutput())
    (chunking_output,) = emission.loop_ends
    chunking_output.add("a")

    assert repr(chunking_output).endswith(": 1 records wait>")


# ---------------------------------------------------------------- chunks that no function looks at


@pytest.mark.parametrize(
    "chunk",
    [
        Chunk.of_columns(Columns(2, (ArrayColumn(np.array([1, 2])),), Shape.SCALAR), [5, 6]),
        Chunk.of_columns(Columns(2, (ArrowColumn(pa.array(["a", None])),), Shape.ROW, ("a",)), [5, 6]),
        Chunk(["a", ("b", 1)], [5, 6]),
        Chunk(list(range(100)), list(range(100))),
    ],
    ids=repr,
)
def test_chunks_of_records_that_cannot_change_pass_whole(chunk: Chunk) -> None:
    """Columns pass as columns, with their timestamps."""
    output = RecordingOutput()
    expected = (chunk.columns and chunk.columns.fields, chunk.copy().values, chunk.timestamps)

    Emission(output).output.collect(chunk)

    (found,) = output.chunks
    assert (found.values, found.timestamps) == expected[1:]
    assert expected[0] is None or (found.columns is not None and found.columns.fields == expected[0])


def test_chunks_of_records_that_can_change_are_emitted_one_by_one() -> None:
    """The consumer has records of its own."""
    record, inner = {"a": 1}, [1]
    output = RecordingOutput()

    Emission(output).output.collect(Chunk([record, (inner,)], [5, 6]))
    record["a"] = 2
    inner.append(2)

    assert output.values == [{"a": 1}, ([1],)]
    assert output.timestamps == [5, 6]


def test_a_whole_chunk_is_shared_by_consumers_that_cannot_disturb_each_other() -> None:
    outputs = [RecordingOutput(), RecordingOutput()]
    emission = Emission(*outputs)

    emission.output.collect(Chunk(["a", "b"]))
    outputs[0].chunks[0].values.clear()

    assert outputs[1].values == ["a", "b"]
    assert emission.counters.num_records_out == 2


# ---------------------------------------------------------------- keys


class Asked:
    """A selector that remembers the records for which it was asked."""

    def __init__(self, select: Any) -> None:
        self.select = select
        self.records: list[Any] = []

    def __call__(self, record: Any) -> Any:
        self.records.append(record)
        return self.select(record)


def keyed(select: Any, selector: Any = None, *, makes_keys: bool = True) -> KeyedRecordingOutput:
    return KeyedRecordingOutput(KeyExtractor(select, "key_by", 3, selector=selector, makes_keys=makes_keys))


def keys_of(chunk: Chunk) -> list[Any]:
    """Return the keys that the consumer finds, in the chunk's key column or beside its columns."""
    if chunk.columns is not None and chunk.columns.key_position is not None:
        assert chunk.keys is None
        return chunk.columns.fields[chunk.columns.key_position].to_list()
    assert chunk.keys is not None
    return chunk.keys


def all_keys(output: RecordingOutput) -> list[Any]:
    return [key for chunk in output.chunks for key in keys_of(chunk)]


SELECTORS: dict[str, Any] = {
    "a field": lambda record: record[0],
    "a later field": lambda record: record[-1],
    "made of the record": lambda record: f"<{record[0]}>",
    "a constant": lambda record: "all",
    "one field or the other": lambda record: record[0] if record[1] % 2 else record[1],
    "the record": lambda record: record,
    "equal to a field, but another object": lambda record: (
        "".join(["ke", record[0][2:]]) if isinstance(record[0], str) else record[0] + 0.0
    ),
}


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize(
    "make", [lambda number: (f"key {number % 7}", number), lambda number: [f"key {number % 7}", number]]
)
@pytest.mark.parametrize("has_timestamps", [False, True])
def test_each_record_is_asked_for_its_key_once_when_it_is_emitted(name: str, make: Any, has_timestamps: bool) -> None:
    """The key is asked for before the next record is made; the consumer finds key and record beside each other."""
    select = Asked(SELECTORS[name])
    if name == "the record" and isinstance(make(0), list):
        return  # no key
    emission, output = emitting(keyed(select))
    emitted: list[Any] = []

    def records(start: int) -> Iterator[Any]:
        for number in range(start, start + 50):
            assert len(select.records) == len(emitted), "the one before was asked"
            emitted.append(make(number))
            yield emitted[-1]

    for start in (0, 50, 100):
        emission.run(records(start), list(range(start, start + 50)) if has_timestamps else None)

    assert select.records == emitted
    assert all(map(operator.is_, select.records, emitted))
    assert output.values == emitted
    assert exact(all_keys(output)) == exact([SELECTORS[name](record) for record in emitted])
    assert output.timestamps == (list(range(150)) if has_timestamps else [None] * 150)


def test_a_key_that_is_a_field_is_known_by_its_place() -> None:
    """A key that is the very object of a field travels once: the chunk names the place of the field."""
    for position in (0, 1, 2):
        emission, output = emitting(keyed(lambda record, position=position: [*record][position]))
        for _ in range(2):
            emission.run((f"a {number}", f"b {number}", number * 1_000) for number in range(40))

        columns = output.chunks[-1].columns
        assert columns is not None
        assert columns.key_position == position


def test_a_key_that_only_equals_a_field_is_not_that_field() -> None:
    """True is not 1, and another object might be anything."""
    emission, output = emitting(keyed(lambda record: record[0] == 1))
    for _ in range(3):
        emission.run((1, number) for number in range(40))

    assert exact(all_keys(output)) == exact([True] * 120)


def test_a_field_that_says_its_place_is_not_asked_for_in_tuples() -> None:
    """``operator.itemgetter`` is no function of the user's; of anything else it is called."""
    selector = operator.itemgetter(1)
    select = Asked(selector)
    emission, output = emitting(keyed(select, selector))
    for _ in range(3):
        emission.run((number, f"key {number}") for number in range(40))
    num_asked = len(select.records)
    emission.run([number, f"key {number}"] for number in range(40))

    assert num_asked < 80
    assert len(select.records) == num_asked + 40
    assert all_keys(output) == [f"key {number}" for number in range(40)] * 4


@dataclasses.dataclass
class Odd:
    """Gives its fields in its own way."""

    first: str
    second: int

    def __getitem__(self, index: int) -> Any:
        return self.first if self.second < 70 else self.second


class OddTuple(NamedTuple):
    first: str
    second: int

    def __getitem__(self, index: Any) -> Any:
        return self.first if self.second < 70 else self.second


@pytest.mark.parametrize("kind", [Odd, OddTuple])
def test_a_class_with_its_own_way_to_its_fields_is_asked_for_each_record(kind: Any) -> None:
    """``operator.itemgetter`` calls its method, which is the user's."""
    selector = operator.itemgetter(0)
    emission, output = emitting(keyed(selector, selector))

    for start in (0, 20, 40):
        emission.run(kind(f"key {number}", number) for number in range(start, start + 20 if start < 40 else 100))

    assert all_keys(output) == [f"key {number}" if number < 70 else number for number in range(100)]


def test_records_whose_keys_are_not_always_the_same_field_keep_them() -> None:
    """The loop was made for the first field."""
    emission, output = emitting(keyed(lambda record: record[0] if record[1] < 70 else record[1]))

    emission.run((f"key {number}", number) for number in range(20))
    emission.run((f"key {number}", number) for number in range(20, 100))

    assert output.values == [(f"key {number}", number) for number in range(100)]
    assert all_keys(output) == [f"key {number}" if number < 70 else number for number in range(100)]


@pytest.mark.parametrize("makes_keys", [True, False], ids=["a key", "what a custom partitioner chooses by"])
def test_a_list_that_was_selected_arrives_as_it_was(makes_keys: bool) -> None:
    """A key may be a list, as PyFlink's pickled keys."""
    chosen: list[int] = []

    def select(record: int) -> list[int]:
        chosen[:] = [record]
        return chosen

    emission, output = emitting(keyed(select, makes_keys=makes_keys))
    for start in (0, 30):
        emission.run(range(start, start + 30))

    assert all_keys(output) == [[number] for number in range(60)]


def test_a_selector_that_changes_its_record_changes_what_arrives() -> None:
    """A key selector is called when the record is emitted, before its shape is looked at."""

    def pop(record: dict[str, Any]) -> Any:
        return record.pop("key")

    emission, output = emitting(keyed(pop))
    for start in (0, 30):
        emission.run({"key": f"k{number}", "value": number} for number in range(start, start + 30))

    assert output.values == [{"value": number} for number in range(60)]
    assert all_keys(output) == [f"k{number}" for number in range(60)]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_selector_that_fails_names_step_subtask_and_record(is_known: bool) -> None:
    """Records that were emitted before the failure arrive, and the error names the step, the subtask and the record."""
    emission, output = emitting(keyed(lambda record: record["key"]))
    if is_known:
        emission.run({"key": number} for number in range(20))
        output.elements.clear()

    with pytest.raises(UserFunctionError) as caught:
        emission.run([{"key": 1}, {"key": 2}, {"name": 3}, {"key": 4}])

    assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("key_by", 3, "{'name': 3}")
    assert isinstance(caught.value.__cause__, KeyError)
    assert output.values == [{"key": 1}, {"key": 2}]
    assert all_keys(output) == [1, 2]


def test_something_that_cannot_be_a_key_is_refused_with_its_record() -> None:
    """The error names the record, even if it was pickled before."""
    output = keyed(lambda record: record["key"])
    stranger = object()

    with pytest.raises(UserFunctionError) as caught:
        Emission(output).run([{"key": 1, "list": [1]}, {"key": type(stranger), "list": [2]}])

    assert caught.value.operator == "key_by"
    assert caught.value.record_preview == "{'key': <class 'object'>, 'list': [2]}"
    assert isinstance(caught.value.__cause__, KeyTypeError)


@pytest.mark.parametrize("size", [5, 100])
def test_a_whole_chunk_gets_its_keys(size: int) -> None:
    """A chunk that is emitted as a whole gets the keys that its records would get one by one."""
    records = [(f"key {number % 7}", number) for number in range(size)]
    columns = columns_of(records)
    assert columns is not None

    for chunk in (Chunk(list(records)), Chunk.of_columns(columns)):
        for select, selector in ((operator.itemgetter(0), operator.itemgetter(0)), (lambda record: record[0], None)):
            output = keyed(select, selector)
            Emission(output).output.collect(chunk.copy())

            assert output.values == records
            assert all_keys(output) == [record[0] for record in records]


def test_two_consumers_by_key_each_have_their_keys() -> None:
    """One selector sees a record after the other one saw it, record by record."""
    log: list[Any] = []

    def noting(name: str, field: int) -> Any:
        def select(record: Any) -> Any:
            log.append((name, record))
            return record[field]

        return select

    first, second = keyed(noting("first", 0)), keyed(noting("second", 1))
    emission = Emission(first, second)

    emission.output.collect(Chunk([("a", 1), ("b", 2)]))

    assert log == [(name, record) for record in (("a", 1), ("b", 2)) for name in ("first", "second")]
    assert (all_keys(first), all_keys(second)) == (["a", "b"], [1, 2])


@given(
    run_of=st.lists(
        st.lists(st.tuples(KINDS, st.sampled_from([1, 3, 20, 40])), min_size=1, max_size=4), min_size=1, max_size=4
    ),
    is_timed=st.lists(st.booleans(), min_size=4, max_size=4),
)
def test_keys_of_records_of_any_kinds_arrive_beside_them(
    run_of: list[list[tuple[str, int]]], is_timed: list[bool]
) -> None:
    def select(record: Any) -> str:
        return record[0] if type(record) is tuple and record and type(record[0]) is str else repr(record)[:9]

    emission, output = emitting(keyed(select))
    expected = []

    for number, run in enumerate(run_of):
        kinds = runs(run)
        emission.run(iter(made(kinds)), list(range(len(kinds))) if is_timed[number] else None)
        expected += [(select(record), shown([record])[0]) for record in made(kinds)]

    values = unpickled(output.values)
    assert list(zip(all_keys(output), shown(values), strict=True)) == expected


def test_an_emitter_without_keys_calls_nobody() -> None:
    assert not ChunkingOutput(RecordingOutput()).calls_users
    assert ChunkingOutput(RecordingOutput(), KeyExtractor(len, "key_by", 0)).calls_users
    assert not ChunkingOutput(
        RecordingOutput(), KeyExtractor(len, "key_by", 0, selector=operator.itemgetter(0))
    ).calls_users


def test_a_shape_that_comes_back_has_lists_of_its_own() -> None:
    """Two loops share an output: the text of one must not append to lists that were given up when the other one changed
    the shape.
    """
    output = RecordingOutput()
    chunking_output = ChunkingOutput(output)

    def write(code: LoopCode, record: str, timestamp: str | None, _: str | None) -> None:
        chunking_output.write(code, record, timestamp)

    first, second = loop_of(write, chunking_output), loop_of(write, chunking_output)
    expected: list[Any] = []
    for loop, records in (
        (first, [1] * 20),
        (first, [2]),
        (second, [(3,)] * 20),
        (second, [(4,)]),
        (second, [5] * 20),
        (first, [6]),
    ):
        loop.run(records, None, len(records))
        expected += records

    assert output.values == expected


@pytest.mark.parametrize("is_in_columns", [False, True])
@pytest.mark.parametrize("key", [None, operator.itemgetter(1)], ids=["no key", "second field"])
def test_a_chunk_that_goes_on_whole_leaves_the_keys_of_an_earlier_key_by_behind(is_in_columns: bool, key: Any) -> None:
    """Another selector made them."""
    values = [(f"a{number % 2}", f"b{number % 3}") for number in range(MIN_COLUMN_ROWS if is_in_columns else 3)]
    table = columns_of(values)
    assert table is not None
    chunk = Chunk.of_columns(table.with_key_position(0)) if is_in_columns else Chunk(values)
    if not is_in_columns:
        chunk.keys, chunk.key_field = [first for first, _ in values], 0
    output = KeyedRecordingOutput()
    chunking_output = ChunkingOutput(output, None if key is None else KeyExtractor(key, "test", 0, selector=key))

    whole = chunking_output.try_whole(chunk)

    assert whole is not None
    assert whole.keys is None
    assert whole.columns is None or whole.columns.key_position is None
    assert whole.values == values


@dataclasses.dataclass
class Without:
    value: Any
    more: Any


class Bare:
    def __init__(self, value: Any, _: Any) -> None:
        self.value = value


@pytest.mark.parametrize("kind", [Without, Event, Bare])
def test_a_record_that_nobody_holds_is_not_copied(kind: Any) -> None:
    """Copies would only be slower, not wrong; so it is for a dataclass with a default as well, whose ``__dict__`` the
    loop's own variable held once (``record_shape._write_attributes`` binds ``d``, ``owned`` counts its references).
    """
    made: list[int] = []

    def records() -> Any:
        for number in range(40):
            boxed = [kind(f"k{number}", number)]
            made.append(id(boxed[0]))
            yield boxed.pop()

    emission, output = emitting()
    emission.run(records())
    output.elements.clear()
    made.clear()

    emission.run(records())

    assert [id(record) for record in output.values] == made
