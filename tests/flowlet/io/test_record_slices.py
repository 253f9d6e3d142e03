"""What waits is processed in order, and in pieces that fit the speed of the chain."""

from flowlet.io.record_slices import RecordSlices
from flowlet.records import Chunk, StreamElement, Watermark


class Chain:
    """Takes ``ns_per_record`` for each record."""

    def __init__(self, ns_per_record: int) -> None:
        self.ns_per_record = ns_per_record
        self.now_ns = 0
        self.seen: list[tuple[int, StreamElement]] = []
        self.sizes: list[int] = []

    def process(self, channel: int, element: StreamElement) -> None:
        if isinstance(element, Chunk):
            self.now_ns += self.ns_per_record * len(element)
            self.sizes.append(len(element))
            self.seen += [(channel, Chunk([value])) for value in element.values]
        else:
            self.seen.append((channel, element))


def never() -> bool:
    return False


def test_order_is_kept_over_channels_and_slices() -> None:
    chain = Chain(5_000_000)
    slices = RecordSlices(lambda: chain.now_ns)
    slices.add(0, [Chunk(list(range(40))), Watermark(7)])
    slices.add(1, [Chunk([40])])

    assert slices.process(chain.process, never)

    assert chain.seen == [*[(0, Chunk([each])) for each in range(40)], (0, Watermark(7)), (1, Chunk([40]))]
    assert not slices


def test_a_slow_function_gets_few_records_at_a_time_and_a_quick_one_all() -> None:
    chain = Chain(5_000_000)
    slices = RecordSlices(lambda: chain.now_ns)

    slices.add(0, [Chunk(list(range(30)))])
    slices.process(chain.process, never)
    slow = chain.sizes
    chain.ns_per_record, chain.sizes = 1, []
    slices.add(0, [Chunk(list(range(5000)))])
    slices.process(chain.process, never)

    assert slow == [16, 2, 2, 2, 2, 2, 2, 2], "two records take 10 ms"
    assert chain.sizes == [2, 16, 128, 1024, 3830]


def test_what_is_left_when_a_mail_comes_waits() -> None:
    chain = Chain(10_000_000)
    slices = RecordSlices(lambda: chain.now_ns)
    slices.add(2, [Chunk(list(range(20))), Watermark(1)])

    assert not slices.process(chain.process, lambda: True)

    assert list(slices.of_channel(2)) == [Chunk([16, 17, 18, 19]), Watermark(1)]
    assert list(slices.of_channel(1)) == []
    slices.clear()
    assert not slices
    assert repr(slices) == "<RecordSlices of 1 records, 0 elements waiting>"
