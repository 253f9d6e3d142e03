"""The programs of ``bench/programs.py`` as users write them in the DataStream API, and their unfriendly twins.

Side:   any; functions run inside the TaskManagers.
PyFlink: the very same file runs there: ``bench/peers/pyflink_work.py`` answers the two imports of flowlet with
    PyFlink's modules.
Twins:  other spelling (named functions, generators, classes with ``open``) and other types (dicts for dataclasses,
        nested values, keys of mixed types).
Output: (text, number) pairs; the last number of each text, and how many pairs came out, do not depend on the order in
        which the records of several subtasks meet.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from bench.jobs.program_records import (
    Customer,
    Hit,
    Measurement,
    Order,
    Place,
    Reading,
    parse_customer,
    parse_customer_dict,
    parse_hit,
    parse_hit_dict,
    parse_measurement,
    parse_order,
    parse_order_dict,
    parse_reading,
)
from flowlet.common import Row, Types
from flowlet.datastream import (
    CoMapFunction,
    DataStream,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
)

PAIR: Final = Types.TUPLE([Types.STRING(), Types.LONG()])
Pairs = Iterator[tuple[str, int]]


# ---------------------------------------------------------------- JSON lines to dicts


class Spending(KeyedProcessFunction):
    """The amount that every user has spent so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without users."""
        self._users: dict[str, dict[str, int]] = {}

    def process_element(self, value: dict[str, Any], ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one event."""
        user = ctx.get_current_key()
        spent = self._users.get(user)
        if spent is None:
            spent = self._users[user] = {"events": 0, "cents": 0}
        spent["events"] += 1
        spent["cents"] += value["price"]
        yield user, spent["cents"]


def json_dicts(lines: DataStream) -> DataStream:
    """Sum the amounts that users spend in a shop."""
    events = lines.map(lambda line: json.loads(line)).filter(lambda event: event["action"] != "view")
    return events.key_by(lambda event: event["user"]).process(Spending(), PAIR)


class Decode(FlatMapFunction):
    """Lines to events."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Make the decoder."""
        self._decoder = json.JSONDecoder()

    def flat_map(self, value: str) -> Iterator[dict[str, Any]]:
        """Decode one line."""
        event = self._decoder.decode(value)
        if event["items"]:
            yield event


