"""NEXMark's queries as Bytewax dataflows; imported by the Python of ``.venv-bytewax`` alone.

Side:   any.
Rules:  as a user of Bytewax writes them: state is what a function gets and gives back, sessions are its own windows.
        Keys must be texts there.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
from bytewax.operators.windowing import EventClock, SessionWindower, fold_window

from bench.jobs.nexmark_events import NUM_SIDE_VALUES, Auction, Bid, Person, side_values

WINDOW_MS = 10_000
GAP = timedelta(seconds=10)
STATES = ("OR", "ID", "CA")
NOTHING_IS_LATE = timedelta(days=1000)
Stream = Any  # Bytewax is not installed where types are checked
State = dict[str, Any]


def _bids_of(events: Stream) -> Stream:
    return op.filter("bids", events, lambda event: isinstance(event, Bid))


def q0(events: Stream) -> Stream:
    """Pass through."""
    same = op.map("same", events, lambda event: event)
    return op.map("pair", same, lambda event: (event.kind, event.date_time))


def q1(events: Stream) -> Stream:
    """Query 1: prices in another currency."""
    return op.map("pair", op.map("euros", _bids_of(events), _in_euros), lambda bid: (bid.channel, bid.price))


def _in_euros(bid: Bid) -> Bid:
    return Bid(bid.auction, bid.bidder, bid.price * 908 // 1000, bid.channel, bid.url, bid.date_time, bid.extra)


def q2(events: Stream) -> Stream:
    """Query 2: bids on some auctions."""
    some = op.filter("some", _bids_of(events), lambda bid: bid.auction % 123 == 0)
    return op.map("pair", some, lambda bid: (str(bid.auction), bid.price))


def q3(events: Stream) -> Stream:
    """Query 3: the sellers of one category who live in three states."""
    wanted = op.filter("wanted", events, _is_wanted)
    keyed = op.key_on("person", wanted, _person_of)
    found = op.stateful_flat_map("join", keyed, _join)
    return op.key_rm("pair", found)


def _is_wanted(event: Any) -> bool:
    if isinstance(event, Person):
        return event.state in STATES
    return isinstance(event, Auction) and event.category == 10


def _person_of(event: Person | Auction) -> str:
    return str(event.id if isinstance(event, Person) else event.seller)


def _join(state: State | None, event: Person | Auction) -> tuple[State, Iterable[tuple[str, int]]]:
    if state is None:
        state = {"person": None, "auctions": []}
    if isinstance(event, Person):
        state["person"] = f"{event.name}, {event.city}, {event.state}"
    else:
        state["auctions"].append(event)
    if state["person"] is None:
        return state, ()
    found = [(state["person"], auction.id) for auction in state["auctions"]]
    state["auctions"].clear()
    return state, found


def q8(events: Stream) -> Stream:
    """Query 8: the people who joined and opened an auction in one window."""
    no_bids = op.filter("no bids", events, lambda event: not isinstance(event, Bid))
    keyed = op.key_on("person", no_bids, _person_of)
    found = op.stateful_flat_map("join", keyed, _join_windows)
    return op.key_rm("pair", found)


def _join_windows(state: State | None, event: Person | Auction) -> tuple[State, Iterable[tuple[str, int]]]:
    if state is None:
        state = {"joined": None, "name": "", "sold": set()}
    start = event.date_time - event.date_time % WINDOW_MS
    if isinstance(event, Person):
        state["joined"], state["name"] = start, event.name
        return state, [(f"{event.id} {event.name}", start)] if start in state["sold"] else ()
    if start in state["sold"]:
        return state, ()
    state["sold"].add(start)
    return state, [(f"{event.seller} {state['name']}", start)] if start == state["joined"] else ()


def q11(events: Stream) -> Stream:
    """Query 11: how many bids a person made in each session."""
    bids = op.key_on("bidder", _bids_of(events), lambda bid: str(bid.bidder))
    clock = EventClock(lambda bid: datetime.fromtimestamp(bid.date_time / 1000, UTC), NOTHING_IS_LATE)
    sessions = fold_window("sessions", bids, clock, SessionWindower(GAP), _new_session, _with_bid, _merged)
    return op.map("pair", sessions.down, lambda found: (f"{found[0]} {found[1][1][0]}", found[1][1][1]))


def _new_session() -> list[int]:
    return [1 << 62, 0]


def _with_bid(session: list[int], bid: Bid) -> list[int]:
    session[0] = min(session[0], bid.date_time)
    session[1] += 1
    return session


def _merged(one: list[int], other: list[int]) -> list[int]:
    return [min(one[0], other[0]), one[1] + other[1]]


def q13(events: Stream) -> Stream:
    """Query 13: bids with the value of a table."""
    side = side_values()

    def look_up(bid: Bid) -> tuple[int, int, int, int, str]:
        return bid.auction, bid.bidder, bid.price, bid.date_time, side[bid.auction % NUM_SIDE_VALUES]

    return op.map("pair", op.map("look up", _bids_of(events), look_up), lambda found: (found[4], found[2]))
