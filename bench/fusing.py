"""What a record costs in a chain of ``map``, ``filter`` and ``flat_map``: one operator after the other, and in generated loops.

Side:   any.
Work:   chunks of 1,000 records through one ``OperatorChain`` without a task, on one thread; both ways in turns.
Figure: CPU ns per record (of a flat_map: per result), of each way; with objects reused, and with copies between operators where records
        could change (the default).
Proof:  both ways give the same records and count the same.
"""

import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from bench.jobs.checked import WrongOutputError
from bench.report import Result
from flowlet.fusing.switch import FUSE_VARIABLE
from flowlet.operators.base import OperatorContext
from flowlet.operators.chain import ChainedOperator, OperatorChain
from flowlet.operators.transform import FilterOperator, FlatMapOperator, MapOperator, TransformOperator
from flowlet.records import Chunk, LatencyMarker, Watermark, WatermarkStatus

CHUNK_RECORDS: Final = 1_000
CHUNKS_PER_TURN: Final = 50
TURNS_PER_RUN: Final = 9
WAYS: Final = {"fused": "1", "operators": "0"}
WORDS_PER_LINE: Final = 10


@dataclass(frozen=True)
class Chain:
    """A chain and its records."""

    make: Callable[[], list[TransformOperator]]
    record: Callable[[int], Any]
    per_record: int = 1


def _pair(number: int) -> tuple[str, int]:
    return f"w{number % 97}", number


def _line(number: int) -> str:
    return " ".join(f"w{(number * 7 + at) % 97}" for at in range(WORDS_PER_LINE))


def _around_a_filter(first: Callable[[Any], Any]) -> list[TransformOperator]:
    return [MapOperator(first), FilterOperator(lambda r: r[1] >= 0), MapOperator(lambda r: (r[0], r[1] * 2))]


CHAINS: Final = {
    "map -> filter -> map": Chain(lambda: _around_a_filter(lambda r: (r[0], r[1] + 1)), _pair),
    "five maps": Chain(lambda: [MapOperator(lambda n: n + 1) for _ in range(5)], int),
    "called map -> filter -> map": Chain(lambda: _around_a_filter(lambda r: (str(r[0]), r[1])), _pair),
    "flat_map -> map": Chain(lambda: [FlatMapOperator(lambda line: line.split()), MapOperator(lambda w: (w, 1))], _line, WORDS_PER_LINE),
    "flat_map -> filter -> map": Chain(
        lambda: [FlatMapOperator(lambda line: line.split()), FilterOperator(lambda w: w != "w3"), MapOperator(lambda w: (w, 1))],
        _line,
        WORDS_PER_LINE,
    ),
}


class _Sink:
    """Takes records, and keeps them while it is asked to."""

    def __init__(self) -> None:
        self.kept: list[Any] | None = []

    def collect(self, chunk: Chunk) -> None:
        if self.kept is not None:
            self.kept += chunk.values

    def emit_watermark(self, watermark: Watermark) -> None:
        """Nothing to do."""

    def emit_watermark_status(self, status: WatermarkStatus) -> None:
        """Nothing to do."""

    def emit_latency_marker(self, marker: LatencyMarker) -> None:
        """Nothing to do."""


def _context(index: int, name: str) -> OperatorContext:
    return OperatorContext("bench", 0, 1, 128, name, chain_index=index)


def _opened(chain: Chain, way: str, *, copies: bool) -> tuple[OperatorChain, _Sink]:
    operators, sink = chain.make(), _Sink()
    chained = [ChainedOperator(operator, index - 1, copies=copies and index > 0) for index, operator in enumerate(operators)]
    before = os.environ.get(FUSE_VARIABLE)
    os.environ[FUSE_VARIABLE] = WAYS[way]
    try:
        opened = OperatorChain(chained, {(len(chained) - 1, None): [sink]}, _context)
    finally:
        os.environ.pop(FUSE_VARIABLE)
        os.environ.update({} if before is None else {FUSE_VARIABLE: before})
    opened.open()
    return opened, sink


def _check(opened: dict[str, tuple[OperatorChain, _Sink]], records: list[Any]) -> None:
    """Let both ways process the records once, and compare."""
    for chain, _ in opened.values():
        chain.process_chunk(Chunk(records.copy()))
    (fused, found), (plain, expected) = opened.values()
    if found.kept != expected.kept or fused.counters() != plain.counters():
        raise WrongOutputError(f"{fused!r} gives or counts something else when it is fused")
    found.kept = expected.kept = None


def _turn_ns(chain: OperatorChain, records: list[Any]) -> float:
    chunks = [Chunk(records.copy()) for _ in range(CHUNKS_PER_TURN)]
    start_ns = time.thread_time_ns()
    for chunk in chunks:
        chain.process_chunk(chunk)
    return (time.thread_time_ns() - start_ns) / (CHUNKS_PER_TURN * len(records))


def _measure(chain: Chain, num_runs: int, *, copies: bool) -> dict[str, list[float]]:
    records = [chain.record(number) for number in range(CHUNK_RECORDS)]
    opened = {way: _opened(chain, way, copies=copies) for way in WAYS}
    _check(opened, records)
    runs: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(num_runs):
        turns = [{way: _turn_ns(each, records) / chain.per_record for way, (each, _) in opened.items()} for _ in range(TURNS_PER_RUN)]
        for way, medians in runs.items():
            medians.append(statistics.median(turn[way] for turn in turns))
    return runs


def run(num_runs: int) -> list[Result]:
    """Two figures per chain, with and without copies."""
    gc.disable()
    try:
        return [
            result
            for name, chain in CHAINS.items()
            for copies in (False, True)
            for result in _results(name, chain, num_runs, copies=copies)
        ]
    finally:
        gc.enable()


def _results(name: str, chain: Chain, num_runs: int, *, copies: bool) -> Iterator[Result]:
    runs = _measure(chain, num_runs, copies=copies)
    ratio = statistics.median(runs["operators"]) / statistics.median(runs["fused"])
    for way, values in runs.items():
        details = {"operators_to_fused": round(ratio, 2)} if way == "fused" else {}
        yield Result(f"fusing {name}, {'copies' if copies else 'objects reused'}: {way}", "ns/record", values, details)
