"""The programs of ``bench/programs.py`` as Bytewax dataflows; imported by the Python of ``.venv-bytewax`` alone.

Side:   any.
Rules:  as a user of Bytewax writes them: state is what a function gets and gives back.  Keys must be texts there.
"""

import json
from collections.abc import Iterable
from typing import Any

import bytewax.operators as op

from bench.jobs.program_records import (
    Customer,
    Hit,
    Measurement,
    Order,
    Reading,
    Sale,
    nested_sale,
    parse_customer,
    parse_customer_dict,
    parse_hit,
    parse_hit_dict,
    parse_measurement,
    parse_order,
    parse_order_dict,
    parse_reading,
    parse_sale,
)

Stream = Any  # Bytewax is not installed where types are checked
State = dict[str, Any]


def json_dicts(lines: Stream) -> Stream:
    """Sum the amounts that users spend in a shop."""
    events = op.filter("no views", op.map("parse", lines, json.loads), lambda event: event["action"] != "view")
    return op.stateful_map("spend", op.key_on("user", events, lambda event: event["user"]), _spend)


def _spend(state: State | None, event: dict[str, Any]) -> tuple[State, int]:
    if state is None:
        state = {"events": 0, "cents": 0}
    state["events"] += 1
    state["cents"] += event["price"]
    return state, state["cents"]


def json_dicts_twin(lines: Stream) -> Stream:
    """Compute ``json_dicts`` from nested events."""
    events = op.map("parse", lines, json.loads)
    events = op.filter("no views", events, lambda event: event["items"] and event["action"] != "view")
    return op.stateful_map("spend", op.key_on("user", events, lambda event: repr(event["user"]["id"])), _spend_by_kind)


def _spend_by_kind(state: State | None, event: dict[str, Any]) -> tuple[State, int]:
    if state is None:
        state = {"cents": 0.0, "by_action": {}}
    for item in event["items"]:
        state["cents"] += item["price"]
        state["by_action"][event["action"]] = item["id"]
    return state, int(state["cents"])


def log_dataclasses(lines: Stream) -> Stream:
    """Sum the bytes per address of requests to a web server."""
    hits = op.filter("answered", op.map("parse", lines, parse_hit), lambda hit: hit.status < 500)
    return op.stateful_map("traffic", op.key_on("address", hits, lambda hit: hit.address), _traffic)


def _traffic(state: State | None, hit: Hit) -> tuple[State, int]:
    if state is None:
        state = {"hits": 0, "bytes": 0, "misses": 0}
    state["hits"] += 1
    state["bytes"] += hit.size
    state["misses"] += hit.status == 404
    return state, state["bytes"]


def log_dataclasses_twin(lines: Stream) -> Stream:
    """Compute ``log_dataclasses`` with dicts in dicts for dataclasses."""
    hits = op.filter("answered", op.map("parse", lines, parse_hit_dict), lambda hit: hit["status"] < 500)
    keyed = op.key_on("address and method", hits, lambda hit: f"{hit['address']} {hit['request']['method']}")
    return op.stateful_map("traffic", keyed, _traffic_by_path)


def _traffic_by_path(state: State | None, hit: dict[str, Any]) -> tuple[State, int]:
    if state is None:
        state = {"bytes": 0, "paths": set()}
    state["bytes"] += hit["size"]
    state["paths"].add(hit["request"]["path"])
    return state, state["bytes"]


def csv_namedtuples(lines: Stream) -> Stream:
    """Sum the readings of each sensor."""
    readings = op.filter("good", op.map("parse", lines, parse_reading), lambda reading: reading.quality == "ok")
    return op.stateful_map("extremes", op.key_on("sensor", readings, lambda reading: reading.sensor), _extremes)


def _extremes(state: State | None, reading: Reading) -> tuple[State, int]:
    if state is None:
        state = {"low": reading.tenths, "high": reading.tenths, "total": 0}
    state["low"] = min(state["low"], reading.tenths)
    state["high"] = max(state["high"], reading.tenths)
    state["total"] += reading.tenths
    return state, state["total"]


def csv_namedtuples_twin(lines: Stream) -> Stream:
    """Compute ``csv_namedtuples`` with NamedTuples in NamedTuples, and values of three types."""
    measurements = op.filter(
        "good", op.map("parse", lines, parse_measurement), lambda measurement: measurement.tenths is not None
    )
    keyed = op.key_on("place", measurements, lambda measurement: f"{measurement.place.site}/{measurement.place.sensor}")
    return op.stateful_map("extremes", keyed, _extremes_by_place)


