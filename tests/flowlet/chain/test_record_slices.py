"""Records that wait in front of a chain are processed in order, in slices that fit the speed of the chain."""

from typing import Any

import pytest

from flowlet.chain.record_slices import Caution, RecordSlices
from flowlet.records import Chunk, StreamElement, Watermark


class Chain:
    """Takes ``ns_per_record`` for each record; stops behind the record ``last``, as if a mail had come."""

    def __init__(self, ns_per_record: int) -> None:
        self.ns_per_record = ns_per_record
        self.last: object = None
        self.now_ns = 0
        self._taken: list[tuple[int, StreamElement]] = []
        self.sizes: list[int] = []

    def process_some(self, channel: int, chunk: Chunk) -> int:
        values = chunk.values
        num_done = values.index(self.last) + 1 if self.last in values else len(values)
        self.now_ns += self.ns_per_record * num_done
        self.sizes.append(num_done)
        self._taken.append((channel, Chunk(values[:num_done])))
        return num_done

    def process_control(self, channel: int, element: StreamElement) -> None:
        self._taken.append((channel, element))

    @property
    def seen(self) -> list[tuple[int, StreamElement]]:
        """What came so far, record by record."""
        found: list[tuple[int, StreamElement]] = []
        for channel, element in self._taken:
            if isinstance(element, Chunk):
                found += [(channel, Chunk([value])) for value in element.values]
            else:
                found.append((channel, element))
        return found

    def slices(self, **options: Any) -> RecordSlices[int]:
        return RecordSlices[int](lambda: self.now_ns, **options)

    def take(self, slices: RecordSlices[int], num_records: int) -> list[int]:
        """Process so many records; return the sizes of the slices."""
        self.sizes = []
        slices.add(0, [Chunk(list(range(num_records)))])
        self.process(slices)
        return self.sizes

    def process(self, slices: RecordSlices[int], *, should_stop: bool = False) -> bool:
        return slices.process(self.process_some, self.process_control, lambda: should_stop)


def test_order_is_kept_over_channels_and_slices() -> None:
    chain = Chain(5_000_000)
    slices = chain.slices()
    slices.add(0, [Chunk(list(range(40))), Watermark(7)])
    slices.add(1, [Chunk([40])])

    assert chain.process(slices)

    assert chain.seen == [*[(0, Chunk([each])) for each in range(40)], (0, Watermark(7)), (1, Chunk([40]))]
    assert not slices.waiting


def test_a_slow_function_gets_few_records_at_a_time_and_a_quick_one_all() -> None:
    chain = Chain(5_000_000)
    slices = chain.slices()

    assert chain.take(slices, 9) == [1, 2, 2, 2, 2], "two records take 10 ms"
    chain.ns_per_record = 1
    assert chain.take(slices, 5000) == [2, 16, 128, 1024, 3830]


def test_what_is_left_when_a_mail_comes_waits() -> None:
    """The records that the loop of the chain had before it was left are not given again."""
    chain = Chain(1)
    slices = chain.slices()
    slices.add(2, [Chunk(list(range(20))), Watermark(1)])
    chain.last = 4

    assert not chain.process(slices, should_stop=True)
    assert not chain.process(slices, should_stop=True)

    assert list(slices.of_origin(2)) == [Chunk(list(range(5, 20))), Watermark(1)]
    assert list(slices.of_origin(1)) == []
    assert chain.process(slices)
    assert chain.seen == [*[(2, Chunk([each])) for each in range(20)], (2, Watermark(1))]
    slices.add(2, [Watermark(2)])
    slices.waiting.clear()
    assert not slices.waiting
    assert repr(slices) == "<RecordSlices of 512 records, 0 elements waiting>"


def test_a_function_of_batches_gets_chunks_as_they_came() -> None:
    chain = Chain(1_000_000_000)
    slices = chain.slices(cuts=False)
    slices.add(0, [Chunk(list(range(100))), Chunk(list(range(50)))])

    chain.process(slices)

    assert chain.sizes == [100, 50]


