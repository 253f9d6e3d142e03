"""``BufferBuilder`` and ``BufferConsumer``: the reader sees exactly the committed bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netstack.buffer.buffer_builder import BufferBuilder, BufferConsumer
from netstack.buffer.network_buffer import MemorySegment, NetworkBuffer
from netstack.errors import BufferOwnershipError, LocalProtocolError
from netstack.wire.messages import DataType
from tests.netstack.buffer.pools import Home

SIZE = 16


def make_builder(size: int = SIZE) -> tuple[BufferBuilder, Home]:
    recycler = Home()
    return BufferBuilder(MemorySegment(memoryview(bytearray(size))), recycler), recycler


def read(consumer: BufferConsumer) -> bytes:
    buffer = consumer.build()
    content = bytes(buffer.view)
    buffer.recycle()
    return content


def test_a_consumer_made_late_sees_what_was_committed_before() -> None:
    """The first bytes are not lost."""
    builder, _ = make_builder()
    builder.append_and_commit(b"early")

    consumer = builder.create_buffer_consumer()

    assert (consumer.is_data_available, read(consumer)) == (True, b"early")


@pytest.mark.parametrize("as_view", [False, True])
def test_what_does_not_fit_is_left_to_the_caller(as_view: bool) -> None:
    """Append over size: it returns how much it took; the full builder takes nothing more."""
    builder, _ = make_builder(4)
    consumer = builder.create_buffer_consumer()
    data = b"abcdef"

    first = builder.append_and_commit(memoryview(data) if as_view else data)
    second = builder.append_and_commit(b"x")

    assert (first, second, builder.is_full, read(consumer)) == (4, 0, True, b"abcd")


def test_an_exact_fit_fills_the_buffer() -> None:
    """BufferBuilderAndConsumerTest writable bytes: one byte less does not."""
    builder, _ = make_builder(4)

    builder.append_and_commit(b"abc")
    almost = builder.is_full
    builder.append_and_commit(b"d")

    assert (almost, builder.is_full, builder.capacity_bytes) == (False, True, 4)


def test_a_second_consumer_is_refused() -> None:
    """Creating a second consumer: two readers would see each other's half; copies are made from the first."""
    builder, recycler = make_builder()
    consumer = builder.create_buffer_consumer()

    with pytest.raises(LocalProtocolError, match="one consumer"):
        builder.create_buffer_consumer()

    consumer.close()
    builder.close()
    assert recycler.count == 1


@pytest.mark.parametrize("content", [b"", b"abc", b"x" * SIZE])
def test_finished_is_seen_at_the_next_build(content: bytes) -> None:
    """Is finished, empty, partially full, full: not before, because the reader answers from its last look."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(content)

    written = [builder.finish(), builder.finish()]
    before = consumer.is_finished

    assert (written, before, builder.is_finished) == ([len(content)] * 2, False, True)
    assert (read(consumer), consumer.is_finished, consumer.is_data_available) == (content, True, False)


def test_take_makes_no_empty_buffer() -> None:
    """None when no new bytes are there; the finish is seen nevertheless."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"ab")

    first = consumer.take()
    second = consumer.take()
    builder.finish()
    third = consumer.take()

    assert first is not None
    assert (bytes(first.view), second, third, consumer.is_finished) == (b"ab", None, None, True)
    first.recycle()


def test_skip_moves_the_reader() -> None:
    """Skipped bytes are not built, and no more than the committed ones can be skipped."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abcdef")

    consumer.skip(2)
    with pytest.raises(ValueError, match="cannot skip 5 bytes, 4 can be read"):
        consumer.skip(5)

    assert read(consumer) == b"cdef"


@pytest.mark.parametrize(
    "order",
    ["builder consumer buffer", "consumer buffer builder", "buffer builder consumer", "consumer builder buffer"],
)
def test_the_segment_goes_home_after_its_last_holder(order: str) -> None:
    """Reference counting, recycle orders: builder, consumer and built buffer; each may close twice."""
    builder, recycler = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    buffer = consumer.build()
    counts = []

    for holder in order.split():
        match holder:
            case "builder":
                builder.close()
                builder.close()
            case "consumer":
                consumer.close()
                consumer.close()
            case _:
                buffer.recycle()
        counts.append(recycler.count)

    assert counts == [0, 0, 1]


def test_closing_an_unfinished_builder_finishes_it() -> None:
    """The reader does not wait for bytes that never come."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"ab")

    builder.close()

    assert (read(consumer), consumer.is_finished) == (b"ab", True)


@given(chunks=st.lists(st.binary(max_size=9), max_size=12), reads=st.sets(st.integers(0, 11)))
def test_every_committed_byte_is_read_once_and_in_order(chunks: list[bytes], reads: set[int]) -> None:
    """Building a buffer multiple times: however writes and reads interleave, the pieces join."""
    builder, recycler = make_builder(40)
    consumer = builder.create_buffer_consumer()
    pieces, taken = [], 0

    for number, chunk in enumerate(chunks):
        taken += builder.append_and_commit(chunk)
        if number in reads:
            pieces.append(read(consumer))
    builder.finish()
    pieces.append(read(consumer))
    consumer.close()
    builder.close()

    assert b"".join(pieces) == b"".join(chunks)[:taken]
    assert taken == min(40, sum(map(len, chunks)))
    assert recycler.count == 1


