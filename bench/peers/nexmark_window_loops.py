"""NEXMark's queries 5, 7, 8, 11, 12, 15, 16 and 17 as plain Python loops over events that come in the order of their
time.

Side:   pure.
Output: as that of ``bench/peers/nexmark_loops.py``.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from bench.jobs.nexmark_events import Bid
from bench.jobs.work import Found
from bench.peers import nexmark_loops
from bench.peers.nexmark_loops import Events

WINDOW_MS = 10_000
SLIDE_MS = 2_000
DAY_MS = 86_400_000
IsIn = Callable[[int], bool]
ANY_PRICE: IsIn = lambda _: True  # noqa: E731 - a table of cases reads better
RANKS: tuple[IsIn, ...] = (
    lambda price: price < 10_000,
    lambda price: 10_000 <= price < 1_000_000,
    lambda price: price >= 1_000_000,
)


def _bids(events: Events) -> Iterable[Bid]:
    return (event for event in events if isinstance(event, Bid))


def q5(events: Events) -> Found:
    """Query 5: the auctions with the most bids in the last ten seconds, every two seconds."""
    counts = defaultdict[int, Counter[int]](Counter)
    for bid in _bids(events):
        last = bid.date_time - bid.date_time % SLIDE_MS
        for start in range(last, last - WINDOW_MS, -SLIDE_MS):
            if start > bid.date_time - WINDOW_MS:
                counts[start + WINDOW_MS][bid.auction] += 1
    most = {end: max(each.values()) for end, each in counts.items()}
    found = {
        f"{auction} {end}": count
        for end, each in counts.items()
        for auction, count in each.items()
        if count == most[end]
    }
    return Found(len(found), found)


def q7(events: Events) -> Found:
    """Query 7: the highest bids, every ten seconds."""
    highest: dict[int, list[Bid]] = {}
    for bid in _bids(events):
        end = bid.date_time - bid.date_time % WINDOW_MS + WINDOW_MS
        so_far = highest.get(end)
        if so_far is None or bid.price > so_far[0].price:
            highest[end] = [bid]
        elif bid.price == so_far[0].price:
            so_far.append(bid)
    sums = Counter[str]()
    for end, bids in highest.items():
        for bid in bids:
            sums[f"{bid.auction} {bid.bidder} {end}"] += bid.price
    return Found(sum(map(len, highest.values())), dict(sums))


def q8_windowed(events: Events) -> Found:
    """Query 8: the people who joined and opened an auction in one window."""
    return nexmark_loops.q8(events)


def q11_windowed(events: Events) -> Found:
    """Query 11: how many bids a person made in each session."""
    return nexmark_loops.q11(events)


def q12(events: Events) -> Found:
    """Query 12: how many bids each person made."""
    counts = Counter(str(bid.bidder) for bid in _bids(events))
    return Found(len(counts), dict(counts))


def _of_each_day(events: Events, key_of: Callable[[Bid], str]) -> dict[str, list[Bid]]:
    days = defaultdict[str, list[Bid]](list)
    for bid in _bids(events):
        days[f"{bid.date_time // DAY_MS} {key_of(bid)}"].append(bid)
    return days


def _counted(days: dict[str, list[Bid]]) -> Found:
    found: dict[str, int] = {}
    for day, bids in days.items():
        for name, is_in in (("", ANY_PRICE), *((f" {rank}", is_in) for rank, is_in in enumerate(RANKS))):
            some = [bid for bid in bids if is_in(bid.price)]
            found[f"{day} bids{name}"] = len(some)
            found[f"{day} bidders{name}"] = len({bid.bidder for bid in some})
            found[f"{day} auctions{name}"] = len({bid.auction for bid in some})
    return Found(len(found), found)


def q15(events: Events) -> Found:
    """Query 15: how many bids, bidders and auctions there were each day."""
    return _counted(_of_each_day(events, lambda _: "all"))


def q16(events: Events) -> Found:
    """Query 16: how many bids, bidders and auctions there were each day on each channel."""
    return _counted(_of_each_day(events, lambda bid: bid.channel))


def q17(events: Events) -> Found:
    """Query 17: the prices on each auction, day by day."""
    found: dict[str, int] = {}
    for day, bids in _of_each_day(events, lambda bid: str(bid.auction)).items():
        prices = [bid.price for bid in bids]
        told = {
            "bids": len(prices),
            "min": min(prices),
            "max": max(prices),
            "avg": sum(prices) // len(prices),
            "sum": sum(prices),
        }
        told |= {f"bids {rank}": sum(map(is_in, prices)) for rank, is_in in enumerate(RANKS)}
        found |= {f"{day} {name}": number for name, number in told.items()}
    return Found(len(found), found)
