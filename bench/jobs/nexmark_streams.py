"""NEXMark's queries in the DataStream API, and their unfriendly twins; every function is called.

Side:    any; functions run inside the TaskManagers.
PyFlink: the very same file runs there, as ``bench/jobs/program_streams.py`` does.
Rules:   joins and windows by hand, with plain dicts.  No query depends on the order in which events of several subtasks
         meet.
Twins:   events are dicts in dicts; named functions, generators and classes with ``open``.
Output:  (text, number) pairs, made by a last ``map`` where a query has other results; the sums of the numbers of each
         text are compared.
"""

import itertools
from collections.abc import Iterator
from typing import Any, Final

from bench.jobs.nexmark_events import NUM_SIDE_VALUES, Auction, Bid, Person, side_values
from flowlet.common import Types, WatermarkStrategy
from flowlet.common.watermark_strategy import TimestampAssigner
from flowlet.datastream import (
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
)

PAIR: Final = Types.TUPLE([Types.STRING(), Types.LONG()])
WINDOW_MS: Final = 10_000
GAP_MS: Final = 10_000
STATES: Final = ("OR", "ID", "CA")
CATEGORY: Final = 10
SKIP: Final = 123
Pairs = Iterator[tuple[str, int]]
NestedEvent = dict[str, Any]


def bids_of(events: DataStream) -> DataStream:
    """Return the bids: most of the events."""
    return events.filter(lambda event: isinstance(event, Bid))


# ---------------------------------------------------------------- 0, 1, 2: one event after the other


def q0(events: DataStream) -> DataStream:
    """Pass through."""
    return events.map(lambda event: event).map(lambda event: (event.kind, event.date_time), PAIR)


