"""NEXMark's query 8 with a co-group in windows.

Side:    any; functions run inside the TaskManagers.
PyFlink: has no co-groups; ``bench/jobs/nexmark_streams.py`` has the query for both.
Output:  as there.
"""

from bench.jobs.nexmark_auctions import auctions_of, timed
from bench.jobs.nexmark_events import Auction, Person
from bench.jobs.nexmark_streams import PAIR, WINDOW_MS, Pairs
from flowlet.common import Types
from flowlet.common.time import Time
from flowlet.datastream import DataStream
from flowlet.datastream.window import TumblingEventTimeWindows


def new_sellers(people: list[Person], auctions: list[Auction]) -> Pairs:
    """Yield the person of an id who joined in a window, if that id opened an auction in it."""
    if auctions:
        for person in people:
            yield f"{person.id} {person.name}", person.date_time - person.date_time % WINDOW_MS


def q8_windowed(events: DataStream) -> DataStream:
    """Query 8 with a window join: the people who joined and opened an auction in one window."""
    events = timed(events)
    people = events.filter(lambda event: isinstance(event, Person))
    by_person = people.co_group(auctions_of(events)).where(lambda person: person.id, Types.LONG())
    both = by_person.equal_to(lambda auction: auction.seller, Types.LONG())
    return both.window(TumblingEventTimeWindows.of(Time.milliseconds(WINDOW_MS))).apply(new_sellers, PAIR)
