"""The programs of ``bench/programs.py`` by hand in two processes: the cost of exchanging records by key in Python
without any engine.

Each process reads its half, keeps the records of its keys, and sends the others, a thousand in one pickle, to the other
process; a thread reads the received ones.  Only the parsers are called.  Records are not isolated, there is no flow
control, and a failure of one process ends both.

Side:   any.
Output: as of the plain loops.
"""

import json
import multiprocessing
import pickle
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Final, NamedTuple, Protocol

from bench.jobs.program_records import (
    Customer,
    Order,
    parse_customer,
    parse_hit,
    parse_order,
    parse_reading,
    parse_sale,
)
from bench.jobs.work import Found, Work

_BATCH: Final = 1000
_NUM_PROCESSES: Final = 2
_Keyed = Iterator[tuple[str, Any]]


class State(Protocol):
    """The state of all keys."""

    numbers: dict[str, int]
    num_outputs: int

    def take(self, batch: list[tuple[str, Any]]) -> None:
        """Take some records with their keys."""


class Half(NamedTuple):
    """The results of one process, and their times."""

    start_ns: int
    end_ns: int
    num_outputs: int
    numbers: dict[str, int]


class _State:
    def __init__(self) -> None:
        self.keys: dict[str, Any] = {}
        self.numbers: dict[str, int] = {}
        self.num_outputs = 0


def _events(lines: Iterator[str]) -> _Keyed:
    for line in lines:
        event = json.loads(line)
        if event["action"] != "view":
            yield event["user"], event


class _Spending(_State):
    def take(self, batch: list[tuple[str, Any]]) -> None:
        users, numbers = self.keys, self.numbers
        for user, event in batch:
            spent = users.get(user)
            if spent is None:
                spent = users[user] = {"events": 0, "cents": 0}
            spent["events"] += 1
            spent["cents"] += event["price"]
            numbers[user] = spent["cents"]
        self.num_outputs += len(batch)


def _hits(lines: Iterator[str]) -> _Keyed:
    for line in lines:
        hit = parse_hit(line)
        if hit.status < 500:
            yield hit.address, hit


class _Traffic(_State):
    def take(self, batch: list[tuple[str, Any]]) -> None:
        addresses, numbers = self.keys, self.numbers
        for address, hit in batch:
            seen = addresses.get(address)
            if seen is None:
                seen = addresses[address] = {"hits": 0, "bytes": 0, "misses": 0}
            seen["hits"] += 1
            seen["bytes"] += hit.size
            seen["misses"] += hit.status == 404
            numbers[address] = seen["bytes"]
        self.num_outputs += len(batch)


def _readings(lines: Iterator[str]) -> _Keyed:
    for line in lines:
        reading = parse_reading(line)
        if reading.quality == "ok":
            yield reading.sensor, reading


class _Extremes(_State):
    def take(self, batch: list[tuple[str, Any]]) -> None:
        sensors, numbers = self.keys, self.numbers
        for sensor, reading in batch:
            seen = sensors.get(sensor)
            if seen is None:
                seen = sensors[sensor] = {"low": reading.tenths, "high": reading.tenths, "total": 0}
            seen["low"] = min(seen["low"], reading.tenths)
            seen["high"] = max(seen["high"], reading.tenths)
            seen["total"] += reading.tenths
            numbers[sensor] = seen["total"]
        self.num_outputs += len(batch)


def _sales(lines: Iterator[str]) -> _Keyed:
    for line in lines:
        sale = parse_sale(line)
        if sale.country == "DE":
            yield sale.customer, sale


class _Sales(_State):
    def take(self, batch: list[tuple[str, Any]]) -> None:
        customers, numbers = self.keys, self.numbers
        for customer, sale in batch:
            sold = customers.get(customer)
            if sold is None:
                sold = customers[customer] = {"orders": 0, "cents": 0}
            sold["orders"] += 1
            sold["cents"] += sale.cents
            numbers[customer] = sold["cents"]
        self.num_outputs += len(batch)


def _words(lines: Iterator[str]) -> _Keyed:
    for line in lines:
        for word in line.split():
            yield word, len(word)


class _Letters(_State):
    def take(self, batch: list[tuple[str, Any]]) -> None:
        numbers = self.numbers
        for word, letters in batch:
            numbers[word] = numbers.get(word, 0) + letters
        self.num_outputs += len(batch)


def _orders(order_lines: Iterator[str], customer_lines: Iterator[str]) -> _Keyed:
    for line in customer_lines:
        customer = parse_customer(line)
        yield customer.customer, customer
    for line in order_lines:
        order = parse_order(line)
        yield order.customer, order


