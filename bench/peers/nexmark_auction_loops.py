"""NEXMark's queries 4, 6, 9, 18, 19 and 20 as plain Python loops over events that come in the order of their time.

Side:   pure.
Output: as that of ``bench/peers/nexmark_loops.py``; for queries 4 and 18 the last number of every text.
"""

import heapq
from collections import defaultdict

from bench.jobs.nexmark_events import Auction, Bid
from bench.jobs.work import Found, add_up
from bench.peers.nexmark_loops import Events

NUM_TOP = NUM_CLOSED = CATEGORY = 10


def _winners(events: Events) -> list[tuple[Auction, Bid]]:
    """Return each auction that had bids while it was open, with its winning bid, in the order of their ends."""
    auctions: dict[int, Auction] = {}
    best: dict[int, Bid] = {}
    for event in events:
        if isinstance(event, Auction):
            auctions[event.id] = event
        elif isinstance(event, Bid):
            auction = auctions.get(event.auction)
            if auction is None or event.date_time > auction.expires:
                continue
            so_far = best.get(auction.id)
            if so_far is None or (event.price, -event.date_time, -event.bidder) > (
                so_far.price,
                -so_far.date_time,
                -so_far.bidder,
            ):
                best[auction.id] = event
    return sorted(((auctions[id_], bid) for id_, bid in best.items()), key=lambda won: (won[0].expires, won[0].id))


def q9(events: Events) -> Found:
    """Query 9: the bid that won each auction."""
    pairs = [(f"{auction.id} {bid.bidder} {bid.date_time}", bid.price) for auction, bid in _winners(events)]
    return Found(len(pairs), dict(pairs))


def q4(events: Events) -> Found:
    """Query 4: the average price in each category."""
    prices = defaultdict[str, list[int]](list)
    for auction, bid in _winners(events):
        prices[str(auction.category)].append(bid.price)
    return Found(
        sum(map(len, prices.values())), {category: sum(each) // len(each) for category, each in prices.items()}
    )


def q6(events: Events) -> Found:
    """Query 6: the average price of the last ten auctions of each seller."""
    prices = defaultdict[int, list[int]](list)
    found: dict[str, int] = {}
    for auction, bid in _winners(events):
        prices[auction.seller].append(bid.price)
        last = prices[auction.seller][-NUM_CLOSED:]
        found[f"{auction.seller} {auction.id}"] = sum(last) // len(last)
    return Found(len(found), found)


def q18(events: Events) -> Found:
    """Query 18: the last bid of each bidder on each auction."""
    last: dict[str, tuple[int, int]] = {}
    num_bids = 0
    for event in events:
        if isinstance(event, Bid):
            num_bids += 1
            text, found = f"{event.bidder} {event.auction}", (event.date_time, event.price)
            last[text] = max(last.get(text, found), found)
    return Found(num_bids, {text: price for text, (_, price) in last.items()})


def q19(events: Events) -> Found:
    """Query 19: the ten highest bids on each auction."""
    prices = defaultdict[int, list[int]](list)
    for event in events:
        if isinstance(event, Bid):
            prices[event.auction].append(event.price)
    found = {
        f"{auction} {rank}": price
        for auction, each in prices.items()
        for rank, price in enumerate(heapq.nlargest(NUM_TOP, each), 1)
    }
    return Found(len(found), found)


def q20(events: Events) -> Found:
    """Return the bids on auctions of one category, with the auction."""
    names: dict[int, str] = {}
    pairs = []
    for event in events:
        if isinstance(event, Auction) and event.category == CATEGORY:
            names[event.id] = f"{event.id} {event.item_name}"
        elif isinstance(event, Bid) and event.auction in names:
            pairs.append((names[event.auction], event.price))
    sums: dict[str, int] = {}
    add_up(sums, pairs)
    return Found(len(pairs), sums)
