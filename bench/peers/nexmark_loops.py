"""NEXMark's queries as plain Python loops: one process, one pass over events that come in the order of their time.

Side:   pure.
Output: what the streams give is added to a dict that has the sum of the numbers of every text.
"""

from collections.abc import Iterator
from typing import Any

from bench.jobs.nexmark_events import NUM_SIDE_VALUES, Auction, Bid, Event, Person, side_values
from bench.jobs.work import Found

WINDOW_MS = 10_000
GAP_MS = 10_000
STATES = ("OR", "ID", "CA")
Events = Iterator[Event]
NestedEvents = Iterator[dict[str, Any]]


def q0(events: Events) -> Found:
    """Pass through."""
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        sums[event.kind] = sums.get(event.kind, 0) + event.date_time
        num_outputs += 1
    return Found(num_outputs, sums)


def q0_twin(events: NestedEvents) -> Found:
    """Pass through."""
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        kind = event["kind"]
        sums[kind] = sums.get(kind, 0) + event["at"]["ms"]
        num_outputs += 1
    return Found(num_outputs, sums)


def q1(events: Events) -> Found:
    """Query 1: prices in another currency."""
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if isinstance(event, Bid):
            price = event.price * 908 // 1000
            bid = Bid(event.auction, event.bidder, price, event.channel, event.url, event.date_time, event.extra)
            sums[bid.channel] = sums.get(bid.channel, 0) + bid.price
            num_outputs += 1
    return Found(num_outputs, sums)


def q1_twin(events: NestedEvents) -> Found:
    """Query 1: prices in another currency."""
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if event["kind"] == "bid":
            converted = {**event, "bid": {**event["bid"], "price": event["bid"]["price"] * 908 // 1000}}
            bid = converted["bid"]
            sums[bid["channel"]] = sums.get(bid["channel"], 0) + bid["price"]
            num_outputs += 1
    return Found(num_outputs, sums)


def q2(events: Events) -> Found:
    """Query 2: bids on some auctions."""
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if isinstance(event, Bid) and event.auction % 123 == 0:
            auction = str(event.auction)
            sums[auction] = sums.get(auction, 0) + event.price
            num_outputs += 1
    return Found(num_outputs, sums)


def q2_twin(events: NestedEvents) -> Found:
    """Query 2: bids on some auctions."""
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        bid = event.get("bid")
        if bid is not None and bid["auction"] % 123 == 0:
            auction = str(bid["auction"])
            sums[auction] = sums.get(auction, 0) + bid["price"]
            num_outputs += 1
    return Found(num_outputs, sums)


def q3(events: Events) -> Found:
    """Query 3: the sellers of one category who live in three states.  People come before they sell."""
    people: dict[int, str] = {}
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if isinstance(event, Person):
            if event.state in STATES:
                people[event.id] = f"{event.name}, {event.city}, {event.state}"
        elif isinstance(event, Auction) and event.category == 10:
            person = people.get(event.seller)
            if person is not None:
                sums[person] = sums.get(person, 0) + event.id
                num_outputs += 1
    return Found(num_outputs, sums)


def q3_twin(events: NestedEvents) -> Found:
    """Query 3: the sellers of one category who live in three states."""
    people: dict[int, dict[str, Any]] = {}
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if event["kind"] == "person":
            if event["person"]["state"] in STATES:
                people[event["person"]["id"]] = event["person"]
        elif event["kind"] == "auction" and event["auction"]["category"] == 10:
            person = people.get(event["auction"]["seller"])
            if person is not None:
                text = f"{person['name']}, {person['city']}, {person['state']}"
                sums[text] = sums.get(text, 0) + event["auction"]["id"]
                num_outputs += 1
    return Found(num_outputs, sums)


def q8(events: Events) -> Found:
    """Query 8: the people who joined and opened an auction in one window."""
    joined: dict[int, tuple[int, str]] = {}
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if isinstance(event, Person):
            joined[event.id] = event.date_time - event.date_time % WINDOW_MS, event.name
        elif isinstance(event, Auction):
            start, name = joined.get(event.seller, (None, ""))
            if start == event.date_time - event.date_time % WINDOW_MS:
                del joined[event.seller]  # each is counted once
                sums[f"{event.seller} {name}"] = start
                num_outputs += 1
    return Found(num_outputs, sums)


def q8_twin(events: NestedEvents) -> Found:
    """Query 8: the people who joined and opened an auction in one window."""
    joined: dict[tuple[int, int], str] = {}
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if event["kind"] == "person":
            joined[event["person"]["id"], event["at"]["ms"] // WINDOW_MS] = event["person"]["name"]
        elif event["kind"] == "auction":
            key = seller, window = event["auction"]["seller"], event["at"]["ms"] // WINDOW_MS
            name = joined.pop(key, None)
            if name is not None:
                sums[f"{seller} {name}"] = window * WINDOW_MS
                num_outputs += 1
    return Found(num_outputs, sums)


def q11(events: Events) -> Found:
    """Query 11: how many bids a person made in each session."""
    sessions: dict[int, list[int]] = {}
    sums = dict[str, int]()
    for event in events:
        if isinstance(event, Bid):
            at = event.date_time
            session = sessions.get(event.bidder)
            if session is None:
                sessions[event.bidder] = [at, at, 1]
            elif at - session[1] > GAP_MS:
                sums[f"{event.bidder} {session[0]}"] = session[2]
                sessions[event.bidder] = [at, at, 1]
            else:
                session[1] = at
                session[2] += 1
    sums |= {f"{bidder} {session[0]}": session[2] for bidder, session in sessions.items()}
    return Found(len(sums), sums)


def q11_twin(events: NestedEvents) -> Found:
    """Query 11: how many bids a person made in each session."""
    sessions: dict[int, dict[str, int]] = {}
    sums = dict[str, int]()
    for event in events:
        if event["kind"] == "bid":
            at, bidder = event["at"]["ms"], event["bid"]["bidder"]
            session = sessions.get(bidder)
            if session is None:
                sessions[bidder] = {"start": at, "end": at, "count": 1}
            elif at - session["end"] > GAP_MS:
                sums[f"{bidder} {session['start']}"] = session["count"]
                sessions[bidder] = {"start": at, "end": at, "count": 1}
            else:
                session["end"] = at
                session["count"] += 1
    sums |= {f"{bidder} {session['start']}": session["count"] for bidder, session in sessions.items()}
    return Found(len(sums), sums)


def q13(events: Events) -> Found:
    """Query 13: bids with the value of a table."""
    side = side_values()
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if isinstance(event, Bid):
            found = event.auction, event.bidder, event.price, event.date_time, side[event.auction % NUM_SIDE_VALUES]
            sums[found[4]] = sums.get(found[4], 0) + found[2]
            num_outputs += 1
    return Found(num_outputs, sums)


def q13_twin(events: NestedEvents) -> Found:
    """Query 13: bids with the value of a table."""
    side = side_values()
    sums, num_outputs = dict[str, int](), 0
    for event in events:
        if event["kind"] == "bid":
            found = {**event, "side": {"value": side[event["bid"]["auction"] % NUM_SIDE_VALUES]}}
            text = found["side"]["value"]
            sums[text] = sums.get(text, 0) + found["bid"]["price"]
            num_outputs += 1
    return Found(num_outputs, sums)
