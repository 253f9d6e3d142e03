"""The programs of ``bench/programs.py`` as plain Python loops: one process, one pass, dicts.

Side:   pure.
Output: what the streams give goes into a dict that has the last number of every text.
Rules:  as one would write it by hand.  Each loop parses with the functions that the streams call; a connected stream is
        read before the other one, which a loop can do and a stream cannot.
"""

import json
from collections.abc import Iterator
from typing import Any

from bench.jobs.program_records import (
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
from bench.jobs.work import Found

Lines = Iterator[str]


def json_dicts(lines: Lines) -> Found:
    """Sum the amounts that users spend in a shop."""
    users: dict[str, dict[str, int]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        event = json.loads(line)
        if event["action"] != "view":
            user = event["user"]
            spent = users.get(user)
            if spent is None:
                spent = users[user] = {"events": 0, "cents": 0}
            spent["events"] += 1
            spent["cents"] += event["price"]
            last[user] = spent["cents"]
            num_outputs += 1
    return Found(num_outputs, last)


def json_dicts_twin(lines: Lines) -> Found:
    """Compute ``json_dicts`` from nested events, with keys of two types."""
    users: dict[int | str, dict[str, Any]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        event = json.loads(line)
        if event["items"] and event["action"] != "view":
            user = event["user"]["id"]
            spent = users.get(user)
            if spent is None:
                spent = users[user] = {"cents": 0.0, "by_action": {}}
            for item in event["items"]:
                spent["cents"] += item["price"]
                spent["by_action"][event["action"]] = item["id"]
            last[repr(user)] = int(spent["cents"])
            num_outputs += 1
    return Found(num_outputs, last)


def log_dataclasses(lines: Lines) -> Found:
    """Sum the bytes per address of requests to a web server."""
    addresses: dict[str, dict[str, int]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        hit = parse_hit(line)
        if hit.status < 500:
            seen = addresses.get(hit.address)
            if seen is None:
                seen = addresses[hit.address] = {"hits": 0, "bytes": 0, "misses": 0}
            seen["hits"] += 1
            seen["bytes"] += hit.size
            seen["misses"] += hit.status == 404
            last[hit.address] = seen["bytes"]
            num_outputs += 1
    return Found(num_outputs, last)


def log_dataclasses_twin(lines: Lines) -> Found:
    """Compute ``log_dataclasses`` with dicts in dicts for dataclasses, and a tuple as the key."""
    addresses: dict[tuple[str, str], dict[str, Any]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        hit = parse_hit_dict(line)
        if hit["status"] < 500:
            address, method = key = hit["address"], hit["request"]["method"]
            seen = addresses.get(key)
            if seen is None:
                seen = addresses[key] = {"bytes": 0, "paths": set()}
            seen["bytes"] += hit["size"]
            seen["paths"].add(hit["request"]["path"])
            last[f"{address} {method}"] = seen["bytes"]
            num_outputs += 1
    return Found(num_outputs, last)


def csv_namedtuples(lines: Lines) -> Found:
    """Sum the readings of each sensor."""
    sensors: dict[str, dict[str, int]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        reading = parse_reading(line)
        if reading.quality == "ok":
            seen = sensors.get(reading.sensor)
            if seen is None:
                seen = sensors[reading.sensor] = {"low": reading.tenths, "high": reading.tenths, "total": 0}
            seen["low"] = min(seen["low"], reading.tenths)
            seen["high"] = max(seen["high"], reading.tenths)
            seen["total"] += reading.tenths
            last[reading.sensor] = seen["total"]
            num_outputs += 1
    return Found(num_outputs, last)


def csv_namedtuples_twin(lines: Lines) -> Found:
    """Compute ``csv_namedtuples`` with NamedTuples in NamedTuples, values of three types, and a NamedTuple as the
    key.
    """
    places: dict[Any, list[int | float]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        measurement = parse_measurement(line)
        tenths = measurement.tenths
        if tenths is not None:
            place = measurement.place
            low, high, total = places.get(place, (tenths, tenths, 0))
            places[place] = [min(low, tenths), max(high, tenths), total + tenths]
            last[f"{place.site}/{place.sensor}"] = int(total + tenths)
            num_outputs += 1
    return Found(num_outputs, last)


def typed_rows(lines: Lines) -> Found:
    """Sum the orders of customers of one country."""
    customers: dict[str, dict[str, int]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        sale = parse_sale(line)
        if sale.country == "DE":
            sold = customers.get(sale.customer)
            if sold is None:
                sold = customers[sale.customer] = {"orders": 0, "cents": 0}
            sold["orders"] += 1
            sold["cents"] += sale.cents
            last[sale.customer] = sold["cents"]
            num_outputs += 1
    return Found(num_outputs, last)


def typed_rows_twin(lines: Lines) -> Found:
    """Compute ``typed_rows`` with tuples in tuples, and a tuple as the key."""
    customers: dict[tuple[str, str], list[int]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        key, (_, cents) = nested_sale(line)
        if key[1] == "DE":
            sold = customers.get(key)
            if sold is None:
                sold = customers[key] = [0, 0]
            sold[0] += 1
            sold[1] += cents
            last[f"{key[0]} {key[1]}"] = sold[1]
            num_outputs += 1
    return Found(num_outputs, last)


def text_tuples(lines: Lines) -> Found:
    """Sum the letters per word."""
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        for word in line.split():
            last[word] = last.get(word, 0) + len(word)
            num_outputs += 1
    return Found(num_outputs, last)


def text_tuples_twin(lines: Lines) -> Found:
    """Compute ``text_tuples`` with dicts in a dict."""
    words: dict[str, dict[str, int]] = {}
    last, num_outputs = dict[str, int](), 0
    for line in lines:
        for word in line.split():
            words[word] = {"letters": words[word]["letters"] + len(word) if word in words else len(word)}
            last[word] = words[word]["letters"]
            num_outputs += 1
    return Found(num_outputs, last)


def two_streams(order_lines: Lines, customer_lines: Lines) -> Found:
    """Join orders with their customers."""
    customers = {customer.customer: customer for customer in map(parse_customer, customer_lines)}
    last, num_outputs = dict[str, int](), 0
    for line in order_lines:
        order = parse_order(line)
        customer = customers[order.customer]
        last[order.customer] = last.get(order.customer, 0) + order.cents * (100 - customer.percent_off)
        num_outputs += 1
    return Found(num_outputs, last)


def two_streams_twin(order_lines: Lines, customer_lines: Lines) -> Found:
    """Compute ``two_streams`` with dicts in dicts."""
    customers = {customer["customer"]: customer["terms"] for customer in map(parse_customer_dict, customer_lines)}
    last, num_outputs = dict[str, int](), 0
    for line in order_lines:
        order = parse_order_dict(line)
        key = order["customer"]
        last[key] = last.get(key, 0) + order["order"]["cents"] * (100 - customers[key]["percent_off"])
        num_outputs += 1
    return Found(num_outputs, last)