class SpendingByKind(KeyedProcessFunction):
    """The amount that every user has spent so far, with the last item of each action."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without users."""
        self._users: dict[int | str, dict[str, Any]] = {}

    def process_element(self, value: dict[str, Any], ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one event."""
        user = ctx.get_current_key()
        spent = self._users.setdefault(user, {"cents": 0.0, "by_action": {}})
        for item in value["items"]:
            spent["cents"] += item["price"]
            spent["by_action"][value["action"]] = item["id"]
        yield repr(user), int(spent["cents"])


def is_no_view(event: dict[str, Any]) -> bool:
    """Whether the event is more than a view."""
    return bool(event["action"] != "view")


def id_of_user(event: dict[str, Any]) -> int | str:
    """Return the number of a user, or the text of a guest."""
    user: int | str = event["user"]["id"]
    return user


def json_dicts_twin(lines: DataStream) -> DataStream:
    """Compute ``json_dicts`` from nested events, with keys of two types."""
    return lines.flat_map(Decode()).filter(is_no_view).key_by(id_of_user).process(SpendingByKind(), PAIR)


# ---------------------------------------------------------------- lines of a web server to dataclasses


class Traffic(KeyedProcessFunction):
    """The bytes that every address has read so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without addresses."""
        self._addresses: dict[str, dict[str, int]] = {}

    def process_element(self, value: Hit, ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one request."""
        address = ctx.get_current_key()
        seen = self._addresses.get(address)
        if seen is None:
            seen = self._addresses[address] = {"hits": 0, "bytes": 0, "misses": 0}
        seen["hits"] += 1
        seen["bytes"] += value.size
        seen["misses"] += value.status == 404
        yield address, seen["bytes"]


def log_dataclasses(lines: DataStream) -> DataStream:
    """Sum the bytes per address of requests to a web server."""
    hits = lines.map(parse_hit).filter(lambda hit: hit.status < 500)
    return hits.key_by(lambda hit: hit.address).process(Traffic(), PAIR)


class IsNoFailure(FilterFunction):
    """Requests that were answered."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Set the first status for which the server is to blame."""
        self._first_failure = 500

    def filter(self, value: dict[str, Any]) -> bool:
        """Test one request."""
        return bool(value["status"] < self._first_failure)


def parsed_hits(line: str) -> Iterator[dict[str, Any]]:
    """Yield the request of one line, as a generator function does."""
    yield parse_hit_dict(line)


def address_and_method(hit: dict[str, Any]) -> tuple[str, str]:
    """Return a key of two fields."""
    return hit["address"], hit["request"]["method"]


class TrafficByPath(KeyedProcessFunction):
    """The bytes and paths that every address has read so far by each method."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without requests."""
        self._seen: dict[tuple[str, str], dict[str, Any]] = {}

    def process_element(self, value: dict[str, Any], ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one request."""
        address, method = key = ctx.get_current_key()
        seen = self._seen.setdefault(key, {"bytes": 0, "paths": set()})
        seen["bytes"] += value["size"]
        seen["paths"].add(value["request"]["path"])
        yield f"{address} {method}", seen["bytes"]


def log_dataclasses_twin(lines: DataStream) -> DataStream:
    """Compute ``log_dataclasses`` with dicts in dicts for dataclasses, and a tuple as the key."""
    return lines.flat_map(parsed_hits).filter(IsNoFailure()).key_by(address_and_method).process(TrafficByPath(), PAIR)


# ---------------------------------------------------------------- CSV lines to NamedTuples


class Extremes(KeyedProcessFunction):
    """Lowest, highest and total reading of every sensor."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without sensors."""
        self._sensors: dict[str, dict[str, int]] = {}

    def process_element(self, value: Reading, ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one reading."""
        sensor = ctx.get_current_key()
        seen = self._sensors.get(sensor)
        if seen is None:
            seen = self._sensors[sensor] = {"low": value.tenths, "high": value.tenths, "total": 0}
        seen["low"] = min(seen["low"], value.tenths)
        seen["high"] = max(seen["high"], value.tenths)
        seen["total"] += value.tenths
        yield sensor, seen["total"]


def csv_namedtuples(lines: DataStream) -> DataStream:
    """Sum the readings of each sensor."""
    readings = lines.map(parse_reading).filter(lambda reading: reading.quality == "ok")
    return readings.key_by(lambda reading: reading.sensor).process(Extremes(), PAIR)


class ParseMeasurement(MapFunction):
    """Lines to measurements."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Choose the parser."""
        self._parse = parse_measurement

    def map(self, value: str) -> Measurement:
        """Parse one line."""
        return self._parse(value)


def has_value(measurement: Measurement) -> bool:
    """Whether it is good."""
    return measurement.tenths is not None


class ByPlace(KeySelector):
    """The NamedTuple in the NamedTuple."""

    def get_key(self, value: Measurement) -> Place:
        """Return the place of one measurement."""
        return value.place


class ExtremesByPlace(KeyedProcessFunction):
    """Lowest, highest and total reading of every place."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without places."""
        self._places: dict[Place, list[int | float]] = {}

    def process_element(self, value: Measurement, ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one measurement."""
        place, tenths = ctx.get_current_key(), value.tenths
        assert tenths is not None, "those without a value are filtered out"
        low, high, total = self._places.get(place, (tenths, tenths, 0))
        self._places[place] = [min(low, tenths), max(high, tenths), total + tenths]
        yield f"{place.site}/{place.sensor}", int(total + tenths)


def csv_namedtuples_twin(lines: DataStream) -> DataStream:
    """Compute ``csv_namedtuples`` with NamedTuples in NamedTuples, values of three types, and a NamedTuple as the
    key.
    """
    return lines.map(ParseMeasurement()).filter(has_value).key_by(ByPlace()).process(ExtremesByPlace(), PAIR)


# ---------------------------------------------------------------- Rows with declared types

SALE: Final = Types.ROW_NAMED(
    ["order", "customer", "cents", "country"], [Types.LONG(), Types.STRING(), Types.LONG(), Types.STRING()]
)
NESTED_SALE: Final = Types.ROW([Types.ROW([Types.STRING(), Types.STRING()]), Types.ROW([Types.LONG(), Types.LONG()])])


def sale_row(line: str) -> Row:
    """Parse a line of CSV into a row with names."""
    order, customer, cents, country = line.split(",")
    return Row(order=int(order), customer=customer, cents=int(cents), country=country)


class Sales(KeyedProcessFunction):
    """The amount that every customer has bought so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without customers."""
        self._customers: dict[str, dict[str, int]] = {}

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one order."""
        customer = ctx.get_current_key()
        sold = self._customers.get(customer)
        if sold is None:
            sold = self._customers[customer] = {"orders": 0, "cents": 0}
        sold["orders"] += 1
        sold["cents"] += value["cents"]
        yield customer, sold["cents"]


def typed_rows(lines: DataStream) -> DataStream:
    """Sum the orders of customers of one country."""
    sales = lines.map(sale_row, SALE).filter(lambda row: row["country"] == "DE")
    return sales.key_by(lambda row: row["customer"], Types.STRING()).process(Sales(), PAIR)


def nested_sale_rows(line: str) -> Iterator[Row]:
    """Parse a line of CSV into rows in a row, as a generator function does."""
    order, customer, cents, country = line.split(",")
    yield Row(Row(customer, country), Row(int(order), int(cents)))


def is_german(row: Row) -> bool:
    """Whether the country is Germany; read by position from the row in the row."""
    return bool(row[0][1] == "DE")


def customer_and_country(row: Row) -> tuple[str, str]:
    """Return a key of two fields."""
    return row[0][0], row[0][1]


class NestedSales(KeyedProcessFunction):
    """The amount that every customer has bought so far, from rows in rows."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without customers."""
        self._customers: dict[tuple[str, str], list[int]] = {}

    def process_element(self, value: Row, ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one order."""
        key = ctx.get_current_key()
        sold = self._customers.setdefault(key, [0, 0])
        sold[0] += 1
        sold[1] += value[1][1]
        yield f"{key[0]} {key[1]}", sold[1]


def typed_rows_twin(lines: DataStream) -> DataStream:
    """Compute ``typed_rows`` with rows in rows, by position, and a tuple as the key."""
    sales = lines.flat_map(nested_sale_rows, NESTED_SALE).filter(is_german)
    return sales.key_by(customer_and_country, Types.TUPLE([Types.STRING(), Types.STRING()])).process(
        NestedSales(), PAIR
    )


# ---------------------------------------------------------------- text to tuples


def pairs_of_line(line: str) -> list[tuple[str, int]]:
    """Return a pair per word; shorter words count for less, so that the functions are more than a pattern."""
    pairs = []
    for word in line.split():
        if word:
            pairs.append((word, len(word)))  # noqa: PERF401 - a user's loop
    return pairs


def added(one: tuple[str, int], other: tuple[str, int]) -> tuple[str, int]:
    """Add both numbers."""
    word, number = one
    return word, number + other[1]


def text_tuples(lines: DataStream) -> DataStream:
    """Sum the letters per word; the reduce function is called for every word."""
    return lines.flat_map(pairs_of_line, PAIR).key_by(lambda pair: pair[0], Types.STRING()).reduce(added)


def listed_words(line: str) -> Iterator[list[Any]]:
    """Yield a list per word, as a generator function does."""
    for word in line.split():
        yield [word, {"letters": len(word)}]


class AddLetters(ReduceFunction):
    """Adds both numbers, in a new list."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Set the field that is added."""
        self._field = "letters"

    def reduce(self, value1: list[Any], value2: list[Any]) -> list[Any]:
        """Add two records of a word."""
        return [value1[0], {self._field: value1[1][self._field] + value2[1][self._field]}]


def word_of(record: list[Any]) -> str:
    """Return the first field: the word."""
    word: str = record[0]
    return word


def pair_of(record: list[Any]) -> tuple[str, int]:
    """Return word and letters, out of the dict."""
    return record[0], record[1]["letters"]


def text_tuples_twin(lines: DataStream) -> DataStream:
    """Compute ``text_tuples`` with lists and dicts for tuples."""
    return lines.flat_map(listed_words).key_by(word_of).reduce(AddLetters()).map(pair_of, PAIR)


# ---------------------------------------------------------------- two streams connected


class Enrich(KeyedCoProcessFunction):
    """Orders wait until their customer is known; then what each has to pay is added up."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without customers and orders."""
        self._customers: dict[str, Customer] = {}
        self._waiting: dict[str, list[Order]] = {}
        self._to_pay: dict[str, int] = {}

    def process_element1(self, value: Order, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process one order."""
        customer = self._customers.get(value.customer)
        if customer is None:
            self._waiting.setdefault(value.customer, []).append(value)
        else:
            yield value.customer, self._add(value, customer)

    def process_element2(self, value: Customer, ctx: KeyedCoProcessFunction.Context) -> Pairs:
        """Process one customer, and the orders that waited."""
        self._customers[value.customer] = value
        for order in self._waiting.pop(value.customer, ()):
            yield order.customer, self._add(order, value)

    def _add(self, order: Order, customer: Customer) -> int:
        to_pay = self._to_pay.get(customer.customer, 0) + order.cents * (100 - customer.percent_off)
        self._to_pay[customer.customer] = to_pay
        return to_pay


def two_streams(order_lines: DataStream, customer_lines: DataStream) -> DataStream:
    """Join orders with their customers."""
    orders = order_lines.map(parse_order).key_by(lambda order: order.customer)
    customers = customer_lines.map(parse_customer).key_by(lambda customer: customer.customer)
    return orders.connect(customers).process(Enrich(), PAIR)


class ParseBoth(CoMapFunction):
    """Lines of both kinds to dicts."""

    def map1(self, value: str) -> dict[str, Any]:
        """Parse an order."""
        return parse_order_dict(value)

    def map2(self, value: str) -> dict[str, Any]:
        """Parse a customer."""
        return parse_customer_dict(value)


class EnrichDicts(KeyedProcessFunction):
    """Enriches orders in one stream of dicts of two kinds, with one dict for all that belongs to a customer."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Begin without customers and orders."""
        self._states: dict[str, dict[str, Any]] = {}

    def process_element(self, value: dict[str, Any], ctx: KeyedProcessFunction.Context) -> Pairs:
        """Process one order or one customer."""
        key = ctx.get_current_key()
        state = self._states.setdefault(key, {"terms": None, "waiting": [], "to_pay": 0})
        if value["kind"] == "customer":
            state["terms"] = value["terms"]
        else:
            state["waiting"].append(value)
        if state["terms"] is not None:
            for order in state["waiting"]:
                state["to_pay"] += order["order"]["cents"] * (100 - state["terms"]["percent_off"])
                yield key, state["to_pay"]
            state["waiting"].clear()


def customer_of(value: dict[str, Any]) -> str:
    """Return the customer of an order or of a customer's own record."""
    customer: str = value["customer"]
    return customer


def two_streams_twin(order_lines: DataStream, customer_lines: DataStream) -> DataStream:
    """Compute ``two_streams`` by a CoMap to dicts in dicts, which are keyed after it."""
    return order_lines.connect(customer_lines).map(ParseBoth()).key_by(customer_of).process(EnrichDicts(), PAIR)
