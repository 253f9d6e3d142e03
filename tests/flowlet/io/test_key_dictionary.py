import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlet.columns import CodedColumn, Columns, NameTable, Shape
from flowlet.io.key_dictionary import MAX_CHUNK_KEYS, MAX_KEYS, ChannelCodes, DictionaryBypass, KeyDictionary
from flowlet.keys.key_columns import ChannelTable
from flowlet.serde.column_reader import MAX_TEXTS, ChannelDictionary, decode_records
from flowlet.serde.column_writer import table_parts
from tests.flowlet.serde.exact import TEXTS
from tests.flowlet.task.writer_rig import channel_of

NUM_CHANNELS = 3


def make() -> KeyDictionary:
    return KeyDictionary(ChannelTable(128, NUM_CHANNELS), NUM_CHANNELS)


class Reader:
    """The other end of one channel."""

    def __init__(self, dictionary: KeyDictionary, channel: int) -> None:
        self.dictionary = dictionary
        self.codes = ChannelCodes(dictionary, channel)
        self.received = ChannelDictionary()

    def send(self, codes: "np.ndarray[tuple[int], np.dtype[np.uint16]]", *, is_lost: bool = False) -> list[str]:
        data = self.codes.try_encode(CodedColumn(codes, self.dictionary.table))
        assert data is not None
        if is_lost:
            return []
        self.codes.commit()
        records, end = decode_records(memoryview(data), 0, len(codes), self.received)
        assert end == len(data)
        assert isinstance(records, Columns)
        return records.to_list()


@given(
    st.lists(st.lists(TEXTS, min_size=1, max_size=8), max_size=8),
    st.sets(st.integers(0, 7)),
    st.sets(st.integers(0, 7)),
)
def test_keys_come_out_at_their_channels(chunks: list[list[str]], restarts: set[int], lost: set[int]) -> None:
    """Keys come out over restarts, and if encoded records are encoded again in parts."""
    dictionary = make()
    readers = [Reader(dictionary, channel) for channel in range(NUM_CHANNELS)]

    for number, keys in enumerate(chunks):
        if number in restarts:
            dictionary.restart()
        codes = dictionary.encode(keys)
        lanes = dictionary.channel_of.take(codes)
        assert lanes.tolist() == [channel_of(key, NUM_CHANNELS) for key in keys]
        for channel, reader in enumerate(readers):
            mine = codes[lanes == channel]
            if len(mine):
                if number in lost:
                    reader.send(mine, is_lost=True)
                half = len(mine) // 2
                parts = [part for part in (mine[:half], mine[half:]) if len(part)]
                assert [key for part in parts for key in reader.send(part)] == [
                    keys[index] for index in np.flatnonzero(lanes == channel)
                ]


def test_codes_of_another_table_are_looked_up_once() -> None:
    dictionary, table = make(), NameTable(["a", "b"])

    first = dictionary.try_recode(CodedColumn(np.array([1, 1], np.uint16), table))
    table.names.append("c")
    second = dictionary.try_recode(CodedColumn(np.array([2, 0, 1], np.uint16), table))

    assert first is not None
    assert second is not None
    assert [dictionary.table.names[code] for code in first] == ["b", "b"]
    assert [dictionary.table.names[code] for code in second] == ["c", "a", "b"]
    assert len(dictionary) == 3


def test_codes_of_anything_but_texts_have_none() -> None:
    assert make().try_recode(CodedColumn(np.array([0, 1], np.uint16), NameTable(["a", 1]))) is None


def test_no_codes_are_nothing_to_look_up() -> None:
    recoded = make().try_recode(CodedColumn(np.array([], np.uint16), NameTable(["a"])))

    assert recoded is not None
    assert len(recoded) == 0


def test_columns_of_other_tables_are_not_encoded() -> None:
    dictionary = make()
    codes = ChannelCodes(dictionary, 0)

    assert codes.try_encode(CodedColumn(np.array([0], np.uint16), NameTable(["a"]))) is None
    assert codes.try_encode(CodedColumn(np.array([], np.uint16), dictionary.table)) is None