class _Enriched(_State):
    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[str, list[Order]] = {}

    def take(self, batch: list[tuple[str, Any]]) -> None:
        customers, numbers = self.keys, self.numbers
        for key, record in batch:
            if type(record) is Customer:
                customers[key] = record
                self.take([(key, order) for order in self._waiting.pop(key, ())])
            elif key not in customers:
                self._waiting.setdefault(key, []).append(record)
            else:
                numbers[key] = numbers.get(key, 0) + record.cents * (100 - customers[key].percent_off)
                self.num_outputs += 1


_PROGRAMS: Final[dict[str, tuple[Callable[..., _Keyed], Callable[[], State]]]] = {
    "json_dicts": (_events, _Spending),
    "log_dataclasses": (_hits, _Traffic),
    "csv_namedtuples": (_readings, _Extremes),
    "typed_rows": (_sales, _Sales),
    "text_tuples": (_words, _Letters),
    "two_streams": (_orders, _Enriched),
}


def is_there_for(work: Work) -> bool:
    """Whether the program exists by hand."""
    return work.program in _PROGRAMS


def run(work: Work) -> tuple[int, int, Found]:
    """Return when the first process began, when the last one ended, and what both found.

    Raises:
        ChildProcessError: one of them ended without a result; the other one is ended, too.
    """
    fork = multiprocessing.get_context("fork")  # texts have equal hashes in both processes
    barrier = fork.Barrier(_NUM_PROCESSES)
    results = [fork.Pipe(duplex=False) for _ in range(_NUM_PROCESSES)]
    processes = [
        fork.Process(target=_half, args=(work, number, barrier, connection, results[number][1]), daemon=True)
        for number, connection in enumerate(fork.Pipe())
    ]
    for process in processes:
        process.start()
    halves = _results_of(processes, [receiver for receiver, _ in results])
    numbers = {text: number for half in halves for text, number in half.numbers.items()}
    found = Found(sum(half.num_outputs for half in halves), numbers)
    return min(half.start_ns for half in halves), max(half.end_ns for half in halves), found


def _results_of(processes: Sequence[BaseProcess], receivers: Sequence[Connection]) -> list[Half]:
    """Return the result of each process; do not wait for one that has failed."""
    found: list[Half] = []
    missing = dict(zip(receivers, processes, strict=True))
    try:
        while missing:
            wait([*missing, *(process.sentinel for process in missing.values())])
            for receiver, process in list(missing.items()):
                if receiver.poll():
                    found.append(receiver.recv())
                    del missing[receiver]
                elif not process.is_alive() and not receiver.poll():
                    raise ChildProcessError(f"{process.name} ended with {process.exitcode} and sent no result")
    finally:
        for process in missing.values():
            process.terminate()
        for process in processes:
            process.join()
    return found


def _half(work: Work, number: int, barrier: Any, connection: Connection, results: Connection) -> None:
    """Run the half of one process and send its result."""
    keyed, make = _PROGRAMS[work.program]
    inputs = [each.records(number, _NUM_PROCESSES) for each in work.inputs]
    barrier.wait()
    start_ns = time.monotonic_ns()
    state = _exchanged(number, keyed(*inputs), make(), connection)
    results.send(Half(start_ns, time.monotonic_ns(), state.num_outputs, state.numbers))


def _exchanged(number: int, records: _Keyed, state: State, connection: Connection) -> State:
    received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(connection, received))
    reader.start()
    own: list[tuple[str, Any]] = []
    other: list[tuple[str, Any]] = []
    lists = (own, other) if number == 0 else (other, own)
    for record in records:
        lists[hash(record[0]) & 1].append(record)
        if len(own) >= _BATCH:
            state.take(own)
            own.clear()
        if len(other) >= _BATCH:
            connection.send_bytes(pickle.dumps(other, pickle.HIGHEST_PROTOCOL))
            other.clear()
            _take_all(received, state)
    connection.send_bytes(pickle.dumps(other, pickle.HIGHEST_PROTOCOL))
    connection.send_bytes(b"")
    state.take(own)
    reader.join()
    _take_all(received, state)
    return state


def _read(connection: Connection, received: "queue.SimpleQueue[bytes]") -> None:
    while data := connection.recv_bytes():
        received.put(data)


def _take_all(received: "queue.SimpleQueue[bytes]", state: State) -> None:
    """Take all records that have arrived."""
    while not received.empty():
        state.take(pickle.loads(received.get()))
