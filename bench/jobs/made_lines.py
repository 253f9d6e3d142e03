"""The text that the programs of ``bench/programs.py`` read: line ``number`` of each kind is a pure function of its
number.

Side:   pure; it runs in the Pythons of the peers too, so it imports nothing that they lack.
Keys:   1,000 users, 5,000 addresses, 1,000 sensors, 10,000 customers.
"""

import json
from typing import Final

from bench.jobs.scattered import below

NUM_USERS: Final = 1_000
NUM_ADDRESSES: Final = 5_000
NUM_SENSORS: Final = 1_000
NUM_CUSTOMERS: Final = 10_000
NUM_WORDS: Final = 10_000
WORDS_PER_LINE: Final = 10
_ACTIONS: Final = ("buy", "buy", "cart", "rate", "view")
_METHODS: Final = ("GET", "GET", "GET", "POST", "HEAD")
_PATHS: Final = (
    "/",
    "/index.html",
    "/api/items",
    "/api/items/{}",
    "/static/app.js",
    "/cart",
    "/login",
    "/images/{}.png",
)
_STATUSES: Final = (200, 200, 200, 200, 200, 301, 304, 404, 404, 500)
_AGENTS: Final = (
    "Mozilla/5.0 (X11; Linux x86_64; rv:120.0)",
    "curl/8.4.0",
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_1)",
)
_SEGMENTS: Final = ("basic", "plus", "business")
_BASE_S: Final = 1_700_000_000


def event_line(number: int) -> str:
    """Return one event of a shop as flat JSON; four of five are no views."""
    event = {
        "user": f"user{below(NUM_USERS, number):04d}",
        "action": _ACTIONS[below(len(_ACTIONS), number, 1)],
        "item": below(5_000, number, 2),
        "price": below(100_000, number, 3),
        "at": _BASE_S + number,
    }
    return json.dumps(event)


def nested_event_line(number: int) -> str:
    """Return an event with objects in objects, lists, values of several types under one name, and keys that are
    sometimes missing.
    """
    user = below(NUM_USERS, number)
    items = [
        {"id": below(5_000, number, 4 + place), "price": below(50_000, number, 8 + place)}
        for place in range(1 + number % 3)
    ]
    event = {
        "user": {"id": user if user % 3 else f"guest-{user}", "tags": ["new", None, user % 7][: user % 4]},
        "action": _ACTIONS[below(len(_ACTIONS), number, 1)],
        "items": items,
    }
    return json.dumps(event | ({"coupon": 1.5} if number % 5 == 0 else {}))


def log_line(number: int) -> str:
    """Return one line of a web server in the combined log format; one of ten is a server error."""
    address = below(NUM_ADDRESSES, number)
    path = _PATHS[below(len(_PATHS), number, 1)].format(below(1000, number, 2))
    second = number % 86_400
    at = f"10/Oct/2025:{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d} +0000"
    request = f"{_METHODS[below(len(_METHODS), number, 3)]} {path} HTTP/1.1"
    status, size = _STATUSES[below(len(_STATUSES), number, 4)], below(50_000, number, 5)
    source = f"10.{address >> 8}.{address & 255}.{address % 251}"
    return (
        f'{source} - - [{at}] "{request}" {status} {size} "https://example.org/" '
        f'"{_AGENTS[below(len(_AGENTS), number, 6)]}"'
    )


def reading_line(number: int) -> str:
    """Return one reading of a sensor as CSV: sensor, moment, tenths of a degree, quality; one of eight is not good."""
    sensor, quality = below(NUM_SENSORS, number), "ok" if below(8, number, 1) else "bad"
    at = f"2025-10-10T{number // 3600 % 24:02d}:{number // 60 % 60:02d}:{number % 60:02d}"
    return f"sensor{sensor:04d},{at},{below(400, number, 2)},{quality}"


def order_line(number: int) -> str:
    """Return one order as CSV: order, customer, cents, country."""
    return f"{number},c{below(NUM_CUSTOMERS, number):05d},{below(100_000, number, 1)},{'DE' if number % 3 else 'FR'}"


def customer_line(number: int) -> str:
    """Return one customer as CSV: customer, segment, percent off; every customer has one line."""
    return f"c{number:05d},{_SEGMENTS[number % len(_SEGMENTS)]},{number % 20}"


def text_line(number: int) -> str:
    """Return ten words; small numbers are the frequent ones."""
    draws = (below(NUM_WORDS, number, place) for place in range(WORDS_PER_LINE))
    return " ".join(f"word{draw * draw // NUM_WORDS:05d}" for draw in draws)