def test_a_single_record_needs_no_place_and_the_next_slice_is_short() -> None:
    """The time of a single record is not measured; the slice behind it is short, as the function may be slow now."""
    chain = Chain(1)
    slices = chain.slices()
    chain.take(slices, 5000)

    assert slices.is_needless_for(Chunk([1]))
    assert chain.take(slices, 1000) == [64, 512, 424]


def test_what_is_no_single_record_or_has_something_in_front_of_it_needs_a_place() -> None:
    slices = RecordSlices[int](lambda: 0)

    assert not slices.is_needless_for(Chunk([1, 2]))
    assert not slices.is_needless_for(Chunk([]))
    assert not slices.is_needless_for(Watermark(1))
    slices.add(0, [Watermark(1)])
    assert not slices.is_needless_for(Chunk([1]))


def test_single_records_do_not_cut_the_chunks_of_a_function_of_batches() -> None:
    chain = Chain(5_000_000)
    slices = chain.slices(cuts=False)

    assert slices.is_needless_for(Chunk([1]))
    assert chain.take(slices, 500) == [500]


def test_a_function_that_was_slow_gets_at_most_a_hundred_records_until_it_was_quick_for_long() -> None:
    """A function that turns slow costs one whole slice, and may do so again only after 100,000 quick records."""
    chain = Chain(1)
    slices = chain.slices()

    assert max(chain.take(slices, 10_000)) > 1_000
    chain.ns_per_record = 1_000_000
    assert chain.take(slices, 2_000) == [2_000]
    chain.ns_per_record = 1
    assert max(chain.take(slices, 1_000)) == 100
    chain.take(slices, 98_900)
    assert max(chain.take(slices, 10_000)) > 1_000, "it counts as quick again"


def test_a_task_that_waited_for_room_in_the_middle_of_a_write_takes_fewer_records_at_once() -> None:
    """The task does so until 100,000 records have found room; before the first wait it does not know that its records
    are large.
    """
    caution = Caution.at_start()
    sizes = []

    for _ in range(4):
        caution.begin(is_too_much=True)
        caution.look_at_room(1_000, 1_000, 0)
        sizes.append(caution.max_records)
    caution.begin()
    caution.look_at_room(-3, -5, 0)
    without_room = caution.max_records
    caution.records_were_processed(99_999, 1, 1)
    still = caution.num_left
    caution.records_were_processed(100, 1, 1)

    assert sizes == [12, 1, 1, 1]
    assert without_room == 1
    assert still == 1
    assert (caution.num_left, caution.max_records) == (0, 100)
    assert repr(caution) == "<Caution for 0 records, 100 at once>"


@pytest.mark.parametrize(
    ("spare", "filled", "sizes"),
    [
        pytest.param([70] * 5, [0, 0, 1, 2, 4], [100, 200, 400, 800, 1_600], id="room for twice as much"),
        pytest.param([70, 70, 70, 6, 6], [0, 1, 2, 4, 4], [100, 200, 400, 400, 400], id="room for as much once more"),
        pytest.param([70, 70, 70, 4, 40], [0, 1, 2, 4, 0], [100, 200, 400, 100, 200], id="less room than it took"),
        pytest.param(
            [70, 70, 0, -3, 70], [0, 0, 1, 0, 0], [100, 200, 12, 9, 200], id="no room for a buffer of each channel"
        ),
        pytest.param([20, 20, 20, 20, 20], [0, 33, 33, 33, 33], [100, 100, 100, 100, 100], id="large records"),
    ],
)
def test_a_task_that_begins_doubles_what_it_makes_at_once_while_there_is_room_for_that(
    spare: list[int], filled: list[int], sizes: list[int]
) -> None:
    caution = Caution.at_start()
    num_buffers_out, found = 0, []

    for num_spare, num_filled in zip(spare, filled, strict=True):
        num_buffers_out += num_filled
        caution.look_at_room(12 + min(num_spare, 0), num_spare, num_buffers_out)
        found.append(caution.max_records)

    assert found == sizes