def test_codes_of_other_tables_in_another_field_leave_what_was_sent_as_it_is() -> None:
    """Some chunks have such a field, others not."""
    dictionary = make()
    received = ChannelDictionary()
    other = CodedColumn(np.zeros(1, np.uint16), NameTable(["other"]))
    channel = channel_of("a", NUM_CHANNELS)
    keys = [key for key in map(str, range(64)) if channel_of(key, NUM_CHANNELS) == channel][:3]
    codes = ChannelCodes(dictionary, channel)

    for key, has_other in zip([*keys, keys[0]], [False, True, True, False], strict=True):
        keyed = CodedColumn(dictionary.encode([key]), dictionary.table)
        table = Columns(1, (keyed, other) if has_other else (keyed,), Shape.TUPLE)
        data = b"".join(table_parts(table, codes))
        codes.commit()
        records, _ = decode_records(memoryview(data), 0, 1, received)
        assert isinstance(records, Columns)
        assert records.to_list() == table.to_list()

    assert len(dictionary.texts_of_channel[channel]) == len(keys)
    assert repr(codes) == f"<ChannelCodes of channel {channel}, generation 0: {len(keys)} texts sent>"


def test_all_keys_of_a_full_dictionary_and_a_chunk_have_codes_of_16_bits() -> None:
    """The receiver can tell them apart."""
    dictionary = make()

    dictionary.encode([str(number) for number in range(MAX_KEYS - 1)])
    assert not dictionary.is_full
    codes = dictionary.encode([f"x{number}" for number in range(MAX_CHUNK_KEYS)])

    assert dictionary.is_full
    assert int(codes[-1]) == len(dictionary) - 1
    assert len(dictionary) < MAX_TEXTS


def test_a_restart_begins_the_next_generation() -> None:
    dictionary = make()
    dictionary.encode(["a"])
    table = dictionary.table

    dictionary.restart()

    assert (dictionary.generation, len(dictionary), dictionary.is_full) == (1, 0, False)
    assert dictionary.table is not table
    assert table.names == ["a"]


@pytest.mark.parametrize(("length", "is_too_large"), [(2 << 20, False), ((2 << 20) + 1, True)])
def test_long_texts_are_too_large(length: int, is_too_large: bool) -> None:
    dictionary = make()

    dictionary.encode(["a" * length, "b" * length])

    assert dictionary.is_too_large is is_too_large


def test_it_can_be_told_apart() -> None:
    dictionary = make()
    dictionary.encode(["a"])

    assert repr(dictionary) == "<KeyDictionary, generation 0: 1 keys>"
    assert repr(ChannelCodes(dictionary, 2)) == "<ChannelCodes of channel 2, generation -1: 0 texts sent>"


# ---------------------------------------------------------------- chunks that go past the dictionary


def bypass_length(bypass: DictionaryBypass, limit: int = 1_000) -> int:
    """How many chunks went past the dictionary."""
    count = 0
    while bypass.is_taken():
        count += 1
        assert count < limit
    return count


def test_bypasses_get_longer_up_to_a_bound() -> None:
    """Few keys say nothing."""
    bypass, lengths = DictionaryBypass(), []
    bypass.judge(255, 255, is_full=True)
    assert not bypass.is_taken()

    for _ in range(9):
        bypass.judge(1_000, 1_000, is_full=True)
        lengths.append(bypass_length(bypass))

    assert lengths == [4, 8, 16, 32, 64, 128, 256, 256, 256]


def test_a_good_chunk_makes_the_next_bypass_short_again() -> None:
    bypass = DictionaryBypass()
    for _ in range(3):
        bypass.judge(1_000, 1_000, is_full=True)

    bypass.judge(1_600, 100, is_full=True)
    bypass.judge(1_600, 101, is_full=True)

    assert bypass_length(bypass) == 4, "as long as the first one"


def test_it_waits_until_the_dictionary_is_full() -> None:
    """Every chunk is judged then, until one does well."""
    bypass = DictionaryBypass()
    bypass.judge(1_000, 1_000, is_full=False)
    assert not bypass.is_taken()

    bypass.judge(1_000, 1_000, is_full=True)
    assert bypass_length(bypass) == 4
    bypass.judge(1_000, 1_000, is_full=False)
    assert bypass_length(bypass) == 8
    bypass.judge(1_000, 0, is_full=True)
    bypass.judge(1_000, 1_000, is_full=False)

    assert not bypass.is_taken()
