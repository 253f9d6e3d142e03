"""The cost of sending records as people write them: bytes and back, without a network.

Side:   any.
Work:   lists of 1,000 records of six plain fields, unless the row says otherwise, encoded as one chunk and decoded; in
        turns with one cloudpickle of the list, the former encoding.  Each row has an unfriendly twin: records that look
        alike and do not travel as columns.  "Emitted" records are pickled one by one, like records that could change
        after they were emitted.
Figure: CPU ns per record, encode + decode; both parts, the pickle's and the sizes in the details.
Proof:  the decoded records equal the encoded ones.
"""

import gc
import json
import pickle
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import cloudpickle
import msgspec

from bench.jobs.checked import WrongOutputError
from bench.report import Result
from flowlet.common.types import Row
from flowlet.records import PickledRecord
from flowlet.serde.column_reader import decode_column
from flowlet.serde.column_writer import encode_column
from flowlet.serde.pickles.record_pickle import dumps_record

NUM_RECORDS: Final = 1_000
TURNS_PER_RUN: Final = 15
NAMES: Final = ("number", "user", "price", "is_paid", "country", "millis")


@dataclass
class Order:
    """An order as most programs write it."""

    number: int
    user: str
    price: float
    is_paid: bool
    country: str
    millis: int


@dataclass(frozen=True)
class FrozenOrder:
    """An order that cannot change."""

    number: int
    user: str
    price: float
    is_paid: bool
    country: str
    millis: int


@dataclass(frozen=True, slots=True)
class SlottedOrder:
    """An order with slots."""

    number: int
    user: str
    price: float
    is_paid: bool
    country: str
    millis: int


@dataclass
class Basket(Order):
    """An order with lists."""

    items: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class OrderTuple(NamedTuple):
    """An order as a tuple."""

    number: int
    user: str
    price: float
    is_paid: bool
    country: str
    millis: int


class OrderStruct(msgspec.Struct):
    """An order as a Struct."""

    number: int
    user: str
    price: float
    is_paid: bool
    country: str
    millis: int


class KeywordStruct(msgspec.Struct, kw_only=True):
    """A Struct whose constructor takes names."""

    number: int
    user: str
    price: float
    is_paid: bool
    country: str
    millis: int


class StatedOrder(Order):
    """An order whose ``__getstate__`` says what is pickled."""

    def __getstate__(self) -> Any:
        return self.__dict__.copy()


class CheckedTuple(OrderTuple):
    """Says itself how it is made."""

    def __new__(cls, *fields: Any) -> "CheckedTuple":  # noqa: D102
        return super().__new__(cls, *fields)


def _fields(number: int) -> tuple[int, str, float, bool, str, int]:
    return (
        number,
        f"user{number * 7919 % 300}",
        number / 8,
        number % 3 == 0,
        "NO" if number % 5 else "DK",
        1_700_000_000_000 + number,
    )


def _dict(number: int) -> dict[str, Any]:
    return dict(zip(NAMES, _fields(number), strict=True))


def _noted(number: int) -> Order:
    order = Order(*_fields(number))
    vars(order)[f"note{number % 2}"] = number
    return order


def _aliased(number: int) -> Basket:
    items = [f"item{number % 9}"]
    return Basket(*_fields(number), items=items, notes=items)


def _emitted(record: Any) -> PickledRecord:
    return PickledRecord(dumps_record(record))


ROWS: Final[dict[str, Callable[[int], Any]]] = {
    "dicts of JSON": lambda number: json.loads(json.dumps(_dict(number))),
    "dicts of JSON, nested": lambda number: json.loads(
        json.dumps({"order": _dict(number), "items": ["a", str(number)]})
    ),
    "dicts of literals": _dict,
    "dicts of literals, other keys in each second": lambda number: _dict(number) | ({"extra": 1} if number % 2 else {}),
    "dataclass": lambda number: Order(*_fields(number)),
    "dataclass, other attributes in each second": _noted,
    "dataclass, frozen": lambda number: FrozenOrder(*_fields(number)),
    "dataclass with its own getstate": lambda number: StatedOrder(*_fields(number)),
    "dataclass, frozen, with slots": lambda number: SlottedOrder(*_fields(number)),
    "dataclasses of two classes": lambda number: (SlottedOrder if number % 2 else FrozenOrder)(*_fields(number)),
    "dataclass with a list": lambda number: Basket(*_fields(number), items=[f"item{number % 9}"]),
    "dataclass with one list twice": _aliased,
    "NamedTuple": lambda number: OrderTuple(*_fields(number)),
    "NamedTuple with its own new": lambda number: CheckedTuple(*_fields(number)),
    "Struct": lambda number: OrderStruct(*_fields(number)),
    "Struct of keywords": lambda number: KeywordStruct(**_dict(number)),
    "Row": lambda number: Row(**_dict(number)),
    "Row, other names in each second": lambda number: Row(**_dict(number)) if number % 2 else Row(*_fields(number)),
    "nested tuples": lambda number: (number, (f"user{number % 300}", (number / 8, "NO")), number + 7),
    "nested tuples of two lengths": lambda number: (number, ("a", "b")[: number % 2], number + 7),
}


def run(num_runs: int) -> list[Result]:
    """Return one figure per row, and one per row emitted."""
    gc.disable()
    try:
        results = []
        for name, make in ROWS.items():
            records = [make(number) for number in range(NUM_RECORDS)]
            results.append(_measured(f"serde {name}", records, encode_column, num_runs))
            results.append(_measured(f"serde {name}, emitted", records, _encode_emitted, num_runs))
        return results
    finally:
        gc.enable()


def _encode_emitted(records: list[Any]) -> bytes:
    return encode_column(list(map(_emitted, records)))


def _measured(name: str, records: list[Any], encode: Callable[[list[Any]], bytes], num_runs: int) -> Result:
    data, pickled = encode(records), cloudpickle.dumps(records, protocol=5)
    if list(_decode(data)) != records:
        raise WrongOutputError(f"{name}: other records are decoded than were encoded")
    steps: dict[str, Callable[[], Any]] = {
        "encode": lambda: encode(records),
        "decode": lambda: _decode(data),
        "cloudpickle": lambda: cloudpickle.dumps(records, protocol=5),
        "unpickle": lambda: pickle.loads(pickled),
    }
    runs: dict[str, list[float]] = {step: [] for step in steps}
    for _ in range(num_runs):
        turns = [{step: _turn_ns(call) for step, call in steps.items()} for _ in range(TURNS_PER_RUN)]
        for step, medians in runs.items():
            medians.append(statistics.median(turn[step] for turn in turns))
    details: dict[str, Any] = {step: round(statistics.median(values)) for step, values in runs.items()}
    details |= {"bytes": len(data) // NUM_RECORDS, "bytes_pickled": len(pickled) // NUM_RECORDS}
    both = [encoded + decoded for encoded, decoded in zip(runs["encode"], runs["decode"], strict=True)]
    details["pickle_to_ours"] = round((details["cloudpickle"] + details["unpickle"]) / statistics.median(both), 2)
    return Result(name, "ns/record", both, details)


def _decode(data: bytes) -> Any:
    return decode_column(memoryview(data), 0, NUM_RECORDS)[0]


def _turn_ns(call: Callable[[], Any]) -> float:
    start_ns = time.thread_time_ns()
    result = call()
    taken_ns = time.thread_time_ns() - start_ns
    del result
    return taken_ns / NUM_RECORDS
