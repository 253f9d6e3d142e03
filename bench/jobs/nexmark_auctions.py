"""NEXMark's queries 4, 6, 9, 18, 19 and 20: auctions, the bids on them, and who won, with keyed state and timers.

Side:    any; functions run inside the TaskManagers.
PyFlink: this very file runs there, as ``bench/jobs/nexmark_streams.py`` does.
Rules:   no query depends on the order in which events of several subtasks meet.  Where the SQL leaves open which of
         several equal bids wins, the earliest one does, and of simultaneous ones that of the bidder with the smallest
         id.
Output:  as in ``bench/jobs/nexmark_streams.py``.  Queries 4 and 18 are updated with every record: their last number of
         each text is compared.
"""

import bisect
import operator
from collections.abc import Iterator
from typing import Final

from bench.jobs.nexmark_events import Auction, Bid, Event
from bench.jobs.nexmark_streams import CATEGORY, PAIR, Pairs, bids_of
from flowlet.common import Types, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import DataStream, KeyedCoProcessFunction, KeyedProcessFunction, RuntimeContext
from flowlet.datastream.state import ListStateDescriptor, ValueStateDescriptor

NUM_CLOSED: Final = 10  # auctions of a seller whose prices are averaged
NUM_TOP: Final = 10
AT_THE_END: Final = 2**63 - 1  # the watermark after the last event
ANY: Final = Types.PICKLED_BYTE_ARRAY()
TRIPLE: Final = Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()])


class EventTime(TimestampAssigner):
    """The time of an event."""

    def extract_timestamp(self, value: Event, record_timestamp: int) -> int:
        """Return the time of one event."""
        return value.date_time


def timed(events: DataStream) -> DataStream:
    """Return the events with timestamps and watermarks."""
    return events.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(EventTime())
    )


def auctions_of(events: DataStream) -> DataStream:
    """Return the auctions among the events."""
    return events.filter(lambda event: isinstance(event, Auction))


def merit(bid: Bid) -> tuple[int, int, int]:
    """Return the merit of a bid: the bid of the largest merit wins."""
    return bid.price, -bid.date_time, -bid.bidder


# ---------------------------------------------------------------- 9: winning bids


class WinningBids(KeyedCoProcessFunction):
    """The best bid on each auction between its start and its end, told when the watermark says that it is over."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of an auction."""
        self._auction = runtime_context.get_state(ValueStateDescriptor("auction", ANY))
        self._bids = runtime_context.get_list_state(ListStateDescriptor("bids", ANY))

    def process_element1(self, value: Auction, ctx: KeyedCoProcessFunction.Context) -> None:
        """Begin an auction."""
        self._auction.update(value)
        ctx.timer_service().register_event_time_timer(value.expires)

    def process_element2(self, value: Bid, ctx: KeyedCoProcessFunction.Context) -> None:
        """Keep a bid, which may come before its auction; drop it if the auction has ended."""
        auction = self._auction.value()
        if auction is None:
            ctx.timer_service().register_event_time_timer(value.date_time)
        elif value.date_time > auction.expires:
            return
        self._bids.add(value)

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterator[tuple[Auction, Bid]]:
        """Emit the winner if the auction is over; drop bids that have no auction."""
        auction = self._auction.value()
        if auction is None:
            self._bids.update([bid for bid in self._bids if bid.date_time > timestamp])
        elif timestamp >= auction.expires:
            bids = [bid for bid in self._bids if auction.date_time <= bid.date_time <= auction.expires]
            self._auction.clear()
            self._bids.clear()
            if bids:
                yield auction, max(bids, key=merit)


def winning_bids(events: DataStream) -> DataStream:
    """Return pairs of an auction and the bid that won it."""
    events = timed(events)
    auctions = auctions_of(events).key_by(lambda auction: auction.id, Types.LONG())
    return auctions.connect(bids_of(events).key_by(lambda bid: bid.auction, Types.LONG())).process(WinningBids())


def q9(events: DataStream) -> DataStream:
    """Query 9: the bid that won each auction."""
    return winning_bids(events).map(lambda won: (f"{won[0].id} {won[1].bidder} {won[1].date_time}", won[1].price), PAIR)


# ---------------------------------------------------------------- 4, 6: prices of auctions that are over