def test_copies_read_the_same_bytes_each_from_its_own_position() -> None:
    """Copy: copies that are made early, late and in between all see the bytes that are written afterwards."""
    builder, recycler = make_builder()
    first = builder.create_buffer_consumer()
    builder.append_and_commit(b"01")
    second = first.copy()
    builder.append_and_commit(b"2")
    pieces = [read(first), read(second)]
    third = first.copy()
    builder.append_and_commit(b"34")
    fourth = first.copy()

    pieces += [read(consumer) for consumer in (first, second, third, fourth)]

    assert pieces == [b"012", b"012", b"34", b"34", b"34", b"34"]
    builder.close()
    for consumer in (first, second, third):
        consumer.close()
    assert recycler.count == 0
    fourth.close()
    assert recycler.count == 1


def test_a_copy_of_what_is_gone_is_refused() -> None:
    """A consumer cannot be copied after the last holder of its segment has let go."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.close()
    consumer.close()

    with pytest.raises(BufferOwnershipError, match="retained after its release"):
        consumer.copy()


def test_one_event_serves_many_subpartitions() -> None:
    """A broadcast event has one payload and a consumer for each subpartition, which reads it once."""
    event = BufferConsumer.of_event(b"\0\0\0\1", DataType.EVENT_BUFFER)
    copies = [event, *(event.copy() for _ in range(2))]

    assert [read(each) for each in copies] == [b"\0\0\0\1"] * 3
    assert [(each.is_finished, each.is_buffer, each.is_data_available) for each in copies] == [(True, False, False)] * 3
    for each in copies:
        each.close()


def test_a_consumer_of_a_complete_buffer() -> None:
    """The consumer takes over the reference to the buffer; offset, type and compression stay as they are."""
    recycler = Home()
    segment = MemorySegment(memoryview(bytearray(b"0123456789")))
    buffer = NetworkBuffer(segment, recycler, 4, DataType.DATA_BUFFER, is_compressed=True, offset=3)

    consumer = BufferConsumer.of_buffer(buffer)
    copy = consumer.copy()
    built = consumer.build()

    assert (bytes(built.view), built.is_compressed, consumer.is_finished) == (b"3456", True, True)
    assert (consumer.num_bytes_unread, copy.num_bytes_unread, copy.is_compressed) == (0, 4, True)
    built.recycle()
    copy.close()
    assert recycler.count == 0
    consumer.close()
    assert recycler.count == 1


def test_the_start_of_a_data_buffer_is_known() -> None:
    """The start of a data buffer, where partial records may be skipped, is known."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    before = consumer.is_start_of_data_buffer
    consumer.skip(1)

    event = BufferConsumer.of_event(b"\0\0\0\1", DataType.EVENT_BUFFER)
    assert (before, consumer.is_start_of_data_buffer, event.is_start_of_data_buffer) == (True, False, False)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(SIZE // 2, SIZE // 2, id="to what is available"),
        pytest.param(-1, 3, id="negative"),
        pytest.param(2, 3, id="less than written"),
        pytest.param(3, 3, id="to what is written"),
        pytest.param(SIZE + 1, SIZE, id="larger than the maximum"),
    ],
)
def test_trim(size: int, expected: int) -> None:
    """BufferBuilderAndConsumerTest trim to available, negative, less than written (keeps written), larger than max."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")

    builder.trim(size)
    taken = builder.append_and_commit(b"x" * SIZE)

    assert (builder.capacity_bytes, taken, builder.is_full) == (expected, expected - 3, True)
    assert (read(consumer), builder.finish()) == (b"abc" + b"x" * (expected - 3), expected)


def test_a_trimmed_builder_can_get_its_room_back() -> None:
    """When the pool is empty, but never beyond its segment, whose size the consumer knows."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()

    builder.trim(4)
    builder.append_and_commit(b"abcdef")
    was_full = builder.is_full
    builder.trim(6)
    builder.append_and_commit(b"ef")
    builder.trim(2 * SIZE)

    assert (was_full, read(consumer), builder.capacity_bytes, consumer.segment_size_bytes) == (
        True,
        b"abcdef",
        SIZE,
        SIZE,
    )


def test_take_hands_the_reference_on_when_the_writer_has_finished() -> None:
    """Open: one reference more. Finished: the rest, and nothing is left to close."""
    builder, recycler = make_builder()
    consumer = builder.create_buffer_consumer()
    nothing = consumer.take()
    builder.append_and_commit(b"ab")
    first = consumer.take()
    builder.append_and_commit(b"cd")
    builder.close()
    rest = consumer.take()
    consumer.close()

    assert first is not None
    assert rest is not None
    assert (nothing, bytes(first.view), bytes(rest.view), consumer.is_finished, consumer.take()) == (
        None,
        b"ab",
        b"cd",
        True,
        None,
    )
    rest.recycle()
    assert recycler.count == 0
    first.recycle()
    assert recycler.count == 1


def test_a_repr_is_one_line_in_every_state() -> None:
    """The repr tells apart whether builder and consumer are open, finished or closed, in one line."""
    builder, _ = make_builder()
    consumer = builder.create_buffer_consumer()
    builder.append_and_commit(b"abc")
    texts = [(repr(builder), repr(consumer))]
    builder.finish()
    read(consumer)
    texts.append((repr(builder), repr(consumer)))
    builder.close()
    consumer.close()
    texts.append((repr(builder), repr(consumer)))

    assert len(set(texts)) == 3
    assert not any("\n" in text for pair in texts for text in pair)
