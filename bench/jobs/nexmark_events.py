"""NEXMark's events: people, their auctions and the bids on them; event ``number`` is a pure function of its number.

Side:    pure; it runs in the Pythons of the peers too, so it imports nothing that they lack.
Source:  the published description of the benchmark (Tucker, Tufte, Papadimos, Maier: "NEXMark - a benchmark for queries
         over data streams", 2008) and the proportions that Apache Beam's and Flink's suites use: 1 person, 3 auctions
         and 46 bids per 50 events; half of the bids on a hot auction, three quarters by a hot bidder, three quarters of
         the auctions by a hot seller.  The numbers drawn are our own.
Units:   money in cents, times in ms, 10,000 events per second of event time.
Twin:    ``nested_event`` gives each event as dicts in dicts.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from bench.jobs.scattered import below, scattered

EVENTS_PER_EPOCH: Final = 50
AUCTIONS_PER_EPOCH: Final = 3
FIRST_ID: Final = 1000
FIRST_CATEGORY: Final = 10
NUM_CATEGORIES: Final = 5
NUM_SIDE_VALUES: Final = 1000
_EVENTS_PER_MS: Final = 10
_BASE_MS: Final = 1_700_000_000_000
_ACTIVE_PEOPLE: Final = 1000
_OPEN_AUCTIONS: Final = 100
_HOT: Final = 100  # every hundredth auction, bidder and seller is hot while it is among the newest
_STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
_CITIES: Final = (
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
)
_FIRST_NAMES: Final = ("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter")
_LAST_NAMES: Final = ("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris")
_CHANNELS: Final = ("Apple", "Google", "Facebook", "Baidu")


@dataclass
class Person:
    """A person who joined."""

    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str

    kind: ClassVar[str] = "person"


@dataclass
class Auction:
    """An item for sale."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str

    kind: ClassVar[str] = "auction"


@dataclass
class Bid:
    """A price that a person offers."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str

    kind: ClassVar[str] = "bid"


Event = Person | Auction | Bid


def event(number: int) -> Event:
    """Return the event ``number``."""
    offset = number % EVENTS_PER_EPOCH
    if offset == 0:
        return _person(number)
    return _auction(number) if offset <= AUCTIONS_PER_EPOCH else _bid(number)


def nested_event(number: int) -> dict[str, Any]:
    """Return an event as dicts in a dict, with the fields of one kind under its name."""
    made = event(number)
    return {"kind": made.kind, "at": {"ms": made.date_time}, made.kind: asdict(made)}


def as_text(made: Event) -> str:
    """Return a line for Flink's Java program: the kind and the fields, between tabs."""
    return "\t".join([made.kind, *map(str, vars(made).values())])


def side_values() -> dict[int, str]:
    """Return the table that bids are looked up in, by auction modulo its size."""
    return {number: f"side{below(100, number):02d}" for number in range(NUM_SIDE_VALUES)}


def _person(number: int) -> Person:
    name = f"{_choice(_FIRST_NAMES, number, 0)} {_choice(_LAST_NAMES, number, 1)}"
    card = f"{below(10**8, number, 2):08d}{below(10**8, number, 3):08d}"
    place = _choice(_CITIES, number, 4), _choice(_STATES, number, 5)
    email = f"{name.replace(' ', '.').lower()}@example.org"
    return Person(FIRST_ID + _newest_person(number), name, email, card, *place, _time(number), _extra(number))


def _auction(number: int) -> Auction:
    at, price = _time(number), _price(number, 1)
    newest = _newest_person(number)
    seller = newest // _HOT * _HOT if below(4, number, 2) else _one_of_the_last(_ACTIVE_PEOPLE, newest, number, 3)
    category = FIRST_CATEGORY + below(NUM_CATEGORIES, number, 4)
    item, expires = f"item {below(10_000, number, 5)}", at + 1 + below(20_000, number, 6)
    reserve = price + _price(number, 7)
    ids = FIRST_ID + _newest_auction(number), FIRST_ID + seller
    return Auction(ids[0], item, f"{item}, hardly used", price, reserve, at, expires, ids[1], category, _extra(number))


def _bid(number: int) -> Bid:
    newest = _newest_auction(number)
    auction = newest // _HOT * _HOT if below(2, number, 1) else _one_of_the_last(_OPEN_AUCTIONS, newest, number, 2)
    person = _newest_person(number)
    bidder = person // _HOT * _HOT if below(4, number, 3) else _one_of_the_last(_ACTIVE_PEOPLE, person, number, 4)
    channel = _choice(_CHANNELS, number, 5)
    url = f"https://www.example.org/{channel.lower()}/item.html?query=1&channel_id={below(10_000, number, 6)}"
    return Bid(FIRST_ID + auction, FIRST_ID + bidder, _price(number, 7), channel, url, _time(number), _extra(number))


def _newest_person(number: int) -> int:
    return number // EVENTS_PER_EPOCH


def _newest_auction(number: int) -> int:
    """Return the newest auction; before the first one of an epoch it is the last one of the previous epoch."""
    epoch, offset = divmod(number, EVENTS_PER_EPOCH)
    return max(0, epoch * AUCTIONS_PER_EPOCH + min(offset, AUCTIONS_PER_EPOCH) - 1)


def _one_of_the_last(limit: int, newest: int, number: int, draw: int) -> int:
    return newest - below(min(limit, newest + 1), number, draw)


def _choice(values: tuple[str, ...], number: int, draw: int) -> str:
    return values[below(len(values), number, draw)]


def _price(number: int, draw: int) -> int:
    """Return a price between 1 and a million, each power of ten equally often."""
    return round(10 ** (6 * scattered(number, draw) / 2**64) * 100)


def _time(number: int) -> int:
    return _BASE_MS + number // _EVENTS_PER_MS


def _extra(number: int) -> str:
    return f"{scattered(number, 15):016x}"
