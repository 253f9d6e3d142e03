"""NEXMark's queries 5, 7, 11, 12, 15, 16 and 17: bids in windows.

Side:    any; functions run inside the TaskManagers.
PyFlink: the very same file runs there, as ``bench/jobs/nexmark_streams.py`` does.
Rules:   windows as in the SQL: 10 s that slide by 2 s, 10 s, sessions with a gap of 10 s, days.  No query depends on
         the order in which events of several subtasks meet.  Query 12 counts by the clock, so only its sums are
         compared.
Output:  as there.
"""

import operator
from collections.abc import Iterable
from typing import Any, Final

from bench.jobs.nexmark_auctions import ANY, AT_THE_END, timed
from bench.jobs.nexmark_events import Bid
from bench.jobs.nexmark_streams import PAIR, Pairs, bids_of
from flowlet.common import Types
from flowlet.common.time import Time
from flowlet.datastream import (
    AggregateFunction,
    DataStream,
    KeyedProcessFunction,
    ProcessWindowFunction,
    RuntimeContext,
    WindowFunction,
)
from flowlet.datastream.functions import AllWindowFunction
from flowlet.datastream.state import ValueStateDescriptor
from flowlet.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)

WINDOW_MS: Final = 10_000
SLIDE_MS: Final = 2_000
GAP_MS: Final = 10_000
DAY_MS: Final = 86_400_000
CLOCK_MS: Final = 100  # windows of the clock: a run takes less than the SQL's ten seconds
TRIPLE: Final = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])
LOW, HIGH = 10_000, 1_000_000  # ranks of prices


def auction_of(bid: Bid) -> int:
    """Return the auction of a bid: the key of many queries."""
    return bid.auction


def bidder_of(bid: Bid) -> int:
    """Return the bidder of a bid: the key of other queries."""
    return bid.bidder


class Count(AggregateFunction):
    """Counts bids."""

    def create_accumulator(self) -> int:
        """Begin with 0."""
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        """Count one more bid."""
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        """Return the count."""
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        """Add two counts."""
        return acc_a + acc_b


# ---------------------------------------------------------------- 5: hot items


class WithKeyAndEnd(ProcessWindowFunction[int, tuple[int, int, int], int, TimeWindow]):
    """The end of the window, the key and the count."""

    def process(
        self, key: int, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[int]
    ) -> Iterable[tuple[int, int, int]]:
        """Emit one count."""
        (count,) = elements
        yield context.window().end, key, count


class Hottest(WindowFunction[tuple[int, int, int], tuple[str, int], int, TimeWindow]):
    """The auctions with the most bids of all in a window."""

    def apply(self, key: int, window: TimeWindow, inputs: Iterable[tuple[int, int, int]]) -> Pairs:
        """Yield the auctions with the most bids in one window."""
        counts = list(inputs)
        most = max(count for _, _, count in counts)
        for end, auction, count in counts:
            if count == most:
                yield f"{auction} {end}", count


def q5(events: DataStream) -> DataStream:
    """Query 5: the auctions with the most bids in the last ten seconds, every two seconds."""
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(WINDOW_MS), Time.milliseconds(SLIDE_MS))
    by_auction = timed(bids_of(events)).key_by(auction_of, Types.LONG())
    counts = by_auction.window(sliding).aggregate(Count(), WithKeyAndEnd(), Types.LONG(), TRIPLE)
    by_end = counts.key_by(operator.itemgetter(0), Types.LONG())
    return by_end.window(TumblingEventTimeWindows.of(Time.milliseconds(SLIDE_MS))).apply(Hottest(), PAIR)


# ---------------------------------------------------------------- 7: highest bid


class Highest(AggregateFunction):
    """The bids with the highest price of all."""

    def create_accumulator(self) -> list[Bid]:
        """Begin without bids."""
        return []

    def add(self, value: Bid, accumulator: list[Bid]) -> list[Bid]:
        """Take one more bid."""
        return self.merge(accumulator, [value])

    def get_result(self, accumulator: list[Bid]) -> list[Bid]:
        """Return all highest bids."""
        return accumulator

    def merge(self, acc_a: list[Bid], acc_b: list[Bid]) -> list[Bid]:
        """Return the higher ones."""
        if not acc_a or not acc_b or acc_a[0].price == acc_b[0].price:
            return acc_a + acc_b
        return acc_a if acc_a[0].price > acc_b[0].price else acc_b


