"""The records of the programs of ``bench/programs.py``, and the users' functions that make them of text.

Side:   pure; it runs in the Pythons of the peers too, so it imports nothing that they lack.
Rows:   ``Sale`` and the tuples of ``nested_sale`` stand for ``Row`` where an engine has none.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

_LOG_LINE: Final = re.compile(r'(\S+) \S+ (\S+) \[([^\]]+)\] "(\S+) (\S+) [^"]*" (\d{3}) (\d+) "([^"]*)" "([^"]*)"')
_NAMED_LOG_LINE: Final = re.compile(
    r'(?P<address>\S+) \S+ (?P<user>\S+) \[(?P<at>[^\]]+)\] "(?P<method>\S+) (?P<path>\S+) [^"]*" (?P<status>\d{3}) '
    r"(?P<size>\d+)"
)


@dataclass
class Hit:
    """One request that a web server answered."""

    address: str
    user: str
    at: str
    method: str
    path: str
    status: int
    size: int
    referrer: str
    agent: str


def parse_hit(line: str) -> Hit:
    """Parse a line of the combined log format."""
    match = _LOG_LINE.match(line)
    if match is None:
        raise ValueError(f"not a line of a web server: {line!r}")
    address, user, at, method, path, status, size, referrer, agent = match.groups()
    return Hit(address, user, at, method, path, int(status), int(size), referrer, agent)


def parse_hit_dict(line: str) -> dict[str, Any]:
    """Return the request as dicts in a dict."""
    match = _NAMED_LOG_LINE.match(line)
    if match is None:
        raise ValueError(f"not a line of a web server: {line!r}")
    fields: dict[str, Any] = match.groupdict()
    request = {"method": fields.pop("method"), "path": fields.pop("path")}
    return fields | {"request": request, "status": int(fields["status"]), "size": int(fields["size"])}


class Reading(NamedTuple):
    """A measurement of one sensor."""

    sensor: str
    at: str
    tenths: int
    quality: str


def parse_reading(line: str) -> Reading:
    """Parse a line of CSV."""
    sensor, at, tenths, quality = line.split(",")
    return Reading(sensor, at, int(tenths), quality)


class Place(NamedTuple):
    """The place of a sensor."""

    site: int
    sensor: str


class Measurement(NamedTuple):
    """A reading in another shape: a key of two fields, a value of several types."""

    place: Place
    tenths: int | float | None
    notes: tuple[str, ...]


def parse_measurement(line: str) -> Measurement:
    """Parse a line of CSV.  Readings that are not good have no value; every second one of the others has its value as a
    float.
    """
    sensor, at, tenths, quality = line.split(",")
    value = int(tenths) if int(tenths) % 2 else float(tenths)
    return Measurement(Place(int(sensor[-1]), sensor), value if quality == "ok" else None, (at, quality))


class Sale(NamedTuple):
    """The fields of an order that rows have."""

    order: int
    customer: str
    cents: int
    country: str


def parse_sale(line: str) -> Sale:
    """Parse a line of CSV."""
    order, customer, cents, country = line.split(",")
    return Sale(int(order), customer, int(cents), country)


def nested_sale(line: str) -> tuple[tuple[str, str], tuple[int, int]]:
    """Return the sale in another order, nested: (customer, country), (order, cents)."""
    order, customer, cents, country = line.split(",")
    return (customer, country), (int(order), int(cents))


@dataclass
class Order:
    """One order of a customer."""

    order: int
    customer: str
    cents: int
    country: str


@dataclass
class Customer:
    """A customer with his terms."""

    customer: str
    segment: str
    percent_off: int


def parse_order(line: str) -> Order:
    """Parse a line of CSV."""
    order, customer, cents, country = line.split(",")
    return Order(int(order), customer, int(cents), country)


def parse_customer(line: str) -> Customer:
    """Parse a line of CSV."""
    customer, segment, percent_off = line.split(",")
    return Customer(customer, segment, int(percent_off))


def parse_order_dict(line: str) -> dict[str, Any]:
    """Return an order as dicts in a dict."""
    order, customer, cents, country = line.split(",")
    return {
        "kind": "order",
        "customer": customer,
        "order": {"id": int(order), "cents": int(cents), "ship": {"country": country}},
    }


def parse_customer_dict(line: str) -> dict[str, Any]:
    """Return a customer as dicts in a dict."""
    customer, segment, percent_off = line.split(",")
    return {"kind": "customer", "customer": customer, "terms": {"segment": segment, "percent_off": int(percent_off)}}