def _extremes_by_place(state: list[Any] | None, measurement: Measurement) -> tuple[list[Any], int]:
    tenths = measurement.tenths
    assert tenths is not None, "those without a value are filtered out"
    low, high, total = (tenths, tenths, 0) if state is None else state
    return [min(low, tenths), max(high, tenths), total + tenths], int(total + tenths)


def typed_rows(lines: Stream) -> Stream:
    """Sum the orders of customers of one country; NamedTuples for rows."""
    sales = op.filter("german", op.map("parse", lines, parse_sale), lambda sale: sale.country == "DE")
    return op.stateful_map("sales", op.key_on("customer", sales, lambda sale: sale.customer), _sales)


def _sales(state: State | None, sale: Sale) -> tuple[State, int]:
    if state is None:
        state = {"orders": 0, "cents": 0}
    state["orders"] += 1
    state["cents"] += sale.cents
    return state, state["cents"]


def typed_rows_twin(lines: Stream) -> Stream:
    """Compute ``typed_rows`` with tuples in tuples."""
    sales = op.filter("german", op.map("parse", lines, nested_sale), lambda sale: sale[0][1] == "DE")
    return op.stateful_map(
        "sales", op.key_on("customer", sales, lambda sale: f"{sale[0][0]} {sale[0][1]}"), _nested_sales
    )


def _nested_sales(state: list[int] | None, sale: tuple[Any, tuple[int, int]]) -> tuple[list[int], int]:
    if state is None:
        state = [0, 0]
    state[0] += 1
    state[1] += sale[1][1]
    return state, state[1]


def text_tuples(lines: Stream) -> Stream:
    """Sum the letters per word."""
    return op.stateful_map(
        "add", op.flat_map("split", lines, lambda line: [(word, len(word)) for word in line.split()]), _add
    )


def _add(state: int | None, number: int) -> tuple[int, int]:
    total = (state or 0) + number
    return total, total


def text_tuples_twin(lines: Stream) -> Stream:
    """Count letters with a dict per word."""
    words = op.flat_map("split", lines, lambda line: ((word, {"letters": len(word)}) for word in line.split()))
    return op.map_value("out of the dict", op.stateful_map("add", words, _add_letters), lambda value: value["letters"])


def _add_letters(state: State | None, value: State) -> tuple[State, State]:
    total = value if state is None else {"letters": state["letters"] + value["letters"]}
    return total, total


def two_streams(order_lines: Stream, customer_lines: Stream) -> Stream:
    """Join orders with their customers."""
    orders = op.key_on(
        "customer of order", op.map("parse order", order_lines, parse_order), lambda order: order.customer
    )
    parsed = op.map("parse customer", customer_lines, parse_customer)
    customers = op.key_on("customer", parsed, lambda customer: customer.customer)
    return op.stateful_flat_map("enrich", op.merge("both", orders, customers), _enrich)


def _enrich(state: State | None, value: Order | Customer) -> tuple[State, Iterable[int]]:
    if state is None:
        state = {"percent_off": None, "waiting": [], "to_pay": 0}
    if isinstance(value, Order):
        state["waiting"].append(value)
    else:
        state["percent_off"] = value.percent_off
    found = []
    if state["percent_off"] is not None:
        for order in state["waiting"]:
            state["to_pay"] += order.cents * (100 - state["percent_off"])
            found.append(state["to_pay"])
        state["waiting"].clear()
    return state, found


def two_streams_twin(order_lines: Stream, customer_lines: Stream) -> Stream:
    """Compute ``two_streams`` with dicts in dicts."""
    orders = op.map("parse order", order_lines, parse_order_dict)
    customers = op.map("parse customer", customer_lines, parse_customer_dict)
    both = op.key_on("customer", op.merge("both", orders, customers), lambda value: value["customer"])
    return op.stateful_flat_map("enrich", both, _enrich_dicts)


def _enrich_dicts(state: State | None, value: dict[str, Any]) -> tuple[State, Iterable[int]]:
    if state is None:
        state = {"terms": None, "waiting": [], "to_pay": 0}
    if value["kind"] == "customer":
        state["terms"] = value["terms"]
    else:
        state["waiting"].append(value)
    found = []
    if state["terms"] is not None:
        for order in state["waiting"]:
            state["to_pay"] += order["order"]["cents"] * (100 - state["terms"]["percent_off"])
            found.append(state["to_pay"])
        state["waiting"].clear()
    return state, found