class HighestWithEnd(AllWindowFunction[list[Bid], tuple[str, int], TimeWindow]):
    """Auction, bidder and end of the window."""

    def apply(self, window: TimeWindow, inputs: Iterable[list[Bid]]) -> Pairs:
        """Yield the bids of one window."""
        (bids,) = inputs
        for bid in bids:
            yield f"{bid.auction} {bid.bidder} {window.end}", bid.price


def q7(events: DataStream) -> DataStream:
    """Query 7: the highest bids, every ten seconds."""
    tumbling = TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS))
    return timed(bids_of(events)).window_all(tumbling).aggregate(Highest(), HighestWithEnd(), ANY, PAIR)


# ---------------------------------------------------------------- 11, 12: bids of a person


class WithKeyAndStart(ProcessWindowFunction[int, tuple[str, int], int, TimeWindow]):
    """The key and the start of the window, and the count."""

    def process(self, key: int, context: ProcessWindowFunction.Context[TimeWindow], elements: Iterable[int]) -> Pairs:
        """Emit one count."""
        (count,) = elements
        yield f"{key} {context.window().start}", count


def q11_windowed(events: DataStream) -> DataStream:
    """Query 11: how many bids a person made in each session."""
    sessions = EventTimeSessionWindows.with_gap(Time.milliseconds(GAP_MS))
    by_bidder = timed(bids_of(events)).key_by(bidder_of, Types.LONG())
    return by_bidder.window(sessions).aggregate(Count(), WithKeyAndStart(), Types.LONG(), PAIR)


class ByTheClockOrAtTheEnd(Trigger[Bid, TimeWindow]):
    """Fires once the clock has passed the window, or there are no more events, whose windows must not be lost."""

    def on_element(
        self, element: Bid, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        """Wait for both."""
        ctx.register_processing_time_timer(window.max_timestamp())
        ctx.register_event_time_timer(AT_THE_END)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire: the clock has passed the window."""
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        """Fire: there are no more events."""
        return TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        """Do nothing: these windows do not merge."""

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        """Wait no longer."""
        ctx.delete_processing_time_timer(window.max_timestamp())
        ctx.delete_event_time_timer(AT_THE_END)


class WithKey(WindowFunction[int, tuple[int, int], int, TimeWindow]):
    """The key and the count."""

    def apply(self, key: int, window: TimeWindow, inputs: Iterable[int]) -> Iterable[tuple[int, int]]:
        """Emit one count."""
        (count,) = inputs
        yield key, count


class Total(KeyedProcessFunction):
    """The sum of all windows of a key, told at the end: how many windows there are depends on the clock."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of a key."""
        self._total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: tuple[int, int], ctx: KeyedProcessFunction.Context) -> None:
        """Add a count."""
        total = self._total.value()
        if total is None:
            ctx.timer_service().register_event_time_timer(AT_THE_END)
        self._total.update((total or 0) + value[1])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Pairs:
        """Emit the sum: there are no more windows."""
        yield str(ctx.get_current_key()), self._total.value()


def q12(events: DataStream) -> DataStream:
    """Query 12: how many bids a person made in each window of the clock."""
    windows = (
        bids_of(events)
        .key_by(bidder_of, Types.LONG())
        .window(TumblingProcessingTimeWindows.of(Time.milliseconds(CLOCK_MS)))
    )
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    counts = windows.trigger(ByTheClockOrAtTheEnd()).aggregate(Count(), WithKey(), Types.LONG(), pair)
    return counts.key_by(operator.itemgetter(0), Types.LONG()).process(Total(), PAIR)


# ---------------------------------------------------------------- 15, 16, 17: days