def q1(events: DataStream) -> DataStream:
    """Query 1: prices in another currency."""
    in_euros = bids_of(events).map(lambda bid: replace_price(bid, bid.price * 908 // 1000))
    return in_euros.map(lambda bid: (bid.channel, bid.price), PAIR)


def replace_price(bid: Bid, price: int) -> Bid:
    """Return the bid with another price."""
    return Bid(bid.auction, bid.bidder, price, bid.channel, bid.url, bid.date_time, bid.extra)


def q2(events: DataStream) -> DataStream:
    """Query 2: bids on some auctions."""
    return (
        bids_of(events).filter(lambda bid: bid.auction % SKIP == 0).map(lambda bid: (str(bid.auction), bid.price), PAIR)
    )


def unchanged(event: NestedEvent) -> Iterator[NestedEvent]:
    """Yield the event, as a generator function does."""
    yield event


class KindAndTime(MapFunction):
    """The compared part of an event: kind and time."""

    def map(self, value: NestedEvent) -> tuple[str, int]:
        """Return kind and time of one event."""
        return value["kind"], value["at"]["ms"]


def q0_twin(events: DataStream) -> DataStream:
    """Pass through."""
    return events.flat_map(unchanged).map(KindAndTime(), PAIR)


class IsBid(FilterFunction):
    """Passes the bids: most of the events."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Set the kind that is looked for."""
        self._kind = "bid"

    def filter(self, value: NestedEvent) -> bool:
        """Test one event."""
        return bool(value["kind"] == self._kind)


def in_other_currency(event: NestedEvent) -> Iterator[NestedEvent]:
    """Yield new dicts with another price."""
    yield {**event, "bid": {**event["bid"], "price": event["bid"]["price"] * 908 // 1000}}


def channel_and_price(event: NestedEvent) -> tuple[str, int]:
    """Return the compared part of a bid."""
    return event["bid"]["channel"], event["bid"]["price"]


def q1_twin(events: DataStream) -> DataStream:
    """Query 1: prices in another currency."""
    return events.filter(IsBid()).flat_map(in_other_currency).map(channel_and_price, PAIR)


class BidsOnSome(FlatMapFunction):
    """Auctions and prices of some bids."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Choose the auctions: every ``SKIP``-th number."""
        self._skip = SKIP

    def flat_map(self, value: NestedEvent) -> Pairs:
        """Process one event."""
        bid = value.get("bid")
        if bid is not None and bid["auction"] % self._skip == 0:
            yield str(bid["auction"]), bid["price"]


def q2_twin(events: DataStream) -> DataStream:
    """Query 2: bids on some auctions."""
    return events.flat_map(BidsOnSome(), PAIR)


# ---------------------------------------------------------------- 3: who sells in some states?


class LocalItems(KeyedCoProcessFunction):
    """Auctions wait for their seller."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without people and auctions."""
        self._people: dict[int, Person] = {}
        self._waiting: dict[int, list[Auction]] = {}

    def process_element1(self, value: Auction, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process one auction."""
        person = self._people.get(value.seller)
        if person is None:
            self._waiting.setdefault(value.seller, []).append(value)
        else:
            yield local_item(person, value)

    def process_element2(self, value: Person, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process one person, and the auctions that waited."""
        self._people[value.id] = value
        for auction in self._waiting.pop(value.id, ()):
            yield local_item(value, auction)


def local_item(person: Person, auction: Auction) -> tuple[str, int]:
    """Return one result."""
    return f"{person.name}, {person.city}, {person.state}", auction.id


def q3(events: DataStream) -> DataStream:
    """Query 3: the sellers of one category who live in three states."""
    auctions = events.filter(lambda event: isinstance(event, Auction) and event.category == CATEGORY)
    people = events.filter(lambda event: isinstance(event, Person) and event.state in STATES)
    by_seller = auctions.key_by(lambda auction: auction.seller, Types.LONG())
    return by_seller.connect(people.key_by(lambda person: person.id, Types.LONG())).process(LocalItems(), PAIR)


def people_and_auctions(event: NestedEvent) -> Iterator[NestedEvent]:
    """Yield the people and auctions that the third query selects."""
    if event["kind"] == "person":
        if event["person"]["state"] in STATES:
            yield event
    elif event["kind"] == "auction" and event["auction"]["category"] == CATEGORY:
        yield event


def person_of(event: NestedEvent) -> int:
    """Return the person of an event; for an auction the seller."""
    person: int = event["person"]["id"] if "person" in event else event["auction"]["seller"]
    return person


class NestedLocalItems(KeyedProcessFunction):
    """Local items of one stream of both kinds, with one dict per key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without people and auctions."""
        self._states: dict[int, dict[str, Any]] = {}

    def process_element(self, value: NestedEvent, ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one person or auction."""
        state = self._states.setdefault(ctx.get_current_key(), {"person": None, "auctions": []})
        if value["kind"] == "person":
            state["person"] = value["person"]
        else:
            state["auctions"].append(value["auction"])
        person = state["person"]
        if person is not None:
            for auction in state["auctions"]:
                yield f"{person['name']}, {person['city']}, {person['state']}", auction["id"]
            state["auctions"] = []


def q3_twin(events: DataStream) -> DataStream:
    """Query 3: the sellers of one category who live in three states."""
    return events.flat_map(people_and_auctions).key_by(person_of).process(NestedLocalItems(), PAIR)


# ---------------------------------------------------------------- 8: who is new and sells?


class NewSellers(KeyedCoProcessFunction):
    """Finds people who open an auction in the window of ten seconds in which they joined; each is emitted once."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without people and auctions."""
        self._joined: dict[int, tuple[int, str]] = {}
        self._sold: dict[int, set[int]] = {}

    def process_element1(self, value: Person, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process one person."""
        start = value.date_time - value.date_time % WINDOW_MS
        self._joined[value.id] = start, value.name
        if start in self._sold.get(value.id, ()):
            yield f"{value.id} {value.name}", start

    def process_element2(self, value: Auction, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process one auction."""
        start = value.date_time - value.date_time % WINDOW_MS
        sold = self._sold.setdefault(value.seller, set())
        if start not in sold:
            sold.add(start)
            joined, name = self._joined.get(value.seller, (None, ""))
            if joined == start:
                yield f"{value.seller} {name}", start


def q8(events: DataStream) -> DataStream:
    """Query 8: the people who joined and opened an auction in one window."""
    people = events.filter(lambda event: isinstance(event, Person)).key_by(lambda person: person.id, Types.LONG())
    auctions = events.filter(lambda event: isinstance(event, Auction)).key_by(
        lambda auction: auction.seller, Types.LONG()
    )
    return people.connect(auctions).process(NewSellers(), PAIR)


def is_no_bid(event: NestedEvent) -> bool:
    """Whether the event is a person or an auction."""
    return bool(event["kind"] != "bid")


class ByPersonAndWindow:
    """The key of an event: the person or seller, and the window."""

    def __call__(self, event: NestedEvent) -> tuple[int, int]:
        """Return the key of one event."""
        return person_of(event), event["at"]["ms"] // WINDOW_MS


class NestedNewSellers(KeyedProcessFunction):
    """Finds new sellers with the window in the key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without people and auctions."""
        self._windows: dict[tuple[int, int], dict[str, Any]] = {}

    def process_element(self, value: NestedEvent, ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one person or auction."""
        person, window = key = ctx.get_current_key()
        state = self._windows.setdefault(key, {"name": None, "has_sold": False, "is_told": False})
        if value["kind"] == "person":
            state["name"] = value["person"]["name"]
        else:
            state["has_sold"] = True
        if state["name"] is not None and state["has_sold"] and not state["is_told"]:
            state["is_told"] = True
            yield f"{person} {state['name']}", window * WINDOW_MS


def q8_twin(events: DataStream) -> DataStream:
    """Query 8: the people who joined and opened an auction in one window."""
    return events.filter(is_no_bid).key_by(ByPersonAndWindow()).process(NestedNewSellers(), PAIR)


# ---------------------------------------------------------------- 11: how many bids in a session?


class BidTime(TimestampAssigner):
    """The time of a bid."""

    def extract_timestamp(self, value: Bid, record_timestamp: int) -> int:
        """Return the time of one bid."""
        return value.date_time


class Session:
    """Bids between which there are never more than ten seconds."""

    __slots__ = ("count", "end", "start")

    def __init__(self, at: int) -> None:
        self.start = self.end = at
        self.count = 1

    def add(self, other: "Session") -> None:
        """Join the other session to this one."""
        self.start, self.end = min(self.start, other.start), max(self.end, other.end)
        self.count += other.count


class Sessions(KeyedProcessFunction):
    """Bids per bidder and session, told when the watermark says that the session is over."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without sessions."""
        self._sessions: dict[int, list[Session]] = {}

    def process_element(self, value: Bid, ctx: KeyedProcessFunction.Context) -> None:
        """Process one bid; it may join two sessions."""
        sessions = self._sessions.setdefault(value.bidder, [])
        found = Session(value.date_time)
        touching = [each for each in sessions if each.start - GAP_MS <= found.start <= each.end + GAP_MS]
        if not touching:
            sessions.append(found)
            ctx.timer_service().register_event_time_timer(found.end + GAP_MS)
            return
        first, *others = touching
        first.add(found)
        for other in others:
            first.add(other)
            sessions.remove(other)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Pairs:
        """Emit the sessions that are over; set another timer for the others."""
        bidder = ctx.get_current_key()
        going_on = []
        for session in self._sessions.pop(bidder, ()):
            if session.end + GAP_MS <= timestamp:
                yield f"{bidder} {session.start}", session.count
            else:
                going_on.append(session)
                ctx.timer_service().register_event_time_timer(session.end + GAP_MS)
        if going_on:
            self._sessions[bidder] = going_on


def q11(events: DataStream) -> DataStream:
    """Query 11: how many bids a person made in each session."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(BidTime())
    bids = bids_of(events).assign_timestamps_and_watermarks(strategy)
    return bids.key_by(lambda bid: bid.bidder, Types.LONG()).process(Sessions(), PAIR)


class NestedTime(TimestampAssigner):
    """The time of an event."""

    def extract_timestamp(self, value: NestedEvent, record_timestamp: int) -> int:
        """Return the time of one event."""
        moment: int = value["at"]["ms"]
        return moment


def bidder_of(event: NestedEvent) -> str:
    """Return the bidder as a text."""
    return f"bidder {event['bid']['bidder']}"


class NestedSessions(KeyedProcessFunction):
    """Counts sessions from a sorted list of times per bidder, which is cut into sessions when a timer fires."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without bids."""
        self._moments: dict[str, list[int]] = {}

    def process_element(self, value: NestedEvent, ctx: KeyedProcessFunction.Context) -> None:
        """Process one bid."""
        at = value["at"]["ms"]
        moments = self._moments.setdefault(ctx.get_current_key(), [])
        if not moments:
            ctx.timer_service().register_event_time_timer(at + GAP_MS)
        moments.append(at)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Pairs:
        """Emit the sessions that are over; set another timer for the rest."""
        bidder = ctx.get_current_key()
        sessions: list[list[int]] = []
        for at in sorted(self._moments.pop(bidder)):
            if sessions and at - sessions[-1][-1] <= GAP_MS:
                sessions[-1].append(at)
            else:
                sessions.append([at])
        going_on = [session for session in sessions if session[-1] + GAP_MS > timestamp]
        for session in sessions[: len(sessions) - len(going_on)]:
            yield f"{bidder.removeprefix('bidder ')} {session[0]}", len(session)
        if going_on:
            self._moments[bidder] = list(itertools.chain.from_iterable(going_on))
            ctx.timer_service().register_event_time_timer(going_on[0][-1] + GAP_MS)


def q11_twin(events: DataStream) -> DataStream:
    """Query 11: how many bids a person made in each session."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(NestedTime())
    return (
        events.filter(IsBid())
        .assign_timestamps_and_watermarks(strategy)
        .key_by(bidder_of)
        .process(NestedSessions(), PAIR)
    )


# ---------------------------------------------------------------- 13: bids and a table


class LookUpSide(MapFunction):
    """Bids with the value of a table that every subtask has."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Read the table."""
        self._side = side_values()

    def map(self, value: Bid) -> tuple[int, int, int, int, str]:
        """Look up the value of one bid."""
        return value.auction, value.bidder, value.price, value.date_time, self._side[value.auction % NUM_SIDE_VALUES]


def q13(events: DataStream) -> DataStream:
    """Query 13: bids with the value of a table."""
    return bids_of(events).map(LookUpSide()).map(lambda found: (found[4], found[2]), PAIR)


class NestedLookUpSide(FlatMapFunction):
    """Bids with the value of a table, which is added to their dict."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Read the table."""
        self._side = side_values()

    def flat_map(self, value: NestedEvent) -> Iterator[NestedEvent]:
        """Look up the value of one bid."""
        yield {**value, "side": {"value": self._side[value["bid"]["auction"] % NUM_SIDE_VALUES]}}


def side_and_price(event: NestedEvent) -> tuple[str, int]:
    """Return the compared part of a bid."""
    return event["side"]["value"], event["bid"]["price"]


def q13_twin(events: DataStream) -> DataStream:
    """Query 13: bids with the value of a table."""
    return events.filter(IsBid()).flat_map(NestedLookUpSide()).map(side_and_price, PAIR)