def q4(events: DataStream) -> DataStream:
    """Query 4: the average price in each category so far."""
    prices = winning_bids(events).map(lambda won: (won[0].category, won[1].price, 1), TRIPLE)
    totals = prices.key_by(operator.itemgetter(0), Types.LONG()).reduce(
        lambda one, two: (one[0], one[1] + two[1], one[2] + two[2])
    )
    return totals.map(lambda total: (str(total[0]), total[1] // total[2]), PAIR)


class LastClosed(KeyedProcessFunction):
    """The average price of a seller's last ten auctions, in the order in which they ended."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of a seller."""
        self._waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", ANY))
        self._prices = runtime_context.get_list_state(ListStateDescriptor("prices", Types.LONG()))

    def process_element(self, value: tuple[Auction, Bid], ctx: KeyedProcessFunction.Context) -> None:
        """Wait until every auction that ended before is here."""
        auction, bid = value
        self._waiting.add((auction.expires, auction.id, bid.price))
        ctx.timer_service().register_event_time_timer(auction.expires)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Pairs:
        """Tell the averages up to this time."""
        waiting, prices = sorted(self._waiting), list(self._prices)
        for expires, auction, price in waiting:
            if expires <= timestamp:
                prices = [*prices[1 - NUM_CLOSED :], price]
                yield f"{ctx.get_current_key()} {auction}", sum(prices) // len(prices)
        self._waiting.update([each for each in waiting if each[0] > timestamp])
        self._prices.update(prices)


def q6(events: DataStream) -> DataStream:
    """Query 6: the average price of the last ten auctions of each seller."""
    return winning_bids(events).key_by(lambda won: won[0].seller, Types.LONG()).process(LastClosed(), PAIR)


# ---------------------------------------------------------------- 18, 19: some bids of many


def later(one: Bid, two: Bid) -> Bid:
    """Return the later of two bids; of two simultaneous ones the higher."""
    return max(one, two, key=lambda bid: (bid.date_time, bid.price))


def q18(events: DataStream) -> DataStream:
    """Query 18: the last bid of each bidder on each auction, so far."""
    last = (
        bids_of(events)
        .key_by(lambda bid: (bid.bidder, bid.auction), Types.TUPLE([Types.LONG(), Types.LONG()]))
        .reduce(later)
    )
    return last.map(lambda bid: (f"{bid.bidder} {bid.auction}", bid.price), PAIR)


class TopBids(KeyedProcessFunction):
    """The ten highest bids on an auction, told at the end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of an auction."""
        self._prices = runtime_context.get_state(ValueStateDescriptor("prices", ANY))

    def process_element(self, value: Bid, ctx: KeyedProcessFunction.Context) -> None:
        """Keep a bid if it is among the highest."""
        prices = self._prices.value()
        if prices is None:
            ctx.timer_service().register_event_time_timer(AT_THE_END)
            prices = []
        if len(prices) < NUM_TOP or value.price > prices[0]:
            prices = prices.copy()
            bisect.insort(prices, value.price)
            self._prices.update(prices[-NUM_TOP:])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Pairs:
        """Emit the highest bids: there are no more."""
        for rank, price in enumerate(reversed(self._prices.value()), 1):
            yield f"{ctx.get_current_key()} {rank}", price


def q19(events: DataStream) -> DataStream:
    """Query 19: the ten highest bids on each auction."""
    return bids_of(events).key_by(lambda bid: bid.auction, Types.LONG()).process(TopBids(), PAIR)


# ---------------------------------------------------------------- 20: bids and their auctions


class BidsOfCategory(KeyedCoProcessFunction):
    """Bids with their auction, of one category; a join without bounds keeps everything, as the SQL does."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of an auction."""
        self._auction = runtime_context.get_state(ValueStateDescriptor("auction", ANY))
        self._waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", ANY))

    def process_element1(self, value: Auction, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process an auction, and the bids that were quicker."""
        self._auction.update(value)
        for bid in self._waiting:
            yield bid_on(value, bid)
        self._waiting.clear()

    def process_element2(self, value: Bid, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process a bid."""
        auction = self._auction.value()
        if auction is None:
            self._waiting.add(value)
        else:
            yield bid_on(auction, value)


def bid_on(auction: Auction, bid: Bid) -> tuple[str, int]:
    """Return the result of one bid and its auction."""
    return f"{auction.id} {auction.item_name}", bid.price


def q20(events: DataStream) -> DataStream:
    """Return the bids on auctions of one category, with the auction."""
    auctions = events.filter(lambda event: isinstance(event, Auction) and event.category == CATEGORY)
    bids = bids_of(events).key_by(lambda bid: bid.auction, Types.LONG())
    return auctions.key_by(lambda auction: auction.id, Types.LONG()).connect(bids).process(BidsOfCategory(), PAIR)