class Ranks:
    """Counts of bids, and the sets of bidders and auctions, of each rank of price."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0]
        self.bidders: tuple[set[int], set[int], set[int]] = (set(), set(), set())
        self.auctions: tuple[set[int], set[int], set[int]] = (set(), set(), set())

    def add(self, bid: Bid) -> None:
        """Take one more bid."""
        rank = (bid.price >= LOW) + (bid.price >= HIGH)
        self.counts[rank] += 1
        self.bidders[rank].add(bid.bidder)
        self.auctions[rank].add(bid.auction)

    def merge(self, other: "Ranks") -> None:
        """Take the bids of another accumulator."""
        for rank, count in enumerate(other.counts):
            self.counts[rank] += count
            self.bidders[rank].update(other.bidders[rank])
            self.auctions[rank].update(other.auctions[rank])

    def numbers(self) -> dict[str, int]:
        """Return the numbers that queries 15 and 16 give."""
        told = {
            "bids": sum(self.counts),
            "bidders": len(set().union(*self.bidders)),
            "auctions": len(set().union(*self.auctions)),
        }
        for rank in range(len(self.counts)):
            told |= {f"bids {rank}": self.counts[rank]}
            told |= {f"bidders {rank}": len(self.bidders[rank]), f"auctions {rank}": len(self.auctions[rank])}
        return told


class CountRanks(AggregateFunction):
    """Bids, bidders and auctions by rank."""

    def create_accumulator(self) -> Ranks:
        """Begin without bids."""
        return Ranks()

    def add(self, value: Bid, accumulator: Ranks) -> Ranks:
        """Take one more bid."""
        accumulator.add(value)
        return accumulator

    def get_result(self, accumulator: Ranks) -> dict[str, int]:
        """Return all numbers."""
        return accumulator.numbers()

    def merge(self, acc_a: Ranks, acc_b: Ranks) -> Ranks:
        """Put two accumulators together."""
        acc_a.merge(acc_b)
        return acc_a


class OfTheDay(WindowFunction[dict[str, int], tuple[str, int], Any, TimeWindow]):
    """Day, key and name of each number."""

    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[dict[str, int]]) -> Pairs:
        """Yield the numbers of one day."""
        (numbers,) = inputs
        for name, number in numbers.items():
            yield f"{window.start // DAY_MS} {key} {name}", number


def days() -> WindowAssigner[Any, TimeWindow]:
    """Return windows of days in UTC."""
    return TumblingEventTimeWindows.of(Time.milliseconds(DAY_MS))


def q15(events: DataStream) -> DataStream:
    """Query 15: how many bids, bidders and auctions there were each day."""
    by_nothing = timed(bids_of(events)).key_by(lambda _: "all", Types.STRING())
    return by_nothing.window(days()).aggregate(CountRanks(), OfTheDay(), ANY, PAIR)


def q16(events: DataStream) -> DataStream:
    """Query 16: how many bids, bidders and auctions there were each day on each channel."""
    by_channel = timed(bids_of(events)).key_by(lambda bid: bid.channel, Types.STRING())
    return by_channel.window(days()).aggregate(CountRanks(), OfTheDay(), ANY, PAIR)


class Prices(AggregateFunction):
    """Bids by rank, and the lowest, highest and average price."""

    def create_accumulator(self) -> list[int]:
        """Begin with the bids of each rank, lowest, highest and sum."""
        return [0, 0, 0, 2**62, 0, 0]

    def add(self, value: Bid, accumulator: list[int]) -> list[int]:
        """Take one more bid."""
        price = value.price
        accumulator[(price >= LOW) + (price >= HIGH)] += 1
        accumulator[3:] = [min(accumulator[3], price), max(accumulator[4], price), accumulator[5] + price]
        return accumulator

    def get_result(self, accumulator: list[int]) -> dict[str, int]:
        """Return all numbers."""
        *ranks, lowest, highest, total = accumulator
        told = {"bids": sum(ranks), "min": lowest, "max": highest, "avg": total // sum(ranks), "sum": total}
        return told | {f"bids {rank}": count for rank, count in enumerate(ranks)}

    def merge(self, acc_a: list[int], acc_b: list[int]) -> list[int]:
        """Put two accumulators together."""
        counts = [one + two for one, two in zip(acc_a[:3], acc_b[:3], strict=True)]
        return [*counts, min(acc_a[3], acc_b[3]), max(acc_a[4], acc_b[4]), acc_a[5] + acc_b[5]]


def q17(events: DataStream) -> DataStream:
    """Query 17: the prices on each auction, day by day."""
    by_auction = timed(bids_of(events)).key_by(auction_of, Types.LONG())
    return by_auction.window(days()).aggregate(Prices(), OfTheDay(), ANY, PAIR)
