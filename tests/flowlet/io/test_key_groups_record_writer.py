"""Promises of the writers that ask the user's selector.

Source: Flink `KeyGroupStreamPartitionerTest`, `CustomPartitionerWrapper`, `RecordWriterTest`.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.columns import (
    ArrayColumn,
    ArrowColumn,
    CodedColumn,
    Column,
    Columns,
    ConstantColumn,
    ListColumn,
    NameTable,
    Shape,
    ShortTextColumn,
    column_of,
    columns_of,
)
from flowlet.columns.short_text_column import try_short_texts
from flowlet.common.types import Row
from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Custom, KeyGroups
from flowlet.io import key_dictionary, record_writer
from flowlet.io.create_record_writer import MAX_LANES, KeyColumnRouter, KeyGroupsRecordWriter
from flowlet.io.key_dictionary import MAX_CHUNK_KEYS, MAX_KEYS
from flowlet.keys.column_key import ColumnKey
from flowlet.keys.exact_keys import exact_key
from flowlet.records import Chunk, PickledRecord
from flowlet.serde.pickles.record_pickle import dumps_record
from tests.flowlet.keys_of_every_type import GOLDEN
from tests.flowlet.serde.exact import ATOMS, exact
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.writer_rig import Make, Rig, by_channel, channel_of, identity


def router_of(rig: Rig) -> KeyColumnRouter:
    assert isinstance(rig.writer, KeyGroupsRecordWriter)
    return rig.writer._router


class TestKeyGroups:
    def test_records_go_where_flink_sends_them(self, make: Make) -> None:
        """The golden table has the subtask of 4 at 128 key groups."""
        rig = make(KeyGroups(identity), 4)
        golden = {
            "": 2,
            "a": 2,
            "b": 0,
            "key": 2,
            "hello": 1,
            "world": 2,
            "flink": 3,
            "apache": 3,
            "user-42": 0,
            "水位线": 1,
            "😀": 1,
        }

        rig.collect(*golden)

        assert {value: channel for channel, values in enumerate(rig.values()) for value in values} == golden

    def test_max_parallelism_is_the_consumers(self, make: Make) -> None:
        rig = make(KeyGroups(identity, max_parallelism=4096), 3)
        values = [f"k{number}" for number in range(100)]

        rig.collect(*values)

        assert rig.values() == [
            [value for value in values if channel_of(value, 3, 4096) == channel] for channel in range(3)
        ]

    def test_records_of_a_key_keep_their_order(self, make: Make) -> None:
        """The order holds over several chunks and flushes; the selector sees whole records."""
        rig = make(KeyGroups(lambda record: record[0]), 3)
        records = [(f"k{number % 7}", number) for number in range(1_000)]

        for start in range(0, 1_000, 90):
            rig.collect(*records[start : start + 90])
            if start % 180 == 0:
                rig.writer.flush_pending()

        assert rig.values() == by_channel(records, 3, lambda record: record[0])

    def test_keys_that_are_equal_but_not_the_same_have_their_own_channels(self, make: Make) -> None:
        """1, 1.0 and True are three keys, 0.0 and -0.0 are two, also inside tuples, and also one after the other in one
        writer.
        """
        rig = make(KeyGroups(identity), 16)
        keys = [1, 1.0, True, 0, 0.0, -0.0, False, (1, "a"), (1.0, "a"), (True, "a")]

        for key in keys:
            rig.collect(key)
        rig.collect(*keys)

        found = [[repr(value) for value in values] for values in rig.values()]
        assert found == [[repr(value) for value in values] for values in by_channel(keys + keys, 16)]

    @pytest.mark.parametrize("keys", [["a", 1, b"a", "b"], ["a", 1.5, "b"], [b"x", b"y"], [10**30, 5]])
    def test_mixed_types_of_keys(self, make: Make, keys: list[Any]) -> None:
        rig = make(KeyGroups(identity), 4)

        rig.collect(*keys)

        assert rig.values() == by_channel(keys, 4)

    @pytest.mark.parametrize("times", [1, 20])
    def test_keys_of_every_type(self, make: Make, times: int) -> None:
        keys = [key for key, _ in GOLDEN] * times
        rig = make(KeyGroups(identity), 4)

        rig.collect(*keys)

        found = [[exact_key(key) for key in channel] for channel in rig.values()]
        assert found == [[exact_key(key) for key in channel] for channel in by_channel(keys, 4)]

    @pytest.mark.parametrize("selector", [lambda record: record[0], operator.itemgetter(0)])
    def test_the_first_field_is_the_first_field_of_anything(self, make: Make, selector: Callable[[Any], Any]) -> None:
        """A list or a text has a first field, too, as a tuple has."""
        rig = make(KeyGroups(selector), 3)
        records: list[Any] = [("a", 1), ("b", 2), ("key", 3)]

        rig.collect(*records)
        rig.collect(*records, ["a", 4], "hello")

        expected = by_channel([*records, *records, ["a", 4], "hello"], 3, lambda record: record[0])
        assert rig.values() == expected

    @pytest.mark.parametrize(
        ("field", "records", "bad", "cause"),
        [
            ("id", [{"id": 1}, {"id": {2}}, {"id": {3}}], "{'id': {2}}", KeyTypeError),
            ("id", [{"id": 1}, {"name": "x"}, {"id": 2}], "{'name': 'x'}", KeyError),
            (0, [("a",), (), ("b",)], "()", IndexError),
        ],
        ids=["a key without a stable hash", "a selector that fails", "no first field"],
    )
    def test_a_record_without_a_key_is_named(
        self, make: Make, field: Any, records: list[Any], bad: str, cause: type[Exception]
    ) -> None:
        """The user's exception is kept as the cause; that of a wrong type names it."""
        rig = make(KeyGroups(lambda record: record[field]), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect(*records)

        assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("key_by", 5, bad)
        assert isinstance(caught.value.__cause__, cause)
        assert cause is not KeyTypeError or "set" in str(caught.value.__cause__)

    @pytest.mark.parametrize("encoding", [str, lambda text: (text, 1)], ids=["text", "tuple"])
    def test_the_dictionaries_are_bounded(self, make: Make, encoding: Callable[[str], Any]) -> None:
        """All records arrive in order with more keys than the bound, and the dictionary stays small."""
        rig = make(KeyGroups(identity), 2)
        values = [encoding(f"k{number % (MAX_LANES + 500)}") for number in range(2 * MAX_LANES)]
        arrived: list[list[object]] = [[], []]

        for start in range(0, len(values), 2_000):
            rig.collect(*values[start : start + 2_000])
            for channel, part in enumerate(rig.values()):
                arrived[channel] += part

        assert len(router_of(rig)._lanes) <= MAX_LANES
        assert len(router_of(rig).dictionary) <= MAX_KEYS + 2_000
        assert arrived == by_channel(values, 2)

    def test_one_channel_gets_the_keys_too(self, make: Make) -> None:
        """The consumer of the channel need not ask the selector again."""
        rig = make(KeyGroups(lambda record: record["id"] * 2), 1)

        rig.writer.collect(Chunk([{"id": 1}, {"id": 2}], [5, 6]))

        (chunk,) = rig.chunks(0)
        assert (chunk.values, chunk.timestamps, chunk.keys) == ([{"id": 1}, {"id": 2}], [5, 6], [2, 4])

    def test_keys_that_came_with_the_records_are_not_asked_for(self, make: Make) -> None:
        """Keys travel with their records, each to its own channel."""
        rig = make(KeyGroups(lambda record: 1 // 0), 2)
        records = [[f"k{number}"] for number in range(50)]
        chunk = Chunk(list(records))
        chunk.keys = [record[0] for record in records]

        rig.writer.collect(chunk)

        expected = by_channel(records, 2, lambda record: record[0])
        for channel in range(2):
            (arrived,) = rig.chunks(channel)
            assert (arrived.values, arrived.keys) == (expected[channel], [record[0] for record in expected[channel]])

    @pytest.mark.parametrize("values", [[f"k{number}" for number in range(50)], [number / 2 for number in range(20)]])
    def test_timestamps_travel_with_their_records(self, make: Make, values: list[Any]) -> None:
        rig = make(KeyGroups(identity), 2)

        rig.writer.collect(Chunk(list(values), list(range(len(values)))))

        for channel, expected in enumerate(by_channel(values, 2)):
            assert rig.elements(channel) == [Chunk(expected, [values.index(value) for value in expected])]

    @settings(max_examples=50)
    @given(
        chunks=st.lists(
            st.lists(
                st.one_of(st.text(max_size=3), st.integers(-3, 3), st.binary(max_size=2), st.booleans()), max_size=20
            )
        ),
        num_channels=st.integers(1, 5),
    )
    def test_any_chunks_of_any_keys_arrive_as_one_record_at_a_time_would(
        self, chunks: list[list[Any]], num_channels: int
    ) -> None:
        """Chunking changes neither channel nor order."""
        with LocalNetwork(num_segments=200) as network:
            rig = Rig(network, KeyGroups(identity), num_channels, max_buffers=100)

            for chunk in chunks:
                rig.collect(*chunk)

            expected = by_channel([value for chunk in chunks for value in chunk], num_channels)
            assert repr(rig.values()) == repr(expected)


class TestManyKeys:
    def keys(self, start: int, kind: Callable[[int], Any]) -> list[Any]:
        return [kind(number) for number in range(start, start + 1_000)]

    @pytest.mark.parametrize(
        "kind", [int, str, float, lambda number: f"k{number}".encode(), lambda number: (number, "a")]
    )
    def test_keys_that_never_come_back_go_where_they_went(self, make: Make, kind: Callable[[int], Any]) -> None:
        """Every chunk has new keys: most go past the dictionaries, if their type has a way, and
        arrive as one by one.
        """
        rig = make(KeyGroups(identity), 3)
        router = router_of(rig)
        keys = [key for number in range(20) for key in self.keys(number * 1_000, kind)]
        arrived: list[list[object]] = [[], [], []]

        for start in range(0, 20_000, 1_000):
            rig.collect(*keys[start : start + 1_000])
            for channel, part in enumerate(rig.values()):
                arrived[channel] += part

        assert arrived == by_channel(keys, 3)
        # A text dictionary learns until it is full; then comes a bypass of 4.
        assert len(router.dictionary) == (17_000 if kind is str else 0)
        has_no_other_way = type(kind(0)) is tuple
        assert (len(router._lanes) > 0) is has_no_other_way

    def test_timestamps_travel_with_them(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)

        for start in (0, 1_000):
            keys = self.keys(start, str)
            rig.writer.collect(Chunk(list(keys), [int(key) for key in keys]))
            for channel, expected in enumerate(by_channel(keys, 2)):
                assert rig.elements(channel) == [Chunk(expected, [int(key) for key in expected])]

    @pytest.mark.parametrize("kind", [str, lambda text: (text,)], ids=["text", "tuple"])
    def test_few_keys_stay_with_the_dictionary(self, make: Make, kind: Callable[[str], Any]) -> None:
        """The first chunk knows none of the keys, but is too small to be judged."""
        rig = make(KeyGroups(identity), 2)
        router = router_of(rig)

        for _ in range(8):
            rig.collect(*[kind(key) for key in self.keys(0, str)[:200]])

        assert len(router.dictionary if kind is str else router._lanes) == 200

    def test_a_bypass_of_texts_ends_when_keys_come_back(self, make: Make) -> None:
        """A full dictionary begins anew with the texts that it is shown then."""
        rig = make(KeyGroups(identity), 2)
        router = router_of(rig)
        keys = [self.keys(start, str) for start in range(0, 17_000, 1_000)]

        for chunk in [*keys, *[keys[0]] * 40]:
            rig.collect(*chunk)

        assert router.dictionary.generation == 1
        assert len(router.dictionary) == 1_000
        assert not router.bypass.is_taken()
        assert [sorted(map(str, part)) for part in rig.values()] == [
            sorted(map(str, part))
            for part in by_channel([key for chunk in [*keys, *[keys[0]] * 40] for key in chunk], 2)
        ]

    def test_a_bad_key_on_the_bypass_is_named(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)
        rig.collect(*self.keys(0, str))

        with pytest.raises(UserFunctionError) as caught:
            rig.collect("a", {1}, "b")

        assert caught.value.record_preview == "{1}"


def first(record: Any) -> Any:
    return record[0]


def same_first(record: Any) -> Any:
    """Return the first field, by a selector that is not recognised, and is called."""
    return record[0] if record else None


def other(record: Any) -> Any:
    """Gives keys that no field has."""
    return f"<{record[0]!r}>"


KEYS = [
    st.text(max_size=3),
    st.integers(-(2**70), 2**70),
    st.integers(-3, 3),
    st.booleans(),
    st.floats(),
    st.binary(max_size=2),
]


def keyed_records() -> st.SearchStrategy[list[list[tuple[Any, ...]]]]:
    """Several chunks of records with keys of one type, or of any."""
    kinds = st.sampled_from([*KEYS, st.one_of(*KEYS)])
    fields = st.lists(st.sampled_from([*ATOMS.values(), st.just(1), st.lists(st.integers(), max_size=2)]), max_size=2)
    shapes = st.tuples(kinds, fields).flatmap(lambda shape: st.just(st.tuples(shape[0], *shape[1])))
    # Long enough for columns, without drawing that much.
    chunks = shapes.flatmap(
        lambda records: st.lists(
            st.tuples(st.lists(records, min_size=1, max_size=6), st.sampled_from([1, 2, 9, 90])), max_size=4
        )
    )
    return chunks.map(lambda parts: [part * repeat for part, repeat in parts])


class TestColumns:
    """Keys that are a field of the records: one field goes as codes, numbers as arrays."""

    @pytest.mark.parametrize("num_records", [50, 600])
    @pytest.mark.parametrize("position", [0, 1, 2])
    def test_text_keys_that_are_a_field_tell_the_reader_which(
        self, position: int, num_records: int, make: Make
    ) -> None:
        """Pairs and triples, few or many, bring their key's position; records of which keys are made have none."""
        rig = make(KeyGroups(lambda record: [*record][position]), 2)
        num_fields = max(2, position + 1)
        records = [tuple(f"k{number + field}" for field in range(num_fields)) for number in range(num_records)]

        rig.collect(*records)
        rig.collect(*records[:7])

        arrived = [rig.chunks(channel) for channel in range(2)]
        assert {chunk.columns.key_position for chunks in arrived for chunk in chunks if chunk.columns} == {position}
        expected = by_channel([*records, *records[:7]], 2, operator.itemgetter(position))
        assert [[value for chunk in chunks for value in chunk.values] for chunks in arrived] == expected

    @pytest.mark.parametrize("num_distinct", [5, 3_000, 70_000])
    def test_many_texts_arrive_where_each_would_go_by_itself(self, make: Make, num_distinct: int) -> None:
        """Short ones, whose codes are found together; long ones and others than ASCII in between; more than a
        dictionary holds.
        """
        rig = make(KeyGroups(lambda pair: next(iter(pair))), 3)
        texts = [f"key-{number * 7 % num_distinct}" for number in range(max(2 * num_distinct, 20_000))]
        texts[3_000:4_000] = [f"a text that is longer than sixteen bytes {number % 9}" for number in range(1_000)]
        texts[5_000:5_600] = [f"水{number % 9}" for number in range(600)]
        pairs = [(text, number) for number, text in enumerate(texts)]

        found: list[list[Any]] = [[], [], []]
        for start in range(0, len(pairs), 5_000):
            rig.collect(*pairs[start : start + 5_000])
            for channel, values in enumerate(rig.values()):
                found[channel] += values

        assert found == by_channel(pairs, 3, lambda pair: pair[0])

    @pytest.mark.parametrize("sizes", [(20_000, 49_000), (16_000, 16_383, 16_383), (MAX_CHUNK_KEYS, 1_000)])
    def test_new_texts_that_wait_together_are_never_more_than_there_are_codes(
        self, make: Make, sizes: tuple[int, ...]
    ) -> None:
        """The texts come in long lists, as an operator before the exchange may have them from another one."""
        rig = make(KeyGroups(operator.itemgetter(0)), 3)
        pairs: list[Any] = []

        for size in sizes:
            keys = [f"key-{len(pairs) + number}" for number in range(size)]
            rig.writer.collect(
                Chunk.of_columns(Columns(size, (ListColumn(keys, str), ConstantColumn(1, size)), Shape.TUPLE))
            )
            pairs += [(key, 1) for key in keys]

        assert rig.values() == by_channel(pairs, 3, lambda pair: pair[0])

    def test_keys_that_are_made_of_the_records_tell_nothing(self, make: Make) -> None:
        rig = make(KeyGroups(lambda record: "".join([*record])), 2)

        rig.collect(*[(f"k{number}", "x") for number in range(50)])

        for channel in range(2):
            (chunk,) = rig.chunks(channel)
            assert chunk.columns is None or chunk.columns.key_position is None

    @settings(max_examples=150, deadline=None)
    @given(
        chunks=keyed_records(),
        num_channels=st.sampled_from([2, 3, 4, 9]),
        selector=st.sampled_from([first, same_first, other, operator.itemgetter(0)]),
        in_columns=st.lists(st.booleans(), min_size=4, max_size=4),
        is_timed=st.lists(st.booleans(), min_size=4, max_size=4),
    )
    def test_records_arrive_exactly_where_and_as_they_would_one_by_one(
        self, chunks: list[list[Any]], num_channels: int, selector: Any, in_columns: list[bool], is_timed: list[bool]
    ) -> None:
        """Values, types, bits, timestamps and order stay, in lists and in columns."""
        expected: list[list[Any]] = [[] for _ in range(num_channels)]
        with LocalNetwork(num_segments=400) as network:
            rig = Rig(network, KeyGroups(selector), num_channels, max_buffers=300)
            for number, values in enumerate(chunks):
                timestamps = list(range(number, number + len(values))) if is_timed[number] else None
                for index, value in enumerate(values):
                    expected[channel_of(selector(value), num_channels)].append(
                        (exact(value), timestamps and timestamps[index])
                    )
                table = columns_of(values) if in_columns[number] else None
                rig.writer.collect(Chunk(values, timestamps) if table is None else Chunk.of_columns(table, timestamps))

            arrived = [rig.chunks(channel) for channel in range(num_channels)]

        for chunk in (chunk for chunks in arrived for chunk in chunks):
            if chunk.columns is not None and chunk.columns.key_position is not None:
                keys = chunk.columns.fields[chunk.columns.key_position].to_list()
                assert exact(keys) == exact([selector(value) for value in chunk.values])
        found = [
            [
                (exact(value), chunk.timestamps and chunk.timestamps[index])
                for chunk in chunks
                for index, value in enumerate(chunk.values)
            ]
            for chunks in arrived
        ]
        assert found == expected

    @pytest.mark.slow
    @pytest.mark.parametrize("as_list", [True, False], ids=["list", "short texts"])
    @pytest.mark.parametrize(
        "suffix", ["", " of a key that is not short", "ß", "\0x"], ids=["short", "long", "not ASCII", "NUL"]
    )
    def test_texts_that_never_come_back_arrive(
        self, make: Make, suffix: str, as_list: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Short texts travel in columns of bytes, several chunks together, once the dictionary is full."""
        monkeypatch.setattr(key_dictionary, "MAX_KEYS", 4_000)
        rig = make(KeyGroups(first), 2)
        records = [(f"{number}{suffix}", number) for number in range(12_000)]
        arrived: list[list[Any]] = [[], []]
        kinds = set()

        for start in range(0, len(records), 500):
            part = records[start : start + 500]
            short = None if as_list else try_short_texts([key for key, _ in part])
            if short is None:
                rig.collect(*part)
            else:
                fields = (short, ArrayColumn(np.array([number for _, number in part])))
                rig.writer.collect(Chunk.of_columns(Columns(len(part), fields, Shape.TUPLE)))
                rig.writer.flush_pending()
            for channel in range(2):
                for chunk in rig.elements(channel):
                    assert isinstance(chunk, Chunk)
                    kinds |= set() if chunk.columns is None else {type(chunk.columns.fields[0])}
                    arrived[channel] += chunk.values

        assert arrived == [[each for each in records if channel_of(each[0], 2) == channel] for channel in range(2)]
        assert (ShortTextColumn in kinds) == (not suffix)

    def test_a_text_key_is_sent_once(self, make: Make) -> None:
        """A key that was sent is two bytes, and the consumer has one table."""
        rig = make(KeyGroups(first), 2)
        records = [(f"a rather long key {number % 10}", number) for number in range(100)]
        tables = set()

        for _ in range(50):
            rig.collect(*records)
            for channel in range(2):
                for element in rig.elements(channel):
                    assert isinstance(element, Chunk)
                    assert element.columns is not None
                    column = element.columns.fields[0]
                    assert isinstance(column, CodedColumn)
                    tables.add(id(column.names))

        assert len(tables) == 2
        assert sum(len(reader.raw) for reader in rig.readers) < 5_000 * 4 + 100 * 60 + 400

    @pytest.mark.parametrize("num_rows", [5, 40])
    def test_an_error_of_a_key_in_columns_names_the_record(self, make: Make, num_rows: int) -> None:
        rig = make(KeyGroups(first), 2)
        keys = ArrowColumn(pa.array([{"k": 1}, None] + [{"k": 2}] * (num_rows - 2)))
        columns = Columns(num_rows, (keys, ConstantColumn(1, num_rows)), Shape.TUPLE)

        with pytest.raises(UserFunctionError) as caught:
            rig.writer.collect(Chunk.of_columns(columns))

        assert caught.value.record_preview == "({'k': 1}, 1)"

    @pytest.mark.parametrize("num_rows", [5, 40])
    def test_a_null_is_a_key_in_columns_as_among_records(self, make: Make, num_rows: int) -> None:
        values = ["a", None] + ["b"] * (num_rows - 2)
        rig = make(KeyGroups(first), 2)
        columns = Columns(num_rows, (ArrowColumn(pa.array(values)), ConstantColumn(1, num_rows)), Shape.TUPLE)

        rig.writer.collect(Chunk.of_columns(columns))

        assert rig.values() == by_channel([(value, 1) for value in values], 2, first)

    @pytest.mark.parametrize(
        "column",
        [
            ArrowColumn(pa.array(["a", "b", "é"] * 20)),
            ArrowColumn(pa.array(["a", "b", "a"] * 20).dictionary_encode()),
            ArrowColumn(pa.array([1, 2, 3] * 20, pa.int16())),
            ArrayColumn(np.array([1, 2, 200] * 20, np.uint8)),
            ArrayColumn(np.array([1.5, 2, -0.0] * 20, np.float32)),
            ConstantColumn("key", 60),
            ConstantColumn(-0.0, 60),
            ConstantColumn(b"key", 60),
            CodedColumn(np.array([0, 2, 1] * 20, np.uint32), NameTable(["a", "b", "c"])),
            CodedColumn(np.array([0, 2, 1] * 20, np.uint16), NameTable([1, True, "c"])),
            ListColumn(["a", 1, True] * 20),
        ],
        ids=repr,
    )
    @pytest.mark.parametrize(
        "selector", [operator.itemgetter("key"), lambda row: row["key"], lambda row: row["key"] if row else None]
    )
    def test_any_column_can_be_the_key(self, make: Make, column: Column, selector: Any) -> None:
        rig = make(KeyGroups(selector), 3)
        columns = Columns(60, (ArrayColumn(np.arange(60)), column), Shape.ROW, ("id", "key"))

        for _ in range(2):
            rig.writer.collect(Chunk.of_columns(columns))

        assert exact(rig.values()) == exact(by_channel(columns.to_list() * 2, 3, lambda row: row["key"]))

    @pytest.mark.parametrize(
        "kind", [pa.string(), pa.int64(), pa.timestamp("s", "UTC"), pa.date32(), pa.dictionary(pa.int8(), pa.string())]
    )
    def test_a_column_may_be_the_key_with_nulls_and_instants(self, make: Make, kind: Any) -> None:
        """A key column stays a column, and each row goes to the channel to which it would go alone."""
        numbers = [number % 7 if number % 5 else None for number in range(60)]
        is_text = pa.types.is_string(kind) or pa.types.is_dictionary(kind)
        keys = ArrowColumn(
            pa.array([str(number) if number is not None and is_text else number for number in numbers], kind)
        )
        columns = Columns(60, (ArrayColumn(np.arange(60)), keys), Shape.ROW, ("id", "key"))
        rig = make(KeyGroups(ColumnKey("key")), 3)

        rig.writer.collect(Chunk.of_columns(columns))

        chunks = [rig.chunks(channel) for channel in range(3)]
        assert all(chunk.columns is not None for each in chunks for chunk in each)
        found = [[value for chunk in each for value in chunk.values] for each in chunks]
        assert exact(found) == exact(by_channel(columns.to_list(), 3, ColumnKey("key").get_key))

    def test_records_beside_their_keys_need_not_be_asked_for_a_column(self, make: Make) -> None:
        """A pickled record has none; keys with a null among them are looked at one by one."""
        keys = [f"k{number % 7}" if number % 5 else None for number in range(60)]
        rows = [Row(id=[number], key=key) for number, key in enumerate(keys)]
        records = ListColumn([PickledRecord(dumps_record(row)) for row in rows])
        columns = Columns(60, (records, column_of(keys)), Shape.KEYED, key_position=1)
        rig = make(KeyGroups(ColumnKey("key")), 3)

        rig.writer.collect(Chunk.of_columns(columns))

        assert exact(rig.values()) == exact(by_channel(rows, 3, ColumnKey("key").get_key))

    def test_keys_that_begin_like_a_field_are_not_that_field(self, make: Make) -> None:
        selector = lambda record: record[0] if record[2] < 5 else record[1]  # noqa: E731
        records = [(f"a{number % 7}", f"b{number % 9}", number) for number in range(50)]
        rig = make(KeyGroups(selector), 3)

        rig.collect(*records)

        assert rig.values() == by_channel(records, 3, selector)

    @pytest.mark.parametrize("selector", [first, operator.itemgetter(1)])
    def test_a_field_of_a_text_is_a_character(self, make: Make, selector: Callable[[Any], Any]) -> None:
        records = [f"{number % 9}{number % 7}x" for number in range(50)]
        rig = make(KeyGroups(selector), 3)

        rig.collect(*records)

        assert rig.values() == by_channel(records, 3, selector)

    @pytest.mark.parametrize("selector", [identity, lambda record: record or record])
    @pytest.mark.parametrize("in_columns", [False, True])
    def test_the_key_may_be_the_record(self, make: Make, selector: Callable[[Any], Any], in_columns: bool) -> None:
        """The selector may be recognised or called; records may be numbers, texts and tuples."""
        rig = make(KeyGroups(selector), 3)
        chunks: list[list[Any]] = [
            [f"key {number % 9}" for number in range(50)],
            list(range(50)),
            [(f"a{number % 7}", number) for number in range(50)],
        ]

        for values in chunks:
            columns = columns_of(values)
            assert columns is not None
            rig.writer.collect(Chunk.of_columns(columns) if in_columns else Chunk(values))

        assert rig.values() == by_channel([value for values in chunks for value in values], 3)

    def test_codes_of_another_table_become_codes(self, make: Make) -> None:
        """The table grows meanwhile; a key that is not a text makes no code."""
        rig = make(KeyGroups(first), 3)
        table = NameTable()
        sent: list[Any] = []

        for number in range(40):
            table.names.append(f"key {number}" if number < 35 else (number,))
            column = CodedColumn(np.arange(number + 1, dtype=np.uint16), table)
            chunk = Chunk.of_columns(Columns(number + 1, (column, ConstantColumn("x", number + 1)), Shape.TUPLE))
            sent += chunk.values
            rig.writer.collect(chunk)

        assert rig.values() == by_channel(sent, 3, first)

    @pytest.mark.parametrize("is_coded", [False, True])
    def test_more_keys_in_a_chunk_than_codes(self, make: Make, is_coded: bool) -> None:
        rig = make(KeyGroups(first), 2)
        num_rows = 60_000
        assert num_rows > MAX_CHUNK_KEYS
        texts = [str(number) for number in range(num_rows)]
        before = [(f"other {number}", 1) for number in range(MAX_KEYS - 1)]
        rig.collect(*before)
        column = (
            CodedColumn(np.arange(num_rows, dtype=np.uint16), NameTable(texts)) if is_coded else ListColumn(texts, str)
        )

        for _ in range(2):
            rig.writer.collect(Chunk.of_columns(Columns(num_rows, (column, ConstantColumn(1, num_rows)), Shape.TUPLE)))

        assert rig.values() == by_channel([*before, *[(text, 1) for text in texts] * 2], 2, first)

    def test_long_texts_do_not_fill_the_dictionary(self, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        """Long texts travel as they are, and texts before them by the codes that they had."""
        monkeypatch.setattr(key_dictionary, "MAX_CHARACTERS", 5_000)
        rig = make(KeyGroups(first), 2)
        router = router_of(rig)
        chunks = [[(f"{number}" * length, number) for number in range(40)] for length in (1, 500, 1, 2, 400, 3)]
        constant = Chunk.of_columns(
            Columns(40, (ConstantColumn("long" * 2_000, 40), ConstantColumn(1, 40)), Shape.TUPLE)
        )

        for chunk in chunks:
            rig.collect(*chunk)
        rig.writer.collect(constant)

        assert router.dictionary.generation == 3
        assert rig.values() == by_channel([record for chunk in chunks for record in chunk] + constant.values, 2, first)

    def test_a_cut_element_brings_the_texts_that_each_part_needs(
        self, make: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(record_writer, "MAX_ELEMENT_BYTES", 600)
        rig = make(KeyGroups(first), 2)
        records = [(f"key {number % 60}" * 5, number) for number in range(400)]

        rig.collect(*records)
        rig.collect(*records)

        assert rig.values() == by_channel(records * 2, 2, first)

    def test_a_task_that_was_restarted_begins_its_dictionary_anew(self, make: Make) -> None:
        """A reader that stays would refuse codes whose texts it was not sent."""
        for _ in range(2):
            rig = make(KeyGroups(first), 2)
            records = [(f"key {number % 9}", number) for number in range(100)]

            rig.collect(*records)

            assert rig.values() == by_channel(records, 2, first)


class Ranges:
    """A user's partitioner as an object."""

    def partition(self, key: int, num_partitions: int) -> int:
        return min(key // 10, num_partitions - 1)


class TestCustom:
    @pytest.mark.parametrize("function", [Ranges(), Ranges().partition])
    def test_records_go_where_the_user_sends_their_keys(self, make: Make, function: Any) -> None:
        """The key may be of any type; the order within a channel is kept; timestamps go along."""
        rig = make(Custom(function, lambda record: record["at"]), 3)
        records = [{"at": at} for at in (5, 15, 99, 0, 25, 11)]

        rig.writer.collect(Chunk(list(records), [1, 2, 3, 4, 5, 6]))

        assert rig.elements(0) == [Chunk([{"at": 5}, {"at": 0}], [1, 4])]
        assert rig.elements(1) == [Chunk([{"at": 15}, {"at": 11}], [2, 6])]
        assert rig.elements(2) == [Chunk([{"at": 99}, {"at": 25}], [3, 5])]

    def test_the_function_is_told_how_many_subtasks_there_are(self, make: Make) -> None:
        rig = make(Custom(lambda key, num_partitions: num_partitions - key, len), 4)

        rig.collect("ab", "c")

        assert rig.values() == [[], [], ["ab"], ["c"]]

    @pytest.mark.parametrize(
        ("chosen", "message"),
        [(2, "returned 2; it must return a number from 0 to 1"), (-1, "returned -1"), ("0", "str"), (None, "NoneType")],
    )
    def test_a_subtask_that_does_not_exist_is_refused(self, make: Make, chosen: Any, message: str) -> None:
        """The error names the record; no record of the chunk was sent."""
        rig = make(Custom(lambda key, _: 0 if key == "good" else chosen, identity), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect("good", "bad", "good")

        assert (caught.value.operator, caught.value.subtask) == ("partition_custom", 5)
        assert caught.value.record_preview == "'bad'"
        assert message in str(caught.value.__cause__)
        assert rig.values() == [[], []]

    def test_integers_of_other_libraries_are_integers(self, make: Make) -> None:
        rig = make(Custom(lambda key, _: np.int64(key), identity), 2)

        rig.collect(1, 0)

        assert rig.values() == [[0], [1]]

    def test_a_failing_function_names_the_record(self, make: Make) -> None:
        rig = make(Custom(lambda key, _: 1 // key, identity), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect(1, 0, 2)

        assert caught.value.record_preview == "0"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