def test_a_task_that_was_held_up_doubles_nothing_more() -> None:
    caution = Caution.at_start()
    for _ in range(4):
        caution.look_at_room(70, 70, 0)
    before = caution.max_records

    caution.begin()
    found = []
    for _ in range(3):
        caution.look_at_room(70, 70, 0)
        found.append(caution.max_records)

    assert before == 800
    assert found == [100, 100, 100]


def test_a_task_whose_consumers_were_slow_follows_the_room_that_they_leave() -> None:
    caution = Caution()

    caution.begin(grows=True)
    found = []
    for num_spare in (0, 0, 20, 20, 20):
        caution.look_at_room(8, num_spare, 0)
        found.append(caution.max_records)

    assert found == [8, 8, 200, 400, 800]


@pytest.mark.parametrize(
    ("contention", "sizes", "is_cautious"),
    [
        pytest.param(1, [100, 64, 64], False, id="alone"),
        pytest.param(8, [100, 64, 64], False, id="among eight threads"),
        pytest.param(10, [100, 6, 6], False, id="among ten"),
        pytest.param(20, [100, 3, 3], True, id="it waits"),
    ],
)
def test_a_function_that_computes_is_not_slow_because_others_have_the_core(
    contention: int, sizes: list[int], *, is_cautious: bool
) -> None:
    """Each record takes 156 us of the core."""
    chain, caution = Chain(156_250), Caution()
    slices = RecordSlices[int](lambda: chain.now_ns * contention, cpu_ns=lambda: chain.now_ns, caution=caution)
    slices._num_records = 100

    assert chain.take(slices, sum(sizes)) == sizes
    assert (caution.num_left > 0) is is_cautious


def test_one_long_wait_is_forgotten_soon_and_a_second_one_is_not() -> None:
    """A busy machine makes a thread stand for long now and then; a function that waits does so again."""
    caution = Caution()

    caution.records_were_processed(1_000, 200_000_000, 1_000_000)
    after_one = caution.num_left
    caution.records_were_processed(100, 200_000_000, 1_000_000)
    after_two = caution.num_left
    computing = Caution()
    computing.records_were_processed(1_000, 200_000_000, 200_000_000)

    assert after_one == 10_000
    assert after_two == computing.num_left == 100_000


def test_a_short_slice_that_lost_the_core_once_says_nothing() -> None:
    """A slice that took 2 ms of CPU and 20 ms of wall time, because the thread lost the core, does not shorten the next
    one.
    """
    chain, pauses = Chain(20_000), [0, 0, 0, 0, 18_000_000, 0, 0]
    waited_ns = 0

    def now_ns() -> int:
        return chain.now_ns + waited_ns

    slices = RecordSlices[int](now_ns, cpu_ns=lambda: chain.now_ns)
    slices._num_records = 500
    for pause_ns in pauses:
        slices.add(0, [Chunk(list(range(100)))])

        def process_some(channel: int, chunk: Chunk, pause_ns: int = pause_ns) -> int:
            nonlocal waited_ns
            waited_ns += pause_ns
            return chain.process_some(channel, chunk)

        slices.process(process_some, chain.process_control, lambda: False)

    assert chain.sizes == [100] * len(pauses)


def test_a_task_that_begins_processes_twenty_thousand_records_in_few_actions() -> None:
    caution = Caution.at_start()
    chain = Chain(1)
    slices = chain.slices(caution=caution)
    slices.add(0, [Chunk(list(range(20_000)))])
    num_actions = 0

    while slices.waiting:
        caution.look_at_room(70, 70, 0)
        slices.process(chain.process_some, chain.process_control, lambda: caution.num_left > 0 >= caution.num_left_now)
        num_actions += 1

    assert num_actions == 8


def test_a_task_leaves_its_default_action_after_a_slice_of_more_than_a_second() -> None:
    """Other threads may have the interpreter's lock then."""
    chain = Chain(2_000_000_000)
    slices = chain.slices()
    slices.add(0, [Chunk([1, 2, 3])])

    left = [chain.process(slices) for _ in range(3)]

    assert left == [False, False, True]
    assert chain.sizes == [1, 1, 1]
