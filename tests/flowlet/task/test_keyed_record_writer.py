"""Promises of the writers that ask the user's selector.

Source: Flink `KeyGroupStreamPartitionerTest`, `CustomPartitionerWrapper`, `RecordWriterTest`.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowlet.errors import KeyTypeError, UserFunctionError
from flowlet.graph.partitioner import Custom, KeyGroups
from flowlet.records import Chunk
from flowlet.task.keyed_record_writer import MAX_ROUTES, KeyGroupsRecordWriter
from tests.flowlet.task.local_network import LocalNetwork
from tests.flowlet.task.writer_rig import Make, Rig, by_channel, channel_of, identity


class TestKeyGroups:
    def test_records_go_where_flink_sends_them(self, make: Make) -> None:
        """The golden table: subtask of 4 at 128 key groups."""
        rig = make(KeyGroups(identity), 4)
        golden = {"": 2, "a": 2, "b": 0, "key": 2, "hello": 1, "world": 2, "flink": 3, "apache": 3, "user-42": 0, "水位线": 1, "😀": 1}

        rig.collect(*golden)

        assert {value: channel for channel, values in enumerate(rig.values()) for value in values} == golden

    def test_max_parallelism_is_the_consumers(self, make: Make) -> None:
        rig = make(KeyGroups(identity, max_parallelism=4096), 3)
        values = [f"k{number}" for number in range(100)]

        rig.collect(*values)

        expected: list[list[str]] = [[], [], []]
        for value in values:
            expected[channel_of(value, 3, 4096)].append(value)
        assert rig.values() == expected

    def test_records_of_a_key_keep_their_order(self, make: Make) -> None:
        """Over several chunks and flushes; the selector sees whole records."""
        rig = make(KeyGroups(lambda record: record[0]), 3)
        records = [(f"k{number % 7}", number) for number in range(1_000)]

        for start in range(0, 1_000, 90):
            rig.collect(*records[start : start + 90])
            if start % 180 == 0:
                rig.writer.flush_pending()

        assert rig.values() == by_channel(records, 3, lambda record: record[0])

    def test_keys_that_are_equal_but_not_the_same_have_their_own_channels(self, make: Make) -> None:
        """1, 1.0 and True; 0.0 and -0.0; also inside tuples, also one after the other through the same writer."""
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

    def test_a_key_without_a_stable_hash_is_refused(self, make: Make) -> None:
        """The error names the record, its cause the type."""
        rig = make(KeyGroups(lambda record: record["id"]), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect({"id": 1}, {"id": [2]}, {"id": [3]})

        assert caught.value.record_preview == "{'id': [2]}"
        assert isinstance(caught.value.__cause__, KeyTypeError)
        assert "list" in str(caught.value.__cause__)

    @pytest.mark.parametrize("selector", [lambda record: record[0], operator.itemgetter(0)])
    def test_the_first_field_is_the_first_field_of_anything(self, make: Make, selector: Callable[[Any], Any]) -> None:
        """Tuples, and whatever else has one."""
        rig = make(KeyGroups(selector), 3)
        records: list[Any] = [("a", 1), ("b", 2), ("key", 3)]

        rig.collect(*records)
        rig.collect(*records, ["a", 4], "hello")

        expected = by_channel([*records, *records, ["a", 4], "hello"], 3, lambda record: record[0])
        assert rig.values() == expected

    def test_a_record_without_a_first_field_is_named(self, make: Make) -> None:
        rig = make(KeyGroups(lambda record: record[0]), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect(("a",), (), ("b",))

        assert caught.value.record_preview == "()"
        assert isinstance(caught.value.__cause__, IndexError)

    def test_a_failing_key_selector_names_the_record(self, make: Make) -> None:
        """And keeps the user's exception as the cause."""
        rig = make(KeyGroups(lambda record: record["id"]), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect({"id": 1}, {"name": "x"}, {"id": 2})

        assert caught.value.operator == "key_by"
        assert caught.value.subtask == 5
        assert caught.value.record_preview == "{'name': 'x'}"
        assert isinstance(caught.value.__cause__, KeyError)

    def test_the_routes_are_bounded(self, make: Make) -> None:
        """More keys than the bound: everything still arrives, in order, and the dictionary stays small."""
        rig = make(KeyGroups(identity), 2)
        values = [f"k{number % (MAX_ROUTES + 500)}" for number in range(2 * MAX_ROUTES)]
        arrived: list[list[object]] = [[], []]

        for start in range(0, len(values), 2_000):
            rig.collect(*values[start : start + 2_000])
            for channel, part in enumerate(rig.values()):
                arrived[channel] += part

        assert isinstance(rig.writer, KeyGroupsRecordWriter)
        assert len(rig.writer._routes) <= MAX_ROUTES
        assert arrived == by_channel(values, 2)

    def test_one_channel_needs_no_keys(self, make: Make) -> None:
        """The selector is not even called."""
        rig = make(KeyGroups(lambda record: 1 // 0), 1)

        rig.collect(1, 2)

        assert rig.values() == [[1, 2]]

    def test_timestamps_travel_with_their_records(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)
        values = [f"k{number}" for number in range(50)]

        rig.writer.collect(Chunk(list(values), list(range(50))))

        for channel, expected in enumerate(by_channel(values, 2)):
            assert rig.elements(channel) == [Chunk(expected, [int(str(value)[1:]) for value in expected])]

    def test_timestamps_travel_with_records_of_any_key_type(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)
        values = [number / 2 for number in range(20)]

        rig.writer.collect(Chunk(list(values), list(range(20))))

        for channel, expected in enumerate(by_channel(values, 2)):
            assert rig.elements(channel) == [Chunk(expected, [int(value * 2) for value in expected])]

    @settings(max_examples=50)
    @given(
        chunks=st.lists(st.lists(st.one_of(st.text(max_size=3), st.integers(-3, 3), st.binary(max_size=2), st.booleans()), max_size=20)),
        num_channels=st.integers(1, 5),
    )
    def test_any_chunks_of_any_keys_arrive_as_one_record_at_a_time_would(self, chunks: list[list[Any]], num_channels: int) -> None:
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

    @pytest.mark.parametrize("kind", [int, str, float, lambda number: f"k{number}".encode(), lambda number: (number, "a")])
    def test_keys_that_never_come_back_go_where_they_went(self, make: Make, kind: Callable[[int], Any]) -> None:
        """Every chunk has new keys: most go past the dictionary, if their type has a way, and arrive as one by one."""
        rig = make(KeyGroups(identity), 3)
        writer = rig.writer
        assert isinstance(writer, KeyGroupsRecordWriter)
        keys = [key for number in range(12) for key in self.keys(number * 1_000, kind)]
        arrived: list[list[object]] = [[], [], []]

        for start in range(0, 12_000, 1_000):
            rig.collect(*keys[start : start + 1_000])
            for channel, part in enumerate(rig.values()):
                arrived[channel] += part

        assert arrived == by_channel(keys, 3)
        has_a_way = kind(0).__class__ is not tuple
        assert writer._routes.num_misses == (2_000 if has_a_way else 12_000)  # chunks 0 and 5; then a detour of 8

    def test_timestamps_travel_with_them(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)

        for start in (0, 1_000):
            keys = self.keys(start, str)
            rig.writer.collect(Chunk(list(keys), [int(key) for key in keys]))
            for channel, expected in enumerate(by_channel(keys, 2)):
                assert rig.elements(channel) == [Chunk(expected, [int(key) for key in expected])]

    def test_few_keys_stay_with_the_dictionary(self, make: Make) -> None:
        """Only the first chunk knows none of them; it is too small to be judged."""
        rig = make(KeyGroups(identity), 2)
        writer = rig.writer
        assert isinstance(writer, KeyGroupsRecordWriter)

        for _ in range(8):
            rig.collect(*self.keys(0, str)[:200])

        assert writer._routes.num_misses == 200

    def test_a_detour_ends_when_keys_come_back(self, make: Make) -> None:
        """The dictionary gets its next chance after 4 chunks, learns, and is kept."""
        rig = make(KeyGroups(identity), 2)
        writer = rig.writer
        assert isinstance(writer, KeyGroupsRecordWriter)

        for start in (0, *[5_000] * 30):
            rig.collect(*self.keys(start, str))

        assert writer._routes.num_misses == 2_000
        assert not writer._detour.is_taken()
        for start in range(20_000, 26_000, 1_000):
            rig.collect(*self.keys(start, str))
        assert writer._routes.num_misses == 4_000, "the next detour is as short as the first"

    def test_a_bad_key_on_the_detour_is_named(self, make: Make) -> None:
        rig = make(KeyGroups(identity), 2)
        rig.collect(*self.keys(0, str))

        with pytest.raises(UserFunctionError) as caught:
            rig.collect("a", None, "b")

        assert caught.value.record_preview == "None"


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

    @pytest.mark.parametrize(("chosen", "message"), [(2, "chose 2, but"), (-1, "chose -1"), ("0", "str"), (None, "NoneType")])
    def test_a_subtask_that_does_not_exist_is_refused(self, make: Make, chosen: Any, message: str) -> None:
        """By an error that names the record; nothing of the chunk was sent."""
        rig = make(Custom(lambda key, _: 0 if key == "good" else chosen, identity), 2)

        with pytest.raises(UserFunctionError) as caught:
            rig.collect("good", "bad", "good")

        assert (caught.value.operator, caught.value.subtask, caught.value.record_preview) == ("partition_custom", 5, "'bad'")
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
